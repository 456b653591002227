"""Replicas that are offline alone: a file or folder of theirs failed, and their log directory is online. Pure.

KIP-18 requires that the controller is notified (step 2.4).

A node reports such a replica until the metadata has it as offline. The replica leaves the ISR, and if it leads, another
member of the ISR is elected in the same step; it neither leads nor joins the ISR again before its node reports it
online, or registers without naming it. The last member of the ISR stays in it, without a leader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from storage_node.model.commands import ReplicaReport, ReportReplicas
from storage_node.model.error_codes import ErrorCode
from storage_node.model.ids import TopicPartition
from storage_node.model.metadata import OfflineReplica, PartitionImage
from workflows.model.metadata import replicas
from workflows.model.metadata.edits import Edits
from workflows.model.metadata.election import decide, unclean_allowed
from workflows.model.metadata.outcome import Change, Refused, Result
from workflows.model.metadata.state import ClusterState


def report_replicas(state: ClusterState, command: ReportReplicas, _new_id: Callable[[], str]) -> Change:
    """Take replicas offline, or online again.

    Compare-and-set on the node's broker epoch for all rows, on the topic id for each: reports of an earlier incarnation
    are rejected. A replica's directory is recorded as by `replicas.assign_directories`, unless a higher generation is
    known. Applied twice, the command changes nothing the second time. A row's `value` is the new partition epoch.
    """
    node, epoch = command.node, command.epoch
    known = state.nodes.get(node)
    if known is None or known.broker_epoch != epoch:
        now = "not registered" if known is None else f"at broker epoch {known.broker_epoch}"
        raise Refused(ErrorCode.STALE_BROKER_EPOCH, f"Node {node} is {now}; it reported under epoch {epoch}.")
    results: list[Result] = []
    edits, quiet = Edits(state), True
    for report in command.replicas:
        topic = report.partition.topic
        try:
            before, marked = _marked(edits, node, report)
            unclean = unclean_allowed(state, state.topics[topic])
            after = decide(before, state.nodes, offline=marked, unclean=unclean)
            # The leader must learn at once that it no longer waits for this follower.
            quiet = quiet and (after.leader, after.isr) == (before.leader, before.isr)
            edits.put(topic, after)
            results.append({"value": after.partition_epoch})
        except Refused as refused:
            results.append(refused.result())
    return edits.change(results, quiet=quiet)


def _marked(edits: Edits, node: int, report: ReplicaReport) -> tuple[PartitionImage, tuple[OfflineReplica, ...]]:
    """Return the partition with the replica in the reported directory, and its offline replicas after the report."""
    partition = edits.partition(report.partition, report.topic_id)
    if node not in partition.replicas:
        raise Refused(ErrorCode.REPLICA_NOT_AVAILABLE, f"Node {node} holds no replica of {report.partition}.")
    place = partition.replicas.index(node)
    # A requested move has raised the generation in the metadata: that of the failed replica is one below then.
    if report.directory_id and report.generation >= partition.generations[place]:
        partition = replicas.placed(partition, place, report.directory_id, report.generation)
    return partition, _with(partition, node, report)


def _with(partition: PartitionImage, node: int, report: ReplicaReport) -> tuple[OfflineReplica, ...]:
    others = [each for each in partition.offline if each.node != node]
    if report.reason:
        others.append(OfflineReplica(node, report.reason, report.file))
    return tuple(sorted(others, key=lambda each: each.node))


def replace_reports(state: ClusterState, node: int, reports: Iterable[ReplicaReport]) -> ClusterState:
    """Return the state in which exactly these replicas of the node are offline: those that its registration names.

    No leader is elected yet. Reports that `report_replicas` would reject are skipped.
    """
    named = {report.partition: report for report in reports}
    known = [
        TopicPartition(topic.name, partition.index)
        for topic, partition in state.partitions()
        if partition.offline and partition.offline_on(node) is not None
    ]
    edits = Edits(state)
    for tp in dict.fromkeys([*known, *named]):
        try:
            before, marked = _marked(edits, node, named.get(tp) or ReplicaReport(tp, "", "", 0))
        except Refused:
            continue
        if marked != before.offline:
            before = replace(before, offline=marked, partition_epoch=before.partition_epoch + 1)
        edits.put(tp.topic, before)
    return edits.change([], quiet=True).state


def offline_replicas(state: ClusterState) -> Iterator[tuple[str, PartitionImage, OfflineReplica]]:
    """Yield every replica that is reported offline, with its topic's name and its partition."""
    for topic, partition in state.partitions():
        for each in partition.offline:
            yield topic.name, partition, each
