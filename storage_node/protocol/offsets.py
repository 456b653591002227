"""ListOffsets, InitProducerId and DeleteRecords."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from storage_node.errors import ErrorCode, RequestRefused, StorageError
from storage_node.partition import EARLIEST, FoundOffset, Partition
from storage_node.protocol.codec import group, milliseconds
from storage_node.protocol.framing import Answer
from storage_node.protocol.request import Request
from storage_node.protocol.turns import in_turns
from storage_node.types import TopicPartition

if TYPE_CHECKING:
    from storage_node.node import Node

log = logging.getLogger(__name__)

T = TypeVar("T")

#: ListOffsets has no timeout before version 10; no directory may keep a connection for ever.
PATIENCE = 30.0


async def on_partition(
    node: Node, tp: TopicPartition, work: Callable[[Partition], T], seconds: float
) -> tuple[ErrorCode, T | None]:
    """Run `work` in the pool of the partition's directory; answers an error code or the result.

    An error of another directory, where a copy of the replica is being made, is none of the client's: that copy's move
    ends, and `work` (which may be done again) is done without it.
    """
    try:
        again = True
        while True:
            partition = node.leader(tp)
            try:
                future = asyncio.wrap_future(partition.directory.submit(work, partition))
                return ErrorCode.NONE, await asyncio.wait_for(future, seconds)
            except StorageError as error:
                # Not on the loop: the disk may be asked whether it is well.
                await asyncio.to_thread(node.storage_failed, error, tp)
                if not again or error.directory == partition.directory.name:
                    raise
                again = False
    except TimeoutError:
        return ErrorCode.REQUEST_TIMED_OUT, None
    except StorageError as error:
        return error.code, None
    except RequestRefused as error:
        return error.code, None
    except Exception:
        log.exception("a request on %s failed", tp)
        return ErrorCode.UNKNOWN_SERVER_ERROR, None


async def list_offsets(node: Node, request: Request) -> Answer:
    """Offsets by time, or the earliest, the latest, and the one with the newest time stamp."""
    call = request.decode()
    asked = [(topic.name, row) for topic in call.topics for row in topic.partitions]
    found = await in_turns(_list_offset(node, request.version, topic, row) for topic, row in asked)
    rows = [(topic, row) for (topic, _), row in zip(asked, found, strict=True)]
    return request.encode(topics=[{"name": name, "partitions": items} for name, items in group(rows)])


async def _list_offset(node: Node, version: int, topic: str, row: Any) -> dict[str, Any]:
    timestamp = int(row.timestamp)
    epoch = getattr(row, "current_leader_epoch", -1)
    answer: dict[str, Any] = {"partition_index": row.partition_index, "timestamp": -1, "offset": -1, "leader_epoch": -1}
    if timestamp == -4:
        timestamp = EARLIEST  # nothing is tiered: the earliest local offset is the earliest
    elif timestamp < -3:
        # Latest tiered offset and later inventions: nothing is tiered here.
        return answer | ({} if timestamp == -5 else {"error_code": ErrorCode.UNSUPPORTED_VERSION})

    def look(partition: Partition) -> FoundOffset:
        return partition.find_offset(timestamp, epoch)

    code, found = await on_partition(node, TopicPartition(topic, row.partition_index), look, PATIENCE)
    if found is None:
        return answer | {"error_code": code}
    return answer | {"timestamp": found.timestamp, "offset": found.offset, "leader_epoch": found.leader_epoch}


async def init_producer_id(node: Node, request: Request) -> Answer:
    """A new producer id with epoch 0; with the current id and epoch given (KIP-360) the next epoch of that id."""
    call = request.decode()
    if call.transactional_id is not None:
        return request.encode(error_code=ErrorCode.INVALID_REQUEST, producer_id=-1, producer_epoch=-1)
    known, epoch = getattr(call, "producer_id", -1), getattr(call, "producer_epoch", -1)
    if known >= 0 and 0 <= epoch < 2**15 - 2:
        return request.encode(producer_id=known, producer_epoch=epoch + 1)
    try:
        producer_id = await node.producer_ids.next()
    except RequestRefused as error:
        return request.encode(error_code=error.code, producer_id=-1, producer_epoch=-1)
    return request.encode(producer_id=producer_id, producer_epoch=0)


async def delete_records(node: Node, request: Request) -> Answer:
    """Advance log start offsets; what is answered is on disk."""
    call = request.decode()
    timeout = max(milliseconds(call.timeout) / 1000, 0.1)
    asked = [(topic.name, row) for topic in call.topics for row in topic.partitions]

    async def delete(topic: str, row: Any) -> dict[str, Any]:
        def work(partition: Partition) -> int:
            return partition.delete_records(int(row.offset))

        code, start = await on_partition(node, TopicPartition(topic, row.partition_index), work, timeout)
        low = -1 if start is None else start
        return {"partition_index": row.partition_index, "low_watermark": low, "error_code": code}

    done = await in_turns(delete(topic, row) for topic, row in asked)
    await _keep_log_starts(node, [TopicPartition(topic, row.partition_index) for topic, row in asked])
    rows = [(topic, row) for (topic, _), row in zip(asked, done, strict=True)]
    return request.encode(topics=[{"name": name, "partitions": items} for name, items in group(rows)])


async def _keep_log_starts(node: Node, tps: Sequence[TopicPartition]) -> None:
    """What was answered must hold after a crash: the checkpoint is not left to its interval."""
    served = node.replicas.served
    directories = {partition.directory for tp in tps if (partition := served.get(tp)) is not None}
    for directory in directories:
        try:
            await asyncio.wrap_future(directory.submit(node.offset_files.log_starts, directory))
        except StorageError as error:
            await asyncio.to_thread(node.storage_failed, error)
