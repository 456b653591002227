"""Judge why a move is stalled: facts in, one reason with a message out. Pure.

A move in progress either copies, or something holds it: another move has the copying thread, a limit, a disk that is
slower than it usually is, a source that grows faster than it is copied, a directory that is offline, or an operator's
stop. The reported reason is the first of these that nothing else explains: a disk that hangs makes every source grow
faster than its copy, and so does a limit that is too low.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from storage_node.model.ids import TopicPartition
from storage_node.model.moves import MoveState, StallReason

HELD_SHARE = 0.1  # of the last seconds slept for a limit: less is not reported
SLOW_FACTOR = 4.0  # a disk is slow when its rate is less than this part of its usual rate
SLOW_SHARE = 0.5  # and the copy spends at least this share of its time waiting for it
SLOW_SECONDS = 1.0  # and that for at least these seconds
FAST_READ = 32e6  # bytes/s; a faster read is never called slow: earlier ones may have been served from memory
NAMED = 3  # names of moves in one message; the others are counted
GROWTH_SECONDS = 3.0  # seconds for which the source is observed before it is reported as growing too fast


class Doing(StrEnum):
    """What a copier can be waiting for."""

    RUN_LIMIT = "run_limit"
    NODE_LIMIT = "node_limit"
    READ = "read"
    WRITE = "write"
    FLUSH = "flush"


@dataclass(frozen=True, slots=True)
class Ahead:
    """What precedes a queued move: the moves that have the copying threads, and those before it in the queue."""

    running: tuple[tuple[TopicPartition, str, str], ...] = ()  # partition, source, target
    before: tuple[TopicPartition, ...] = ()
    slots: int = 1
    more: int = 0  # moves before it that `before` does not name


@dataclass(frozen=True, slots=True)
class DiskFacts:
    """The performance of one directory for this copy. Rates in bytes/s, times in seconds.

    `rate` is taken over the time in which the copy waited for it, `usual` is the median since the start (0: not known
    yet).
    """

    directory: str
    reading: bool
    rate: float
    usual: float
    best: float
    waited: float  # seconds of the window
    hanging: float = 0.0  # seconds since the call in progress began


@dataclass(frozen=True, slots=True)
class CopyFacts:
    """What a copier did in the last `seconds`. Rates in bytes/s."""

    seconds: float = 0.0
    held_by_run: float = 0.0  # seconds of these
    held_by_node: float = 0.0
    run_limit: int | None = None
    node_limit: int | None = None
    sharing: int = 1  # copies in progress on the node
    disks: tuple[DiskFacts, ...] = ()
    watched: float = 0.0  # seconds over which the two rates below are taken
    append_rate: float = 0.0
    copy_rate: float = 0.0
    left: int = 0  # bytes that the copy is behind


@dataclass(frozen=True, slots=True)
class MoveFacts:
    """All that a reason is derived from."""

    state: MoveState
    message: str = ""
    offline: str = ""  # a directory of the move that is offline, and why
    ahead: Ahead | None = None
    copy: CopyFacts = CopyFacts()


@dataclass(frozen=True, slots=True)
class Stall:
    """The reason and one message with names and figures; the message is "" when nothing holds the move."""

    reason: StallReason = StallReason.COPYING
    message: str = ""


_NOTHING = Stall()


def judge(facts: MoveFacts) -> Stall:
    """Return what holds the move now."""
    if facts.offline and not facts.state.ended:
        return Stall(StallReason.OFFLINE, facts.offline)
    if facts.state.halted:
        return Stall(StallReason.STOPPED, facts.message or facts.state)
    if facts.state is MoveState.QUEUED:
        return Stall(StallReason.QUEUED, queued_behind(facts.ahead or Ahead()))
    if not facts.state.copies:
        return _NOTHING
    copy = facts.copy
    for disk in copy.disks:
        if slow(disk, copy.seconds):
            return Stall(StallReason.SLOW_DISK, _slow(disk))
    held = _held(copy)
    if growing(copy):
        limit = f" ({held.message})" if held.message else ""
        return Stall(
            StallReason.GROWING_SOURCE,
            f"the source grows by {rate(copy.append_rate)} and is copied at {rate(copy.copy_rate)}{limit}: "
            "there is no end in sight",
        )
    return held


def queued_behind(ahead: Ahead) -> str:
    """Return the message that names the moves a queued move waits for."""
    if len(ahead.running) < ahead.slots and not ahead.before:
        return "queued: the next free mover copies it"
    names = [f"{tp} ({source} -> {target})" for tp, source, target in ahead.running]
    if not names:
        return f"queued behind {_list([str(tp) for tp in ahead.before], ahead.more)}"
    has = "has the only copying thread" if ahead.slots == 1 else f"have all {ahead.slots} copying threads"
    text = f"queued behind {_list(names)}, which {has}"
    if ahead.before:
        then = "comes" if len(ahead.before) + ahead.more == 1 else "come"
        text += f"; before it {then} {_list([str(tp) for tp in ahead.before], ahead.more)}"
    return text


def slow(disk: DiskFacts, seconds: float) -> bool:
    """Return whether a directory is slower than it usually is, and the copy waits for it."""
    if disk.usual <= 0 or disk.waited < SLOW_SECONDS or disk.waited < SLOW_SHARE * seconds:
        return False
    if disk.reading and disk.rate >= FAST_READ:
        return False
    return disk.rate * SLOW_FACTOR < disk.usual


def growing(copy: CopyFacts) -> bool:
    """Return whether the source grows faster than its copy."""
    return (
        copy.watched >= GROWTH_SECONDS
        and copy.append_rate > 0
        and copy.append_rate >= copy.copy_rate
        and copy.left > copy.append_rate  # a copy that is a second behind has caught up, and follows
    )


def eta(left: int, copy_rate: float, append_rate: float, reason: str = "") -> float | None:
    """Return the seconds until a copy has caught up with its source; None when they are unknown, or it never does."""
    if left <= 0:
        return 0.0
    if reason == StallReason.GROWING_SOURCE or copy_rate <= append_rate:
        return None
    return left / (copy_rate - append_rate)


def share_out(seconds: float, state: MoveState, reason: StallReason, by_run: float, by_node: float) -> dict[str, float]:
    """Attribute the seconds that just passed to what held the move; they add up to `seconds` while it is in progress.

    What a limit took of a copy is known exactly and counts as such, unless the copy cannot catch up or a disk is slow:
    then all of it counts as that.
    """
    if seconds <= 0:
        return {}
    if state is MoveState.QUEUED:
        return {StallReason.QUEUED: seconds}
    if state.halted:
        return {StallReason.OFFLINE if reason is StallReason.OFFLINE else StallReason.STOPPED: seconds}
    if not state.copies:
        return {}
    if reason in (StallReason.GROWING_SOURCE, StallReason.SLOW_DISK, StallReason.OFFLINE):
        return {reason: seconds}
    run = min(max(by_run, 0.0), seconds)
    node = min(max(by_node, 0.0), seconds - run)
    parts = {
        StallReason.RUN_LIMIT: run,
        StallReason.NODE_LIMIT: node,
        StallReason.COPYING: seconds - run - node,
    }
    return {str(name): value for name, value in parts.items() if value > 0}


def add(totals: Mapping[str, float], more: Mapping[str, float]) -> dict[str, float]:
    """Add up seconds by reason."""
    return {
        name: totals.get(name, 0.0) + more.get(name, 0.0) for name in [*totals, *(n for n in more if n not in totals)]
    }


def _held(copy: CopyFacts) -> Stall:
    held = copy.held_by_run + copy.held_by_node
    if copy.seconds <= 0 or held < HELD_SHARE * copy.seconds:
        return _NOTHING
    share = f"{min(100.0, 100 * held / copy.seconds):.0f}% of the last {copy.seconds:.0f} s"
    if copy.held_by_run >= copy.held_by_node:
        limit = f"the move's own limit of {rate(copy.run_limit)}" if copy.run_limit else "the move's own limit"
        return Stall(StallReason.RUN_LIMIT, f"held back {share} by {limit}")
    limit = f"the node's limit of {rate(copy.node_limit)}" if copy.node_limit else "the node's limit"
    shared = f", which {copy.sharing} moves share" if copy.sharing > 1 else ""
    return Stall(StallReason.NODE_LIMIT, f"held back {share} by {limit}{shared}")


def _slow(disk: DiskFacts) -> str:
    does = "reads" if disk.reading else "writes"
    if disk.hanging >= SLOW_SECONDS and disk.rate <= 0:
        now = f"{disk.directory} has not responded for {disk.hanging:.1f} s"
    else:
        now = f"{disk.directory} {does} at {rate(disk.rate)}"
    return f"{now}; since the start it did {rate(disk.usual)} (median), {rate(disk.best)} at best"


def rate(value: float | None) -> str:
    """Format bytes per second for people, with decimal units."""
    number = float(value or 0.0)
    for unit in ("B", "kB", "MB"):
        if number < 999.5:
            return f"{number:.0f} {unit}/s" if unit == "B" or number >= 99.5 else f"{number:.3g} {unit}/s"
        number /= 1000
    return f"{number:.3g} GB/s"


def _list(names: list[str], more: int = 0) -> str:
    shown = names[:NAMED]
    more += len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
