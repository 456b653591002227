"""The reads of one Fetch: all directories concurrently, each in its own pool.

If min_bytes is more than 1, the available bytes are measured first: a fetch that waits holds no records in memory.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from storage_node.errors import OffsetOutOfRange, RequestRefused, StorageError
from storage_node.model.error_codes import ErrorCode
from storage_node.model.ids import TopicPartition
from storage_node.protocol.fetch.call import FetchCall, Item
from storage_node.protocol.network.sending import PATIENCE, FilePart
from storage_node.replication.quota import Quotas
from storage_node.small_first import SMALL_FIRST

if TYPE_CHECKING:
    from storage_node.partitions.partition import Partition
    from storage_node.replication.quota import Side

log = logging.getLogger(__name__)

T = TypeVar("T")
_Result = tuple[bytes | FilePart, int, int, int]

#: The most that is read for one response, whatever its max_bytes.
MOST_BYTES = 64 * 1024 * 1024
#: The most that is kept in memory of one partition for a slow client.
FEW_BYTES = 64 * 1024
#: The most that is read from one directory before the response begins. The rest is read once the client has received
#: this, so that a fetch of 50 MB does not occupy the directory's threads for the whole read.
AT_ONCE = 4 * 1024 * 1024
#: Seconds between two reads of a throttled fetch, at least; and the wait without a throttle.
SOON, LONG = 0.001, 300.0


class Budget:
    """The bytes that a response may still have, shared by the concurrent reads of its directories."""

    def __init__(self, size: int) -> None:
        self._left = size
        self._first = True
        self._lock = threading.Lock()

    def reserve(self, size: int) -> tuple[int, bool]:
        """Reserve up to `size` bytes; returns also whether this is the first, which gets one whole batch of any size.

        (KIP-74: a response has at least one batch, so that a client can read a batch larger than its limits.)
        """
        with self._lock:
            first, self._first = self._first, False
            granted = max(0, min(size, self._left))
            self._left -= granted
            return granted, first

    def give_back(self, size: int, first_unused: bool) -> None:
        with self._lock:
            self._left += size
            self._first = self._first or first_unused


class ReadingHost(Protocol):
    """The node, as the reads of a fetch see it."""

    @property
    def quotas(self) -> Quotas: ...

    def storage_failed(self, error: StorageError, tp: TopicPartition | None = None) -> None:
        """Take the directory offline that the error names, or the replica `tp` alone."""
        ...


class Reading:
    """The reads of one request, which may be repeated until it has enough bytes."""

    def __init__(self, node: ReadingHost, call: FetchCall) -> None:
        self._node = node
        self._call = call
        self._follower = call.replica >= 0
        self._quota: Side | None = node.quotas.leader if self._follower else None
        self._owes_one = False
        self._jobs: dict[str, list[Item]] = {}
        self.held = False
        """The replication throttle has held back available records."""
        self.shortened = False
        """The log start offset has advanced during a follower's fetch, which then responds: DeleteRecords waits for the
        followers to advance theirs.
        """

    @property
    def wait_seconds(self) -> float:
        """Seconds until the throttle may allow another read."""
        return max(self._quota.wait_seconds(), SOON) if self._quota is not None else LONG

    @property
    def wanted(self) -> int:
        """fetch.min.bytes, but no more than the response may hold (as KafkaApis.handleFetchRequest)."""
        return min(self._call.min_bytes, self._most)

    @property
    def _most(self) -> int:
        return min(max(self._call.max_bytes, 0), MOST_BYTES)

    def look(self, items: Iterable[Item]) -> dict[Item, None]:
        """Refresh the offsets of these items; returns those with records to read, which `read` then reads."""
        self.held = False
        jobs: dict[str, list[Item]] = {}
        for item in items:
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
            # A consumer cannot read the records between the high watermark and the log end offset yet.
            if not limit <= item.offset <= end:
                jobs.setdefault(replica.directory.name, []).append(item)
        self._jobs = jobs
        return {item: None for found in jobs.values() for item in found}

    async def measure(self) -> int:
        """Return the bytes that `read` would return, up to `wanted`, without reading a record."""
        return sum(found for found, _ in await self._everywhere(self._count))

    async def read(self) -> int:
        """Read the available records into the items; returns the number of bytes."""
        self._owes_one = True
        if not self._jobs:
            return 0
        budget, size = Budget(self._most), 0
        for found, items in await self._everywhere(lambda items: self._read(items, budget)):
            for item, (data, error, mark, start) in zip(items, found, strict=True):
                item.data, item.error, item.high_watermark, item.log_start = data, error, mark, start
                size += len(data)
        return size

    async def _everywhere(self, work: Callable[[list[Item]], T]) -> list[tuple[T, list[Item]]]:
        """Run `work` on the items of each directory in its pool; returns the results that are not late.

        A directory that exceeds PATIENCE must not change its items: they may be part of another response by then.
        """
        waits = []
        for items in self._jobs.values():
            replica = items[0].replica
            assert replica is not None
            try:
                job = asyncio.wrap_future(replica.directory.submit(work, items))
            except (StorageError, RuntimeError):
                # The directory has failed, or the node is stopping.
                _failed(items)
            else:
                waits.append((job, items))
        found = []
        if waits:
            SMALL_FIRST.reads += 1
            try:
                done, _ = await asyncio.wait([job for job, _ in waits], timeout=PATIENCE)
            finally:
                SMALL_FIRST.reads -= 1
            for job, items in waits:
                if job not in done:
                    continue
                if job.exception() is not None:
                    _failed(items)
                else:
                    found.append((job.result(), items))
        return found

    def _count(self, items: list[Item]) -> int:
        """Return the available bytes of some items. Runs in the directory's pool."""
        total = 0
        for item in items:
            replica = item.replica
            if replica is not None and total < self.wanted:
                try:
                    total += min(replica.available(item.offset, to_end=self._follower), max(item.max_bytes, 0))
                except (RequestRefused, StorageError):
                    return self.wanted  # `read` then reports the error
        return total

    def _read(self, items: list[Item], budget: Budget) -> list[_Result]:
        """Return each item's records, error, high watermark and log start offset. Runs in the directory's pool."""
        results: list[_Result] = []
        left = AT_ONCE
        for item in items:
            result = self._read_one(item, budget, left)
            left -= len(result[0])
            results.append(result)
        return results

    def _read_one(self, item: Item, budget: Budget, at_once: int) -> _Result:
        replica = item.replica
        if replica is None:
            return b"", item.error, item.high_watermark, item.log_start
        granted, first = budget.reserve(max(item.max_bytes, 0))
        data: bytes | FilePart = b""
        code = 0
        try:
            if granted or first:
                data = self._one(item, replica, granted, first, at_once)
        except OffsetOutOfRange:
            code = ErrorCode.OFFSET_OUT_OF_RANGE
        except StorageError as error:
            self._node.storage_failed(error, replica.tp)
            code = error.code
        except RequestRefused as error:
            code = error.code
        except Exception:
            log.exception("read of %s-%d failed", item.topic, item.partition)
            code = ErrorCode.UNKNOWN_SERVER_ERROR
        budget.give_back(granted - len(data), first and not data)
        if code:
            return b"", code, -1, -1
        return data, 0, replica.high_watermark, replica.log.log_start_offset

    def _one(self, item: Item, replica: Partition, granted: int, first: bool, at_once: int) -> bytes | FilePart:
        quota = self._quota
        if quota is not None and quota.throttled(replica.tp, self._call.replica):
            return self._throttled(quota, item, replica, granted, at_once)
        return self._fetch(item, replica, granted, first, at_once)

    def _throttled(self, quota: Side, item: Item, replica: Partition, granted: int, at_once: int) -> bytes | FilePart:
        """Read as much as the throttle allows; of a response's first throttled partition at least one batch, whose
        bytes beyond the quota delay the following reads.
        """
        allowed = quota.grant(granted)
        if not allowed:
            self.held = True
            return b""
        whole, self._owes_one = self._owes_one, False
        size = 0
        try:
            data = self._fetch(item, replica, allowed, whole, at_once)
            size = len(data)
        finally:
            quota.give_back(allowed - size)
        if not size:
            self.held = True
        return data

    def _fetch(self, item: Item, replica: Partition, granted: int, whole: bool, at_once: int) -> bytes | FilePart:
        directory, epoch = replica.directory, replica.leader_epoch
        found = replica.fetch(
            item.offset,
            granted,
            leader_epoch=item.leader_epoch,
            min_one=whole,
            to_end=self._follower,
            at_once=max(at_once, FEW_BYTES),
        )
        if found.region is not None and len(found.region) > FEW_BYTES:
            # A follower reads above the high watermark, where another leader may truncate the log and replace records.
            check = partial(replica.check_usable, epoch) if self._follower else None
            return FilePart(found.data, found.region, replica.tp, directory, check)
        return found.data


def _failed(items: Iterable[Item]) -> None:
    for item in items:
        item.error, item.high_watermark, item.log_start = ErrorCode.KAFKA_STORAGE_ERROR, -1, -1
