"""AlterPartitionReassignments and ElectLeaders: a result per partition, with Kafka's messages."""

from __future__ import annotations

from collections.abc import Callable

from storage_node.model.assignment import after_cancel, assignment_problem
from storage_node.model.commands import AlterReassignments, ElectLeaders
from storage_node.model.error_codes import ErrorCode
from storage_node.model.ids import NO_LEADER, TopicPartition
from storage_node.model.metadata import PartitionImage
from workflows.model.metadata.edits import Edits
from workflows.model.metadata.election import decide, unclean_allowed
from workflows.model.metadata.outcome import Change, Reassigned, Refused
from workflows.model.metadata.state import ClusterState


def alter_reassignments(state: ClusterState, command: AlterReassignments, _new_id: Callable[[], str]) -> Change:
    """Begin reassignments, change their targets, or cancel them. Each row succeeds or fails by itself, and is applied
    to the result of the rows before it.

    A mere change of the order, and a removal whose remaining replicas are in sync, complete at once.
    `Change.reassigned` has the reassignments that are in progress after the command, `Change.completed` those that have
    completed at once.
    """
    may_change, requester = command.may_change_factor, f"{command.principal} {command.client}".strip()
    edits, results = Edits(state), []
    reassigned: dict[tuple[str, int], Reassigned] = {}
    completed: dict[tuple[str, int], Reassigned] = {}
    for each in command.partitions:
        topic, index, wanted = each.partition.topic, each.partition.partition, each.replicas
        try:
            before = _found(state, edits, each.partition)
            if wanted is None:
                after = _cancelled(state, topic, before)
                reassigned.pop((topic, index), None)
            else:
                after = _reassigned(state, topic, before, wanted, may_change)
                reassigned.pop((topic, index), None)
                if after.assignment.reassigning:
                    completed.pop((topic, index), None)
                    reassigned[topic, index] = _begun(state, topic, after, requester)
                elif after is not before:
                    completed[topic, index] = _completed(state, topic, before, after, requester)
            edits.put(topic, after)
            results.append({"value": after.partition_epoch})
        except Refused as refused:
            results.append(refused.result())
    return edits.change(results, quiet=False, reassigned=list(reassigned.values()), completed=list(completed.values()))


def _found(state: ClusterState, edits: Edits, tp: TopicPartition) -> PartitionImage:
    held = state.topics.get(tp.topic)
    if held is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {tp.topic}.")
    if held.partition(tp.partition) is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {tp.topic}:{tp.partition}.")
    return edits.partition(tp)


def _reassigned(
    state: ClusterState, topic: str, before: PartitionImage, wanted: tuple[int, ...], may_change: bool
) -> PartitionImage:
    if problem := assignment_problem(wanted, state.nodes):
        raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem)
    size = len(before.assignment.target)
    if not may_change and len(wanted) != size:
        raise Refused(
            ErrorCode.INVALID_REPLICATION_FACTOR, f"The replication factor is changed from {size} to {len(wanted)}"
        )
    assignment = before.assignment.reassign(wanted, before.isr)
    return decide(before, state.nodes, assignment=assignment, unclean=unclean_allowed(state, state.topics[topic]))


def _cancelled(state: ClusterState, topic: str, before: PartitionImage) -> PartitionImage:
    if not before.assignment.reassigning:
        raise Refused(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, "")
    unclean = unclean_allowed(state, state.topics[topic])
    assignment, isr = after_cancel(before.assignment, before.isr)
    if not isr:
        if not unclean:
            raise Refused(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Unable to revert partition assignment for {topic}:{before.index} because it would require an unclean "
                "leader election.",
            )
        isr = assignment.replicas[:1]
    return decide(before, state.nodes, assignment=assignment, isr=isr, unclean=unclean)


def _begun(state: ClusterState, topic: str, after: PartitionImage, requester: str) -> Reassigned:
    held = after.assignment
    return Reassigned(
        topic, state.topics[topic].id, after.index, held.original, held.target, held.adding, held.removing, requester
    )


def _completed(
    state: ClusterState, topic: str, before: PartitionImage, after: PartitionImage, requester: str
) -> Reassigned:
    original = before.assignment.original or before.replicas
    dropped = tuple(node for node in before.replicas if node not in after.replicas)
    return Reassigned(topic, state.topics[topic].id, after.index, original, after.replicas, (), dropped, requester)


def elect_leaders(state: ClusterState, command: ElectLeaders, _new_id: Callable[[], str]) -> Change:
    """Elect the preferred replicas, or, if `unclean`, any replica that can lead for partitions without a leader.

    A requested unclean election ignores unclean.leader.election.enable, as in Kafka, and may elect even a replica that
    is only being added.
    """
    edits, results = Edits(state), []
    for tp in command.partitions:
        try:
            after = _elected(state, edits, tp, command.unclean)
            edits.put(tp.topic, after)
            results.append({"value": after.leader})
        except Refused as refused:
            results.append(refused.result())
    return edits.change(results, quiet=False)


def _elected(state: ClusterState, edits: Edits, tp: TopicPartition, unclean: bool) -> PartitionImage:
    held = state.topics.get(tp.topic)
    if held is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {tp.topic}")
    if held.partition(tp.partition) is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {tp}")
    before = edits.partition(tp)
    preferred = before.replicas[0]
    if before.leader == preferred or (unclean and before.leader != NO_LEADER):
        raise Refused(ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
    after = decide(before, state.nodes, prefer=None if unclean else preferred, unclean=unclean, even_added=unclean)
    if unclean and after.leader == NO_LEADER:
        raise Refused(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "Eligible topic partition leaders are not available.")
    if not unclean and after.leader != preferred:
        raise Refused(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available.")
    return after
