"""Clusters and lanes for the tests of plans."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from storage_node.model.ids import TopicPartition
from workflows.model.plans.values import (
    UNKNOWN_SIZE,
    ClusterView,
    DirectoryView,
    Disk,
    Lane,
    MoveKind,
    NodeView,
    PartitionState,
    PlacedReplica,
    PlannedMove,
)

MB = 1_000_000
Where = tuple[int, str]


def tp(name: str) -> TopicPartition:
    """Read "t-0"."""
    topic, _, partition = name.rpartition("-")
    return TopicPartition(topic, int(partition))


def disk(name: str) -> Disk:
    """Read "1:/a"."""
    node, _, path = name.partition(":")
    return Disk(int(node), path)


def cluster(
    partitions: Mapping[str, Sequence[str]],
    *,
    sizes: Mapping[str, int] | None = None,
    disks: Iterable[str] = ("1:/a", "1:/b", "2:/a", "2:/b", "3:/a", "3:/b"),
    total: int = 1_000 * MB,
    racks: Mapping[int, str] | None = None,
) -> ClusterView:
    """Return a healthy cluster: by partition the disks of its replicas, the leader's first; 1 MB each by default.

    Every directory has `total` bytes, of which its replicas use some.
    """
    sizes = sizes or {}
    held: dict[tuple[int, TopicPartition], PlacedReplica] = {}
    states: dict[TopicPartition, PartitionState] = {}
    for name, where in partitions.items():
        nodes = tuple(disk(each).node for each in where)
        states[tp(name)] = PartitionState(nodes, nodes, nodes[0])
        for each in where:
            held[disk(each).node, tp(name)] = PlacedReplica(disk(each).path, sizes.get(name, MB))
    used: dict[Disk, int] = {}
    for (node, _), placed in held.items():
        used[Disk(node, placed.path)] = used.get(Disk(node, placed.path), 0) + placed.size
    directories = {
        disk(name): DirectoryView(disk(name), total, max(0, total - used.get(disk(name), 0))) for name in disks
    }
    nodes_ = {each.node: NodeView(each.node, (racks or {}).get(each.node)) for each in directories}
    return ClusterView("c", nodes_, directories, states, held)


def with_state(view: ClusterView, name: str, **changes: object) -> ClusterView:
    """Return the cluster with another state of one partition."""
    state = replace(view.partitions[tp(name)], **changes)  # type: ignore[arg-type]
    return replace(view, partitions={**view.partitions, tp(name): state})


def with_node(view: ClusterView, node: int, **changes: object) -> ClusterView:
    """Return the cluster with another state of one node."""
    return replace(view, nodes={**view.nodes, node: replace(view.nodes[node], **changes)})  # type: ignore[arg-type]


def with_directory(view: ClusterView, name: str, **changes: object) -> ClusterView:
    """Return the cluster with another state of one directory."""
    changed = replace(view.directories[disk(name)], **changes)  # type: ignore[arg-type]
    return replace(view, directories={**view.directories, disk(name): changed})


def with_future(view: ClusterView, node: int, name: str, path: str) -> ClusterView:
    """Return the cluster with a future replica."""
    return replace(view, futures={**view.futures, (node, tp(name)): PlacedReplica(path, 0)})


def directory_move(name: str, source: str, target: str, size: int = MB) -> PlannedMove:
    """Return a move between two disks, as "1:/a"."""
    from_, to = disk(source), disk(target)
    return PlannedMove(
        MoveKind.DIRECTORY,
        tp(name),
        size,
        node=from_.node,
        source=from_.path,
        target=to.path,
        reads=(from_,),
        writes=(to,),
    )


def copy(number: int, size: int, reads: Sequence[str], writes: Sequence[str], group: int = 0) -> Lane:
    """Return a lane of one reassignment that reads and writes these disks."""
    move = PlannedMove(
        MoveKind.REPLICAS,
        TopicPartition("t", number),
        size,
        reads=tuple(map(disk, reads)),
        writes=tuple(map(disk, writes)),
    )
    return Lane(number, (move,), group)


__all__ = ["MB", "UNKNOWN_SIZE"]
