"""Why a move does not advance, as far as the admin API shows it, and what mends it. Pure.

Known bugs of Kafka behind it: KAFKA-9087 (a future log stays as it is, its thread is gone), KAFKA-9654 (the thread is
not created again), KAFKA-16297 (a copied log is not promoted).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from storage_node.model.ids import NO_LEADER, TopicPartition
from workflows.model.move.parameter import ANY
from workflows.model.plans.running.following import MoveState, Seen
from workflows.model.plans.running.throttling import ALL, FOLLOWER_LIST, FOLLOWER_RATE, LEADER_LIST, LEADER_RATE
from workflows.model.plans.values import ClusterView, Disk, MoveKind, PlannedMove
from workflows.model.throttles import MOVE_RATE

#: Seconds without a byte after which a move has stalled; a broker's restart is shorter.
STALLED_AFTER = 120.0
#: Seconds in which the bytes left must have become fewer: a copy that only keeps up with its source never ends.
OUTPACED_AFTER = 900.0
#: Bytes of one fetch (replica.fetch.max.bytes): a throttle lets a copy advance by so many at a time.
FETCH = 1 << 20
_REPAIR = "repair the disk, or cancel the plan and make a new one"


class StallReason(StrEnum):
    """Why a move does not advance."""

    UNAVAILABLE = "unavailable"
    """The cluster does not respond."""
    TARGET_SILENT = "target_silent"
    DIRECTORY_OFFLINE = "directory_offline"
    SOURCE_OFFLINE = "source_offline"
    """The partition has no leader that responds."""
    QUEUED = "queued"
    """A broker copies one replica at a time with each of its threads (KIP-113): another one comes first."""
    THROTTLED = "throttled"
    OUTPACED = "outpaced"
    """The partition grows as fast as it is copied."""
    PROMOTING = "promoting"
    NOT_ADVANCING = "not_advancing"


@dataclass(frozen=True, slots=True)
class Pace:
    """How a move advances: its bytes copied and left at the last read, when (epoch s) the copied ones last changed, and
    when fewer were left than ever before.
    """

    copied: int
    least_left: int
    advanced: float
    closer: float

    @staticmethod
    def begin(one: Seen, now: float, since: float = 0.0) -> Pace:
        """Return the pace at the first read; `since` is when an earlier step saw the move advance, 0 if it did not."""
        left = max(0, one.total - one.copied)
        return Pace(one.copied, left, since or now, since or now)

    def then(self, one: Seen, now: float) -> Pace:
        """Return the pace after another read."""
        left = max(0, one.total - one.copied)
        closer = left < self.least_left
        return Pace(
            one.copied,
            min(left, self.least_left),
            now if one.copied != self.copied else self.advanced,
            now if closer else self.closer,
        )

    def stalled(self, now: float) -> bool:
        """Return whether a reason is due."""
        return now >= self.advanced + STALLED_AFTER or now >= self.closer + OUTPACED_AFTER


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is read beside a view for moves that have stalled.

    `rates` are throttles in bytes/s by broker, `lists` the lists of throttled replicas by topic. `copies` are the
    future replicas of a broker, with whether each has advanced since the read before, None if that is not known yet.
    """

    rates: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    lists: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    copies: Mapping[int, Mapping[TopicPartition, bool | None]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Stall:
    """Why a move does not advance, and what to do. `repeats`: cancelling it and requesting it again is safe, and known
    to help (KAFKA-9087).
    """

    reason: StallReason
    why: str
    step: str
    repeats: bool = False

    @property
    def sentence(self) -> str:
        """Return both for operators."""
        return f"{self.why}; {self.step}"


def stall_of(move: PlannedMove, one: Seen, view: ClusterView, pace: Pace, now: float, evidence: Evidence) -> Stall:
    """Return why a move that has stalled does not advance."""
    find = _directory if move.kind == MoveKind.DIRECTORY else _replicas
    return find(move, one, view, pace, now, evidence)


def _directory(move: PlannedMove, one: Seen, view: ClusterView, pace: Pace, now: float, evidence: Evidence) -> Stall:
    silent = _silent(move.node, view)
    if silent:
        return Stall(StallReason.TARGET_SILENT, silent, "start it: it continues the copy")
    for path in (move.target, move.source):
        if error := _offline(Disk(move.node, path), view):
            return Stall(StallReason.DIRECTORY_OFFLINE, error, _REPAIR)
    if one.state == MoveState.PROMOTING:
        return Stall(
            StallReason.PROMOTING,
            f"broker {move.node} has copied {move.partition} and does not promote the copy",
            "see whether the controller is available; else restart the broker (KAFKA-16297)",
        )
    if now < pace.advanced + STALLED_AFTER:
        return _outpaced(move, evidence.rates.get(move.node, {}).get(MOVE_RATE), "throttle_between_directories")
    others = {tp: moves for tp, moves in evidence.copies.get(move.node, {}).items() if tp != move.partition}
    first = min((tp for tp, moves in others.items() if moves or (moves is None and tp < move.partition)), default=None)
    if first is not None:
        return Stall(
            StallReason.QUEUED,
            f"broker {move.node} copies {first} first, as one of {len(others)} other moves between its directories",
            "wait, or raise num.replica.alter.log.dirs.threads",
        )
    rate = evidence.rates.get(move.node, {}).get(MOVE_RATE)
    if rate is not None and (slow := _slow(rate, pace, now, 1 + len(others))):
        return Stall(
            StallReason.THROTTLED, f"broker {move.node} is throttled: {slow}", "raise throttle_between_directories"
        )
    offline = [str(disk) for disk in _offline_of(move.node, view)]
    why = f"the copy of {move.partition} on broker {move.node} does not advance (KAFKA-9087)"
    if offline:
        held = f"directory {offline[0]} is offline, so that the broker would reject a new request"
        return Stall(StallReason.NOT_ADVANCING, why, f"{held}: restart the broker without it")
    # Only a second read shows that no other copy advances, behind which this one would wait in good health.
    sure = move.node in evidence.copies and all(moves is False for moves in others.values())
    return Stall(StallReason.NOT_ADVANCING, why, "it is cancelled and requested again, else restart the broker", sure)


def _replicas(move: PlannedMove, one: Seen, view: ClusterView, pace: Pace, now: float, evidence: Evidence) -> Stall:
    state = view.partitions[move.partition]
    added = [node for node in move.after if node not in move.before and node not in state.isr]
    for node in added:
        if silent := _silent(node, view):
            return Stall(StallReason.TARGET_SILENT, silent, "start it, or cancel the plan and name another broker")
        if offline := _offline_for(node, move, view):
            return Stall(StallReason.DIRECTORY_OFFLINE, offline, _REPAIR)
    if state.leader == NO_LEADER:
        return Stall(
            StallReason.SOURCE_OFFLINE,
            f"{move.partition} has no leader to copy from",
            "start a broker of its in-sync replicas",
        )
    if silent := _silent(state.leader, view):
        return Stall(StallReason.SOURCE_OFFLINE, f"the leader of {move.partition}: {silent}", "start it")
    held = _throttles(move, state.leader, added, evidence)
    for node, rate in held:
        if slow := _slow(rate, pace, now, 1):
            return Stall(StallReason.THROTTLED, f"broker {node} is throttled: {slow}", "raise throttle_between_brokers")
    if one.state == MoveState.PROMOTING or not added:
        return Stall(
            StallReason.PROMOTING,
            f"all bytes of {move.partition} are copied, and the controller has not completed the reassignment",
            "see whether the new replicas keep up with the leader, and whether the controller is available",
        )
    if now < pace.advanced + STALLED_AFTER:
        return _outpaced(move, min((rate for _, rate in held), default=None), "throttle_between_brokers")
    nodes = ", ".join(map(str, added))
    return Stall(
        StallReason.NOT_ADVANCING,
        f"broker {nodes} does not fetch {move.partition} from broker {state.leader}",
        f"see the log of broker {nodes}, and restart it; or pause the plan with --cancel-moves, and resume it",
    )


def _silent(node: int, view: ClusterView) -> str:
    found = view.nodes.get(node)
    if found is None:
        return f"broker {node} is not registered"
    return "" if found.responds else f"broker {node} does not respond"


def _offline(disk: Disk, view: ClusterView) -> str:
    held = view.directories.get(disk)
    return f"directory {disk.path} of broker {disk.node} is offline ({held.error})" if held and held.error else ""


def _offline_for(node: int, move: PlannedMove, view: ClusterView) -> str:
    """Return the offline directory that an added replica is to be in; or the first of a broker that has no replica."""
    path = move.directories.get(node, ANY)
    if path != ANY:
        return _offline(Disk(node, path), view)
    if (node, move.partition) in view.replicas:
        return ""
    return next((_offline(disk, view) for disk in _offline_of(node, view)), "")


def _offline_of(node: int, view: ClusterView) -> list[Disk]:
    return [disk for disk, held in sorted(view.directories.items()) if disk.node == node and held.error]


def _throttles(move: PlannedMove, leader: int, added: list[int], evidence: Evidence) -> list[tuple[int, int]]:
    """Return the throttles that hold for a copy: a rate counts only for replicas that their topic lists (KIP-73)."""
    lists = evidence.lists.get(move.partition.topic, {})
    number = move.partition.partition
    ends = [(leader, LEADER_RATE, LEADER_LIST), *((node, FOLLOWER_RATE, FOLLOWER_LIST) for node in added)]
    found = []
    for node, key, listed in ends:
        rate = evidence.rates.get(node, {}).get(key)
        entries = lists.get(listed, ())
        if rate is not None and (ALL in entries or f"{number}:{node}" in entries):
            found.append((node, rate))
    return found


def _slow(rate: int, pace: Pace, now: float, shared: int) -> str:
    """Return that a rate lets nothing through in the time in which the move has not advanced, "" if it does."""
    needs = shared * FETCH / max(1, rate)
    if needs < now - pace.advanced:
        return ""
    by = f", which {shared} moves share" if shared > 1 else ""
    return f"at {rate} bytes/s{by}, one fetch takes {needs:.0f} s"


def _outpaced(move: PlannedMove, rate: int | None, option: str) -> Stall:
    throttle = f" at the throttle of {rate} bytes/s" if rate is not None else ""
    step = f"raise {option}" if rate is not None else "lower the traffic of the topic, or move less at the same time"
    return Stall(StallReason.OUTPACED, f"{move.partition} grows as fast as it is copied{throttle}", step)
