"""The other side of the private API, for whoever runs on the node's machine: blocking, one connection per call."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any, cast

from storage_node.protocol.table import PRIVATE

_HEAD = struct.Struct(">ihhi")
LARGEST_ANSWER = 64 * 1024 * 1024


class PrivateCallFailed(Exception):
    """The node answered with an error; `code` is Kafka's error code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def call(host: str, port: int, op: str, timeout: float = 5.0, **fields: Any) -> dict[str, Any]:
    """Ask a node; raises OSError (also TimeoutError) when it cannot be reached, PrivateCallFailed when it refuses."""
    body = json.dumps({"op": op, **fields}, separators=(",", ":")).encode()
    client_id = b"rehome"
    head = _HEAD.pack(len(body) + len(client_id) + 10, PRIVATE.key, 0, 1)
    with socket.create_connection((host, port), timeout=timeout) as connection:
        connection.settimeout(timeout)
        connection.sendall(head + struct.pack(">h", len(client_id)) + client_id + body)
        (size,) = struct.unpack(">i", _receive(connection, 4))
        if not 4 <= size <= LARGEST_ANSWER:
            raise ConnectionError(f"{host}:{port} does not speak the private API")
        data = _receive(connection, size)
    answer = cast(dict[str, Any], json.loads(data[4:]))
    if "error" in answer:
        raise PrivateCallFailed(int(answer["error"]), str(answer.get("message", "")))
    return answer


def _receive(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(min(size - len(parts), 1 << 16))
        if not part:
            raise ConnectionError("the node closed the connection")
        parts += part
    return bytes(parts)
