"""Registration and fencing of nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from storage_node.model.commands import LeaseEnded, Registration
from storage_node.model.error_codes import ErrorCode
from storage_node.model.ids import NO_LEADER
from storage_node.model.metadata import DirectoryRegistration, NodeImage, PartitionImage
from workflows.model.metadata import offline, replicas
from workflows.model.metadata.election import decide_all, elect_all
from workflows.model.metadata.failures import assign_offline
from workflows.model.metadata.outcome import Change, Refused
from workflows.model.metadata.state import ClusterState


def _missing(
    state: ClusterState, known: NodeImage | None, now: Sequence[DirectoryRegistration]
) -> list[DirectoryRegistration]:
    """Return, as offline, the node's directories that it no longer names and that replicas are assigned to."""
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


def register(state: ClusterState, command: Registration, _new_id: Callable[[], str]) -> Change:
    """Register a node.

    The result's `value` is the broker epoch. A new incarnation, or a fenced one, gets a new epoch; a registered
    incarnation only updates its address and directories. A new incarnation leaves the ISRs that have other members, and
    partitions that it leads alone get a new leader epoch. A directory id that another node has registered is rejected:
    the disk was copied. A directory that the node no longer names stays, offline, as long as a replica is assigned to
    it. `in_offline_directories` are the replicas that the node had in offline directories: its reports of them may be
    missing. `assigned` are those that it has in other directories than its metadata: they apply before leaders are
    elected, so that none is unavailable meanwhile (KIP-858). `offline` are the replicas that the node cannot use
    although their directories are online; those that it reported before and does not name are usable again.
    """
    after, number, restarted = _registered(state, command)
    if after is not state:
        after = elect_all(after, number, restarted)
        if after.nodes[number].unclean and (number not in state.nodes or not state.nodes[number].unclean):
            # Unclean elections have become possible: elect for all partitions without a leader.
            after = decide_all(after, lambda each: each.leader == NO_LEADER)
    return Change(after, [{"version": after.version, "value": after.nodes[number].broker_epoch}])


def register_all(state: ClusterState, commands: Mapping[int, Registration]) -> tuple[ClusterState, dict[int, Any]]:
    """Register all nodes that a controller has collected, before leaders are elected; return their results.

    All nodes register at once: none leaves an ISR because it registered first, and restarted ones leave it only if
    another member was not restarted. Partitions with one replica are decided node by node: replays depend on the
    number of versions.
    """
    results: dict[int, Any] = {}
    again: list[int] = []
    for node, command in sorted(commands.items()):
        try:
            state, _, restarted = _registered(state, command)
            state = decide_all(state, partial(_only_on, node), again)
            results[node] = []
            if restarted:
                again.append(node)
        except Refused as refused:
            results[node] = [refused.result()]
    state = decide_all(state, lambda _: True, again)
    for node, held in results.items():
        if not held:
            held.append({"version": state.version, "value": state.nodes[node].broker_epoch})
    return state, results


def _only_on(node: int, partition: PartitionImage) -> bool:
    return partition.replicas == (node,)


def _registered(state: ClusterState, command: Registration) -> tuple[ClusterState, int, bool]:
    """Return the state with a node's registration, its id, and whether it was restarted since its last one."""
    number, incarnation, directories = command.node, command.incarnation, command.directories
    for other in state.nodes.values():
        shared = {each.id for each in other.directories} & {each.id for each in directories}
        if other.node != number and shared:
            raise Refused(
                ErrorCode.INVALID_REQUEST,
                f"Directory id {min(shared)} of node {number} is registered by node {other.node} already; "
                "format the copied disk again.",
            )
    known = state.nodes.get(number)
    directories = (*directories, *_missing(state, known, directories))
    again = known is not None and known.incarnation == incarnation and not known.fenced
    epoch = known.broker_epoch if known is not None and again else state.version + 1
    where = command.host, command.port, directories
    node = NodeImage(number, incarnation, epoch, *where, rack=command.rack, unclean=command.unclean)
    after = assign_offline(state, number, command.in_offline_directories)
    after = replicas.place(after, number, command.assigned)
    after = offline.replace_reports(after, number, command.offline)
    restarted = known is not None and known.incarnation != incarnation
    return (after if node == known else after.with_node(node)), number, restarted


def lease_ended(state: ClusterState, command: LeaseEnded, _new_id: Callable[[], str]) -> Change:
    """Fence a node. A node submits this when it stops; the controller applies it when the node's lease has ended and
    its probe failed.

    Does nothing if another incarnation is registered, or the node is fenced already.
    """
    number, incarnation = command.node, command.incarnation
    known = state.nodes.get(number)
    if known is None or known.incarnation != incarnation or known.fenced:
        return Change(state, [{"version": state.version}])
    after = elect_all(state.with_node(replace(known, fenced=True)), number, restarted=False)
    return Change(after, [{"version": after.version}])
