"""A client that only fetches: it parses batch headers for the next offset, and no records."""

from __future__ import annotations

import socket
import struct
import time

_VERSION = 11
_PARTITION_BYTES = 4_000_000
_MOST = 50 * 2**20
_HEAD = struct.Struct(">ihqqq")
_DELTA_AT = 23


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def _request(topic: str, offset: int) -> bytes:
    body = struct.pack(">hhi", 1, _VERSION, 0) + _string("fetcher")
    # Replica, longest wait, fewest and most bytes, isolation; no session.
    body += struct.pack(">iiiibii", -1, 500, 1, _MOST, 0, 0, -1)
    body += struct.pack(">i", 1) + _string(topic)
    body += struct.pack(">iiiqqi", 1, 0, -1, offset, -1, _PARTITION_BYTES)
    body += struct.pack(">i", 0) + _string("")
    return struct.pack(">i", len(body)) + body


def rate(bootstrap: str, topic: str, total: int) -> float:
    """Fetch `total` bytes of partition 0 from its beginning; return bytes per second. Raises RuntimeError."""
    host, _, port = bootstrap.rpartition(":")
    buffer = bytearray(2 * _PARTITION_BYTES)
    view = memoryview(buffer)
    offset = got = 0
    # Correlation id, throttle time, error, session, one topic, its name, one partition.
    first = 4 + 4 + 4 + 2 + 4 + 4 + 2 + len(topic.encode()) + 4
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        began = time.perf_counter()
        while got < total:
            connection.sendall(_request(topic, offset))
            have, wanted = 0, 4
            while have < wanted:
                count = connection.recv_into(view[have:])
                if not count:
                    raise RuntimeError(f"{bootstrap} closed the connection")
                have += count
                if have >= 4:
                    wanted = 4 + int(struct.unpack_from(">i", buffer)[0])
            _, error, _, _, _ = _HEAD.unpack_from(buffer, first)
            # The rest of the partition's head: aborted transactions (none), preferred replica, and the size.
            position = first + _HEAD.size + 4 + 4 + 4
            size = int(struct.unpack_from(">i", buffer, position - 4)[0])
            if error or not size:
                raise RuntimeError(f"{bootstrap} returned {size} bytes and error {error} for offset {offset}")
            got += size
            offset = _after(buffer, position, position + size)
    return got / (time.perf_counter() - began)


def _after(buffer: bytearray, position: int, end: int) -> int:
    """Return the offset after the last complete batch; Apache Kafka may return an incomplete one at the end."""
    offset = 0
    while end - position >= _DELTA_AT + 4:
        base, length = struct.unpack_from(">qi", buffer, position)
        if position + 12 + length > end:
            break
        offset = base + int(struct.unpack_from(">i", buffer, position + _DELTA_AT)[0]) + 1
        position += 12 + length
    return offset
