"""Send one request to a node and receive its response: blocking, on a connection of its own."""

from __future__ import annotations

import socket
import struct

from storage_node.wire.table import Api

LARGEST_ANSWER = 64 << 20

_HEAD = struct.Struct(">hhih")
_SIZE = struct.Struct(">i")
_CORRELATION = 1


def request_frame(key: int, version: int, body: bytes, *, flexible: bool, client: str, correlation: int) -> bytes:
    """Return a request with its size and header; `flexible`: the header has tagged fields."""
    name = client.encode()
    head = _HEAD.pack(key, version, correlation, len(name)) + name + (b"\0" if flexible else b"")
    return _SIZE.pack(len(head) + len(body)) + head + body


def receive_frame(connection: socket.socket, largest: int = LARGEST_ANSWER) -> bytes:
    """Return the next response without its size.

    Raises OSError; ConnectionError if the node closed the connection or the size is not valid.
    """
    (size,) = _SIZE.unpack(_receive(connection, _SIZE.size))
    if not _SIZE.size <= size <= largest:
        raise ConnectionError(f"a response of {size} bytes is not valid in Kafka's protocol")
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
    """Send a request; returns the response after its correlation id (with the tagged fields of a flexible header).

    `timeout`: seconds to connect, and for each read of the response. Raises OSError (also TimeoutError) if the node is
    unavailable or does not respond, ConnectionError if it does not respond to this request.
    """
    request = request_frame(
        api.key, version, body, flexible=version >= api.flexible, client=client, correlation=_CORRELATION
    )
    with socket.create_connection((host, port), timeout=timeout) as connection:
        connection.sendall(request)
        response = receive_frame(connection)
    (correlation,) = _SIZE.unpack_from(response)
    if correlation != _CORRELATION:
        raise ConnectionError(f"{host}:{port} responded with correlation id {correlation} instead of {_CORRELATION}")
    return response[_SIZE.size :]
