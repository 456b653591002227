"""Nodes come and go: registration and fencing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from workflows.model import fields, offline
from workflows.model.election import decide_all, elect_all
from workflows.model.failures import lose
from workflows.model.outcome import Change, Code, Refused
from workflows.model.state import NO_LEADER, ClusterState, Directory, Node, Partition

#: Characters of an incarnation; the id of its lease's run has them.
LONGEST_INCARNATION = 200


def _directories(rows: Any, path: str) -> tuple[Directory, ...]:
    found: list[Directory] = []
    for place, row in enumerate(fields.a_list(rows, path)):
        here = f"{path}[{place}]"
        if len(fields.a_list(row, here)) != 3:
            raise fields.BadField(here, "must have an id, a path and whether it is online")
        found.append(
            Directory(
                fields.a_string(row[0], f"{here}[0]"),
                fields.a_note(row[1], f"{here}[1]"),
                fields.a_flag(row[2], f"{here}[2]"),
            )
        )
    if len({each.id for each in found}) != len(found):
        raise fields.BadField(path, "names a directory id twice")
    return tuple(found)


def _missing(state: ClusterState, known: Node | None, now: Sequence[Directory]) -> list[Directory]:
    """The directories that the node had and does not name now, offline: those that hold replicas are not forgotten."""
    named = {each.id for each in now}
    gone = [each for each in known.directories if each.id not in named] if known is not None else []
    if not gone or known is None:
        return []
    held = {
        directory
        for _, partition in state.partitions()
        for replica, directory in zip(partition.replicas, partition.directories, strict=True)
        if replica == known.node
    }
    return [replace(each, online=False) for each in gone if each.id in held]


def register(state: ClusterState, command: Mapping[str, Any], _new_id: Callable[[], str]) -> Change:
    """Register a node: {"node", "incarnation", "host", "port", "rack", "directories": [[id, path, online]],
    "lost", "offline", "unclean"}.

    The result's `value` is the broker epoch. A new incarnation, or one that had been fenced, gets a new epoch; the same
    incarnation again only brings its address and directories up to date. A new incarnation leaves the ISRs that have
    other members, and what it leads alone gets a new leader epoch. A directory id that another node has registered is
    refused: somebody copied a disk. A directory that the node does not name any more stays, offline, as long as a
    replica is assigned to it. `lost` are the replicas that the node had in directories which are offline, as rows of
    `replicas.assign_directories`: the last words about them may be missing. `offline` are the
    replicas that the node cannot use although their directories are online, as rows of `offline.report_replicas`; what
    it had reported before and does not name there is usable again. `unclean` is
    unclean.leader.election.enable of the node's server.properties.
    """
    after, number, restarted = _entered(state, command)
    if after is not state:
        after = elect_all(after, number, restarted)
        if after.nodes[number].unclean and (number not in state.nodes or not state.nodes[number].unclean):
            after = decide_all(after, lambda each: each.leader == NO_LEADER)  # who has waited for it
    return Change(after, [{"version": after.version, "value": after.nodes[number].broker_epoch}])


def register_all(state: ClusterState, commands: Mapping[int, Mapping[str, Any]]) -> tuple[ClusterState, dict[int, Any]]:
    """Register all nodes that answered a controller which collected, before anybody is elected; their results.

    All of them are there at once: nobody leaves an ISR for having registered first, and those that were started again
    leave it only where somebody stays who was not. (What has one replica has nobody to wait for. It is elected node by
    node, as it always was: versions are counted in histories.)
    """
    results: dict[int, Any] = {}
    again: list[int] = []
    for node, command in sorted(commands.items()):
        try:
            state, _, restarted = _entered(state, command)
            state = decide_all(state, partial(_only_on, node), again)
            results[node] = []
            if restarted:
                again.append(node)
        except Refused as refused:
            results[node] = [refused.result()]
        except fields.BadField as bad:
            results[node] = [{"error": Code.INVALID_REQUEST, "message": f"The registration is malformed: {bad}."}]
    state = decide_all(state, lambda _: True, again)
    for node, held in results.items():
        if not held:
            held.append({"version": state.version, "value": state.nodes[node].broker_epoch})
    return state, results


def _only_on(node: int, partition: Partition) -> bool:
    return partition.replicas == (node,)


def _entered(state: ClusterState, command: Mapping[str, Any]) -> tuple[ClusterState, int, bool]:
    """The state with a node's registration, its number, and whether it was started again since the last one."""
    number = fields.a_number(fields.need(command, "node", "$"), "$.node", high=(1 << 31) - 1)
    incarnation = fields.a_string(fields.need(command, "incarnation", "$"), "$.incarnation")
    if len(incarnation) > LONGEST_INCARNATION:
        raise fields.BadField("$.incarnation", f"is longer than {LONGEST_INCARNATION} characters")
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
    directories = (*directories, *_missing(state, known, directories))
    again = known is not None and known.incarnation == incarnation and not known.fenced
    epoch = known.broker_epoch if known is not None and again else state.version + 1
    rack = fields.a_string(command.get("rack") or "", "$.rack", empty=True)
    changed = known.changed if known else 0
    unclean = fields.a_flag(command.get("unclean", False), "$.unclean")
    node = Node(number, incarnation, epoch, host, port, directories, changed=changed, rack=rack, unclean=unclean)
    after = lose(state, number, fields.a_list(command.get("lost") or [], "$.lost"))
    after = offline.replace_reports(after, number, command.get("offline") or [], "$.offline")
    restarted = known is not None and known.incarnation != incarnation
    return (after if node == known else after.with_node(node)), number, restarted


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
    after = elect_all(state.with_node(replace(known, fenced=True)), number, restarted=False)
    return Change(after, [{"version": after.version}])
