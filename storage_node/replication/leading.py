"""A led partition with several replicas: what its followers have, who is in sync, how far the high watermark is.

Nothing here waits for a disk or for the partition's lock: followers' fetches are noted on the listener's loop. A
partition whose only replica is the leader's has no such state; one whose ISR is the leader alone costs as little, its
high watermark is the log's end.

Between the changes of a partition a follower's fetch session speaks for it: see `replication.vouching`.

Time alone changes something only for a follower that is behind, one that is about to join, and a change that is to be
asked for again. `due` is when; a partition at rest has none and is never looked at.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from storage_node.errors import ErrorCode
from storage_node.metadata import PartitionImage
from storage_node.ports import ChangeResult, IsrChange
from storage_node.replication import isr
from storage_node.replication.isr import Follower
from storage_node.replication.leader_host import LeaderHost
from storage_node.replication.vouching import Voucher, Vouchers
from storage_node.types import TopicPartition

#: Seconds before a change that was refused is asked for again, unless the metadata changes first.
PAUSE = 1.0

NEVER = float("inf")

#: Called once, on any thread, with what became of the wait; NONE when the offset was reached.
Reached = Callable[[ErrorCode], None]


class LeaderState:
    """One led partition, from the election to the loss of the leadership. Thread-safe."""

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
        generation: int = 0,
    ) -> None:
        """`high_watermark`: what this replica knew of it; `advanced` is called with the bytes, more or less, that
        consumers may read from now on; `generation`: of the metadata that `row` comes from.
        """
        self.tp = tp
        self.topic_id = topic_id
        self.leader_epoch = row.leader_epoch
        self.partition_epoch = row.partition_epoch
        self.replicas = row.replicas
        self.isr = row.isr
        """As the controller confirmed it."""
        self.alone = False
        """Nothing but the leader's own log holds the high watermark back."""
        self._generation = generation
        self._gave_way = False
        """Another row took the leadership away: no response of the controller counts any more."""
        self._node = node
        self._host = host
        self._log_end = log_end
        self._advanced = advanced
        self._min_in_sync = min_in_sync
        self._mutex = threading.Lock()
        self._hw = high_watermark
        self.epoch_start = log_end()
        """Where this leader's epoch began."""
        self._asked: frozenset[int] = frozenset()
        """Members that were asked for, and may be confirmed already."""
        self._maximal = frozenset(row.isr)
        self._joining: set[int] = set()
        self._not_before = 0.0
        self._bytes = 0
        """Appended, but not yet below the high watermark."""
        self._waits: dict[int, tuple[int, Reached]] = {}
        self._start_waits: dict[int, tuple[int, Reached]] = {}
        self._handles = 0
        self._vouchers = Vouchers()
        self.due = NEVER
        """When `look` is to be called next."""
        self._closed: ErrorCode | None = None
        now = time.monotonic()
        self._followers = {
            number: isr.unknown_follower(now, number in row.isr) for number in row.replicas if number != node
        }
        with self._mutex:
            self._settle(now)
            self._arm(now)

    # What it is

    @property
    def high_watermark(self) -> int:
        """Up to here everybody who may be in the ISR has the log."""
        if self.alone:
            end = self._log_end()
            # Looked at again: who joins from now on holds back what is appended from now on.
            if self.alone:
                return end
        return self._hw

    @property
    def followers(self) -> Mapping[int, Follower]:
        """What is known of each follower; a snapshot."""
        with self._mutex:
            return self._vouchers.seen(self._followers)

    @property
    def maximal_isr(self) -> frozenset[int]:
        """All that may be in the ISR."""
        return self._maximal

    @property
    def enough_in_sync(self) -> bool:
        """Whether the ISR has min.insync.replicas members, or all the replicas that there are."""
        return len(self.isr) >= self.least_in_sync

    @property
    def least_in_sync(self) -> int:
        """min.insync.replicas, but not more than there are replicas."""
        return min(self._min_in_sync, len(self.replicas))

    @property
    def under_replicated(self) -> bool:
        """Whether a replica is not in sync."""
        return len(self.isr) < len(self.replicas)

    # What the metadata says

    def update(self, row: PartitionImage, generation: int = 0, *, leads: bool = True) -> bool:
        """Apply a row under which this node goes on leading, or does not, which `close` completes then; False, and
        nothing changes, where the row is older than what this leader goes by: also than what the controller confirmed
        to it before any image had it.

        Epochs are compared under the mutex, where confirmations are applied too: an image that is applied late would
        otherwise take a member out of the ISR that the controller has taken in. Metadata of a newer `generation` was
        rebuilt, perhaps without what was confirmed, which does not count against it.
        """
        now = time.monotonic()
        with self._mutex:
            newer = (row.leader_epoch, row.partition_epoch) >= (self.leader_epoch, self.partition_epoch)
            if not newer and generation <= self._generation:
                return False
            self._generation, self._gave_way = generation, not leads
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
                # Whatever was asked for was asked of the older one: this row has it, or it will never be.
                self._asked, self._not_before = frozenset(), 0.0
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
            told = self._settle(now)
            self._arm(now)
        self._tell(told)
        return True

    def configure(self, min_in_sync: int) -> None:
        """Take over min.insync.replicas."""
        if min_in_sync == self._min_in_sync:
            return
        with self._mutex:
            self._min_in_sync = min_in_sync
            told = self._settle(time.monotonic())
        self._tell(told)

    def close(self, code: ErrorCode) -> None:
        """The leadership or the replica is lost: whoever waits is told so."""
        with self._mutex:
            if self._closed is not None:
                return
            self._hw, self.alone = self.high_watermark, False
            self._closed, self.due = code, NEVER
            self._vouchers.end_all(self._followers)
            waits = [done for _, done in (*self._waits.values(), *self._start_waits.values())]
            self._waits, self._start_waits = {}, {}
        for done in waits:
            done(code)

    # What happens

    def knows(self, follower: int) -> bool:
        """Whether this is a replica of the partition."""
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
        """A follower has everything before `offset`, in this leader's epoch; nothing for who is no replica.

        Return whether `voucher`, the follower's session, vouches for it from now on: its next fetches need not be noted
        here until `voucher.changed` is called.
        """
        with self._mutex:
            if follower not in self._followers or self._closed is not None:
                return False
            self._vouchers.end(self._followers, follower)
            before, end = self._followers[follower], self._log_end()
            known = before.after_fetch(offset, log_start, now, end, broker_epoch)
            self._followers[follower] = known
            member = follower in self._maximal
            told = None
            if not member and self._may_join(follower, known, now):
                self._joining.add(follower)
                self._arm(now)
                if now >= self._not_before:
                    self._host.wants_change(self)
            if offset != before.end or (not member and (self.alone or broker_epoch != before.broker_epoch)):
                told = self._settle(now)
            starts = self._starts_reached() if self._start_waits and log_start != before.log_start else ()
            rests = voucher is not None and offset == end and follower in self.isr
            if voucher is not None and rests:
                self._vouchers.begin(follower, voucher)
        if told is not None:
            self._tell(told)
        for done in starts:
            done(ErrorCode.NONE)
        return rests

    def release(self, follower: int, voucher: Voucher) -> None:
        """The follower's session does not fetch this partition any more."""
        with self._mutex:
            if self._vouchers.of(follower) is voucher:
                self._vouchers.end(self._followers, follower)

    def appended(self, size: int, began: float | None = None) -> bool:
        """So many bytes came to the log by an append that began then; whether consumers may read them already."""
        now = time.monotonic()
        with self._mutex:
            if not self.alone:
                self._bytes += size
            self._vouchers.end_before(self._followers, now if began is None else began)
            self._arm(now)
        # It may have become so meanwhile, and nobody was told of these bytes.
        return self.alone

    def look(self, now: float) -> bool:
        """At `due`: whoever was waited for and does not come is not waited for any more; whether an ISR is to be asked
        for.
        """
        with self._mutex:
            self.due = NEVER
            if self._closed is not None:
                return False
            told = self._settle(now)
            wants = now >= self._not_before and (bool(self._asked) or self._wanted(now) != self.isr)
            self._arm(now, now + min(self._host.lag / 2, PAUSE))
        self._tell(told)
        return wants

    def _arm(self, now: float, earliest: float = 0.0) -> None:
        """Have the host look at the time at which time alone may change something, if there is one. Under the mutex."""
        lag = self._host.lag
        # (A member that is behind and vouched for is about to be noted by the append that it is behind of.)
        noted = {number: known for number, known in self._followers.items() if self._vouchers.of(number) is None}
        due = isr.next_expiry(noted, self._maximal, self._log_end(), now, lag)
        if self._joining or self._asked:
            due = min(due, max(self._not_before, now + min(lag / 2, PAUSE)))
        due = max(due, earliest)
        # What is overdue already was looked at, and will be again: not with each append.
        if due < self.due and (due > now or self.due == NEVER):
            self.due = due
            self._host.watch(self, due)

    # The ISR

    def change(self, now: float) -> IsrChange | None:
        """What is to be asked of the controller now, None for nothing; the high watermark waits for it from now on."""
        with self._mutex:
            if self._closed is not None or self._gave_way or now < self._not_before:
                return None
            members = self._wanted(now)
            if members == self.isr and not self._asked:
                self._joining.clear()
                return None
            self._asked |= frozenset(members) - frozenset(self.isr)
            told = self._settle(now)
            change = IsrChange(
                self.tp,
                self.topic_id,
                self.leader_epoch,
                self.partition_epoch,
                tuple((number, self._epoch_of(number)) for number in members),
            )
        self._tell(told)
        return change

    def answered(self, change: IsrChange, result: ChangeResult) -> None:
        """The controller's answer. What it confirms holds; after a refusal that says that the metadata is newer, that
        is waited for. Without an answer what was asked for counts as possible, and is asked for again.
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
                self._asked, self._not_before = frozenset(), 0.0
                self._joining -= set(self.isr)
            else:
                self._not_before = now + PAUSE
                if result.error == ErrorCode.INELIGIBLE_REPLICA:
                    # Of the present partition epoch: nothing that was asked for before has been done either.
                    self._asked = frozenset()
                    self._joining.clear()
            told = self._settle(now)
            self._arm(now)
        self._tell(told)

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
        # A high watermark that goes with the log's end is behind it only for those that it waits for.
        hw = self._hw if not self.alone else self._log_end()
        return isr.may_join(known, self._host.brokers.get(number), hw, self.epoch_start)

    def _epoch_of(self, number: int) -> int:
        if number == self._node:
            return self._host.brokers.get(number, -1)
        known = self._followers.get(number)
        return known.broker_epoch if known is not None and known.broker_epoch is not None else -1

    # Who waits

    def when_replicated(self, offset: int, done: Reached) -> int:
        """Call `done` once the high watermark is at `offset`, or never will be; a handle for `forget`.

        NOT_ENOUGH_REPLICAS_AFTER_APPEND when the ISR has become too small. Also called at once.
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
        """Call `done` once all live followers' logs begin at `start` or later; a handle for `forget`."""
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
        """Nobody waits there any more."""
        with self._mutex:
            self._waits.pop(handle, None)
            self._start_waits.pop(handle, None)

    def low_watermark(self, own: int) -> int:
        """The lowest log start offset of the replicas on nodes that are up, the leader's `own` among them."""
        brokers = self._host.brokers
        return min([own, *(known.log_start for number, known in self._followers.items() if number in brokers)])

    def _starts_reached(self) -> list[Reached]:
        low = self.low_watermark(2**63 - 1)
        due = [handle for handle, (start, _) in self._start_waits.items() if start <= low]
        return [self._start_waits.pop(handle)[1] for handle in due]

    # The high watermark

    def _settle(self, now: float) -> tuple[int, list[tuple[Reached, ErrorCode]]]:
        """Bring everything up to date; answers the bytes that consumers are to be told of, and who waited. Under the
        mutex.
        """
        host = self._host
        before, was_alone = self._hw, self.alone
        self._maximal = frozenset(self.isr) | self._asked
        end = self._log_end()
        waited = isr.waited_for(self._followers, self._maximal, host.brokers, end, now, host.lag)
        enough = self.enough_in_sync
        alone = not waited and enough and self._closed is None
        if alone:
            self._hw, self.alone, self._bytes = max(before, end), True, 0
        elif was_alone:
            self._hw, self.alone = max(before, end), False
            # What was appended until just now, consumers may have seen.
            self._hw = max(self._hw, self._log_end())
        elif enough:
            self._hw = isr.high_watermark(before, end, [self._followers[number].end for number in waited])
        size = 0
        if alone != was_alone:
            size = 2**62
        elif self._hw > before:
            # Bytes are not counted per record: the part of them that the part of the offsets makes out.
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

    def _tell(self, told: tuple[int, list[tuple[Reached, ErrorCode]]]) -> None:
        size, due = told
        for done, code in due:
            done(code)
        if size:
            self._advanced(size)
