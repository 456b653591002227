"""A failed log directory: a node's report of it, and the change of the metadata. Pure.

The change is compare-and-set: on the node's incarnation for its directories, on each replica's generation for its
directory. A report that arrives twice, late or in another order changes nothing the second time, and no older report
undoes a failure: only the node's registration brings a directory back online.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from storage_node.model.commands import DirectoryFailed, FailDirectory, ReplicaDirectory
from storage_node.model.error_codes import ErrorCode
from storage_node.model.metadata import DirectoryRegistration, NodeImage
from workflows.model.metadata import replicas
from workflows.model.metadata.election import elect_all
from workflows.model.metadata.outcome import Change, Refused
from workflows.model.metadata.state import ClusterState

RECORDED = "recorded"  # the directory is offline in the metadata
HEALED = "healed"  # the node was restarted with the directory online before the failure was recorded
FOREIGN = "foreign"  # another node has registered the directory: nothing is changed


def directory_failed(state: ClusterState, command: FailDirectory, _new_id: Callable[[], str]) -> Change:
    """Record the failure of a directory.

    The result has the `outcome`, the broker epoch as `value`, and `offline`, all replicas of the node that the metadata
    has in the directory now, as [topic, [partitions]]. The report of an unregistered node is rejected: the node must
    register first.
    """
    number, failure = command.node, command.failure
    known = state.nodes.get(number)
    if known is None:
        raise Refused(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Node {number} is not registered; it must register first.")
    if known.incarnation != failure.incarnation and known.holds(failure.directory_id):
        return Change(state, [_result(state, known, HEALED, [])])
    if _of_another(state, command):
        return Change(state, [_result(state, known, FOREIGN, [])])
    node = _offline(known, failure) if known.incarnation == failure.incarnation else known
    after = state if node == known else state.with_node(node)
    after = assign_offline(after, number, failure.replicas)
    if after is not state:
        after = elect_all(after, number, restarted=False)
    offline = offline_replicas(after, number, failure.directory_id)
    return Change(after, [_result(after, after.nodes[number], RECORDED, offline)])


def _result(state: ClusterState, node: NodeImage, outcome: str, offline: list[list[Any]]) -> dict[str, Any]:
    return {"version": state.version, "value": node.broker_epoch, "outcome": outcome, "offline": offline}


def _of_another(state: ClusterState, command: FailDirectory) -> bool:
    """Return whether another node has registered the directory: recorded for this node as well, it would prevent that
    node's next registration.
    """
    others = (node for node in state.nodes.values() if node.node != command.node)
    return any(each.id == command.failure.directory_id for node in others for each in node.directories)


def _offline(node: NodeImage, failure: DirectoryFailed) -> NodeImage:
    held = {each.id: each for each in node.directories}
    before = held.get(failure.directory_id, DirectoryRegistration(failure.directory_id, failure.path))
    held[failure.directory_id] = replace(before, online=False)
    return replace(node, directories=tuple(held.values()))


def assign_offline(state: ClusterState, node: int, rows: Iterable[ReplicaDirectory]) -> ClusterState:
    """Return the state with these replicas in the (offline) directories that the node names (KIP-858's fallback).

    The node hosted them there when the directories failed; the metadata may have other directories, or none. Rows that
    `replicas.assign_directories` rejects (an older generation, another topic) are skipped.
    """
    return replicas.assign(state, node, rows).state


def offline_replicas(state: ClusterState, node: int, directory_id: str) -> list[list[Any]]:
    """Return the replicas that the metadata has in a directory of a node: [topic, [partitions]]."""
    found: dict[str, list[int]] = {}
    for topic, partition in state.partitions():
        for replica, directory in zip(partition.replicas, partition.directories, strict=True):
            if replica == node and directory == directory_id:
                found.setdefault(topic.name, []).append(partition.index)
    return [[name, partitions] for name, partitions in found.items()]
