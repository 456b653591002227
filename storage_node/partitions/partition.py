"""Hold a partition's replica on this node: its role, the lock, the log, the moving copy, and the waiting fetches.

A leader with followers keeps their state in `leading`; the high watermark of a sole replica is its log end offset.
Everything that changes the log holds `lock`; reads do not need it. While `future` is set, what truncates the log or
raises its start is applied to both copies, so that they never differ in more than the records that are still to be
copied (KIP-113).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from storage_node.directories.directory import LogDirectory
from storage_node.errors import (
    LogDirectoryOffline,
    NotEnoughReplicas,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    OutOfOrderSequence,
    RequestRefused,
    UnknownProducer,
    UnknownTopicOrPartition,
)
from storage_node.log.admission import Produced, inspect
from storage_node.log.batches.batch import Buffer
from storage_node.log.config import LogConfig
from storage_node.log.log import Appended, FetchedData, Log, LogClosed
from storage_node.log.rejected_first_batches import ReplicaRejections
from storage_node.log_hold import HeldLog
from storage_node.model.error_codes import ErrorCode
from storage_node.model.ids import TopicPartition
from storage_node.model.metadata import PartitionImage
from storage_node.offset_lookup import LATEST, FoundOffset, find_offset
from storage_node.replication.leading import LeaderHost, LeaderState, NoHost
from storage_node.replication.truncation import divergence
from storage_node.waiting import WAKE, Waiters

if TYPE_CHECKING:
    from storage_node.move.future import FutureLog

NO_HOST = NoHost()

#: Returns, or raises, what `inspect` returned or raised.
Inspected = Callable[[], Produced]


class Partition(HeldLog, Waiters):
    """One replica. Thread-safe; the move engine calls `swapped` while it holds the log."""

    def __init__(
        self,
        tp: TopicPartition,
        topic_id: str,
        log: Log,
        directory: LogDirectory,
        *,
        leader_epoch: int = 0,
        generation: int = 0,
        is_leader: bool = True,
        high_watermark: int = 0,
    ) -> None:
        """Create it; `high_watermark` is the checkpointed one."""
        super().__init__()
        self.tp = tp
        self.topic_id = topic_id
        self.log = log
        self.directory = directory
        self.leader_epoch = leader_epoch
        self.generation = generation
        self.is_leader = is_leader
        self.leader = -1
        """The node that leads, -1 while none does or none is known."""
        self.row: PartitionImage | None = None
        """The metadata that this replica has applied."""
        self.leading: LeaderState | None = None
        """The state of the followers, while this node leads with some."""
        self.future: FutureLog | None = None
        self.host: LeaderHost = NO_HOST
        """The node, for a leader with followers."""
        self._high_watermark = high_watermark
        self._leaders_high_watermark = 0
        """From the leader's last response, while this node follows."""
        self._offline = ""
        self._deleted = False
        self.rejections = ReplicaRejections()
        """The rejections of producers' first batches."""

    @property
    def high_watermark(self) -> int:
        """The offset up to which consumers may read: what all in-sync replicas have; of a sole replica its log end."""
        state = self.leading
        if state is not None:
            return state.high_watermark
        end = self.log.log_end_offset
        return end if self.is_leader else min(end, max(self._high_watermark, self.log.log_start_offset))

    @property
    def offset_lag(self) -> int:
        """The offsets that the log end is behind the high watermark (KIP-113); on a follower, behind the leader's.

        A follower's own high watermark is never beyond its log.
        """
        return 0 if self.is_leader else max(0, self._leaders_high_watermark - self.log.log_end_offset)

    @property
    def offline(self) -> str:
        """Why the replica cannot be used, "" while it can."""
        return self._offline

    @property
    def deleted(self) -> bool:
        """Whether the replica is being deleted from this node, or was."""
        return self._deleted

    def take_offline(self, reason: str) -> None:
        """Stop using the replica; requests get KAFKA_STORAGE_ERROR and waiting requests wake up."""
        self._offline = reason
        self._release(ErrorCode.KAFKA_STORAGE_ERROR)

    def delete(self) -> None:
        """Respond to requests that the topic is unknown, because it was deleted. A request in progress may still
        succeed.
        """
        self._deleted = True
        self._release(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def _release(self, code: ErrorCode) -> None:
        state = self.leading
        if state is not None:
            state.close(code)
        self.wake(WAKE)
        if (hold := self._hold) is not None:
            # Waiting appends are rejected now; the swap keeps the log.
            hold.release()

    # Leadership

    @property
    def partition_epoch(self) -> int:
        """The epoch of the newest row that the metadata had for this replica, -1 before the first one."""
        return self.row.partition_epoch if self.row is not None else -1

    def assign(
        self,
        row: PartitionImage,
        topic_id: str,
        node: int,
        brokers: Mapping[int, int],
        *,
        leads: bool | None = None,
        cluster_generation: int = 0,
    ) -> bool:
        """Apply the metadata; return False, and change nothing, if it is older than what was applied.

        `brokers`: the broker epochs of the nodes that are not fenced. `leads`: whether this node acts as the leader, if
        that differs from the row. `cluster_generation`: of the metadata.
        """
        leads = row.leader == node if leads is None else leads
        if row == self.row and leads == self.is_leader and topic_id == self.topic_id:
            return True
        with self._until_offline() as held:
            if (row.leader_epoch, row.partition_epoch) < (self.leader_epoch, self.partition_epoch):
                return False
            before = self.leading
            if not held or (before is not None and not before.update(row, cluster_generation, leads=leads)):
                return not held
            self.topic_id = topic_id or self.topic_id
            changed = row.leader_epoch != self.leader_epoch or leads != self.is_leader or row.leader != self.leader
            if leads:
                if not self.is_leader and row.leader_epoch > 0:
                    self.rejections.elected()
                self._lead(row, node, cluster_generation)
            elif before is not None or self.is_leader:
                self._high_watermark = self.high_watermark
            self.row, self.leader, self.leader_epoch = row, row.leader, row.leader_epoch
            self.is_leader = leads
            if changed:
                self._leaders_high_watermark = 0  # another leader may have a lower one
            if not leads:
                self.leading = None
        if not leads and before is not None:
            before.close(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        # Without a new leader no waiting request is affected, but the next fetches of followers start new counts.
        self.wake(WAKE if changed else 0)
        return True

    def _lead(self, row: PartitionImage, node: int, cluster_generation: int) -> None:
        if self.leading is None and len(row.replicas) > 1:
            self.leading = LeaderState(
                self.tp,
                self.topic_id,
                node,
                row,
                self.host,
                log_end=lambda: self.log.log_end_offset,
                high_watermark=self.high_watermark,
                min_in_sync=self.log.config.min_insync_replicas,
                advanced=self._wake_consumers,
                cluster_generation=cluster_generation,
            )

    def check_usable(self, leader_epoch: int = -1) -> None:
        """Raise the error for a client that cannot use this replica under the epoch it knows (-1: any)."""
        if self._deleted:
            raise UnknownTopicOrPartition(f"{self.tp} was deleted")
        if self._offline:
            raise LogDirectoryOffline(self.directory.name, self._offline)
        if not self.is_leader:
            raise NotLeaderOrFollower(f"this node does not lead {self.tp}")
        if leader_epoch >= 0 and leader_epoch != self.leader_epoch:
            if leader_epoch < self.leader_epoch:
                raise RequestRefused(f"{self.tp} is at leader epoch {self.leader_epoch}", ErrorCode.FENCED_LEADER_EPOCH)
            raise RequestRefused(f"{self.tp} is at leader epoch {self.leader_epoch}", ErrorCode.UNKNOWN_LEADER_EPOCH)

    # Records

    def append(
        self,
        records: Buffer,
        now_ms: int | None = None,
        *,
        within: LogDirectory | None = None,
        inspected: Inspected | None = None,
    ) -> Appended:
        """Append a producer's batch and wake waiting requests. Raises RequestRefused or StorageError.

        `within`: the directory whose thread this is, which raises LogHeld instead of waiting for a swap. `inspected`:
        returns what `inspect` returned for these records, where another thread has called it.
        """
        batch = inspected() if inspected is not None else inspect(records, self.log.config)
        with self.changing(waits=within is None, within=within):
            self.check_usable()
            began = time.monotonic()
            appended = self.log.append_as_leader(batch, self.leader_epoch, now_ms)
            state = self.leading
        self._appended(appended, len(records), state, began)
        return appended

    def append_for_all(
        self,
        records: Buffer,
        now_ms: int | None = None,
        *,
        within: LogDirectory | None = None,
        inspected: Inspected | None = None,
    ) -> tuple[Appended, LeaderState | None]:
        """Append what all in-sync replicas must have (acks=all); raises NotEnoughReplicas too, before any write.

        Also returns where to wait for them, None for a sole replica. `within`, `inspected` as for `append`.
        """
        rejections = self.rejections
        try:
            # Without the lock, because a large batch may take long to decompress.
            batch = inspected() if inspected is not None else inspect(records, self.log.config)
        except RequestRefused:
            rejections.refused_unseen(records)
            raise
        with self.changing(waits=within is None, within=within):
            state, log = self.leading, self.log
            try:
                self.check_usable()
                if state is not None and not state.enough_in_sync:
                    wanted = f"to satisfy the min.isr requirement of {state.least_in_sync} for partition {self.tp}"
                    raise NotEnoughReplicas(f"The size of the current ISR {list(state.isr)} is insufficient {wanted}")
                noted = rejections.check(records, log.producers, log.log_start_offset)
                began = time.monotonic()
                appended = self.log.append_as_leader(batch, self.leader_epoch, now_ms)
            except (OutOfOrderSequence, UnknownProducer):
                raise
            except Exception:
                rejections.refused(records, log.producers)
                raise
            if noted:
                rejections.forget_known(log.producers)
        self._appended(appended, len(records), state, began)
        return appended, state

    def _appended(self, appended: Appended, size: int, state: LeaderState | None, began: float) -> None:
        if appended.duplicate:
            return
        if state is None or state.appended(size, began):
            self._wake_consumers(size)
        for waiter in self._follower_waiters.copy() if self._follower_waiters else ():
            waiter(size)

    def append_as_follower(self, records: Buffer, leader_epoch: int, high_watermark: int, log_start: int) -> Appended:
        """Append the records of the leader of `leader_epoch`, and adopt its high watermark and log start offset.

        Without records only the latter two. Raises RequestRefused with FENCED_LEADER_EPOCH if the epoch has changed or
        a batch is of a later one, NotLeaderOrFollower if this node leads, LogHeld during a swap, and what
        `Log.append_copied` raises.
        """
        with self.changing(waits=False):
            self._check_follows(leader_epoch)
            self._leaders_high_watermark = high_watermark  # It is known even if the records cannot be appended.
            log = self.log
            end = log.log_end_offset
            if records:
                appended = log.append_copied(records, epoch=leader_epoch)
                self.rejections.forget_known(log.producers)
            else:
                appended = Appended(end, end - 1)
            end = log.log_end_offset
            self._high_watermark = max(self._high_watermark, min(high_watermark, end))
            if log_start > log.log_start_offset and log.advance_log_start(min(log_start, end)):
                self._shorten_future()
        return appended

    def _check_follows(self, leader_epoch: int) -> None:
        if self._deleted:
            raise UnknownTopicOrPartition(f"{self.tp} was deleted")
        if self._offline:
            raise LogDirectoryOffline(self.directory.name, self._offline)
        if leader_epoch != self.leader_epoch:
            raise RequestRefused(f"{self.tp} is at leader epoch {self.leader_epoch}", ErrorCode.FENCED_LEADER_EPOCH)
        if self.is_leader:
            raise NotLeaderOrFollower(f"this node leads {self.tp}")

    def fetch(
        self,
        offset: int,
        max_bytes: int,
        *,
        leader_epoch: int = -1,
        min_one: bool = True,
        to_end: bool = False,
        at_once: int | None = None,
    ) -> FetchedData:
        """Return whole batches from the one that holds `offset`, at most `max_bytes` (but the first whole if
        `min_one`).

        They are below the high watermark, or, for a follower, `to_end` of the log. `at_once`: see `Log.read`.
        """
        while True:
            epoch = self.leader_epoch
            self.check_usable(leader_epoch)
            log = self.log
            try:
                upto = log.log_end_offset if to_end else self.high_watermark
                found = log.read(offset, max_bytes, upto=upto, min_one=min_one, at_once=at_once)
                if to_end:
                    # Only a leader never truncates: records read during another node's election may be of both logs.
                    self.check_usable(epoch)
                return found
            except (OffsetOutOfRange, LogClosed):
                # A swap between the two reads of `self.log` is not an error: the copy holds the same offsets.
                if self.log is log:
                    raise

    def available(self, offset: int, *, to_end: bool = False) -> int:
        """Return the bytes that `fetch` could get from `offset` on, without reading them; see `Log.available`."""
        while True:
            self.check_usable()
            log = self.log
            try:
                return log.available(offset, upto=log.log_end_offset if to_end else self.high_watermark)
            except (OffsetOutOfRange, LogClosed):
                if self.log is log:
                    raise

    def find_offset(self, timestamp: int, leader_epoch: int = -1, *, to_end: bool = False) -> FoundOffset:
        """Return the result of ListOffsets: for a special timestamp, or the first record at `timestamp` (ms) or later.

        It is below the high watermark, or `to_end` of the log. Raises RequestRefused with OFFSET_NOT_AVAILABLE while a
        new leader does not know yet whether its whole log is replicated.
        """
        self.check_usable(leader_epoch)
        log = self.log
        limit = log.log_end_offset if to_end else self.high_watermark
        if (found := find_offset(log, timestamp, limit)) is None:
            self._check_known(limit)
            return FoundOffset(limit, -1, self.leader_epoch) if timestamp == LATEST else FoundOffset(-1)
        return found

    def _check_known(self, limit: int) -> None:
        state = self.leading
        if state is not None and limit < state.epoch_start:
            message = f"the high watermark {limit} of {self.tp} is below {state.epoch_start}, where leader epoch "
            raise RequestRefused(f"{message}{self.leader_epoch} began", ErrorCode.OFFSET_NOT_AVAILABLE)

    def end_of_epoch(self, epoch: int, current: int = -1) -> tuple[int, int]:
        """Return the largest epoch not above `epoch`, and its end offset; (-1, -1) for an unknown one.

        The epoch that this node leads in begins at the log's end as long as nothing was appended in it.
        """
        self.check_usable(current)
        log = self.log
        end = log.log_end_offset
        return log.leader_epochs.assign(self.leader_epoch, end).end_offset_for(epoch, end)

    def divergence(self, offset: int, last_epoch: int) -> tuple[int, int] | None:
        """Return where a log that ends at `offset` with a record of `last_epoch` diverges from this one: the epoch and
        its end offset here; None without divergence.

        Raises OffsetOutOfRange below the log start, or if the divergence is not known.
        """
        return divergence(self.tp, self.log.log_start_offset, offset, last_epoch, self.end_of_epoch(last_epoch))

    def delete_records(self, before: int, *, within: LogDirectory | None = None) -> int:
        """Advance the log start offset to `before` (-1: the high watermark) in both copies; return the new start.

        `within` as for `append`.
        """
        with self.changing(waits=within is None, within=within):
            self.check_usable()
            end = self.high_watermark
            target = end if before == -1 else before
            if target < 0 or target > end:
                raise OffsetOutOfRange(f"{self.tp} ends at {end}, records before {before} cannot be deleted")
            log = self.log
            moved = log.advance_log_start(target)
            self._shorten_future()
        if moved and self.leading is not None:
            # The next response to followers carries it; without this it would wait for records.
            for waiter in self._follower_waiters.copy():
                waiter(WAKE)
        if moved:
            self.wake(0)
        return log.log_start_offset

    def delete_old_segments(self, now_ms: int) -> int:
        """Apply retention to both copies; return the number of segments removed from the log in use. Raises LogHeld."""
        with self.changing(waits=False):
            if self._offline or self._deleted:
                return 0
            log = self.log
            count = log.delete_old_segments(now_ms, self.high_watermark)
            if count:
                self._shorten_future()
        if count:
            self.wake(0)
        return count

    def forget_producers(self, producers: int | None, rejected: int | None) -> int:
        """Keep only the newest producers, and newest rejected first batches, where a number is given.

        Returns the number of forgotten producers. Raises LogHeld.
        """
        with self.changing(waits=False):
            if rejected is not None and len(self.rejections) > rejected:
                self.rejections.forget(rejected)
            return self.log.forget_producers(producers) if producers is not None else 0

    def truncate_to(self, offset: int) -> None:
        """Truncate both copies at `offset`; `OffsetFiles.truncate` also lowers the recovery point on disk."""
        with self.changing():
            try:
                self.log.truncate_to(offset)
                self._high_watermark = min(self._high_watermark, self.log.log_end_offset)
            finally:
                if (future := self.future) is not None:
                    # Also if the copy does not reach the offset: its copier may have read beyond.
                    future.defer_truncation(offset)

    def restart_at(self, offset: int) -> None:
        """Drop everything in both copies and restart at `offset`, the leader's log start.

        `OffsetFiles.restart_at` also corrects the checkpoints on disk.
        """
        with self.changing():
            try:
                self.log.truncate_fully(offset)
                self._high_watermark = offset
            finally:
                if (future := self.future) is not None:
                    future.defer_restart(offset)

    def _shorten_future(self) -> None:
        if (future := self.future) is not None:
            future.defer_start(self.log.log_start_offset)

    def swapped(self, log: Log, directory: LogDirectory, generation: int) -> None:
        """Make the copy the replica; called by the move engine, which holds the log, once both renames are durable."""
        with self.lock:
            # Configs that changed while the copy was being opened reached only the source.
            log.config = self.log.config
            self.log = log
            self.directory = directory
            self.generation = generation
            self.future = None
        self.wake(WAKE)

    def tidy(self, now_ms: int) -> None:
        """Flush full segments, and remove the files of segments that were deleted long enough ago."""
        log = self.log
        if log.untidy and not self._offline and not self._deleted:
            log.flush_closed_segments()
            log.purge_deleted(now_ms)

    def flush_if_due(self, now_ms: int) -> None:
        """Flush the log if flush.ms requires it."""
        if not self._offline and not self._deleted:
            self.log.flush_if_due(now_ms)

    def configure(self, config: LogConfig) -> None:
        """Apply the topic's configs to both copies."""
        if self.log.config != config:
            with self._until_offline() as held:
                if not held:
                    return
                self.log.config = config
                if self.future is not None:
                    self.future.config = config
                state = self.leading
            if state is not None:
                state.configure(config.min_insync_replicas)
