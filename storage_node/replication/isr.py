"""What a leader decides of its followers: who is in sync, who has fallen behind, how far the high watermark goes.

Pure, and as Apache Kafka decides it (Replica and Partition there). Times are seconds of a monotonic clock.

The maximal ISR are the replicas that may be in the controller's ISR, confirmed or only asked for: the high watermark
waits for all of them, so that whoever the controller elects has what was acknowledged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

#: An offset that nobody has told yet.
UNKNOWN = -1
NEVER = float("-inf")


class Follower(NamedTuple):
    """What a leader knows of a follower from its fetches."""

    end: int = UNKNOWN
    """Its log end offset: what it asked for last."""
    log_start: int = UNKNOWN
    caught_up: float = NEVER
    """When it last had all that the leader had (lastCaughtUpTimeMs)."""
    fetched: float = NEVER
    leader_end: int = UNKNOWN
    """The leader's log end offset when it fetched last."""
    broker_epoch: int | None = None
    """The broker epoch of its last fetch, -1 of one that names none; None before the first."""

    def after_fetch(self, offset: int, log_start: int, now: float, leader_end: int, broker_epoch: int) -> Follower:
        """The follower after it asked for the records from `offset` on, at a leader whose log ends at `leader_end`.

        Who asks for the end has caught up now; who asks for what was the end at its fetch before, then.
        """
        caught_up = self.caught_up
        if offset >= leader_end:
            caught_up = now if now > caught_up else caught_up
        elif offset >= self.leader_end:
            caught_up = self.fetched if self.fetched > caught_up else caught_up
        return Follower(offset, log_start, caught_up, now, leader_end, broker_epoch)

    def seen_again(self, at: float) -> Follower:
        """The follower after further fetches for the same offset, the last of them at `at`, while it had everything."""
        return self._replace(caught_up=max(self.caught_up, at), fetched=max(self.fetched, at))

    def under_new_epoch(self, leader_end: int, now: float, in_sync: bool) -> Follower:
        """The follower of a leader that goes on leading under another epoch."""
        since = now if in_sync else NEVER
        return Follower(self.end, self.log_start, since, since, leader_end, self.broker_epoch)

    def taken_out(self) -> Follower:
        """The follower after the controller took it out of the ISR: it counts again from its next fetch on.

        Its node may be up without the replica (a log directory failed); acks=all must not wait the lag time for it.
        """
        return Follower(log_start=self.log_start)

    def is_caught_up(self, leader_end: int, now: float, lag: float) -> bool:
        """Whether it has all, or had all within the last `lag` seconds (replica.lag.time.max.ms)."""
        return self.end == leader_end or now - self.caught_up <= lag


def unknown_follower(now: float, in_sync: bool) -> Follower:
    """A follower as a new leader sees it: one in the ISR has the whole lag time to show up."""
    return Follower(caught_up=now if in_sync else NEVER)


def eligible(follower: Follower, registered: int | None) -> bool:
    """Whether it may come into the ISR: its node is not fenced, and it fetched in that node's present life (KIP-903).

    `registered`: its broker epoch in the metadata, None while it is fenced.
    """
    epoch = follower.broker_epoch
    return registered is not None and epoch is not None and epoch in (-1, registered)


def may_join(follower: Follower, registered: int | None, high_watermark: int, epoch_start: int) -> bool:
    """Whether a follower that is not in the ISR is to be in it: it has all that is committed, and where the leader's
    epoch began.
    """
    reached = follower.end >= high_watermark and follower.end >= epoch_start
    return reached and eligible(follower, registered)


def fallen_behind(
    members: Iterable[int], followers: Mapping[int, Follower], leader_end: int, now: float, lag: float
) -> frozenset[int]:
    """Those of the members that have not caught up for longer than `lag`; `members` without the leader."""
    return frozenset(
        member for member in members if member in followers and not followers[member].is_caught_up(leader_end, now, lag)
    )


def next_expiry(
    followers: Mapping[int, Follower], maximal: Collection[int], leader_end: int, now: float, lag: float
) -> float:
    """When one that is behind stops counting as caught up, infinity for never; a member's may be over already."""
    found = ((number, known.caught_up + lag) for number, known in followers.items() if known.end != leader_end)
    return min((due for number, due in found if due >= now or number in maximal), default=float("inf"))


def waited_for(
    followers: Mapping[int, Follower],
    maximal: Collection[int],
    brokers: Mapping[int, int],
    leader_end: int,
    now: float,
    lag: float,
) -> tuple[int, ...]:
    """The followers whose log ends hold the high watermark back: the maximal ISR, and who is about to join it.

    Without the latter one that is nearly there would never catch up with a high watermark that goes with each append.
    """
    return tuple(
        number
        for number, known in followers.items()
        if number in maximal or (known.is_caught_up(leader_end, now, lag) and eligible(known, brokers.get(number)))
    )


def high_watermark(current: int, leader_end: int, ends: Iterable[int]) -> int:
    """The high watermark after `current`, given the log ends that count: it never goes back, and waits for ends that
    are not known.
    """
    lowest = min(ends, default=leader_end)
    return max(current, min(leader_end, lowest))


def wanted(
    replicas: Iterable[int],
    leader: int,
    isr: Collection[int],
    joining: Collection[int],
    behind: Collection[int],
) -> tuple[int, ...]:
    """The ISR to ask for, in the order that the controller has: members stay in theirs, who joins comes after them.

    The leader is always in it.
    """
    kept = [member for member in isr if member == leader or member not in behind]
    new = [number for number in replicas if number in joining and number not in kept and number not in behind]
    return (*kept, *new)
