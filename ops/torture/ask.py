"""One question to one node in Kafka's protocol: what it says itself, not what a client makes of several answers."""

from __future__ import annotations

import base64
import io
import socket
import struct
from dataclasses import dataclass
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from ops.stack.errors import OpsError

METADATA, METADATA_VERSION = 3, 12
CLIENT = b"rehome-torture"
CORRELATION = 7


@dataclass(frozen=True, slots=True)
class Led:
    """A partition as a node's Metadata answer has it; `leader` -1 without one."""

    topic: str
    topic_id: str
    partition: int
    leader: int
    epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


def metadata(host: str, port: int, timeout: float = 3.0) -> list[Led]:
    """All partitions as this node knows them. Raises `OpsError`."""
    request = load_request_schema(METADATA, METADATA_VERSION)(
        topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=False
    )
    try:
        with socket.create_connection((host, port), timeout=timeout) as connection:
            connection.settimeout(timeout)
            answer = _ask(connection, METADATA, METADATA_VERSION, request)
    except (OSError, ValueError, EOFError, struct.error) as error:
        raise OpsError(f"{host}:{port} does not tell its metadata: {error or type(error).__name__}") from error
    return [
        Led(
            str(topic.name),
            base64.urlsafe_b64encode(topic.topic_id.bytes).decode().rstrip("=") if topic.topic_id else "",
            int(row.partition_index),
            int(row.leader_id),
            int(row.leader_epoch),
            tuple(int(node) for node in row.replica_nodes),
            tuple(int(node) for node in row.isr_nodes),
        )
        for topic in answer.topics
        for row in topic.partitions
    ]


def _ask(connection: socket.socket, key: int, version: int, request: Any) -> Any:
    """A request of a flexible version, and its answer."""
    buffer = io.BytesIO()
    buffer.write(struct.pack(">hhih", key, version, CORRELATION, len(CLIENT)) + CLIENT + b"\0")
    entity_writer(type(request))(buffer, request)
    body = buffer.getvalue()
    connection.sendall(struct.pack(">i", len(body)) + body)
    (size,) = struct.unpack(">i", _exactly(connection, 4))
    frame = _exactly(connection, size)
    answer, _ = entity_reader(load_response_schema(key, version))(frame, 5)  # behind correlation id and tags
    return answer


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise EOFError("the connection was closed")
        data += more
    return bytes(data)
