"""A follower's connection to a leader: a blocking socket, at most one request in flight.

Responses are received into one reused buffer, so that a batch gets from the socket to the log without another copy.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

_SIZE = 4
_FIRST = 64 << 10
#: The first batch of a response may have any size; a response above this limit is invalid.
LARGEST = 256 << 20


class Disconnected(ConnectionError):
    """The leader is unreachable or does not respond in time, or the connection was closed."""


class LeaderConnection:
    """A connected socket; the constructor raises Disconnected.

    One thread owns it: it sends, receives and closes. Other threads interrupt it with `shut_down`, since closing a
    descriptor during a read would expose the read to the next file with that descriptor.
    """

    def __init__(self, host: str, port: int, *, connect_timeout: float, timeout: float) -> None:
        self._lock = threading.Lock()
        self._closed = False
        try:
            self._socket = socket.create_connection((host, port), timeout=connect_timeout)
        except OSError as error:
            raise Disconnected(f"{host}:{port} cannot be reached: {error}") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(None)
        # Timeouts of the kernel: Python's own would poll the socket before each read.
        limit = struct.pack("@ll", int(timeout), int(timeout % 1 * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self._buffer = bytearray(_FIRST)

    def fileno(self) -> int:
        """Return the descriptor, -1 after `close`."""
        return self._socket.fileno()

    def send(self, request: bytes | bytearray) -> None:
        """Send a whole request; raises Disconnected."""
        try:
            self._socket.sendall(request)
        except OSError as error:
            raise Disconnected(f"sending a request failed: {error}") from error

    def receive(self) -> memoryview:
        """Return the next response without its size, valid until the next call; raises Disconnected."""
        view = memoryview(self._buffer)
        have = self._read(view, 0)
        while have < _SIZE:
            have += self._read(view[have:], 0)
        size = int.from_bytes(view[:_SIZE], "big", signed=True)
        if not 0 <= size <= LARGEST:
            raise Disconnected(f"invalid response size: {size} bytes")
        end = _SIZE + size
        if end > len(view):
            larger = bytearray(end + end // 8)
            larger[:have] = view[:have]
            self._buffer = larger
            view = memoryview(larger)
        while have < end:
            have += self._read(view[have:end], socket.MSG_WAITALL)
        if have > end:
            raise Disconnected(f"{have - end} bytes follow the response")
        return view[_SIZE:end]

    def _read(self, view: memoryview, flags: int) -> int:
        try:
            count = self._socket.recv_into(view, len(view), flags)
        except BlockingIOError as error:
            raise Disconnected("no response in time") from error
        except OSError as error:
            raise Disconnected(f"receiving the response failed: {error}") from error
        if not count:
            raise Disconnected("the connection was closed")
        return count

    def shut_down(self) -> None:
        """Shut the socket down, from any thread; the owner gets Disconnected, even while blocked, and closes it."""
        with self._lock:
            if not self._closed:
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the descriptor; only the owner may call it."""
        with self._lock:
            self._closed = True
            self._socket.close()
