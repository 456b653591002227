"""Produce (key 0), versions 3 to 12, by topic name.

The hot path: the envelope is read and written with struct, records stay a view of the frame, and appends run in the
pool of the directory that holds the log, in the order of the connection. Nothing looks at single records.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from storage_node.errors import ErrorCode, RequestRefused, StorageError
from storage_node.protocol.codec import Cursor, MalformedRequest
from storage_node.protocol.framing import Answer
from storage_node.protocol.request import Request
from storage_node.protocol.wire import array, string
from storage_node.types import TopicPartition

if TYPE_CHECKING:
    from storage_node.node import Node
    from storage_node.partition import Partition

log = logging.getLogger(__name__)

_RESULT = struct.Struct(">ihqqq")
_RESULT_V4 = struct.Struct(">ihqq")

#: A directory that hangs must not keep a connection for ever, whatever the client asks for.
LONGEST_WAIT = 60.0


@dataclass(slots=True)
class Item:
    """One partition's records and what became of them."""

    topic: str
    partition: int
    records: memoryview | None
    error: int = 0
    base_offset: int = -1
    append_time: int = -1
    log_start: int = -1
    message: str = ""


@dataclass(frozen=True, slots=True)
class ProduceCall:
    """The envelope."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    items: list[Item]


def parse(request: Request) -> ProduceCall:
    """Read the envelope; raises MalformedRequest."""
    flexible = request.version >= 9
    view = request.frame if isinstance(request.frame, memoryview) else memoryview(request.frame)
    cursor = Cursor(view, request.position)
    transactional_id = cursor.string(flexible)
    acks = cursor.int16()
    timeout = cursor.int32()
    items: list[Item] = []
    for _ in range(cursor.count(flexible)):
        topic = cursor.string(flexible)
        if topic is None:
            raise MalformedRequest("a topic without a name")
        for _ in range(cursor.count(flexible)):
            partition = cursor.int32()
            size = cursor.varint() - 1 if flexible else cursor.int32()
            records = None
            if size >= 0:
                start = cursor.position
                cursor.skip(size)
                records = view[start : cursor.position]
            if flexible:
                cursor.tagged()
            items.append(Item(topic, partition, records))
        if flexible:
            cursor.tagged()
    return ProduceCall(transactional_id, acks, timeout, items)


async def handle(node: Node, request: Request) -> Answer:
    """Append to every partition named, each with its own result; nothing is answered at acks=0."""
    call = parse(request)
    if call.transactional_id is not None:
        _refuse_all(call, ErrorCode.INVALID_REQUEST, "transactions are not offered by this cluster")
    elif call.acks not in (-1, 0, 1):
        _refuse_all(call, ErrorCode.INVALID_REQUIRED_ACKS, f"acks={call.acks}")
    else:
        await _append_all(node, call)
    if call.acks == 0:
        failed = next((item for item in call.items if item.error), None)
        if failed is not None:
            log.info("produce with acks=0 to %s-%d failed: %s", failed.topic, failed.partition, failed.message)
        return None
    return [request.head(), encode(request.version, call.items)]


def _refuse_all(call: ProduceCall, error: ErrorCode, message: str) -> None:
    for item in call.items:
        item.error, item.message = error, message


async def _append_all(node: Node, call: ProduceCall) -> None:
    jobs: dict[str, list[tuple[Item, Partition]]] = {}
    for item in call.items:
        try:
            partition = node.leader(TopicPartition(item.topic, item.partition))
        except (RequestRefused, StorageError) as error:
            item.error, item.message = error.code, str(error)
            continue
        jobs.setdefault(partition.directory.name, []).append((item, partition))
    waits = [asyncio.wrap_future(work[0][1].directory.submit(_append, node, work)) for work in jobs.values()]
    if not waits:
        return
    timeout = min(max(call.timeout_ms / 1000, 0.1), LONGEST_WAIT)
    _, late = await asyncio.wait(waits, timeout=timeout)
    for job, work in zip(waits, jobs.values(), strict=True):
        if job in late:
            for item, _ in work:
                item.error, item.message = ErrorCode.REQUEST_TIMED_OUT, "the log directory did not answer in time"
        else:
            _take_failure(job, work)


def _take_failure(job: asyncio.Future[None], work: list[tuple[Item, Partition]]) -> None:
    """What the pool itself raises (it is shut down when its directory is offline) holds for the whole job."""
    error = job.exception()
    if error is None:
        return
    code = error.code if isinstance(error, (StorageError, RequestRefused)) else ErrorCode.KAFKA_STORAGE_ERROR
    for item, _ in work:
        item.error, item.message = code, str(error)


def _append(node: Node, work: list[tuple[Item, Partition]]) -> None:
    """Runs in the directory's pool."""
    for item, partition in work:
        records = item.records
        if not records:
            item.error, item.message = ErrorCode.INVALID_RECORD, "no record batch"
            continue
        try:
            appended = partition.append(records)
        except StorageError as error:
            node.storage_failed(error)
            item.error, item.message = error.code, str(error)
        except RequestRefused as error:
            item.error, item.message = error.code, error.message
        except Exception as error:
            log.exception("append to %s-%d failed", item.topic, item.partition)
            item.error, item.message = ErrorCode.UNKNOWN_SERVER_ERROR, str(error)
        else:
            item.base_offset = appended.base_offset
            item.append_time = appended.log_append_time
            item.log_start = partition.log.log_start_offset


def encode(version: int, items: list[Item]) -> bytes:
    """The response body."""
    flexible = version >= 9
    topics: dict[str, list[Item]] = {}
    for item in items:
        topics.setdefault(item.topic, []).append(item)
    out = bytearray(array(len(topics), flexible))
    for name, rows in topics.items():
        out += string(name, flexible) + array(len(rows), flexible)
        for row in rows:
            if version >= 5:
                out += _RESULT.pack(row.partition, row.error, row.base_offset, row.append_time, row.log_start)
            else:
                out += _RESULT_V4.pack(row.partition, row.error, row.base_offset, row.append_time)
            if version >= 8:
                # No single records are named; a message goes with an error.
                null = b"\x00" if flexible else b"\xff\xff"
                out += array(0, flexible) + (string(row.message, flexible) if row.error else null)
            if flexible:
                out += b"\x00"
        if flexible:
            out += b"\x00"
    out += b"\x00\x00\x00\x00"
    if flexible:
        out += b"\x00"
    return bytes(out)
