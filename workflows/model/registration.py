"""Nodes come and go: registration, fencing, and who leads a partition afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from workflows.model import fields
from workflows.model.outcome import Change, Code, Refused
from workflows.model.state import NO_LEADER, ClusterState, Directory, Node, Partition, Topic


def elect(partition: Partition, nodes: Mapping[int, Node], restarted: int | None = None) -> Partition:
    """The partition under the leader it should have: the old one while it can serve, else the first replica in the ISR
    that can.

    A leader that cannot serve leaves; with nobody to follow the partition has none (-1) until one is back, and the ISR
    keeps its last members. The leader epoch rises with every election, also of the same node after it `restarted`.
    """

    def can_serve(node: int) -> bool:
        place = partition.replicas.index(node)
        return node in nodes and nodes[node].holds(partition.directories[place])

    candidates = [node for node in partition.replicas if node in partition.isr and can_serve(node)]
    if partition.leader in candidates and partition.leader != restarted:
        return partition
    if not candidates:
        if partition.leader == NO_LEADER:
            return partition
        return replace(partition, leader=NO_LEADER, partition_epoch=partition.partition_epoch + 1)
    leader = partition.leader if partition.leader in candidates else candidates[0]
    return replace(
        partition,
        leader=leader,
        leader_epoch=partition.leader_epoch + 1,
        partition_epoch=partition.partition_epoch + 1,
    )


def _elect_all(state: ClusterState, node: int, restarted: bool) -> ClusterState:
    """All partitions with a replica on the node, under the leaders they should have."""
    changed: list[Topic] = []
    for topic in state.topics.values():
        if not any(node in partition.replicas for partition in topic.partitions):
            continue
        partitions = tuple(
            elect(each, state.nodes, node if restarted else None) if node in each.replicas else each
            for each in topic.partitions
        )
        if partitions != topic.partitions:
            changed.append(replace(topic, partitions=partitions))
    return state.with_topics(*changed) if changed else state


def _directories(rows: Any, path: str) -> tuple[Directory, ...]:
    found: list[Directory] = []
    for place, row in enumerate(fields.a_list(rows, path)):
        here = f"{path}[{place}]"
        if len(fields.a_list(row, here)) != 3:
            raise fields.BadField(here, "must have an id, a path and whether it is online")
        found.append(
            Directory(
                fields.a_string(row[0], f"{here}[0]"),
                fields.a_string(row[1], f"{here}[1]", empty=True),
                fields.a_flag(row[2], f"{here}[2]"),
            )
        )
    if len({each.id for each in found}) != len(found):
        raise fields.BadField(path, "names a directory id twice")
    return tuple(found)


def register(state: ClusterState, command: Mapping[str, Any], _new_id: Callable[[], str]) -> Change:
    """Register a node: {"node", "incarnation", "host", "port", "directories": [[id, path, online]]}.

    The result's `value` is the broker epoch. A new incarnation, or one that had been fenced, gets a new epoch and its
    partitions a new leader epoch; the same incarnation again only brings its address and directories up to date. A
    directory id that another node has registered is refused: somebody copied a disk.
    """
    number = fields.a_number(fields.need(command, "node", "$"), "$.node", high=(1 << 31) - 1)
    incarnation = fields.a_string(fields.need(command, "incarnation", "$"), "$.incarnation")
    host = fields.a_string(fields.need(command, "host", "$"), "$.host")
    port = fields.a_number(fields.need(command, "port", "$"), "$.port", 0, 65_535)
    directories = _directories(fields.need(command, "directories", "$"), "$.directories")
    for other in state.nodes.values():
        shared = {each.id for each in other.directories} & {each.id for each in directories}
        if other.node != number and shared:
            raise Refused(
                Code.INVALID_REQUEST,
                f"Directory id {min(shared)} of node {number} is registered by node {other.node} already; "
                "format the copied disk anew.",
            )
    known = state.nodes.get(number)
    again = known is not None and known.incarnation == incarnation and not known.fenced
    epoch = known.broker_epoch if known is not None and again else state.version + 1
    node = Node(number, incarnation, epoch, host, port, directories, changed=known.changed if known else 0)
    if node == known:
        return Change(state, [{"version": state.version, "value": epoch}])
    after = _elect_all(state.with_node(node), number, restarted=not again)
    return Change(after, [{"version": after.version, "value": epoch}])


def lease_ended(state: ClusterState, command: Mapping[str, Any], _new_id: Callable[[], str]) -> Change:
    """Fence a node: {"node", "incarnation"}. A node sends it when it stops; the controller when its lease is lost and a
    probe failed.

    Nothing happens when another incarnation is registered or it is fenced already.
    """
    number = fields.a_number(fields.need(command, "node", "$"), "$.node")
    incarnation = fields.a_string(fields.need(command, "incarnation", "$"), "$.incarnation")
    known = state.nodes.get(number)
    if known is None or known.incarnation != incarnation or known.fenced:
        return Change(state, [{"version": state.version}])
    after = _elect_all(state.with_node(replace(known, fenced=True)), number, restarted=False)
    return Change(after, [{"version": after.version}])
