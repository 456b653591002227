"""A partition's replica on this node: the lock, the log, the moving copy, and who waits for new records.

At replication factor 1 the high watermark is the log end offset. Everything that changes the log is done under `lock`;
reads go on beside it. While `future` is set, what truncates or shortens the log is applied to both copies, so that they
never differ in more than the records that are still to be copied (KIP-113).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from storage_node.directories.directory import LogDirectory
from storage_node.errors import (
    ErrorCode,
    LogDirectoryOffline,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    RequestRefused,
    UnknownTopicOrPartition,
)
from storage_node.log.config import LogConfig
from storage_node.log.log import Appended, FetchedData, Log, LogClosed
from storage_node.types import TopicPartition

#: ListOffsets asks for these instead of a time.
LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3

#: Seconds between two looks at whether a replica whose lock is waited for has gone offline.
LOOK = 0.2

#: A waiter that is told this many bytes wakes up whatever it waits for.
WAKE = 2**62

Waiter = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class FoundOffset:
    """An answer of ListOffsets; -1 where nothing is known."""

    offset: int
    timestamp: int = -1
    leader_epoch: int = -1


class Partition:
    """One replica. Thread-safe; `swapped` is called by the mover while it holds `lock`."""

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
    ) -> None:
        self.tp = tp
        self.topic_id = topic_id
        self.lock = threading.RLock()
        self.log = log
        self.directory = directory
        self.leader_epoch = leader_epoch
        self.generation = generation
        self.is_leader = is_leader
        self.future: Log | None = None
        self._offline = ""
        self._deleted = False
        self._waiters: set[Waiter] = set()

    @property
    def high_watermark(self) -> int:
        """Up to here consumers may read; the log end offset as long as there is one replica."""
        return self.log.log_end_offset

    @property
    def offline(self) -> str:
        """Why the replica cannot be used, "" while it can."""
        return self._offline

    def take_offline(self, reason: str) -> None:
        """The replica is not used any more; requests get KAFKA_STORAGE_ERROR and waiters wake up."""
        self._offline = reason
        self.wake(WAKE)

    def delete(self) -> None:
        """The topic is gone: requests are told that it is unknown. One that is being carried out may still end well."""
        self._deleted = True
        self.wake(WAKE)

    # Leadership

    def lead(self, leader_epoch: int, is_leader: bool) -> None:
        """Take over the leader epoch that the metadata gives; an older one is ignored."""
        with self._until_offline() as held:
            if not held or leader_epoch < self.leader_epoch:
                return
            changed = leader_epoch != self.leader_epoch or is_leader != self.is_leader
            self.leader_epoch = leader_epoch
            self.is_leader = is_leader
        if changed:
            self.wake(WAKE)

    @contextmanager
    def _until_offline(self) -> Iterator[bool]:
        """The lock, for who must not wait for ever for a disk that hangs; False once the replica is offline."""
        while not (held := self.lock.acquire(timeout=LOOK)):
            if self._offline:
                break
        try:
            yield held
        finally:
            if held:
                self.lock.release()

    def check_usable(self, leader_epoch: int = -1) -> None:
        """Raise what a client is to be told when it cannot use this replica under the epoch it knows (-1: any)."""
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

    def append(self, records: bytes | bytearray | memoryview, now_ms: int | None = None) -> Appended:
        """Append a producer's batches; raises RequestRefused or StorageError. Waiters are woken."""
        with self.lock:
            self.check_usable()
            log = self.log
            appended = log.append_as_leader(records, self.leader_epoch, now_ms)
        if self._waiters and not appended.duplicate:
            self.wake(len(records))
        return appended

    def fetch(self, offset: int, max_bytes: int, *, leader_epoch: int = -1, min_one: bool = True) -> FetchedData:
        """Whole batches from the one that holds `offset`, at most `max_bytes` (but the first whole if `min_one`)."""
        while True:
            self.check_usable(leader_epoch)
            log = self.log
            try:
                return log.read(offset, max_bytes, upto=log.log_end_offset, min_one=min_one)
            except (OffsetOutOfRange, LogClosed):
                # A swap between the two looks at the log is no reason to fail: the copy holds the same offsets.
                if self.log is log:
                    raise

    def find_offset(self, timestamp: int, leader_epoch: int = -1) -> FoundOffset:
        """The answer of ListOffsets: a special timestamp, or the first record at `timestamp` (ms) or later."""
        self.check_usable(leader_epoch)
        log = self.log
        if timestamp == LATEST:
            return FoundOffset(self.high_watermark, -1, self.leader_epoch)
        if timestamp == EARLIEST:
            start = log.log_start_offset
            return FoundOffset(start, -1, log.leader_epochs.epoch_for(start))
        if timestamp == MAX_TIMESTAMP:
            newest = log.max_timestamp()
            if newest[0] < 0:
                return FoundOffset(-1)
            return FoundOffset(newest[0], newest[1], log.leader_epochs.epoch_for(newest[0]))
        found = log.offset_for_timestamp(timestamp)
        if found is None:
            return FoundOffset(-1)
        return FoundOffset(found[0], found[1], log.leader_epochs.epoch_for(found[0]))

    def end_of_epoch(self, epoch: int, current: int = -1) -> tuple[int, int]:
        """The largest epoch not above `epoch`, and the offset at which it ends; (-1, -1) for one that is not known.

        The epoch that this node leads in begins at the log's end for as long as nothing was appended in it.
        """
        self.check_usable(current)
        log = self.log
        end = log.log_end_offset
        return log.leader_epochs.assign(self.leader_epoch, end).end_offset_for(epoch, end)

    def delete_records(self, before: int) -> int:
        """Advance the log start offset to `before` (-1: the high watermark) in both copies; answers the new start."""
        with self.lock:
            self.check_usable()
            end = self.high_watermark
            target = end if before == -1 else before
            if target < 0 or target > end:
                raise OffsetOutOfRange(f"{self.tp} ends at {end}, records before {before} cannot be deleted")
            log = self.log
            log.advance_log_start(target)
        self._shorten_future(log.log_start_offset)
        return log.log_start_offset

    def delete_old_segments(self, now_ms: int) -> int:
        """Retention on both copies; answers how many segments went from the log in use."""
        with self.lock:
            if self._offline or self._deleted:
                return 0
            log = self.log
            count = log.delete_old_segments(now_ms)
        if count:
            self._shorten_future(log.log_start_offset)
        return count

    def truncate_to(self, offset: int) -> None:
        """Cut both copies off at `offset`; `OffsetFiles.truncate` also lowers their recovery points on the disk."""
        with self.lock:
            self.log.truncate_to(offset)
            future = self.future
            if future is not None:
                # Also one that does not reach so far: its copier may have read beyond.
                future.truncate_to(offset)

    def _shorten_future(self, start: int) -> None:
        """Not under `lock`: a target that hangs must not hold up the producers. A copy that was swapped in meanwhile
        has reached beyond `start`, which then changes nothing any more.
        """
        future = self.future
        if future is not None:
            future.follow_start(start)

    def swapped(self, log: Log, directory: LogDirectory, generation: int) -> None:
        """From now on the copy is the replica; called by the mover under `lock`, after both renames are durable."""
        with self.lock:
            self.log = log
            self.directory = directory
            self.generation = generation
            self.future = None
        self.wake(WAKE)

    def tidy(self, now_ms: int) -> None:
        """Flush segments that are full, remove the files of those that went long enough ago."""
        if not self._offline and not self._deleted:
            log = self.log
            log.flush_closed_segments()
            log.purge_deleted(now_ms)

    def flush_if_due(self, now_ms: int) -> None:
        """What flush.ms asks for."""
        if not self._offline and not self._deleted:
            self.log.flush_if_due(now_ms)

    def configure(self, config: LogConfig) -> None:
        """Take over the topic's configs, in both copies."""
        if self.log.config != config:
            with self._until_offline() as held:
                if not held:
                    return
                self.log.config = config
                if self.future is not None:
                    self.future.config = config

    # Waiting

    def add_waiter(self, waiter: Waiter) -> None:
        """`waiter(bytes)` is called, on any thread, after an append and whenever the partition's state changes."""
        self._waiters.add(waiter)

    def remove_waiter(self, waiter: Waiter) -> None:
        self._waiters.discard(waiter)

    def wake(self, size: int) -> None:
        """Tell all waiters that `size` bytes are new."""
        for waiter in tuple(self._waiters):
            waiter(size)
