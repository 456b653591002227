"""Frames on a connection: length checks before memory is spent, one request after the other, answers in order.

A small frame is cut out of a receive buffer that the connection keeps; a large one is read from the socket straight
into its own buffer, which grows with the bytes that really arrive. While a request is being answered the next ones are
read ahead up to a limit.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import cast

log = logging.getLogger(__name__)

Frame = bytes | memoryview
Answer = Sequence[bytes | bytearray | memoryview] | None

#: Answers one frame: the buffers to write, or None for no answer. Raises CloseConnection.
Serve = Callable[[Frame, "Connection"], Awaitable[Answer]]

RECEIVE_BUFFER = 64 * 1024
GROWTH = 2 * 1024 * 1024
READ_AHEAD_FRAMES = 64
READ_AHEAD_BYTES = 8 * 1024 * 1024
#: A request header is at least key, version and correlation id.
SMALLEST_FRAME = 8

_LENGTH = struct.Struct(">i")


class CloseConnection(Exception):
    """The peer sent something that cannot be answered: one log line, then the connection is closed."""


class Connection(asyncio.BufferedProtocol):
    """One client's connection."""

    def __init__(self, serve: Serve, max_frame: int, connections: set[Connection], most: int) -> None:
        self._serve = serve
        self._max_frame = max_frame
        self._connections = connections
        self._most = most
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._small = bytearray(RECEIVE_BUFFER)
        self._small_view = memoryview(self._small)
        self._have = 0
        self._large: bytearray | None = None
        self._length = 0
        self._filled = 0
        self._queue: deque[Frame] = deque()
        self._queued_bytes = 0
        self._reading = True
        self._arrived = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._task: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport | None = None
        self.peer = ""

    # Callbacks of the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        address = transport.get_extra_info("peername")
        self.peer = str(address[0]) if address else ""
        self.transport.set_write_buffer_limits(high=4 * 1024 * 1024)
        if len(self._connections) >= self._most:
            log.warning("connection from %s closed: max.connections=%d are open", self.peer, self._most)
            self.transport.abort()
            return
        self._connections.add(self)
        self._task = asyncio.get_running_loop().create_task(self._run())

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        if self._task is not None:
            self._task.cancel()
        self._writable.set()
        if not self.ended.done():
            self.ended.set_result(None)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._large is not None:
            return memoryview(self._large)[self._filled :]
        return self._small_view[self._have :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._large is None:
            self._have += nbytes
            self._cut_frames()
            return
        self._filled += nbytes
        if self._filled < len(self._large):
            return
        if self._filled < self._length:
            self._large = _grown(self._large, self._length)
            return
        frame, self._large = self._large, None
        self._deliver(memoryview(frame).toreadonly())

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # Frames

    def _cut_frames(self) -> None:
        """Deliver the whole frames in the receive buffer; set up a buffer of its own for one that does not fit."""
        position, have = 0, self._have
        while have - position >= 4:
            (length,) = _LENGTH.unpack_from(self._small, position)
            if not SMALLEST_FRAME <= length <= self._max_frame:
                self._refuse(f"a frame of {length} bytes; at most {self._max_frame} are taken")
                return
            start = position + 4
            if have - start >= length:
                self._deliver(bytes(self._small_view[start : start + length]))
                position = start + length
            elif length + 4 > RECEIVE_BUFFER:
                large = bytearray(min(length, GROWTH))
                large[: have - start] = self._small_view[start:have]
                self._large, self._length, self._filled = large, length, have - start
                self._have = 0
                return
            else:
                break
        if position:
            self._small_view[: have - position] = self._small_view[position:have]
        self._have = have - position

    def _deliver(self, frame: Frame) -> None:
        self._queue.append(frame)
        self._queued_bytes += len(frame)
        full = len(self._queue) >= READ_AHEAD_FRAMES or self._queued_bytes >= READ_AHEAD_BYTES
        if full and self._reading and self.transport is not None:
            self._reading = False
            self.transport.pause_reading()
        self._arrived.set()

    async def _run(self) -> None:
        """Answer frame after frame until the connection ends."""
        try:
            while True:
                while not self._queue:
                    self._arrived.clear()
                    await self._arrived.wait()
                frame = self._queue.popleft()
                self._queued_bytes -= len(frame)
                self._read_on()
                answer = await self._serve(frame, self)
                del frame
                if answer is not None:
                    self._write(answer)
                    if not self._writable.is_set():
                        await self._writable.wait()
        except CloseConnection as error:
            self._refuse(str(error))
        except asyncio.CancelledError:
            raise
        except Exception:
            log.exception("connection from %s closed after an error", self.peer)
            self.close()

    def _read_on(self) -> None:
        if self._reading or len(self._queue) > READ_AHEAD_FRAMES // 2 or self._queued_bytes > READ_AHEAD_BYTES // 2:
            return
        self._reading = True
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def _write(self, buffers: Sequence[bytes | bytearray | memoryview]) -> None:
        if self.transport is None or self.transport.is_closing():
            return
        size = sum(len(buffer) for buffer in buffers)
        self.transport.writelines([_LENGTH.pack(size), *buffers])

    def _refuse(self, why: str) -> None:
        log.warning("connection from %s closed: %s", self.peer, why)
        self._queue.clear()
        self.close()

    def close(self) -> None:
        """Close after what is written has gone out."""
        if self.transport is not None:
            self.transport.close()


def _grown(buffer: bytearray, length: int) -> bytearray:
    """The buffer, twice as long or as long as the frame: memory follows the bytes that have really come."""
    buffer.extend(bytes(min(len(buffer), length - len(buffer))))
    return buffer
