"""A follower's connection to a leader: a blocking socket, one request under way at a time.

An answer is received into one buffer that is used again, so that a batch goes from the socket to the log without
another copy.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

_SIZE = 4
_FIRST = 64 << 10
#: A first batch is sent however large it is; more than this is no answer.
LARGEST = 256 << 20


class Disconnected(ConnectionError):
    """The leader cannot be reached, does not answer in time, or the connection was closed."""


class Connection:
    """Made connected; raises Disconnected. One thread owns it: sends, receives and closes. Any other ends a wait by
    `shut_down`: a descriptor closed under a read would be the next file that the process opens.
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
        # By the system and not by Python, which would ask before each read whether there is something.
        limit = struct.pack("@ll", int(timeout), int(timeout % 1 * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self._buffer = bytearray(_FIRST)

    def fileno(self) -> int:
        """The descriptor, -1 once it is closed."""
        return self._socket.fileno()

    def send(self, request: bytes | bytearray) -> None:
        """Send a whole request; raises Disconnected."""
        try:
            self._socket.sendall(request)
        except OSError as error:
            raise Disconnected(f"a request could not be sent: {error}") from error

    def receive(self) -> memoryview:
        """The next answer without its size, valid until the next call; raises Disconnected."""
        view = memoryview(self._buffer)
        have = self._read(view, 0)
        while have < _SIZE:
            have += self._read(view[have:], 0)
        size = int.from_bytes(view[:_SIZE], "big", signed=True)
        if not 0 <= size <= LARGEST:
            raise Disconnected(f"an answer of {size} bytes")
        end = _SIZE + size
        if end > len(view):
            larger = bytearray(end + end // 8)
            larger[:have] = view[:have]
            self._buffer = larger
            view = memoryview(larger)
        while have < end:
            have += self._read(view[have:end], socket.MSG_WAITALL)
        if have > end:
            raise Disconnected(f"{have - end} bytes more than the answer to what was asked")
        return view[_SIZE:end]

    def _read(self, view: memoryview, flags: int) -> int:
        try:
            count = self._socket.recv_into(view, len(view), flags)
        except BlockingIOError as error:
            raise Disconnected("no answer in time") from error
        except OSError as error:
            raise Disconnected(f"the answer could not be received: {error}") from error
        if not count:
            raise Disconnected("the connection was closed")
        return count

    def shut_down(self) -> None:
        """End the conversation, from any thread; the owner gets Disconnected, from a wait under way as well, and closes
        the connection.
        """
        with self._lock:
            if not self._closed:
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the descriptor; for the owner alone."""
        with self._lock:
            self._closed = True
            self._socket.close()
