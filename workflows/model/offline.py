"""Replicas that are offline alone: a file or folder of theirs failed, and their log directory is online. Pure.

KIP-18 wants the controller notified (step 2.4).

A node reports such a replica until the metadata says so. The replica leaves the ISR and, where it leads, another of the
ISR is elected, in the same step; it neither leads nor joins the ISR again before its node reports it online, or
registers without naming it. The last member of the ISR stays in it, without a leader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from workflows.model import fields, replicas
from workflows.model.edits import Edits
from workflows.model.election import decide, unclean_allowed
from workflows.model.outcome import Change, Code, Refused, Result
from workflows.model.replicas import Held
from workflows.model.state import ClusterState, OfflineReplica, Partition

#: Characters of a reason, and of a file's path, at most: they stand in every image.
MAX_REASON = 500
MAX_FILE = 4096


@dataclass(frozen=True, slots=True)
class Report:
    """What a node reports of one of its replicas; `reason` "" means that it is usable again."""

    held: Held
    reason: str
    file: str

    @staticmethod
    def of(row: Any, path: str) -> Report:
        """Read [topic, partition, topic id, directory id, generation, reason, file]. Raises BadField."""
        if len(fields.a_list(row, path)) != 7:
            raise fields.BadField(
                path, "must have a topic, a partition, a topic id, a directory id, a generation, a reason and a file"
            )
        reason = fields.a_note(row[5], f"{path}[5]")
        file = fields.a_note(row[6], f"{path}[6]")
        return Report(Held.of(list(row[:5]), path), reason[:MAX_REASON], file[:MAX_FILE])


def report_replicas(state: ClusterState, command: Mapping[str, Any], _new_id: Callable[[], str]) -> Change:
    """Take replicas offline, or online again: {"node", "epoch", "replicas": [[topic, partition, topic id, directory id,
    generation, reason, file]]}.

    Compare-and-set on the node's broker epoch for all rows, on the topic id for each: what an earlier start reported is
    refused. Where the replica is, is recorded as by `replicas.assign_directories`, unless a higher generation is known.
    Reported twice nothing changes the second time. A row's `value` is the partition epoch after it.
    """
    node = fields.a_number(fields.need(command, "node", "$"), "$.node")
    epoch = fields.a_number(fields.need(command, "epoch", "$"), "$.epoch")
    rows = fields.a_list(fields.need(command, "replicas", "$"), "$.replicas")
    reports = [Report.of(row, f"$.replicas[{place}]") for place, row in enumerate(rows)]
    known = state.nodes.get(node)
    if known is None or known.broker_epoch != epoch:
        now = "not registered" if known is None else f"at broker epoch {known.broker_epoch}"
        raise Refused(Code.STALE_BROKER_EPOCH, f"Node {node} is {now}; it reported under epoch {epoch}.")
    results: list[Result] = []
    edits, quiet = Edits(state), True
    for report in reports:
        held = report.held
        try:
            before, marked = _marked(edits, node, report)
            unclean = unclean_allowed(state, state.topics[held.topic])
            after = decide(before, state.nodes, offline=marked, unclean=unclean)
            # The leader is to hear at once that it waits for this follower no longer.
            quiet = quiet and (after.leader, after.isr) == (before.leader, before.isr)
            edits.put(held.topic, after)
            results.append({"value": after.partition_epoch})
        except Refused as refused:
            results.append(refused.result())
    return edits.change(results, quiet=quiet)


def _marked(edits: Edits, node: int, report: Report) -> tuple[Partition, tuple[OfflineReplica, ...]]:
    """The partition with the replica where the report has it, and its offline replicas after the report."""
    held = report.held
    partition = edits.partition(held.topic, held.partition, held.topic_id)
    if node not in partition.replicas:
        raise Refused(Code.REPLICA_NOT_AVAILABLE, f"Node {node} holds no replica of {held.topic}-{held.partition}.")
    place = partition.replicas.index(node)
    # A move that is announced has raised the generation here: the replica that failed is one below it then.
    if held.directory and held.generation >= partition.generations[place]:
        partition = replicas.placed(partition, place, held.directory, held.generation)
    return partition, _with(partition, node, report)


def _with(partition: Partition, node: int, report: Report | None) -> tuple[OfflineReplica, ...]:
    others = [each for each in partition.offline if each.node != node]
    if report is not None and report.reason:
        others.append(OfflineReplica(node, report.reason, report.file))
    return tuple(sorted(others, key=lambda each: each.node))


def replace_reports(state: ClusterState, node: int, rows: Any, path: str) -> ClusterState:
    """The state in which exactly these replicas of the node are reported offline: what a registration names.

    Nobody is elected yet. Rows as in `report_replicas`; what would be refused there is passed over. Raises BadField.
    """
    named: dict[tuple[str, int], Report] = {}
    for place, row in enumerate(fields.a_list(rows, path)):
        report = Report.of(row, f"{path}[{place}]")
        named[report.held.topic, report.held.partition] = report
    known = [
        (topic.name, partition.index)
        for topic, partition in state.partitions()
        if partition.offline and partition.offline_on(node) is not None
    ]
    edits = Edits(state)
    for topic, index in dict.fromkeys([*known, *named]):
        nothing = Report(Held(topic, index, "", "", 0), "", "")
        try:
            before, marked = _marked(edits, node, named.get((topic, index), nothing))
        except Refused:
            continue
        if marked != before.offline:
            before = replace(before, offline=marked, partition_epoch=before.partition_epoch + 1)
        edits.put(topic, before)
    return edits.change([], quiet=True).state


def offline_replicas(state: ClusterState) -> Iterator[tuple[str, Partition, OfflineReplica]]:
    """Every replica that is reported offline, with its topic's name and its partition."""
    for topic, partition in state.partitions():
        for each in partition.offline:
            yield topic.name, partition, each
