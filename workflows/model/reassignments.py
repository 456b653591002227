"""AlterPartitionReassignments and ElectLeaders: what an operator asks for, answered per partition in Kafka's words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from workflows.model import fields, topic_rules
from workflows.model.assignment import after_cancel
from workflows.model.edits import Edits
from workflows.model.election import decide, unclean_allowed
from workflows.model.outcome import Change, Code, Reassigned, Refused
from workflows.model.state import NO_LEADER, ClusterState, Partition

_ANY = (-(1 << 31), (1 << 31) - 1)
#: Who asked is kept in histories: nobody's name is longer than this.
MAX_WHO = 200


def alter_reassignments(state: ClusterState, command: Mapping[str, Any], _new_id: Callable[[], str]) -> Change:
    """{"partitions": [[topic, partition, [nodes] | null]], "may_change_factor"?: bool, "principal"?, "client"?}.

    Begins a reassignment, gives one that is under way another target, or (null) cancels it; rows are taken or refused
    by themselves, later ones on top of earlier ones. A mere change of the order, and a removal whose remaining replicas
    are in sync, are done when the answer is given. `Change.reassigned` names those that are under way after it,
    `Change.settled` those that were done at once.
    """
    rows = fields.a_list(fields.need(command, "partitions", "$"), "$.partitions")
    may_change = fields.a_flag(command.get("may_change_factor", True), "$.may_change_factor")
    who = " ".join(
        fields.a_string(command.get(key) or "", f"$.{key}", empty=True)[:MAX_WHO] for key in ("principal", "client")
    ).strip()
    asked = [_row(row, f"$.partitions[{place}]") for place, row in enumerate(rows)]
    edits, results = Edits(state), []
    reassigned: dict[tuple[str, int], Reassigned] = {}
    settled: dict[tuple[str, int], Reassigned] = {}
    for topic, index, wanted in asked:
        try:
            before = _found(state, edits, topic, index)
            if wanted is None:
                after = _cancelled(state, topic, before)
                reassigned.pop((topic, index), None)
            else:
                after = _reassigned(state, topic, before, wanted, may_change)
                reassigned.pop((topic, index), None)
                if after.assignment.reassigning:
                    settled.pop((topic, index), None)
                    reassigned[topic, index] = _told(state, topic, after, who)
                elif after is not before:
                    settled[topic, index] = _settled(state, topic, before, after, who)
            edits.put(topic, after)
            results.append({"value": after.partition_epoch})
        except Refused as refused:
            results.append(refused.result())
    return edits.change(results, quiet=False, reassigned=list(reassigned.values()), settled=list(settled.values()))


def _row(row: Any, path: str) -> tuple[str, int, tuple[int, ...] | None]:
    if len(fields.a_list(row, path)) != 3:
        raise fields.BadField(path, "must have a topic, a partition, and nodes or null")
    nodes = None
    if row[2] is not None:
        nodes = tuple(fields.a_number(each, f"{path}[2]", *_ANY) for each in fields.a_list(row[2], f"{path}[2]"))
    return fields.a_string(row[0], f"{path}[0]", empty=True), fields.a_number(row[1], f"{path}[1]", *_ANY), nodes


def _found(state: ClusterState, edits: Edits, topic: str, index: int) -> Partition:
    held = state.topics.get(topic)
    if held is None:
        raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {topic}.")
    if not 0 <= index < len(held.partitions):
        raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {topic}:{index}.")
    return edits.partition(topic, index)


def _reassigned(
    state: ClusterState, topic: str, before: Partition, wanted: tuple[int, ...], may_change: bool
) -> Partition:
    if problem := topic_rules.assignment_problem(wanted, state.nodes):
        raise Refused(Code.INVALID_REPLICA_ASSIGNMENT, problem)
    size = len(before.assignment.target)
    if not may_change and len(wanted) != size:
        raise Refused(
            Code.INVALID_REPLICATION_FACTOR, f"The replication factor is changed from {size} to {len(wanted)}"
        )
    assignment = before.assignment.reassign(wanted, before.isr)
    return decide(before, state.nodes, assignment=assignment, unclean=unclean_allowed(state, state.topics[topic]))


def _cancelled(state: ClusterState, topic: str, before: Partition) -> Partition:
    if not before.assignment.reassigning:
        raise Refused(Code.NO_REASSIGNMENT_IN_PROGRESS, "")
    unclean = unclean_allowed(state, state.topics[topic])
    assignment, isr = after_cancel(before.assignment, before.isr)
    if not isr:
        if not unclean:
            raise Refused(
                Code.INVALID_REPLICA_ASSIGNMENT,
                f"Unable to revert partition assignment for {topic}:{before.index} because it would require an unclean "
                "leader election.",
            )
        isr = assignment.replicas[:1]
    return decide(before, state.nodes, assignment=assignment, isr=isr, unclean=unclean)


def _told(state: ClusterState, topic: str, after: Partition, who: str) -> Reassigned:
    held = after.assignment
    return Reassigned(
        topic, state.topics[topic].id, after.index, held.original, held.target, held.adding, held.removing, who
    )


def _settled(state: ClusterState, topic: str, before: Partition, after: Partition, who: str) -> Reassigned:
    original = before.assignment.original or before.replicas
    dropped = tuple(node for node in before.replicas if node not in after.replicas)
    return Reassigned(topic, state.topics[topic].id, after.index, original, after.replicas, (), dropped, who)


def elect_leaders(state: ClusterState, command: Mapping[str, Any], _new_id: Callable[[], str]) -> Change:
    """{"partitions": [[topic, partition]], "unclean": bool}: the preferred replica leads, or, `unclean`, any that can
    where nobody does.

    Who asks for an unclean election gets it whatever unclean.leader.election.enable says, as in Kafka, and if need be a
    replica that was only being added.
    """
    rows = fields.a_list(fields.need(command, "partitions", "$"), "$.partitions")
    unclean = fields.a_flag(command.get("unclean", False), "$.unclean")
    edits, results = Edits(state), []
    for place, row in enumerate(rows):
        path = f"$.partitions[{place}]"
        if len(fields.a_list(row, path)) != 2:
            raise fields.BadField(path, "must have a topic and a partition")
        topic = fields.a_string(row[0], f"{path}[0]", empty=True)
        index = fields.a_number(row[1], f"{path}[1]", *_ANY)
        try:
            after = _elected(state, edits, topic, index, unclean)
            edits.put(topic, after)
            results.append({"value": after.leader})
        except Refused as refused:
            results.append(refused.result())
    return edits.change(results, quiet=False)


def _elected(state: ClusterState, edits: Edits, topic: str, index: int, unclean: bool) -> Partition:
    held = state.topics.get(topic)
    if held is None:
        raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {topic}")
    if not 0 <= index < len(held.partitions):
        raise Refused(Code.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {topic}-{index}")
    before = edits.partition(topic, index)
    preferred = before.replicas[0]
    if before.leader == preferred or (unclean and before.leader != NO_LEADER):
        raise Refused(Code.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
    after = decide(before, state.nodes, prefer=None if unclean else preferred, unclean=unclean, even_added=unclean)
    if unclean and after.leader == NO_LEADER:
        raise Refused(Code.ELIGIBLE_LEADERS_NOT_AVAILABLE, "Eligible topic partition leaders are not available.")
    if not unclean and after.leader != preferred:
        raise Refused(Code.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available.")
    return after
