"""AlterPartition (KIP-497): a leader says which of its replicas are in sync, and that may complete a reassignment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from workflows.model import fields
from workflows.model.edits import Edits
from workflows.model.election import decide, unclean_allowed
from workflows.model.outcome import Change, Code, Refused, Result
from workflows.model.state import ClusterState, Node, Partition


@dataclass(frozen=True, slots=True)
class Wanted:
    """A row of the command; `isr` holds (node, broker epoch), -1 for an epoch that the leader does not know."""

    topic: str
    partition: int
    topic_id: str
    leader_epoch: int
    partition_epoch: int
    isr: tuple[tuple[int, int], ...]

    @property
    def members(self) -> tuple[int, ...]:
        """The nodes alone."""
        return tuple(node for node, _ in self.isr)

    @staticmethod
    def of(row: Any, path: str) -> Wanted:
        """Read [topic, partition, topic id, leader epoch, partition epoch, [[node, broker epoch]]]."""
        if (sent := _as_sent(row)) is not None:
            return sent
        if len(fields.a_list(row, path)) != 6:
            raise fields.BadField(path, "must have a topic, a partition, a topic id, two epochs and an ISR")
        members = []
        for place, member in enumerate(fields.a_list(row[5], f"{path}[5]")):
            here = f"{path}[5][{place}]"
            if len(fields.a_list(member, here)) != 2:
                raise fields.BadField(here, "must have a node and a broker epoch")
            members.append((fields.a_number(member[0], here), fields.a_number(member[1], here, -1)))
        return Wanted(
            fields.a_string(row[0], f"{path}[0]"),
            fields.a_number(row[1], f"{path}[1]"),
            fields.a_string(row[2], f"{path}[2]", empty=True),
            fields.a_number(row[3], f"{path}[3]", -1),
            fields.a_number(row[4], f"{path}[4]", -1),
            tuple(members),
        )


def _as_sent(row: Any) -> Wanted | None:
    """The row as nodes send it, thousands at once; None for a malformed row, whose error is found field by field."""
    if not isinstance(row, list) or len(row) != 6 or not isinstance(row[5], list):
        return None
    topic, index, topic_id, leader_epoch, partition_epoch, rows = row
    isr = [(each[0], each[1]) for each in rows if isinstance(each, list) and len(each) == 2]
    if len(isr) != len(rows) or not (isinstance(topic, str) and isinstance(topic_id, str) and topic):
        return None
    nodes, epochs = [node for node, _ in isr], [epoch for _, epoch in isr]
    if not fields.are_numbers([index, *nodes]) or not fields.are_numbers([leader_epoch, partition_epoch, *epochs], -1):
        return None
    return Wanted(topic, index, topic_id, leader_epoch, partition_epoch, tuple(isr))


def alter_partitions(state: ClusterState, command: Mapping[str, Any], _new_id: Callable[[], str]) -> Change:
    """{"node", "partitions": [[topic, partition, topic id, leader epoch, partition epoch, [[node, broker epoch]]]]}.

    Each row is taken or refused by itself; the `value` of one that is taken is the partition epoch after it. A row that
    asks for what holds already succeeds whatever its partition epoch: the answer to the first one was lost. When the
    change completes a reassignment and takes the leadership from the node, it is made and told as NEW_LEADER_ELECTED.
    """
    number = fields.a_number(fields.need(command, "node", "$"), "$.node")
    rows = fields.a_list(fields.need(command, "partitions", "$"), "$.partitions")
    asked = [Wanted.of(row, f"$.partitions[{place}]") for place, row in enumerate(rows)]
    edits, results, quiet = Edits(state), [], True
    for wanted in asked:
        try:
            before = edits.partition(wanted.topic, wanted.partition, wanted.topic_id)
            after = _altered(state, number, wanted, before)
            edits.put(wanted.topic, after)
            quiet = quiet and (after.leader, after.replicas) == (before.leader, before.replicas)
            results.append(_answer(number, after))
        except Refused as refused:
            results.append(refused.result())
    return edits.change(results, quiet=quiet)


def _answer(number: int, after: Partition) -> Result:
    if after.leader == number:
        return {"value": after.partition_epoch}
    message = f"Node {after.leader} leads the partition now: the reassignment is complete."
    return {"error": Code.NEW_LEADER_ELECTED, "message": message, "value": after.partition_epoch}


def _altered(state: ClusterState, number: int, wanted: Wanted, before: Partition) -> Partition:
    """The partition with the ISR that its leader wants; raises Refused as Kafka's controller does."""
    name = f"{wanted.topic}-{wanted.partition}"
    if wanted.leader_epoch < before.leader_epoch:
        raise Refused(Code.FENCED_LEADER_EPOCH, f"The leader epoch of {name} is {before.leader_epoch} by now.")
    if wanted.leader_epoch > before.leader_epoch:
        raise Refused(Code.UNKNOWN_LEADER_EPOCH, f"The leader epoch of {name} is only {before.leader_epoch}.")
    if number != before.leader:
        raise Refused(Code.INVALID_REQUEST, f"Node {number} does not lead {name}; node {before.leader} does.")
    if wanted.partition_epoch != before.partition_epoch:
        if set(wanted.members) == set(before.isr):
            return before
        raise Refused(Code.INVALID_UPDATE_VERSION, f"The partition epoch of {name} is {before.partition_epoch}.")
    members = wanted.members
    if number not in members or len(set(members)) != len(members) or not set(members) <= set(before.replicas):
        raise Refused(
            Code.INVALID_REQUEST,
            f"The ISR {list(members)} of {name} must have its leader and be a part of {list(before.replicas)}.",
        )
    places = dict(zip(before.replicas, before.directories, strict=True))
    for node, epoch in wanted.isr:
        problem = _ineligible(state.nodes.get(node), epoch, places[node])
        if problem or (problem := _reported(before, node)):
            raise Refused(Code.INELIGIBLE_REPLICA, f"Node {node} cannot be in the ISR of {name}: {problem}.")
    topic = state.topics[wanted.topic]
    return decide(before, state.nodes, isr=members, unclean=unclean_allowed(state, topic))


def _reported(partition: Partition, node: int) -> str | None:
    known = partition.offline_on(node)
    return None if known is None else f"its node reports it offline: {known.reason}"


def _ineligible(node: Node | None, epoch: int, directory: str) -> str | None:
    """Why a replica cannot be in sync (KIP-903), or None."""
    if node is None:
        return "it is not registered"
    if node.fenced:
        return "it is fenced"
    if epoch not in (-1, node.broker_epoch):
        return f"it was started again, its broker epoch is {node.broker_epoch}, not {epoch}"
    return None if node.holds(directory) else "its log directory is offline"
