"""A led partition with several replicas: the state of its followers, the ISR and the high watermark.

Nothing here waits for a disk or for the partition's lock, since the listener's loop records the followers' fetches. A
partition whose only replica is the leader's has no such state. If the ISR is the leader alone, the high watermark is
the log end, and an append costs as little.

Between changes of a partition, a follower's fetch session vouches for it: see `replication.vouching`.

Time alone matters only for a follower that is behind, one that is about to join, and a change that is to be requested
again. `due` is that time; an idle partition has none and is never checked.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from storage_node.model.commands import IsrChange
from storage_node.model.error_codes import ErrorCode
from storage_node.model.ids import TopicPartition
from storage_node.model.metadata import PartitionImage
from storage_node.ports import ChangeResult
from storage_node.replication import isr
from storage_node.replication.isr import Follower
from storage_node.replication.vouching import Voucher, Vouchers

#: Seconds before a rejected change is requested again, unless the metadata changes first.
PAUSE = 1.0

#: The time of the next check of the ISR while none is due.
NOT_DUE = float("inf")

#: Called once, on any thread, with the result of a wait; NONE if the offset was reached.
Reached = Callable[[ErrorCode], None]


class LeaderHost(Protocol):
    """The node, as the partitions that it leads see it."""

    @property
    def lag(self) -> float:
        """replica.lag.time.max.ms in seconds."""
        ...

    @property
    def brokers(self) -> Mapping[int, int]:
        """The broker epochs of the nodes that are not fenced; updated in place."""
        ...

    def wants_change(self, state: LeaderState) -> None:
        """Request an ISR change from the controller; returns at once."""
        ...

    def watch(self, state: LeaderState, due: float) -> None:
        """Call `state.look` at this time, unless `state.due` has changed by then; returns at once."""
        ...


class NoHost:
    """A host for partitions outside of a node: no broker is up, and no request is sent."""

    lag = 30.0
    brokers: Mapping[int, int] = {}

    def wants_change(self, state: LeaderState) -> None:
        """Do nothing, for lack of a controller."""

    def watch(self, state: LeaderState, due: float) -> None:
        """Do nothing, for lack of a thread to call `look`."""


class LeaderState:
    """A led partition, from the election to the loss of the leadership. Thread-safe."""

    def __init__(
        self,
        tp: TopicPartition,
        topic_id: str,
        node: int,
        row: PartitionImage,
        host: LeaderHost,
        *,
        log_end: Callable[[], int],
        high_watermark: int,
        min_in_sync: int,
        advanced: Callable[[int], None],
        cluster_generation: int = 0,
    ) -> None:
        """Start to lead.

        `high_watermark`: this replica's as a follower; `advanced` is called with the approximate number of bytes that
        became readable for consumers; `cluster_generation`: of the metadata that `row` comes from.
        """
        self.tp = tp
        self.topic_id = topic_id
        self.leader_epoch = row.leader_epoch
        self.partition_epoch = row.partition_epoch
        self.replicas = row.replicas
        self.isr = row.isr
        """The ISR that the controller has confirmed."""
        self.alone = False
        """Whether only the leader's own log holds the high watermark back."""
        self._cluster_generation = cluster_generation
        self._gave_way = False
        """Whether a row has ended the leadership: the controller's responses do not count any more."""
        self._node = node
        self._host = host
        self._log_end = log_end
        self._advanced = advanced
        self._min_in_sync = min_in_sync
        self._mutex = threading.Lock()
        self._hw = high_watermark
        self.epoch_start = log_end()
        """The start offset of the leader's epoch."""
        self._requested: frozenset[int] = frozenset()
        """Members that were requested and may be confirmed already."""
        self._maximal = frozenset(row.isr)
        self._joining: set[int] = set()
        self._not_before = 0.0
        self._bytes = 0
        """Bytes appended but not yet below the high watermark."""
        self._waits: dict[int, tuple[int, Reached]] = {}
        self._start_waits: dict[int, tuple[int, Reached]] = {}
        self._handles = 0
        self._vouchers = Vouchers()
        self.due = NOT_DUE
        """When `look` is to be called next."""
        self._closed: ErrorCode | None = None
        now = time.monotonic()
        self._followers = {
            number: isr.unknown_follower(now, number in row.isr) for number in row.replicas if number != node
        }
        with self._mutex:
            self._raise_high_watermark(now)
            self._arm(now)

    # Properties

    @property
    def high_watermark(self) -> int:
        """The offset that every replica that may be in the ISR has reached."""
        if self.alone:
            end = self._log_end()
            # Read again: a follower that joins from now on holds back only later appends.
            if self.alone:
                return end
        return self._hw

    @property
    def followers(self) -> Mapping[int, Follower]:
        """A snapshot of each follower's state."""
        with self._mutex:
            return self._vouchers.seen(self._followers)

    @property
    def maximal_isr(self) -> frozenset[int]:
        """The replicas that may be in the ISR, confirmed or requested."""
        return self._maximal

    @property
    def enough_in_sync(self) -> bool:
        """Whether the ISR has min.insync.replicas members, or all replicas if they are fewer."""
        return len(self.isr) >= self.least_in_sync

    @property
    def least_in_sync(self) -> int:
        """min.insync.replicas, but at most the number of replicas."""
        return min(self._min_in_sync, len(self.replicas))

    @property
    def under_replicated(self) -> bool:
        """Whether a replica is not in sync."""
        return len(self.isr) < len(self.replicas)

    # Metadata changes

    def update(self, row: PartitionImage, cluster_generation: int = 0, *, leads: bool = True) -> bool:
        """Apply a row; return False, without a change, if it is older than this leader's state.

        That state includes what the controller confirmed before any image had it. Without `leads`, the row ends the
        leadership, and the caller completes that with `close`.

        Epochs are compared under the mutex, under which confirmations are applied too; otherwise a late image could
        remove a member from the ISR that the controller has added. Metadata of a newer `cluster_generation` was
        rebuilt, possibly without those confirmations, and is applied in any case.
        """
        now = time.monotonic()
        with self._mutex:
            newer = (row.leader_epoch, row.partition_epoch) >= (self.leader_epoch, self.partition_epoch)
            if not newer and cluster_generation <= self._cluster_generation:
                return False
            self._cluster_generation, self._gave_way = cluster_generation, not leads
            self._vouchers.end_all(self._followers)
            if not leads:
                return True
            if row.leader_epoch > self.leader_epoch:
                end = self.epoch_start = self._log_end()
                self._followers = {
                    number: known.under_new_epoch(end, now, number in row.isr)
                    for number, known in self._followers.items()
                }
            if (row.leader_epoch, row.partition_epoch) > (self.leader_epoch, self.partition_epoch):
                # Requests were for the older row: either this row has their effect, or they will never have one.
                self._requested, self._not_before = frozenset(), 0.0
            for number in set(self.isr) - set(row.isr):
                if (known := self._followers.get(number)) is not None:
                    self._followers[number] = known.taken_out()
                    self._joining.discard(number)
            self.leader_epoch, self.partition_epoch = row.leader_epoch, row.partition_epoch
            self.replicas, self.isr = row.replicas, row.isr
            self._followers = {
                number: self._followers.get(number) or isr.unknown_follower(now, number in row.isr)
                for number in row.replicas
                if number != self._node
            }
            effects = self._raise_high_watermark(now)
            self._arm(now)
        self._complete(effects)
        return True

    def configure(self, min_in_sync: int) -> None:
        """Apply min.insync.replicas."""
        if min_in_sync == self._min_in_sync:
            return
        with self._mutex:
            self._min_in_sync = min_in_sync
            effects = self._raise_high_watermark(time.monotonic())
        self._complete(effects)

    def close(self, code: ErrorCode) -> None:
        """End the leadership or the replica; complete all waits with `code`."""
        with self._mutex:
            if self._closed is not None:
                return
            self._hw, self.alone = self.high_watermark, False
            self._closed, self.due = code, NOT_DUE
            self._vouchers.end_all(self._followers)
            waits = [done for _, done in (*self._waits.values(), *self._start_waits.values())]
            self._waits, self._start_waits = {}, {}
        for done in waits:
            done(code)

    # Events

    def knows(self, follower: int) -> bool:
        """Return whether the follower is a replica of the partition."""
        return follower in self._followers

    def fetched(
        self,
        follower: int,
        offset: int,
        log_start: int,
        now: float,
        broker_epoch: int,
        voucher: Voucher | None = None,
    ) -> bool:
        """Record that a follower has everything before `offset` in this leader's epoch; ignore other nodes.

        Return whether `voucher`, the follower's session, vouches for it from now on: its next fetches need not be
        recorded here until `voucher.changed` is called.
        """
        with self._mutex:
            if follower not in self._followers or self._closed is not None:
                return False
            self._vouchers.end(self._followers, follower)
            before, end = self._followers[follower], self._log_end()
            known = before.after_fetch(offset, log_start, now, end, broker_epoch)
            self._followers[follower] = known
            member = follower in self._maximal
            effects = None
            if not member and self._may_join(follower, known, now):
                self._joining.add(follower)
                self._arm(now)
                if now >= self._not_before:
                    self._host.wants_change(self)
            if offset != before.end or (not member and (self.alone or broker_epoch != before.broker_epoch)):
                effects = self._raise_high_watermark(now)
            starts = self._starts_reached() if self._start_waits and log_start != before.log_start else ()
            rests = voucher is not None and offset == end and follower in self.isr
            if voucher is not None and rests:
                self._vouchers.begin(follower, voucher)
        if effects is not None:
            self._complete(effects)
        for done in starts:
            done(ErrorCode.NONE)
        return rests

    def release(self, follower: int, voucher: Voucher) -> None:
        """Stop the session's vouching: it does not fetch this partition any more."""
        with self._mutex:
            if self._vouchers.of(follower) is voucher:
                self._vouchers.end(self._followers, follower)

    def appended(self, size: int, began: float | None = None) -> bool:
        """Record an append of `size` bytes that began at `began`; return whether consumers may read them already."""
        now = time.monotonic()
        with self._mutex:
            if not self.alone:
                self._bytes += size
            self._vouchers.end_before(self._followers, now if began is None else began)
            self._arm(now)
        # Read again: `alone` may have been set meanwhile, and consumers were not notified of these bytes.
        return self.alone

    def look(self, now: float) -> bool:
        """Stop waiting for followers that fell behind; return whether to request an ISR change. Call it at `due`."""
        with self._mutex:
            self.due = NOT_DUE
            if self._closed is not None:
                return False
            effects = self._raise_high_watermark(now)
            wants = now >= self._not_before and (bool(self._requested) or self._wanted(now) != self.isr)
            self._arm(now, now + min(self._host.lag / 2, PAUSE))
        self._complete(effects)
        return wants

    def _arm(self, now: float, earliest: float = 0.0) -> None:
        """Have the host call `look` when time alone may change something. Under the mutex."""
        lag = self._host.lag
        # (For a member with a voucher, the append that puts it behind records it.)
        noted = {number: known for number, known in self._followers.items() if self._vouchers.of(number) is None}
        due = isr.next_expiry(noted, self._maximal, self._log_end(), now, lag)
        if self._joining or self._requested:
            due = min(due, max(self._not_before, now + min(lag / 2, PAUSE)))
        due = max(due, earliest)
        # A time that has passed was checked already; it is not checked again with each append.
        if due < self.due and (due > now or self.due == NOT_DUE):
            self.due = due
            self._host.watch(self, due)

    # The ISR

    def change(self, now: float) -> IsrChange | None:
        """Return the change to request from the controller, or None; the high watermark waits for it from now on."""
        with self._mutex:
            if self._closed is not None or self._gave_way or now < self._not_before:
                return None
            members = self._wanted(now)
            if members == self.isr and not self._requested:
                self._joining.clear()
                return None
            self._requested |= frozenset(members) - frozenset(self.isr)
            effects = self._raise_high_watermark(now)
            change = IsrChange(
                self.tp,
                self.topic_id,
                self.leader_epoch,
                self.partition_epoch,
                tuple((number, self._epoch_of(number)) for number in members),
            )
        self._complete(effects)
        return change

    def answered(self, change: IsrChange, result: ChangeResult) -> None:
        """Apply the controller's response.

        A confirmed ISR takes effect. After a rejection because the metadata is newer, that metadata is awaited. Without
        a response the requested members count as possible, and the change is requested again.
        """
        now = time.monotonic()
        with self._mutex:
            known = (self.leader_epoch, self.partition_epoch)
            if self._closed is not None or self._gave_way or known != (change.leader_epoch, change.partition_epoch):
                return
            self._vouchers.end_all(self._followers)
            if not result.error:
                self.isr = tuple(number for number, _ in change.isr)
                self.partition_epoch = max(self.partition_epoch, result.value)
                self._requested, self._not_before = frozenset(), 0.0
                self._joining -= set(self.isr)
            else:
                self._not_before = now + PAUSE
                if result.error == ErrorCode.INELIGIBLE_REPLICA:
                    # The rejection is of the present partition epoch: no earlier request has taken effect either.
                    self._requested = frozenset()
                    self._joining.clear()
            effects = self._raise_high_watermark(now)
            self._arm(now)
        self._complete(effects)

    def _wanted(self, now: float) -> tuple[int, ...]:
        end = self._log_end()
        lag = self._host.lag
        followers = self._vouchers.seen(self._followers)
        behind = isr.fallen_behind((number for number in self.isr if number != self._node), followers, end, now, lag)
        joining = {
            number
            for number in self._joining
            if (known := followers.get(number)) is not None
            and now - known.fetched <= lag
            and self._may_join(number, known, now)
        }
        return isr.wanted(self.replicas, self._node, self.isr, joining, behind)

    def _may_join(self, number: int, known: Follower, now: float) -> bool:
        # While `alone`, the high watermark is the log end, and appends do not update `_hw`.
        hw = self._hw if not self.alone else self._log_end()
        return isr.may_join(known, self._host.brokers.get(number), hw, self.epoch_start)

    def _epoch_of(self, number: int) -> int:
        if number == self._node:
            return self._host.brokers.get(number, -1)
        known = self._followers.get(number)
        return known.broker_epoch if known is not None and known.broker_epoch is not None else -1

    # Waits

    def when_replicated(self, offset: int, done: Reached) -> int:
        """Call `done` once the high watermark reaches `offset`, or never will; return a handle for `forget`.

        NOT_ENOUGH_REPLICAS_AFTER_APPEND if the ISR has become too small. `done` may be called at once.
        """
        with self._mutex:
            code = self._closed
            if code is None and not self.enough_in_sync:
                code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            if code is None and self.high_watermark >= offset:
                code = ErrorCode.NONE
            self._handles += 1
            handle = self._handles
            if code is None:
                self._waits[handle] = (offset, done)
        if code is not None:
            done(code)
        return handle

    def when_starts_reach(self, start: int, done: Reached) -> int:
        """Call `done` once all live followers' logs start at `start` or later; return a handle for `forget`."""
        with self._mutex:
            self._handles += 1
            handle, code = self._handles, self._closed
            if code is None and self.low_watermark(start) >= start:
                code = ErrorCode.NONE
            if code is None:
                self._start_waits[handle] = (start, done)
        if code is not None:
            done(code)
        return handle

    def forget(self, handle: int) -> None:
        """Cancel a wait."""
        with self._mutex:
            self._waits.pop(handle, None)
            self._start_waits.pop(handle, None)

    def low_watermark(self, own: int) -> int:
        """Return the lowest log start offset of the replicas on nodes that are up, including the leader's `own`."""
        brokers = self._host.brokers
        return min([own, *(known.log_start for number, known in self._followers.items() if number in brokers)])

    def _starts_reached(self) -> list[Reached]:
        low = self.low_watermark(2**63 - 1)
        due = [handle for handle, (start, _) in self._start_waits.items() if start <= low]
        return [self._start_waits.pop(handle)[1] for handle in due]

    # The high watermark

    def _raise_high_watermark(self, now: float) -> tuple[int, list[tuple[Reached, ErrorCode]]]:
        """Bring the maximal ISR up to date, and raise the high watermark as far as it allows; under the mutex.

        Returns the bytes to notify consumers of, and the waits to complete.
        """
        host = self._host
        before, was_alone = self._hw, self.alone
        self._maximal = frozenset(self.isr) | self._requested
        end = self._log_end()
        waited = isr.waited_for(self._followers, self._maximal, host.brokers, end, now, host.lag)
        enough = self.enough_in_sync
        alone = not waited and enough and self._closed is None
        if alone:
            self._hw, self.alone, self._bytes = max(before, end), True, 0
        elif was_alone:
            self._hw, self.alone = max(before, end), False
            # Consumers may have read what was appended up to now.
            self._hw = max(self._hw, self._log_end())
        elif enough:
            self._hw = isr.high_watermark(before, end, [self._followers[number].end for number in waited])
        size = 0
        if alone != was_alone:
            size = 2**62
        elif self._hw > before:
            # Bytes are not counted per record: estimate them by the share of the offsets.
            size = max(1, self._bytes * (self._hw - before) // max(1, end - before))
            self._bytes = max(0, self._bytes - size)
        return size, self._due(enough)

    def _due(self, enough: bool) -> list[tuple[Reached, ErrorCode]]:
        if not self._waits:
            return []
        if not enough:
            waits, self._waits = self._waits, {}
            return [(done, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND) for _, done in waits.values()]
        hw = self._hw
        due = [handle for handle, (offset, _) in self._waits.items() if offset <= hw]
        return [(self._waits.pop(handle)[1], ErrorCode.NONE) for handle in due]

    def _complete(self, effects: tuple[int, list[tuple[Reached, ErrorCode]]]) -> None:
        size, due = effects
        for done, code in due:
            done(code)
        if size:
            self._advanced(size)
