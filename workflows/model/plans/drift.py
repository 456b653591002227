"""Checks a move against the cluster just before it begins: hours may have passed since the plan was made."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from workflows.model.move.parameter import ANY
from workflows.model.plans.values import UNKNOWN_SIZE, ClusterView, Disk, MoveKind, PartitionState, PlannedMove

#: A replica that has grown by more than this part of its planned size changes the plan's space and duration.
GROWTH = 0.5
#: Bytes by which a small replica may grow without being reported.
SMALL_GROWTH = 1 << 20


class DriftKind(StrEnum):
    """What has become of a move since the plan was made."""

    NEEDED = "needed"
    DONE = "done"
    TOPIC_DELETED = "topic_deleted"
    REPLICAS_CHANGED = "replicas_changed"
    FOREIGN_REASSIGNMENT = "foreign_reassignment"
    TARGET_GONE = "target_gone"
    BROKER_UNAVAILABLE = "broker_unavailable"
    """The broker to write to does not respond, or is not registered: it may just be restarted."""
    GROWN = "grown"
    """Still needed, with more bytes: its space and the duration must be computed again."""


@dataclass(frozen=True, slots=True)
class DriftVerdict:
    """What has become of a move, with the reason in words; `size` is the current one."""

    kind: DriftKind
    why: str = ""
    size: int = UNKNOWN_SIZE

    @property
    def begins(self) -> bool:
        """Return whether the move is still to be made."""
        return self.kind in (DriftKind.NEEDED, DriftKind.GROWN)


def checked(move: PlannedMove, view: ClusterView) -> DriftVerdict:
    """Compare a move with the cluster. A move that the plan itself has begun is needed: its request may be repeated."""
    state = view.partitions.get(move.partition)
    if state is None:
        return DriftVerdict(DriftKind.TOPIC_DELETED, f"{move.partition} no longer exists; the move is skipped")
    if move.kind == MoveKind.DIRECTORY:
        return _directory(move, state, view)
    return _replicas(move, state, view)


def _replicas(move: PlannedMove, state: PartitionState, view: ClusterView) -> DriftVerdict:
    under_way = bool(state.adding or state.removing)
    if under_way and set(state.target) != set(move.after):
        return DriftVerdict(
            DriftKind.FOREIGN_REASSIGNMENT,
            f"{move.partition}: another client has begun a reassignment to {_listed(state.target)}",
        )
    if not under_way and state.replicas == move.after:
        return DriftVerdict(DriftKind.DONE)
    # The controller may return the replicas of a cancelled reassignment in another order than before.
    if not under_way and set(state.replicas) != set(move.before):
        return DriftVerdict(
            DriftKind.REPLICAS_CHANGED,
            f"{move.partition}: its replicas are {_listed(state.replicas)} now, not {_listed(move.before)} as when the "
            "plan was made; make a new plan for it",
        )
    for disk in sorted(move.writes):
        if gone := _gone(move, disk, view):
            return gone
    return _grown(move, view.size_of(move.partition))


def _directory(move: PlannedMove, state: PartitionState, view: ClusterView) -> DriftVerdict:
    if move.node not in state.target:
        return DriftVerdict(
            DriftKind.REPLICAS_CHANGED,
            f"{move.partition}: broker {move.node} no longer has a replica; they are on {_listed(state.target)}",
        )
    if gone := _gone(move, Disk(move.node, move.target), view):
        return gone
    placed = view.replicas.get((move.node, move.partition))
    future = view.futures.get((move.node, move.partition))
    if future is not None and future.path != move.target:
        return DriftVerdict(
            DriftKind.FOREIGN_REASSIGNMENT,
            f"{move.partition}: another client moves the replica of broker {move.node} to {future.path}",
        )
    if placed is None:
        return DriftVerdict(
            DriftKind.TARGET_GONE, f"{move.partition}: broker {move.node} does not report the directory of its replica"
        )
    if placed.path == move.target and future is None:
        return DriftVerdict(DriftKind.DONE)
    if placed.path not in (move.source, move.target):
        return DriftVerdict(
            DriftKind.REPLICAS_CHANGED,
            f"{move.partition}: its replica on broker {move.node} is in {placed.path} now, not in {move.source} as "
            "when the plan was made; make a new plan for it",
        )
    return _grown(move, placed.size)


def _gone(move: PlannedMove, disk: Disk, view: ClusterView) -> DriftVerdict | None:
    """Return why a target cannot be written to, None if it can."""
    node = view.nodes.get(disk.node)
    if node is None or not node.responds:
        why = "is no longer registered" if node is None else "does not return its log directories"
        return DriftVerdict(DriftKind.BROKER_UNAVAILABLE, f"{move.partition}: broker {disk.node}, the target, {why}")
    if disk.path == ANY:
        return None
    held = view.directories.get(disk)
    if held is not None and not held.error:
        return None
    why = (
        f"{disk.path} is no longer one of the log.dirs of broker {disk.node}"
        if held is None
        else f"directory {disk.path} of broker {disk.node} is offline ({held.error})"
    )
    return DriftVerdict(DriftKind.TARGET_GONE, f"{move.partition}: {why}")


def _grown(move: PlannedMove, size: int) -> DriftVerdict:
    known = move.size != UNKNOWN_SIZE and size != UNKNOWN_SIZE and move.writes
    if known and size > max(move.size * (1 + GROWTH), move.size + SMALL_GROWTH):
        return DriftVerdict(
            DriftKind.GROWN,
            f"{move.partition} has grown from {move.size} to {size} bytes since the plan was made",
            size,
        )
    return DriftVerdict(DriftKind.NEEDED, size=size)


def _listed(nodes: tuple[int, ...]) -> str:
    return ", ".join(map(str, nodes)) or "none"
