"""ListOffsets, OffsetForLeaderEpoch, InitProducerId and DeleteRecords."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from storage_node.admin import ProducerIds
from storage_node.errors import RequestRefused, StorageError
from storage_node.log_hold import Hold, LogHeld
from storage_node.model.error_codes import ErrorCode
from storage_node.model.ids import TopicPartition
from storage_node.offset_lookup import EARLIEST, LATEST, MAX_TIMESTAMP, FoundOffset
from storage_node.partitions.offset_files import OffsetFiles
from storage_node.partitions.partition import Partition
from storage_node.protocol.host import ReplicaHost
from storage_node.protocol.network.framing import Answer
from storage_node.protocol.network.turns import in_turns
from storage_node.protocol.request import Request
from storage_node.replication.leading import LeaderState
from storage_node.wire.codec import group, milliseconds

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Seconds. ListOffsets has no timeout before version 10, and a hung directory must not block a connection for ever.
PATIENCE = 30.0

EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD = -4, -5, -6

#: The replica id of consumers; other replica ids read up to the log end offset.
CONSUMER = -1

#: The first version of ListOffsets for each special timestamp.
SPECIAL_TIMES = {
    EARLIEST: 0,
    LATEST: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}


class OffsetsHost(ReplicaHost, Protocol):
    """The node, as the requests for offsets and producer ids see it."""

    @property
    def producer_ids(self) -> ProducerIds: ...

    @property
    def offset_files(self) -> OffsetFiles: ...


async def on_partition(
    node: ReplicaHost, tp: TopicPartition, work: Callable[[Partition], T], seconds: float, *, search: bool = False
) -> tuple[ErrorCode, T | None]:
    """Run `work` in the pool of the partition's directory (a `search` in its pool for searches).

    Returns an error code, or the result. An error of another directory, to which a move copies the replica, fails that
    move, not the request: `work`, which must be idempotent, runs again without the copy.
    """
    try:
        again, deadline = True, asyncio.get_running_loop().time() + seconds
        while True:
            partition = node.leader(tp)
            try:
                submit = partition.directory.submit_lookup if search else partition.directory.submit
                future = asyncio.wrap_future(submit(work, partition))
                return ErrorCode.NONE, await asyncio.wait_for(future, deadline - asyncio.get_running_loop().time())
            except LogHeld as error:
                if error.hold is not None:
                    await _released(error.hold, deadline)
            except StorageError as error:
                # Not on the loop: the call may check the disk's health with I/O.
                await asyncio.to_thread(node.storage_failed, error, tp)
                if not again or error.directory == partition.directory.name:
                    raise
                again, deadline = False, asyncio.get_running_loop().time() + seconds
    except TimeoutError:
        return ErrorCode.REQUEST_TIMED_OUT, None
    except StorageError as error:
        return error.code, None
    except RequestRefused as error:
        return error.code, None
    except Exception:
        log.exception("a request on %s failed", tp)
        return ErrorCode.UNKNOWN_SERVER_ERROR, None


async def _released(hold: Hold, deadline: float) -> None:
    """Wait for the end of a swap without blocking a thread; raises TimeoutError."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()

    def released() -> None:
        with contextlib.suppress(RuntimeError):  # the listener has stopped
            loop.call_soon_threadsafe(done.set)

    hold.when_released(released)
    try:
        await asyncio.wait_for(done.wait(), deadline - loop.time())
    finally:
        hold.forget(released)


async def list_offsets(node: ReplicaHost, request: Request) -> Answer:
    """Return offsets by timestamp; special timestamps request the earliest or latest offset, or the max timestamp's."""
    call = request.decode()
    requested = [(topic.name, row) for topic in call.topics for row in topic.partitions]
    times = Counter((topic, row.partition_index) for topic, row in requested)
    seconds = milliseconds(getattr(call, "timeout", 0)) / 1000 if request.version >= 10 else 0.0
    patience = min(seconds, PATIENCE) if seconds > 0 else PATIENCE
    to_end = int(call.replica_id) != CONSUMER
    requested = list({(topic, row.partition_index): (topic, row) for topic, row in requested}.values())

    async def find(topic: str, row: Any) -> dict[str, Any]:
        if times[topic, row.partition_index] > 1:
            return _no_offset(row, ErrorCode.INVALID_REQUEST)
        return await _list_offset(node, request.version, topic, row, patience, to_end)

    found = await in_turns(find(topic, row) for topic, row in requested)
    rows = [(topic, row) for (topic, _), row in zip(requested, found, strict=True)]
    return request.encode(topics=[{"name": name, "partitions": items} for name, items in group(rows)])


def _no_offset(row: Any, error: ErrorCode = ErrorCode.NONE) -> dict[str, Any]:
    return {
        "partition_index": row.partition_index,
        "error_code": error,
        "timestamp": -1,
        "offset": -1,
        "leader_epoch": -1,
    }


async def _list_offset(
    node: ReplicaHost, version: int, topic: str, row: Any, patience: float, to_end: bool
) -> dict[str, Any]:
    timestamp, epoch = int(row.timestamp), getattr(row, "current_leader_epoch", -1)
    if timestamp < 0 and version < SPECIAL_TIMES.get(timestamp, 1 << 15):
        return _no_offset(row, ErrorCode.UNSUPPORTED_VERSION)

    def look(partition: Partition) -> FoundOffset:
        if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
            partition.check_usable(epoch)
            return FoundOffset(-1)  # nothing is tiered
        return partition.find_offset(EARLIEST if timestamp == EARLIEST_LOCAL else timestamp, epoch, to_end=to_end)

    search = timestamp >= 0 or timestamp == MAX_TIMESTAMP
    code, found = await on_partition(node, TopicPartition(topic, row.partition_index), look, patience, search=search)
    if found is None:
        unknown = code == ErrorCode.OFFSET_NOT_AVAILABLE and version < 5
        return _no_offset(row, ErrorCode.LEADER_NOT_AVAILABLE if unknown else code)
    return _no_offset(row) | {
        "timestamp": found.timestamp,
        "offset": found.offset,
        "leader_epoch": found.leader_epoch,
    }


async def offset_for_leader_epoch(node: ReplicaHost, request: Request) -> Answer:
    """Return the end offsets of leader epochs, by which clients detect a log truncation (KIP-101, KIP-320)."""
    call = request.decode()

    async def find(topic: str, row: Any) -> dict[str, Any]:
        def look(partition: Partition) -> tuple[int, int]:
            return partition.end_of_epoch(row.leader_epoch, row.current_leader_epoch)

        code, found = await on_partition(node, TopicPartition(topic, row.partition), look, PATIENCE)
        epoch, end = found if found is not None else (-1, -1)
        return {"error_code": code, "partition": row.partition, "leader_epoch": epoch, "end_offset": end}

    requested = [(topic.topic, row) for topic in call.topics for row in topic.partitions]
    done = await in_turns(find(topic, row) for topic, row in requested)
    rows = [(topic, row) for (topic, _), row in zip(requested, done, strict=True)]
    return request.encode(topics=[{"topic": name, "partitions": items} for name, items in group(rows)])


async def init_producer_id(node: OffsetsHost, request: Request) -> Answer:
    """Return a new producer id with epoch 0, also to a producer that has an id.

    (Without transactions a producer increments its epoch itself, KIP-360.) A transactional id is rejected with the
    error of FindCoordinator, after which a client fails; after other errors it would retry.
    """
    call = request.decode()
    known, epoch = getattr(call, "producer_id", -1), getattr(call, "producer_epoch", -1)
    wrong = None
    if call.transactional_id:
        wrong = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    elif call.transactional_id is not None or (known == -1) != (epoch == -1):
        wrong = ErrorCode.INVALID_REQUEST
    if wrong is not None:
        return request.encode(error_code=wrong, producer_id=-1, producer_epoch=-1)
    try:
        producer_id = await node.producer_ids.next()
    except RequestRefused as error:
        return request.encode(error_code=error.code, producer_id=-1, producer_epoch=-1)
    return request.encode(producer_id=producer_id, producer_epoch=0)


async def delete_records(node: OffsetsHost, request: Request) -> Answer:
    """Advance log start offsets; the response follows once they are on disk and all live replicas have applied them."""
    call = request.decode()
    timeout = max(milliseconds(call.timeout) / 1000, 0.1)
    deadline = asyncio.get_running_loop().time() + timeout
    requested = [(topic.name, row) for topic in call.topics for row in topic.partitions]

    async def delete(topic: str, row: Any) -> dict[str, Any]:
        def work(partition: Partition) -> tuple[int, LeaderState | None]:
            return partition.delete_records(int(row.offset), within=partition.directory), partition.leading

        tp = TopicPartition(topic, row.partition_index)
        code, done = await on_partition(node, tp, work, timeout)
        start, state = done if done is not None else (-1, None)
        low = start
        if state is not None:
            code, low = await _everywhere(state, start, deadline)
        return {"partition_index": row.partition_index, "low_watermark": low, "error_code": code}

    done = await in_turns(delete(topic, row) for topic, row in requested)
    await _keep_log_starts(node, [TopicPartition(topic, row.partition_index) for topic, row in requested])
    rows = [(topic, row) for (topic, _), row in zip(requested, done, strict=True)]
    return request.encode(topics=[{"name": name, "partitions": items} for name, items in group(rows)])


async def _everywhere(state: LeaderState, start: int, deadline: float) -> tuple[ErrorCode, int]:
    """Wait until the followers' log start offsets have reached `start`; returns the low watermark."""
    loop = asyncio.get_running_loop()
    reached: asyncio.Future[ErrorCode] = loop.create_future()

    def settle(code: ErrorCode) -> None:
        if not reached.done():
            reached.set_result(code)

    def done(code: ErrorCode) -> None:
        with contextlib.suppress(RuntimeError):  # the listener has stopped
            loop.call_soon_threadsafe(settle, code)

    handle = state.when_starts_reach(start, done)
    try:
        code = await asyncio.wait_for(reached, max(0.0, deadline - loop.time()))
    except TimeoutError:
        code = ErrorCode.REQUEST_TIMED_OUT
    finally:
        state.forget(handle)
    return code, state.low_watermark(start) if code is ErrorCode.NONE else -1


async def _keep_log_starts(node: OffsetsHost, tps: Sequence[TopicPartition]) -> None:
    """Write the log start checkpoints at once: an acknowledged deletion must survive a crash."""
    served = node.replicas.served
    directories = {partition.directory for tp in tps if (partition := served.get(tp)) is not None}
    for directory in directories:
        try:
            await asyncio.wrap_future(directory.background(node.offset_files.log_starts, directory))
        except StorageError as error:
            await asyncio.to_thread(node.storage_failed, error)
