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
from collections.abc import Callable, Sequence
from typing import cast

from storage_node.protocol.sending import Buffer, FilePart, Sending

log = logging.getLogger(__name__)

Frame = bytes | memoryview
#: What to write, None for no answer.
Answer = Sequence[Buffer | FilePart] | None

#: Begins to answer frames that came one after the other, and later calls the connection's `answered` or `failed`. It is
#: given as many as it said by `together` that it takes at once.
Begin = Callable[[list[Frame], "Connection"], None]
Together = Callable[[Frame, Frame], bool]

RECEIVE_BUFFER = 64 * 1024
GROWTH = 2 * 1024 * 1024
READ_AHEAD_FRAMES = 64
#: Frames that are begun together at most.
TOGETHER = 16
READ_AHEAD_BYTES = 8 * 1024 * 1024
#: A request header is at least key, version and correlation id.
SMALLEST_FRAME = 8

_LENGTH = struct.Struct(">i")


class CloseConnection(Exception):
    """The peer sent something that cannot be answered: one log line, then the connection is closed."""


class Connection(asyncio.BufferedProtocol):
    """One client's connection."""

    def __init__(
        self, begin: Begin, together: Together, max_frame: int, connections: set[Connection], most: int
    ) -> None:
        self._begin = begin
        self._together = together
        self._max_frame = max_frame
        self._connections = connections
        self._most = most
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Made when the first bytes come: who only connects costs next to nothing.
        self._small = bytearray()
        self._small_view = memoryview(self._small)
        self._have = 0
        self._large: bytearray | None = None
        self._length = 0
        self._filled = 0
        self._queue: deque[Frame] = deque()
        self._queued_bytes = 0
        self._reading = True
        self._busy = False
        self._writable = True
        self._sending: Sending | None = None
        self._closing = False
        self.task: asyncio.Task[None] | None = None
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

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._queue.clear()
        if self.task is not None:
            self.task.cancel()
        if self._sending is not None:
            self._sending.stop()
        if not self.ended.done():
            self.ended.set_result(None)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._large is not None:
            return memoryview(self._large)[self._filled :]
        if not self._small:
            self._small = bytearray(RECEIVE_BUFFER)
            self._small_view = memoryview(self._small)
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
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._next()

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
        self._next()

    def _next(self) -> None:
        """Begin with what waits, unless something is being answered or the peer does not take its answers."""
        if self._busy or not self._queue or not self._writable or self._closing:
            return
        self._busy = True
        frames = [self._take()]
        while self._queue and len(frames) < TOGETHER and self._together(frames[0], self._queue[0]):
            frames.append(self._take())
        self._read_on()
        try:
            self._begin(frames, self)
        except CloseConnection as error:
            self.failed(error)

    def _take(self) -> Frame:
        frame = self._queue.popleft()
        self._queued_bytes -= len(frame)
        return frame

    def answered(self, answers: Sequence[Answer]) -> None:
        """Write the answers of the frames begun last, in order, and go on; called on the loop."""
        buffers: list[Buffer | FilePart] = []
        for answer in answers:
            if answer is not None:
                buffers.append(_LENGTH.pack(sum(map(len, answer))))
                buffers += answer
        self.task = None
        transport = self.transport
        if buffers and transport is not None and not transport.is_closing():
            if any(isinstance(buffer, FilePart) for buffer in buffers):
                self._sending = Sending(transport, buffers, self._sent)
                self._sending.start()
                return
            transport.writelines(cast(list[Buffer], buffers))
        self._busy = False
        self._next()

    def _sent(self, error: BaseException | None) -> None:
        """An answer that holds parts of files has gone out, or cannot: its length was told, so nothing may follow."""
        self._sending = None
        if error is not None:
            if not isinstance(error, ConnectionError):
                log.warning("connection from %s closed: an answer could not be sent: %s", self.peer, error)
            self._queue.clear()
            if self.transport is not None:
                self.transport.abort()
            return
        self._busy = False
        if self._closing:
            self.close()
        else:
            self._next()

    def failed(self, error: BaseException) -> None:
        """Close the connection with one line in the log; called on the loop."""
        if isinstance(error, CloseConnection):
            self._refuse(str(error))
        else:
            log.error("connection from %s closed after an error", self.peer, exc_info=error)
            self._queue.clear()
            self.close()

    def _read_on(self) -> None:
        if self._reading or len(self._queue) > READ_AHEAD_FRAMES // 2 or self._queued_bytes > READ_AHEAD_BYTES // 2:
            return
        self._reading = True
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def _refuse(self, why: str) -> None:
        log.warning("connection from %s closed: %s", self.peer, why)
        self._queue.clear()
        self.close()

    def close(self) -> None:
        """Close after what is written has gone out."""
        self._closing = True
        if self.transport is not None and self._sending is None:
            self.transport.close()


def _grown(buffer: bytearray, length: int) -> bytearray:
    """The buffer, twice as long or as long as the frame: memory follows the bytes that have really come."""
    buffer.extend(bytes(min(len(buffer), length - len(buffer))))
    return buffer
