"""How many bytes a node holds of partitions: DescribeLogDirs as a client asks it, for the nodes that lead them."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable

from storage_node.types import TopicPartition

API_KEY, VERSION = 35, 1
LARGEST_ANSWER = 64 << 20
_CLIENT_ID = b"rehome-sizes"


def log_sizes(
    host: str, port: int, wanted: Iterable[TopicPartition], timeout: float = 5.0
) -> dict[TopicPartition, int]:
    """Bytes of the replicas that a node holds, copies under way left out; what it does not hold is missing.

    Blocking. Raises OSError where the node does not answer, or not as Kafka does.
    """
    body = _request(wanted)
    with socket.create_connection((host, port), timeout=timeout) as connection:
        connection.settimeout(timeout)
        connection.sendall(struct.pack(">i", len(body)) + body)
        (size,) = struct.unpack(">i", _receive(connection, 4))
        if not 4 <= size <= LARGEST_ANSWER:
            raise ConnectionError(f"{host}:{port} does not speak Kafka's protocol")
        answer = _receive(connection, size)
    try:
        return _sizes(answer)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ConnectionError(f"{host}:{port} answered what cannot be read: {error}") from error


def _request(wanted: Iterable[TopicPartition]) -> bytes:
    topics: dict[str, list[int]] = {}
    for tp in wanted:
        topics.setdefault(tp.topic, []).append(tp.partition)
    head = struct.pack(">hhi", API_KEY, VERSION, 1) + _text(_CLIENT_ID)
    rows = b"".join(
        _text(name.encode()) + struct.pack(f">i{len(parts)}i", len(parts), *parts) for name, parts in topics.items()
    )
    return head + struct.pack(">i", len(topics)) + rows


def _text(value: bytes) -> bytes:
    return struct.pack(">h", len(value)) + value


def _sizes(answer: bytes) -> dict[TopicPartition, int]:
    at = 8  # correlation id, throttle time

    def take(form: str) -> int:
        nonlocal at
        (value,) = struct.unpack_from(form, answer, at)
        at += struct.calcsize(form)
        return int(value)

    def text() -> str:
        nonlocal at
        size = take(">h")
        at += size
        return answer[at - size : at].decode()

    found: dict[TopicPartition, int] = {}
    for _ in range(take(">i")):
        take(">h")
        text()
        for _ in range(take(">i")):
            topic = text()
            for _ in range(take(">i")):
                partition, size, _lag, copy = take(">i"), take(">q"), take(">q"), take(">b")
                if not copy:
                    found[TopicPartition(topic, partition)] = size
    return found


def _receive(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(min(size - len(parts), 1 << 16))
        if not part:
            raise ConnectionError("the node closed the connection")
        parts += part
    return bytes(parts)
