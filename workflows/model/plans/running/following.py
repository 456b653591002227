"""What a view of the cluster shows of a move that was requested: where it is, or how it ended. Pure.

Nothing here is remembered from the request: a worker that takes over reads the same from the cluster.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from workflows.model.move.parameter import ANY
from workflows.model.plans.values import ClusterView, Disk, MoveKind, PlannedMove


class MoveOutcome(StrEnum):
    """How a move of a plan ended."""

    MOVED = "moved"
    IN_PLACE = "in_place"
    """Nothing had to be done: the cluster was already as the plan says."""
    CANCELLED = "cancelled"
    SKIPPED = "skipped"
    SUPERSEDED = "superseded"
    """Another client changed the same partition; what it requested stays."""
    TOPIC_DELETED = "topic_deleted"
    FAILED = "failed"


#: Outcomes that a broker with old metadata, or one that is starting, may report as well: only later views that agree
#: confirm them.
DOUBTFUL = frozenset({MoveOutcome.SUPERSEDED, MoveOutcome.TOPIC_DELETED, MoveOutcome.FAILED})

#: Outcomes that leave the replica where the plan wants it.
REACHED = frozenset({MoveOutcome.MOVED, MoveOutcome.IN_PLACE})


class MoveState(StrEnum):
    """Where a move is that has not ended."""

    NOT_REQUESTED = "not_requested"
    AWAITING_BROKER = "awaiting_broker"
    """To be requested, again or for the first time: a broker is unavailable, or could not say whether it begins."""
    COPYING = "copying"
    PROMOTING = "promoting"
    """The copy is complete; the broker has not swapped the directories yet, or the controller not the replicas."""
    DIRECTING = "directing"
    """The replicas are final; one of them lies in another directory than the plan says, and has to be moved there."""
    UNKNOWN = "unknown"
    """The broker that copies does not return its log directories."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A move in one view: an outcome, or a state with the bytes that are copied so far (all added replicas).

    `misplaced` are the nodes and directories to request once the replicas are final; `why` is a sentence.
    """

    outcome: MoveOutcome | None = None
    state: MoveState = MoveState.NOT_REQUESTED
    copied: int = 0
    total: int = 0
    misplaced: tuple[tuple[int, str], ...] = ()
    why: str = ""


def seen(move: PlannedMove, view: ClusterView) -> Seen:
    """Return what a view shows of a move."""
    if move.partition not in view.partitions:
        return Seen(MoveOutcome.TOPIC_DELETED, why=f"{move.partition} does not exist any more")
    return _directory(move, view) if move.kind == MoveKind.DIRECTORY else _replicas(move, view)


def touched_by(move: PlannedMove) -> set[int]:
    """Return the brokers whose log directories say how far a move is."""
    return {move.node} if move.kind == MoveKind.DIRECTORY else {*move.before, *move.after}


def _directory(move: PlannedMove, view: ClusterView) -> Seen:
    state = view.partitions[move.partition]
    key = (move.node, move.partition)
    if move.node not in state.replicas:
        return Seen(MoveOutcome.SUPERSEDED, why=f"broker {move.node} has no replica of {move.partition} any more")
    node = view.nodes.get(move.node)
    if node is None or not node.responds:
        gone = "does not respond" if node else "is not registered"
        return Seen(state=MoveState.UNKNOWN, total=max(0, move.size), why=f"broker {move.node} {gone}")
    held, future = view.replicas.get(key), view.futures.get(key)
    if future is not None:
        total = max(future.size, held.size if held else 0, 0)
        if future.path != move.target:
            why = f"{move.partition} moves to {future.path} on broker {move.node}: another client requested it"
            return Seen(MoveOutcome.SUPERSEDED, why=why)
        if held is None and (error := _error_of(move.node, move.source, view)):
            # The broker keeps the copy and does not go on with it, also once the disk is back: it has to be restarted.
            why = (
                f"log directory {move.source} of broker {move.node}, from which {move.partition} was copied, is offline"
            )
            return Seen(MoveOutcome.FAILED, copied=future.size, total=total, why=f"{why} ({error})")
        state_now = MoveState.PROMOTING if held and future.size >= held.size > 0 else MoveState.COPYING
        return Seen(state=state_now, copied=min(future.size, total), total=total)
    if held is not None and held.path == move.target:
        return Seen(MoveOutcome.MOVED, copied=held.size, total=held.size)
    return Seen(total=held.size if held else max(0, move.size))


def _error_of(node: int, path: str, view: ClusterView) -> str:
    held = view.directories.get(Disk(node, path))
    return held.error if held is not None else ""


def _replicas(move: PlannedMove, view: ClusterView) -> Seen:
    state = view.partitions[move.partition]
    added = [node for node in move.after if node not in move.before]
    size = max(0, view.size_of(move.partition))
    sizes = [view.replicas[node, move.partition].size for node in added if (node, move.partition) in view.replicas]
    copied, total = sum(min(one, size) for one in sizes), size * len(added)
    if state.adding or state.removing:
        if set(state.target) != set(move.after):
            target = ", ".join(map(str, state.target))
            why = f"{move.partition} is being reassigned to {target}: another client requested it"
            return Seen(MoveOutcome.SUPERSEDED, why=why)
        silent = [node for node in added if node not in view.nodes or not view.nodes[node].responds]
        if silent:
            why = f"broker {', '.join(map(str, silent))} does not respond"
            return Seen(state=MoveState.UNKNOWN, copied=copied, total=total, why=why)
        whole = total > 0 and copied >= total
        return Seen(state=MoveState.PROMOTING if whole else MoveState.COPYING, copied=copied, total=total)
    if state.replicas == move.after:
        misplaced = _misplaced(move, view)
        if misplaced:
            silent = [node for node, _ in misplaced if node not in view.nodes or not view.nodes[node].responds]
            if silent:
                why = f"broker {', '.join(map(str, silent))} does not respond"
                return Seen(state=MoveState.UNKNOWN, copied=total, total=total, why=why)
            return Seen(state=MoveState.DIRECTING, copied=total, total=total, misplaced=misplaced)
        return Seen(MoveOutcome.MOVED, copied=total, total=total)
    if set(state.replicas) == {*move.before, *move.after} != set(move.before):
        # The controller has completed it; the broker that returned the metadata has not heard of it yet.
        return Seen(state=MoveState.PROMOTING, copied=copied, total=total)
    if set(state.replicas) != set(move.before):
        now = ", ".join(map(str, state.replicas))
        why = f"{move.partition} is on {now} now: another client reassigned it"
        return Seen(MoveOutcome.SUPERSEDED, why=why)
    return Seen(total=total)


def _misplaced(move: PlannedMove, view: ClusterView) -> tuple[tuple[int, str], ...]:
    """Return the added replicas that lie elsewhere than the plan says, with the directory to request."""
    found = []
    for node, path in sorted(move.directories.items()):
        held = view.replicas.get((node, move.partition))
        if path != ANY and (held is None or held.path != path or (node, move.partition) in view.futures):
            found.append((node, path))
    return tuple(found)


def in_place(one: Seen) -> Seen:
    """Return what the first view shows: a move that has ended before its request had nothing to do."""
    return replace(one, outcome=MoveOutcome.IN_PLACE) if one.outcome == MoveOutcome.MOVED else one
