"""Attacks by Produce, Fetch, ListOffsets, Metadata and the like: the requests that reach the logs."""

from __future__ import annotations

import itertools
import random
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from ops.bench.hostile import batches
from ops.bench.hostile.attack import Attack, allowed
from ops.bench.hostile.field import (
    ATTACKED,
    BACKLOG,
    CLOSED,
    DENSE,
    NONE,
    OPEN,
    PARTITIONS,
    WIDE,
    WIDE_PARTITIONS,
    Field,
    Line,
    errors,
    frame,
    raw_frame,
)
from ops.bench.hostile.on_connections import fetch
from storage_node.wire.primitives import varint

AT_ONCE, LATE = "at once", "after the longest wait"
UNKNOWN = "UNKNOWN_TOPIC_OR_PARTITION"

MANY_FETCHED, MANY_PRODUCED = 50_000, 29_000
LONGEST_NAME = 32_767
LONG_NAME = 8 << 20
ZEROS = 99 << 20
LATE_BALLAST = 8 << 20
_PRODUCE, _FETCH = 0, 1
_V9, _V12 = 9, 12


def produced(
    topics: Mapping[str, Mapping[int, bytes]], acks: int = -1, *, timeout_ms: int = 30_000, times: int = 1
) -> bytes:
    """Return a produce request: topic -> partition -> records, each repeated `times` times."""
    rows = [
        {
            "name": name,
            "partition_data": [{"index": index, "records": data} for index, data in partitions.items()] * times,
        }
        for name, partitions in topics.items()
    ]
    timeout = timedelta(milliseconds=timeout_ms)
    return frame(_PRODUCE, _V9, {"acks": acks, "timeout": timeout, "topic_data": rows})


def _name(text: bytes) -> bytes:
    return varint(len(text) + 1) + text


def _wide_fetch(field: Field) -> None:
    """Fetch 50,000 partitions; the request is packed here, as kio would encode it for longer than the attack."""
    count = field.size(MANY_FETCHED)
    rows = b"".join(struct.pack(">iiqiqiB", n, -1, 0, -1, -1, 1, 0) for n in range(count))
    body = struct.pack(">iiiibii", -1, 0, 1, 1 << 20, 0, 0, -1)
    body += b"\x02" + _name(ATTACKED.encode()) + varint(count + 1) + rows + b"\0" + b"\x01\x01\0"
    field.crowd(2, field.sender(_FETCH, _V12, raw_frame(_FETCH, _V12, body), 1))


def _wide_produce_frame() -> bytes:
    rows = b"".join(struct.pack(">i", n) + b"\x01\0" for n in range(MANY_PRODUCED))
    body = b"\0" + struct.pack(">hi", 1, 1000) + b"\x02" + _name(b"nowhere") + varint(MANY_PRODUCED + 1) + rows
    return raw_frame(_PRODUCE, _V9, body + b"\0\0")


def _wide_produce(field: Field) -> None:
    field.crowd(2, field.sender(_PRODUCE, _V9, _wide_produce_frame(), 1))


def _wide_produce_pipelined(field: Field) -> None:
    data = _wide_produce_frame()
    count = max(2, field.size(17))

    def work(line: Line) -> None:
        line.socket.sendall(data * count)
        field.note(*errors(line.receive(_PRODUCE, _V9)))
        for _ in range(count - 1):
            line.skip()

    field.crowd(2, work)


def _names(length: int) -> Callable[[], str]:
    numbers = itertools.count()
    return lambda: f"{next(numbers):010d}".ljust(length, "n")


def _names_produced(field: Field, length: int, per_request: int) -> None:
    name = _names(length)
    good = batches.batch(producer=1)

    def work(line: Line) -> None:
        data = produced({name(): {0: good} for _ in range(per_request)})
        field.note(*errors(line.ask_frame(_PRODUCE, _V9, data)))

    field.crowd(4, work)


def _names_looked_up(field: Field) -> None:
    name = _names(249)

    def values() -> Mapping[str, Any]:
        wanted = [{"name": name()} for _ in range(100)] + [{"name": name() + "too long"}, {"name": "no topic"}]
        return {"topics": wanted, "allow_auto_topic_creation": False}

    field.crowd(4, field.asker(3, 12, values))


def _zeros(field: Field) -> None:
    zeros = bytes(ZEROS)
    frames = [raw_frame(3, 12, zeros), raw_frame(2, 5, zeros)]

    def work(line: Line) -> None:
        line.socket.sendall(random.choice(frames))
        field.note(NONE if line.skip() else CLOSED)

    field.crowd(2, work)


def _unreadable(field: Field) -> None:
    rows = list(batches.unreadable().items())

    def work(line: Line) -> None:
        for what, data in rows:
            try:
                found = errors(line.ask_frame(_PRODUCE, _V9, produced({ATTACKED: {0: data}})))
            except ConnectionError:
                line, found = field.connect(), {CLOSED}
            field.note(*(f"{what}: {outcome}" for outcome in found))

    field.crowd(2, work)


def _sent(field: Field, records: bytes, partitions: Sequence[int], crowd: int = 4) -> None:
    data = produced({ATTACKED: {partition: records for partition in partitions}})
    field.crowd(crowd, field.sender(_PRODUCE, _V9, data, 1 << 30))


def _strange_acks(field: Field) -> None:
    data = produced({ATTACKED: {0: batches.batch()}}, acks=7)
    field.crowd(4, field.sender(_PRODUCE, _V9, data, 1 << 30))


def _no_acks(field: Field) -> None:
    """Produce with acks=0 to an unknown topic; the server must report the error by closing the connection."""
    data = produced({"no\nwhere\x1b[31m" * 10: {0: batches.batch()}}, acks=0)

    def work(line: Line) -> None:
        line.socket.sendall(data)
        field.note(CLOSED if not line.socket.recv(1) else NONE)
        raise ConnectionResetError

    field.crowd(4, work)


def _impostors(field: Field) -> None:
    row = {"partition": 0, "current_leader_epoch": -1, "partition_max_bytes": 1 << 20, "fetch_offset": 1 << 40}
    topics = [{"topic": ATTACKED, "partitions": [row | {"partition": n} for n in range(PARTITIONS)]}]
    values = {"replica_id": 99, "max_bytes": 1 << 20, "session_epoch": -1, "topics": topics}
    field.crowd(4, field.asker(_FETCH, _V12, lambda: values))


def _claims(field: Field) -> None:
    _sent(field, batches.claiming(b"\x1f\x8b") * 2500, [1])


def _one_claim_each(field: Field) -> None:
    _sent(field, batches.claiming(b"\x1f\x8b"), range(PARTITIONS))


def _bombs(field: Field) -> None:
    _sent(field, batches.bomb(), [2])


def _late(field: Field) -> None:
    """Each request has much more data than the expensive batches for which it times out."""
    ballast = batches.batch(bytes(LATE_BALLAST))
    topics = {"nowhere": {0: ballast}, ATTACKED: {4: batches.header_flood(batches.ZSTD)}}
    data = produced(topics, timeout_ms=100)
    field.crowd(8, field.sender(_PRODUCE, _V9, data, 1 << 30))


def _refused(field: Field) -> None:
    _sent(field, batches.heavy_garbage(), range(PARTITIONS))


def _header_floods(field: Field) -> None:
    frames = [
        produced({ATTACKED: {5: batches.header_flood(codec)}}, timeout_ms=1_000, times=times)
        for codec, times in ((batches.ZSTD, 20), (batches.GZIP, 20), (0, 2))
    ]
    turns = itertools.cycle(frames)

    def work(line: Line) -> None:
        field.note(*errors(line.ask_frame(_PRODUCE, _V9, next(turns))))

    field.crowd(4, work)


def _tiny_blocks(field: Field) -> None:
    _sent(field, batches.tiny_blocks(), [6])


def _too_large(field: Field) -> None:
    _sent(field, batches.batch(bytes(2 << 20)), [3], 2)


def _dense_by_time(field: Field) -> None:
    row = {"partition_index": 0, "timestamp": (batches.DENSE_FROM + batches.DENSE_TO) // 2}
    values = {"replica_id": -1, "topics": [{"name": DENSE, "partitions": [row]}]}
    field.crowd(8, field.asker(2, 7, lambda: values))


def _producer_ids(field: Field) -> None:
    ids = itertools.count(1 << 41)

    def work(line: Line) -> None:
        data = produced({WIDE: {n: batches.batch(producer=next(ids)) for n in range(WIDE_PARTITIONS)}})
        field.note(*errors(line.ask_frame(_PRODUCE, _V9, data)))

    field.crowd(4, work)


def _init_producer_id(field: Field) -> None:
    values = {"transactional_id": None, "transaction_timeout": timedelta(minutes=1), "producer_id": -1}
    field.crowd(8, field.asker(22, 4, lambda: values | {"producer_epoch": -1}))


def _init_transaction(field: Field) -> None:
    values = {"transaction_timeout": timedelta(minutes=1), "producer_id": -1, "producer_epoch": -1}
    field.crowd(4, field.asker(22, 4, lambda: values | {"transactional_id": "made-up"}))


def _long_polls(field: Field) -> None:
    with field.many(field.size(100), fetch(BACKLOG, wait_ms=2**31 - 1, least=2**31 - 1, most=2**31 - 1)):
        field.rest()


def _min_above_max(field: Field) -> None:
    data = fetch(BACKLOG, wait_ms=6_000, least=3 << 20, most=1_100_000)

    def work(line: Line) -> None:
        begun = time.monotonic()
        line.socket.sendall(data)
        line.skip()
        field.note(AT_ONCE if time.monotonic() - begun < 4 else LATE)

    field.crowd(2, work)


def _session(session: int, epoch: int, partitions: int) -> Mapping[str, Any]:
    rows = [{"partition": n, "current_leader_epoch": -1, "partition_max_bytes": 1} for n in range(partitions)]
    limits = {"min_bytes": 0, "max_bytes": 1, "replica_id": -1}
    topics = [{"topic": WIDE, "partitions": rows}] if partitions else []
    return {"session_id": session, "session_epoch": epoch, "topics": topics, **limits}


def _sessions_abandoned(field: Field) -> None:
    data = frame(_FETCH, _V12, _session(0, 0, WIDE_PARTITIONS))

    def work(_: Line) -> None:
        line = field.connect()
        field.note(*errors(line.ask_frame(_FETCH, _V12, data)))
        line.reset()

    field.crowd(4, work)


def _sessions_made_up(field: Field) -> None:
    chance = random.Random(3)
    field.crowd(4, field.asker(_FETCH, _V12, lambda: _session(chance.randrange(1, 2**31), 5, 3)))


def _epochs(field: Field) -> None:
    row = {"partition": 0, "current_leader_epoch": 1000, "leader_epoch": 0}
    topics = [{"topic": ATTACKED, "partitions": [row | {"partition": n} for n in range(1000)]}]
    field.crowd(4, field.asker(23, 4, lambda: {"replica_id": -1, "topics": topics}))


#: The errors of Apache Kafka 4.3.1 for each unreadable batch ...
_INVALID, _ACCEPTED, _BY_ACCIDENT = ("INVALID_RECORD",), (NONE,), ("UNKNOWN_SERVER_ERROR",)
UNREADABLE: dict[str, tuple[str, ...]] = {
    "codec 5": _BY_ACCIDENT,
    "codec 7": _BY_ACCIDENT,
    "gzip of garbage": _BY_ACCIDENT,
    "snappy of garbage": _BY_ACCIDENT,
    "lz4 of garbage": _BY_ACCIDENT,
    "zstd of garbage": _BY_ACCIDENT,
    "records of length 0": _INVALID,
    "a record of garbage": _INVALID,
    "a record beyond its batch": _INVALID,
    "fewer records than claimed": _INVALID,
    "more records than claimed": _INVALID,
    "gzip of fewer than claimed": _INVALID,
    "offsets that do not fit the count": _INVALID,
    "no record at all": _INVALID,
    "a control batch": _INVALID,
    "two batches": _INVALID,
    "half a batch": _INVALID,
    "a wrong checksum": ("CORRUPT_MESSAGE",),
    # Apache Kafka corrects the header of these.
    "LogAppendTime by a producer": _ACCEPTED,
    "max timestamp below the base": _ACCEPTED,
}
#: ... and permitted alternatives: a more specific error, or the rejection of a batch that Apache Kafka corrects.
_INSTEAD: dict[tuple[str, ...], tuple[str, ...]] = {
    _BY_ACCIDENT: ("INVALID_RECORD", "CORRUPT_MESSAGE", "UNSUPPORTED_COMPRESSION_TYPE"),
    _ACCEPTED: ("INVALID_RECORD", "INVALID_TIMESTAMP"),
}

#: The errors for a batch that is expensive to validate.
_TOO_MUCH = ("INVALID_RECORD", "MESSAGE_TOO_LARGE")

RECORDS = (
    Attack("wide fetch", "fetches of 50,000 partitions, most of them unknown", _wide_fetch, allowed(UNKNOWN)),
    Attack("wide produce", "produce requests of 29,000 unknown partitions in 200 KB", _wide_produce, allowed(UNKNOWN)),
    Attack("wide produce, pipelined", "17 of these in one write", _wide_produce_pipelined, allowed(UNKNOWN)),
    Attack(
        "topic names of 8 MiB",
        "produce requests to names of 8 MiB",
        lambda f: _names_produced(f, LONG_NAME, 1),
        allowed(CLOSED),
    ),
    Attack(
        "longest topic names",
        "produce requests to made-up names of 32,767 characters",
        lambda f: _names_produced(f, LONGEST_NAME, 20),
        allowed(UNKNOWN, "INVALID_TOPIC_EXCEPTION"),
    ),
    Attack("made-up topics", "produce to made-up names", lambda f: _names_produced(f, 249, 100), allowed(UNKNOWN)),
    Attack(
        "made-up topics looked up",
        "Metadata of made-up names",
        _names_looked_up,
        allowed(UNKNOWN, "INVALID_TOPIC_EXCEPTION"),
    ),
    Attack("zeros", "requests of 99 MiB of zeros", _zeros, allowed(CLOSED, NONE)),
    Attack(
        "unreadable batches",
        "batches that no consumer can read",
        _unreadable,
        frozenset(
            f"{what}: {outcome}" for what, theirs in UNREADABLE.items() for outcome in theirs + _INSTEAD.get(theirs, ())
        ),
    ),
    Attack("2,500 claims", "2,500 batches of 2^31-1 records each to one partition", _claims, allowed("INVALID_RECORD")),
    Attack(
        "one claim each",
        "a batch of 2^31-1 records to each partition",
        _one_claim_each,
        # Our node rejects batches of more than 1,048,576 records with an error on which the client splits the batch.
        allowed("INVALID_RECORD", "MESSAGE_TOO_LARGE", *_BY_ACCIDENT),
    ),
    Attack("gzip bombs", "a record of 32 MiB in 32 KB", _bombs, allowed(NONE, "INVALID_RECORD", "MESSAGE_TOO_LARGE")),
    Attack(
        "late heavy produces",
        "8 MiB and a batch of 1,048,576 headers, with a timeout of 100 ms",
        _late,
        allowed(NONE, UNKNOWN, "REQUEST_TIMED_OUT", *_TOO_MUCH),
    ),
    Attack(
        "rejected heavy batches",
        "500 KB of gzip without valid records",
        _refused,
        allowed("INVALID_RECORD", *_BY_ACCIDENT),
    ),
    Attack(
        "header floods",
        "20 batches of 1,048,576 headers in 6 KB, or two of 500,000 in 2 MB",
        _header_floods,
        allowed(NONE, "REQUEST_TIMED_OUT", *_TOO_MUCH),
    ),
    Attack("tiny snappy blocks", "records in snappy blocks of a byte each", _tiny_blocks, allowed(NONE, *_TOO_MUCH)),
    Attack("large batches", "batches above max.message.bytes", _too_large, allowed("MESSAGE_TOO_LARGE")),
    Attack("strange acks", "produce requests with acks=7", _strange_acks, allowed("INVALID_REQUIRED_ACKS")),
    Attack("acks=0 to nowhere", "produce with acks=0 to names with control characters", _no_acks, allowed(CLOSED)),
    Attack("impostors", "fetches by a node without a replica", _impostors, allowed("NOT_LEADER_OR_FOLLOWER")),
    Attack("dense batch by time", "ListOffsets by time in a batch of 200,000 records", _dense_by_time, allowed(NONE)),
    Attack("producer ids", "batches of a new producer id each", _producer_ids, allowed(NONE)),
    Attack(
        "InitProducerId",
        "producer ids requested and not used",
        _init_producer_id,
        allowed(NONE, "COORDINATOR_LOAD_IN_PROGRESS"),
    ),
    Attack(
        "transactions",
        "InitProducerId with a transactional id",
        _init_transaction,
        allowed("TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
        ours_only=True,
    ),
    Attack("long polls", "100 fetches that wait for 2^31-1 bytes", _long_polls, allowed(OPEN)),
    Attack("min above max", "fetch.min.bytes above max.bytes", _min_above_max, allowed(AT_ONCE)),
    Attack(
        "sessions abandoned", "fetch sessions created, and the connection reset", _sessions_abandoned, allowed(NONE)
    ),
    Attack(
        "sessions made up",
        "fetches in sessions that do not exist",
        _sessions_made_up,
        allowed("FETCH_SESSION_ID_NOT_FOUND"),
    ),
    Attack("leader epochs", "leader epochs that do not exist", _epochs, allowed("UNKNOWN_LEADER_EPOCH", UNKNOWN)),
)
