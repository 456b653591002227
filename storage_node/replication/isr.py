"""A leader's decisions about its followers: ISR membership, lag, and the high watermark.

Pure, and as in Apache Kafka (Replica and Partition there). Times are seconds of a monotonic clock.

The maximal ISR are the replicas that may be in the controller's ISR, confirmed or only requested: the high watermark
waits for all of them, so that any leader that the controller may elect has the acknowledged records.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

#: An offset that no fetch has reported yet.
UNKNOWN = -1
#: The time of a fetch that has not happened.
NEVER = float("-inf")


class Follower(NamedTuple):
    """What a leader knows of a follower from its fetches (Kafka: ReplicaState)."""

    end: int = UNKNOWN
    """Its log end offset: the offset of its last fetch."""
    log_start: int = UNKNOWN
    caught_up: float = NEVER
    """When it last had all of the leader's records (lastCaughtUpTimeMs)."""
    fetched: float = NEVER
    leader_end: int = UNKNOWN
    """The leader's log end offset at its last fetch."""
    broker_epoch: int | None = None
    """The broker epoch of its last fetch, -1 if the fetch had none; None before the first fetch."""

    def after_fetch(self, offset: int, log_start: int, now: float, leader_end: int, broker_epoch: int) -> Follower:
        """Return the follower after a fetch from `offset` on, at a leader whose log ends at `leader_end`.

        A fetch at the log end means that it has caught up now; one at the log end of its previous fetch, that it had
        caught up then.
        """
        caught_up = self.caught_up
        if offset >= leader_end:
            caught_up = now if now > caught_up else caught_up
        elif offset >= self.leader_end:
            caught_up = self.fetched if self.fetched > caught_up else caught_up
        return Follower(offset, log_start, caught_up, now, leader_end, broker_epoch)

    def seen_again(self, at: float) -> Follower:
        """Return the follower after further fetches of the same offset, the last at `at`, while it had all records."""
        return self._replace(caught_up=max(self.caught_up, at), fetched=max(self.fetched, at))

    def under_new_epoch(self, leader_end: int, now: float, in_sync: bool) -> Follower:
        """Return the follower's state when the leader continues under a new leader epoch."""
        since = now if in_sync else NEVER
        return Follower(self.end, self.log_start, since, since, leader_end, self.broker_epoch)

    def taken_out(self) -> Follower:
        """Return the follower's state after its removal from the ISR: it counts again from its next fetch on.

        Its node may be up without the replica (a log directory failed); acks=all must not wait replica.lag.time.max.ms.
        """
        return Follower(log_start=self.log_start)

    def is_caught_up(self, leader_end: int, now: float, lag: float) -> bool:
        """Return whether it has all records, or had them within the last `lag` seconds (replica.lag.time.max.ms)."""
        return self.end == leader_end or now - self.caught_up <= lag


def unknown_follower(now: float, in_sync: bool) -> Follower:
    """Return a follower's initial state at a new leader: a member of the ISR has the whole lag time to fetch."""
    return Follower(caught_up=now if in_sync else NEVER)


def eligible(follower: Follower, registered: int | None) -> bool:
    """Return whether it may join the ISR: it is not fenced, and fetched under its registered broker epoch (KIP-903).

    `registered`: its node's broker epoch in the metadata, None while the node is fenced.
    """
    epoch = follower.broker_epoch
    return registered is not None and epoch is not None and epoch in (-1, registered)


def may_join(follower: Follower, registered: int | None, high_watermark: int, epoch_start: int) -> bool:
    """Return whether a follower may join the ISR: it has reached the high watermark and the leader epoch's start."""
    reached = follower.end >= high_watermark and follower.end >= epoch_start
    return reached and eligible(follower, registered)


def fallen_behind(
    members: Iterable[int], followers: Mapping[int, Follower], leader_end: int, now: float, lag: float
) -> frozenset[int]:
    """Return the members that have not caught up for longer than `lag`; `members` is without the leader."""
    return frozenset(
        member for member in members if member in followers and not followers[member].is_caught_up(leader_end, now, lag)
    )


def next_expiry(
    followers: Mapping[int, Follower], maximal: Collection[int], leader_end: int, now: float, lag: float
) -> float:
    """Return when a follower that is behind stops counting as caught up, or infinity; a member's may have passed."""
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
    """Return the followers that hold the high watermark back: the maximal ISR, and those about to join it.

    Without the latter, a follower that has almost caught up would never reach a high watermark that advances with
    every append.
    """
    return tuple(
        number
        for number, known in followers.items()
        if number in maximal or (known.is_caught_up(leader_end, now, lag) and eligible(known, brokers.get(number)))
    )


def high_watermark(current: int, leader_end: int, ends: Iterable[int]) -> int:
    """Return the high watermark after `current`: it never decreases, and waits for log ends that are unknown."""
    lowest = min(ends, default=leader_end)
    return max(current, min(leader_end, lowest))


def wanted(
    replicas: Iterable[int],
    leader: int,
    isr: Collection[int],
    joining: Collection[int],
    behind: Collection[int],
) -> tuple[int, ...]:
    """Return the ISR to request: present members in the controller's order, then the joining ones.

    The leader is always a member.
    """
    kept = [member for member in isr if member == leader or member not in behind]
    new = [number for number in replicas if number in joining and number not in kept and number not in behind]
    return (*kept, *new)
