"""One request to a node and its answer: blocking, on a connection of its own."""

from __future__ import annotations

import socket
import struct

from storage_node.protocol.table import Api

LARGEST_ANSWER = 64 << 20

_HEAD = struct.Struct(">hhih")
_SIZE = struct.Struct(">i")
_CORRELATION = 1


def request_frame(key: int, version: int, body: bytes, *, flexible: bool, client: str, correlation: int) -> bytes:
    """A request with its size and header; `flexible`: the header has tagged fields."""
    name = client.encode()
    head = _HEAD.pack(key, version, correlation, len(name)) + name + (b"\0" if flexible else b"")
    return _SIZE.pack(len(head) + len(body)) + head + body


def receive_frame(connection: socket.socket, largest: int = LARGEST_ANSWER) -> bytes:
    """The next answer without its size; raises OSError, ConnectionError where it is closed, or no answer of Kafka's."""
    (size,) = _SIZE.unpack(_receive(connection, _SIZE.size))
    if not _SIZE.size <= size <= largest:
        raise ConnectionError(f"an answer of {size} bytes is none of Kafka's protocol")
    return _receive(connection, size)


def _receive(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(min(size - len(parts), 1 << 16))
        if not part:
            raise ConnectionError("the node closed the connection")
        parts += part
    return bytes(parts)


def exchange(host: str, port: int, api: Api, version: int, body: bytes, *, timeout: float, client: str) -> bytes:
    """The answer from behind its correlation id on (where its header is flexible, with the tagged fields of that).

    `timeout`: seconds to connect, and for each part of the answer. Raises OSError (also as TimeoutError) where the node
    cannot be reached or does not answer, ConnectionError where what comes is no answer to this.
    """
    request = request_frame(
        api.key, version, body, flexible=version >= api.flexible, client=client, correlation=_CORRELATION
    )
    with socket.create_connection((host, port), timeout=timeout) as connection:
        connection.sendall(request)
        answer = receive_frame(connection)
    (correlation,) = _SIZE.unpack_from(answer)
    if correlation != _CORRELATION:
        raise ConnectionError(f"{host}:{port} answered request {correlation}, {_CORRELATION} was sent")
    return answer[_SIZE.size :]
