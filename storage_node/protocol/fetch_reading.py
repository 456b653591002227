"""What one Fetch reads: directories at the same time, each in its own pool; nothing where nothing is new.

A fetch that wants more than a first byte is measured before it is read: a fetch that waits holds no records in memory.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from storage_node.errors import ErrorCode, OffsetOutOfRange, RequestRefused, StorageError
from storage_node.protocol.fetch_call import FetchCall, Item
from storage_node.protocol.sending import FilePart

if TYPE_CHECKING:
    from storage_node.node import Node
    from storage_node.partition import Partition
    from storage_node.replication.quota import Side

log = logging.getLogger(__name__)

#: More than this is never read for one answer, whatever is asked for.
MOST_BYTES = 64 * 1024 * 1024
#: More than this is not kept in memory for a reader that takes its time.
FEW_BYTES = 64 * 1024
#: Between two looks for what a throttle lets through; and without one.
SOON, LONG = 0.001, 300.0
#: How long the other directories' data is held back for one that does not answer.
PATIENCE = 5.0


class Budget:
    """Bytes that one answer may still take, shared by the directories that are read at the same time."""

    def __init__(self, size: int) -> None:
        self._left = size
        self._first = True
        self._lock = threading.Lock()

    def reserve(self, size: int) -> tuple[int, bool]:
        """Take up to `size` bytes; and whether this is the first, which gets one whole batch however large."""
        with self._lock:
            first, self._first = self._first, False
            granted = max(0, min(size, self._left))
            self._left -= granted
            return granted, first

    def give_back(self, size: int, first_unused: bool) -> None:
        with self._lock:
            self._left += size
            self._first = self._first or first_unused


class Reading:
    """The reads of one request, as often as they are done."""

    def __init__(self, node: Node, call: FetchCall) -> None:
        self._node = node
        self._call = call
        self._follower = call.replica >= 0
        self._quota: Side | None = node.quotas.leader if self._follower else None
        self._owes_one = False
        self.held = False
        """A throttle kept back what there was."""
        self.shortened = False
        """Records were deleted while a follower waited: whoever had them deleted waits for it to hear of that."""

    @property
    def wait_seconds(self) -> float:
        """How long to wait for more than there was, for the throttle's sake."""
        return max(self._quota.wait_seconds(), SOON) if self._quota is not None else LONG

    @property
    def wanted(self) -> int:
        """fetch.min.bytes, but no more than the response may hold (as KafkaApis.handleFetchRequest)."""
        return min(self._call.min_bytes, self._most)

    @property
    def _most(self) -> int:
        return min(max(self._call.max_bytes, 0), MOST_BYTES)

    async def measure(self) -> int:
        """Return the bytes that a read would find, up to `wanted`, without reading a record; `read` then never finds
        less for want of whole batches alone.
        """
        jobs = self._jobs()
        counts = await self._everywhere(jobs, self._count)
        return sum(counts)

    async def read(self) -> int:
        """Read what is there; answers the bytes."""
        jobs = self._jobs()
        if not jobs:
            return 0
        budget = Budget(self._most)
        await self._everywhere(jobs, lambda items: self._read(items, budget))
        return sum(len(item.data) for items in jobs.values() for item in items)

    def _jobs(self) -> dict[str, list[Item]]:
        """The items for which there is something to read, by directory."""
        self.held, self._owes_one = False, True
        jobs: dict[str, list[Item]] = {}
        for item in self._call.items:
            replica = item.replica
            if replica is None or item.settled:
                continue
            mark = item.high_watermark = replica.high_watermark
            start = replica.log.log_start_offset
            if start > item.log_start >= 0 and self._follower:
                self.shortened = True
            item.log_start = start
            end = replica.log.log_end_offset
            limit = end if self._follower else mark
            # Between the high watermark and the end of the log there is nothing for a consumer yet.
            if not limit <= item.offset <= end:
                jobs.setdefault(replica.directory.name, []).append(item)
        return jobs

    async def _everywhere(self, jobs: dict[str, list[Item]], work: Callable[[list[Item]], int]) -> list[int]:
        waits = []
        for items in jobs.values():
            replica = items[0].replica
            assert replica is not None
            try:
                job = asyncio.wrap_future(replica.directory.submit(work, items))
            except (StorageError, RuntimeError):
                # It failed, or the node stops, since the replica was looked up.
                for item in items:
                    item.error = ErrorCode.KAFKA_STORAGE_ERROR
            else:
                waits.append((job, items))
        counts = []
        if waits:
            done, _ = await asyncio.wait([job for job, _ in waits], timeout=PATIENCE)
            for job, items in waits:
                if job not in done:
                    continue
                if job.exception() is not None:
                    for item in items:
                        item.error = ErrorCode.KAFKA_STORAGE_ERROR
                else:
                    counts.append(job.result())
        return counts

    def _count(self, items: list[Item]) -> int:
        """Runs in the directory's pool."""
        total = 0
        for item in items:
            replica = item.replica
            if replica is not None and total < self.wanted:
                try:
                    total += min(replica.available(item.offset, to_end=self._follower), max(item.max_bytes, 0))
                except (RequestRefused, StorageError):
                    return self.wanted  # the read finds out, and tells it
        return total

    def _read(self, items: list[Item], budget: Budget) -> int:
        """Runs in the directory's pool; answers the bytes."""
        total = 0
        for item in items:
            replica = item.replica
            if replica is None:
                continue
            granted, first = budget.reserve(max(item.max_bytes, 0))
            data: bytes | FilePart = b""
            try:
                if granted or first:
                    data = self._one(item, replica, granted, first)
            except OffsetOutOfRange:
                item.error = ErrorCode.OFFSET_OUT_OF_RANGE
            except StorageError as error:
                self._node.storage_failed(error, replica.tp)
                item.error = error.code
            except RequestRefused as error:
                item.error = error.code
            except Exception:
                log.exception("read of %s-%d failed", item.topic, item.partition)
                item.error = ErrorCode.UNKNOWN_SERVER_ERROR
            item.data = data
            if item.error:
                item.high_watermark = item.log_start = -1
            else:
                item.high_watermark, item.log_start = replica.high_watermark, replica.log.log_start_offset
            budget.give_back(granted - len(data), first and not data)
            total += len(data)
        return total

    def _one(self, item: Item, replica: Partition, granted: int, first: bool) -> bytes | FilePart:
        quota = self._quota
        if quota is not None and quota.throttled(replica.tp, self._call.replica):
            return self._throttled(quota, item, replica, granted)
        return self._fetch(item, replica, granted, first)

    def _throttled(self, quota: Side, item: Item, replica: Partition, granted: int) -> bytes | FilePart:
        """As much as the throttle lets through: of the first such partition of an answer at least one batch, which the
        throttle is then owed.
        """
        allowed = quota.grant(granted)
        if not allowed:
            self.held = True
            return b""
        whole, self._owes_one = self._owes_one, False
        size = 0
        try:
            data = self._fetch(item, replica, allowed, whole)
            size = len(data)
        finally:
            quota.give_back(allowed - size)
        if not size:
            self.held = True
        return data

    def _fetch(self, item: Item, replica: Partition, granted: int, whole: bool) -> bytes | FilePart:
        directory = replica.directory
        found = replica.fetch(
            item.offset, granted, leader_epoch=item.leader_epoch, min_one=whole, to_end=self._follower
        )
        if found.region is not None and len(found.data) > FEW_BYTES:
            return FilePart(found.data, found.region, directory)
        return found.data
