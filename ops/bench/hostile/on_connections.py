"""Attacks by connections and frames, before any request is decoded, and by responses that the client never reads."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import time
from datetime import timedelta

from ops.bench.hostile.attack import Attack, allowed
from ops.bench.hostile.batches import batch
from ops.bench.hostile.field import (
    ATTACKED,
    BACKLOG,
    CLOSED,
    HELLO,
    NONE,
    OPEN,
    PARTITIONS,
    SILENT,
    Field,
    Line,
    errors,
    frame,
    raw_frame,
)
from storage_node.wire.primitives import varint

ALL_ARRIVED, LOST = "all records arrived", "records were lost"
RESPONSE = "a response"

#: Records that a client sends before it closes.
LEFT_BEHIND = 500
#: Bytes of a large frame that are sent, and the length in its prefix.
HALF, CLAIMED = 20 << 20, 100 << 20
TAGS = 50_000
_SLOW = 0.02

_LENGTHS = [struct.pack(">i", length) + bytes(20) for length in (2**31 - 1, -1, -(2**31), CLAIMED + 1, 0, 3, 7)]
_STRANGERS = [
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(1000),
    b"\x00\x00\x00\x0a\x03\xe7\x00\x00" + bytes(6),
    b"\x00\x00\x00\x0a\x00\x03\x00\x63" + bytes(6),
    struct.pack(">ihhih", 10, 3, 1, 1, 30_000),
    struct.pack(">ihhihi", 14, 3, 1, 1, -1, 2**31 - 1),
]


def _slow_loris(field: Field) -> None:
    with field.many(field.size(500)) as lines:
        at = 0
        while not field.over:
            for line in lines:
                with contextlib.suppress(OSError):
                    line.socket.send(HELLO[at % len(HELLO) :][:1])
            at += 1
            time.sleep(10 * _SLOW)


def _half_frames(field: Field) -> None:
    """Send a part of large frames; the server may leave it in the socket's buffer."""
    with field.many(field.size(40), struct.pack(">i", CLAIMED)) as lines:
        part = bytes(1 << 20)
        for line in lines:
            line.socket.settimeout(0.1)
        for _ in range(HALF >> 20):
            for line in lines:
                if field.over:
                    return
                with contextlib.suppress(OSError):
                    line.socket.send(part)
        field.rest()


def _each(frames: list[bytes], field: Field) -> None:
    """Send one frame per connection, which the server must close."""

    def work(line: Line) -> None:
        line.socket.sendall(random.choice(frames))
        line.socket.settimeout(3.0)
        if line.socket.recv(1 << 16):
            field.note(RESPONSE)
        raise ConnectionError

    field.crowd(4, work)


def _random_frames(field: Field) -> None:
    chance = random.Random(5)

    def made() -> bytes:
        key, version = chance.randrange(80), chance.randrange(14)
        body = struct.pack(">hhih", key, version, 1, -1) + chance.randbytes(chance.randrange(200))
        return struct.pack(">i", len(body)) + body

    def work(line: Line) -> None:
        line.socket.sendall(made() * 3)
        line.socket.settimeout(0.05)
        with contextlib.suppress(TimeoutError):
            if line.socket.recv(1 << 16):
                field.note(RESPONSE)
        raise ConnectionError

    field.crowd(4, work)


def _unknown_version(field: Field) -> None:
    def work(line: Line) -> None:
        line.socket.sendall(struct.pack(">ihhihb", 11, 18, 77, 9, -1, 0))
        field.note(*errors(line.receive(18, 0)))

    field.crowd(4, work)


def _tags(field: Field) -> None:
    """Send ApiVersions requests with 50,000 unknown tagged fields in the body."""
    tags = b"".join(varint(number) + b"\1x" for number in range(TAGS))
    body = b"\2h\2h" + varint(TAGS) + tags
    field.crowd(2, field.sender(18, 3, raw_frame(18, 3, body), 1 << 30))


def _opened_and_closed(field: Field) -> None:
    def work(_: Line) -> None:
        line = field.connect()
        field.note(OPEN)
        line.reset()

    field.crowd(4, work)


def _idle(field: Field) -> None:
    with field.many(field.size(12_000), HELLO):
        field.rest()


def _never_read(field: Field, request: bytes, count: int) -> None:
    with field.many(count) as lines:
        for line in lines:
            line.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            line.socket.settimeout(0.05)
        while not field.over:
            for line in lines:
                with contextlib.suppress(OSError):
                    line.socket.sendall(request)
            time.sleep(_SLOW)


def fetch(topic: str, *, wait_ms: int = 0, least: int = 1, most: int = 50 << 20) -> bytes:
    """Return a fetch of partition 0 from offset 0, without a session."""
    rows = [{"partition": 0, "fetch_offset": 0, "current_leader_epoch": -1, "partition_max_bytes": most}]
    values = {
        "replica_id": -1,
        "max_wait": timedelta(milliseconds=wait_ms),
        "min_bytes": least,
        "max_bytes": most,
        "session_epoch": -1,
        "topics": [{"topic": topic, "partitions": rows}],
    }
    return frame(1, 12, values)


def _never_read_records(field: Field) -> None:
    _never_read(field, fetch(BACKLOG) * 20, field.size(50))


def _never_read_configs(field: Field) -> None:
    resources = [{"resource_type": 2, "resource_name": ATTACKED}] * 20
    _never_read(field, frame(32, 4, {"resources": resources, "include_documentation": True}) * 20, field.size(100))


def _pipelined(field: Field) -> None:
    count = field.size(2_000)

    def work(line: Line) -> None:
        line.socket.sendall(HELLO * count)
        for _ in range(count):
            line.skip()
        field.note(NONE)

    field.crowd(4, work)


def end_offset(line: Line, name: str, partition: int) -> int:
    """Return the log end offset of a partition."""
    row = {"partition_index": partition, "timestamp": -1}
    (topic,) = line.ask(2, 7, replica_id=-1, topics=[{"name": name, "partitions": [row]}]).topics
    return int(topic.partitions[0].offset)


def _closed_behind_produce(field: Field) -> None:
    partition = PARTITIONS - 1
    row = {"index": partition, "records": batch()}
    values = {
        "acks": 0,
        "timeout": timedelta(seconds=30),
        "topic_data": [{"name": ATTACKED, "partition_data": [row]}],
    }
    requests = frame(0, 9, values) * LEFT_BEHIND
    watcher = field.connect()
    end = end_offset(watcher, ATTACKED, partition)
    while not field.over:
        line = field.connect()
        line.socket.sendall(requests)
        line.socket.close()
        end += LEFT_BEHIND
        until = time.monotonic() + 5.0
        while (found := end_offset(watcher, ATTACKED, partition)) < end and time.monotonic() < until:
            time.sleep(0.02)
        field.note(ALL_ARRIVED if found >= end else LOST)
        end = found
    watcher.reset()


CONNECTIONS = (
    Attack("slow loris", "500 connections send a request byte by byte", _slow_loris, allowed(OPEN, CLOSED)),
    Attack("half frames", "20 MB of a frame of 100 MB on 40 connections", _half_frames, allowed(OPEN, CLOSED)),
    Attack(
        "lengths", "frames of 2 GiB, of a negative length, too short", lambda f: _each(_LENGTHS, f), allowed(CLOSED)
    ),
    Attack("strangers", "HTTP, TLS, unknown APIs and versions", lambda f: _each(_STRANGERS, f), allowed(CLOSED)),
    Attack("random frames", "random bodies of every API", _random_frames, allowed(CLOSED, RESPONSE, SILENT)),
    Attack("unknown version", "ApiVersions in version 77", _unknown_version, allowed("UNSUPPORTED_VERSION")),
    Attack("tagged fields", "requests with 50,000 tagged fields", _tags, allowed(NONE, CLOSED)),
    Attack("opened and closed", "connections opened and reset, one after the other", _opened_and_closed, allowed(OPEN)),
    Attack("idle connections", "12,000 connections that send ApiVersions", _idle, allowed(OPEN, CLOSED), crowded=True),
    Attack(
        "records never read", "50 connections fetch 50 MB, and do not read", _never_read_records, allowed(OPEN, CLOSED)
    ),
    Attack(
        "responses never read",
        "100 connections describe configs, and do not read",
        _never_read_configs,
        allowed(OPEN, CLOSED),
    ),
    Attack("pipelined", "2,000 requests in one write", _pipelined, allowed(NONE)),
    Attack(
        "closed behind acks=0",
        "500 produce requests with acks=0, then a close",
        _closed_behind_produce,
        allowed(ALL_ARRIVED),
    ),
)
