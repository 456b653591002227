"""AlterPartition (KIP-497): a leader requests another ISR, which may complete a reassignment."""

from __future__ import annotations

from collections.abc import Callable

from storage_node.model.commands import AlterPartitions, IsrChange
from storage_node.model.error_codes import ErrorCode
from storage_node.model.metadata import NodeImage, PartitionImage
from workflows.model.metadata.edits import Edits
from workflows.model.metadata.election import decide, unclean_allowed
from workflows.model.metadata.outcome import Change, Refused, Result
from workflows.model.metadata.state import ClusterState


def alter_partitions(state: ClusterState, command: AlterPartitions, _new_id: Callable[[], str]) -> Change:
    """Apply the ISR changes of a leader; each row succeeds or fails by itself, and its `value` is the new partition
    epoch.

    A row with the current ISR succeeds whatever its partition epoch: the response to the first request was lost. A
    change that completes a reassignment and so elects another leader is applied, and its result is NEW_LEADER_ELECTED.
    """
    number = command.node
    edits, results, quiet = Edits(state), [], True
    for requested in command.partitions:
        try:
            before = edits.partition(requested.partition, requested.topic_id)
            after = _altered(state, number, requested, before)
            edits.put(requested.partition.topic, after)
            quiet = quiet and (after.leader, after.replicas) == (before.leader, before.replicas)
            results.append(_result(number, after))
        except Refused as refused:
            results.append(refused.result())
    return edits.change(results, quiet=quiet)


def _result(number: int, after: PartitionImage) -> Result:
    if after.leader == number:
        return {"value": after.partition_epoch}
    message = f"Node {after.leader} leads the partition now: the reassignment is complete."
    return {"error": ErrorCode.NEW_LEADER_ELECTED, "message": message, "value": after.partition_epoch}


def _altered(state: ClusterState, number: int, requested: IsrChange, before: PartitionImage) -> PartitionImage:
    """Return the partition with the ISR that its leader requests; raises Refused as Kafka's controller does."""
    name = str(requested.partition)
    if requested.leader_epoch < before.leader_epoch:
        raise Refused(ErrorCode.FENCED_LEADER_EPOCH, f"The leader epoch of {name} is {before.leader_epoch} by now.")
    if requested.leader_epoch > before.leader_epoch:
        raise Refused(ErrorCode.UNKNOWN_LEADER_EPOCH, f"The leader epoch of {name} is only {before.leader_epoch}.")
    if number != before.leader:
        raise Refused(ErrorCode.INVALID_REQUEST, f"Node {number} does not lead {name}; node {before.leader} does.")
    if requested.partition_epoch != before.partition_epoch:
        if set(requested.members) == set(before.isr):
            return before
        raise Refused(ErrorCode.INVALID_UPDATE_VERSION, f"The partition epoch of {name} is {before.partition_epoch}.")
    members = requested.members
    if number not in members or len(set(members)) != len(members) or not set(members) <= set(before.replicas):
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            f"The ISR {list(members)} of {name} must have its leader and be a part of {list(before.replicas)}.",
        )
    places = dict(zip(before.replicas, before.directories, strict=True))
    for node, epoch in requested.isr:
        problem = _ineligible(state.nodes.get(node), epoch, places[node])
        if problem or (problem := _reported(before, node)):
            raise Refused(ErrorCode.INELIGIBLE_REPLICA, f"Node {node} cannot be in the ISR of {name}: {problem}.")
    topic = state.topics[requested.partition.topic]
    return decide(before, state.nodes, isr=members, unclean=unclean_allowed(state, topic))


def _reported(partition: PartitionImage, node: int) -> str | None:
    known = partition.offline_on(node)
    return None if known is None else f"its node reports it offline: {known.reason}"


def _ineligible(node: NodeImage | None, epoch: int, directory: str) -> str | None:
    """Return why a replica cannot join the ISR (KIP-903), or None."""
    if node is None:
        return "it is not registered"
    if node.fenced:
        return "it is fenced"
    if epoch not in (-1, node.broker_epoch):
        return f"it was started again, its broker epoch is {node.broker_epoch}, not {epoch}"
    return None if node.holds(directory) else "its log directory is offline"
