"""A connection: it handles the requests one after the other and sends the responses in order.

While a request is handled, the connection reads further ones ahead up to a limit; all bytes that it holds count towards
the listener's limit. `receiving` checks the frames' lengths and cuts them out.

A client may close its connection after its requests. After a half-close (or a close of which the node receives no more
than a FIN) the node handles every request that has arrived and sends its response. After the connection is lost, the
node still handles the requests with effects, in order, as the closing channels of Apache Kafka's Selector do, and drops
those that only read.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any, cast

from storage_node.printable import printable
from storage_node.protocol.network.connections import Connections, plain_address
from storage_node.protocol.network.receiving import CloseConnection, Frame, FrameReader
from storage_node.protocol.network.sending import Buffer, FilePart, Sending

log = logging.getLogger(__name__)

#: A response's buffers; None for no response.
Answer = Sequence[Buffer | FilePart] | None

#: Begins to handle consecutive frames, and later calls the connection's `answered` or `failed`. It receives several
#: frames at once if `together` returns True for them.
Begin = Callable[[list[Frame], "Connection"], None]
Together = Callable[[Frame, Frame], bool]

READ_AHEAD_FRAMES = 64
#: The most frames that are begun together.
TOGETHER = 16
READ_AHEAD_BYTES = 8 * 1024 * 1024
#: Bytes of unsent responses with which the connection begins no further request.
WRITE_BUFFER = 64 * 1024

_LENGTH = struct.Struct(">i")
_HEAD = _LENGTH.size


class Effect(Enum):
    """The effect of a request, which decides whether the node still handles it when its client has disconnected."""

    NONE = auto()
    """It only reads: dropped once the connection is lost."""
    CHANGE = auto()
    """It changes something: handled once it has been received in full."""
    MEMBERSHIP = auto()
    """It makes its sender a member of a group: cancelled as soon as the sender has closed its direction."""


EffectOf = Callable[[Frame], Effect]


class Connection(FrameReader):
    """One client's connection."""

    def __init__(self, begin: Begin, together: Together, effect: EffectOf, table: Connections) -> None:
        super().__init__(table)
        self.number = next(table.numbers)
        """Identifies the connection in its requests."""
        self._begin = begin
        self._together = together
        self._effect_of = effect
        self._queue: deque[Frame] = deque()
        self._queued_bytes = 0
        self._begun_bytes = 0
        self._beyond: Frame | None = None
        """The request that was received beyond the listener's limit."""
        self._beyond_begun = False
        self._busy = False
        self._writable = True
        self._sending: Sending | None = None
        self._effect = Effect.NONE
        """The effect of the requests begun last."""
        self.task: asyncio.Task[None] | None = None
        # For the table of connections.
        self.client_id = ""
        self.software = ""
        self.under_way = ""
        """The name of the API whose request is being handled."""
        self._port = 0
        self._opened = self.active
        self._begun = 0.0
        self._requests = self._bytes_out = 0
        self._left = 0

    # Callbacks of the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        address = transport.get_extra_info("peername")
        if address:
            self.peer, self._port = plain_address(str(address[0])), int(address[1])
        if not self._table.admit(self):
            self.transport.abort()
            return
        self.transport.set_write_buffer_limits(high=WRITE_BUFFER)
        # Detects a client that has disappeared without a FIN, even while its request is being handled.
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = self._writable = True
        self._table.remove(self)
        if self._sending is not None:
            self._sending.stop()
            self._sending = None
            self._busy = False
        if self._closing:
            self._forget()
        else:
            self._forget_part()
            self._drop_reads()
            self._read_on()
        if self._closing or self._effect is not Effect.CHANGE:
            self._cancel()
        self._next()

    def _cancel(self) -> None:
        """Cancel the request under way, without a response; produce, which has no task, always finishes."""
        if self.task is not None:
            self.task.cancel()
            self.task = None
            self._busy = False
            self._give_back()

    def eof_received(self) -> bool:
        self._ended = True
        if not self._closing:
            self._forget_part()
            if self._effect is Effect.MEMBERSHIP and self._busy and not self._queue:
                return False
            self._next()
        return True

    def pause_writing(self) -> None:
        self._writable = False
        self._not_taken(self._unsent())

    def _not_taken(self, size: int) -> bool:
        return self._table.not_taken(self, size)

    def resume_writing(self) -> None:
        self._writable = True
        self._table.taken(self)
        self.active = asyncio.get_running_loop().time()
        self._next()

    # Frames

    def _deliver(self, frame: Frame) -> None:
        self._queue.append(frame)
        self._queued_bytes += len(frame)
        self._requests += 1
        if self._memory.first is self:
            self._beyond = frame
        if not self._ahead and (len(self._queue) >= READ_AHEAD_FRAMES or self._queued_bytes >= READ_AHEAD_BYTES):
            self._ahead = True
            self._pause_reading()
        self._next()

    def _next(self) -> None:
        """Begin the next request, unless one is being handled or the client does not read its responses."""
        if self._busy or not self._writable:
            return
        if self._lost and (self._closing or not self._queue):
            self._memory.leave(self)
        elif self._ended and not self._queue:
            self.close()
        if self._closing or not self._queue:
            return
        self._busy = True
        frames = [self._take()]
        while self._queue and len(frames) < TOGETHER and self._together(frames[0], self._queue[0]):
            frames.append(self._take())
        self._effect = self._effect_of(frames[0])
        self._read_on()
        self._begun = asyncio.get_running_loop().time()
        try:
            self._begin(frames, self)
        except CloseConnection as error:
            self.failed(error)

    def _take(self) -> Frame:
        frame = self._queue.popleft()
        self._queued_bytes -= len(frame)
        self._begun_bytes += len(frame)
        if frame is self._beyond:
            self._beyond_begun = True
        return frame

    def answered(self, responses: Sequence[Answer]) -> None:
        """Send the responses of the frames begun last, in order, and begin the next ones; call it on the loop."""
        buffers: list[Buffer | FilePart] = []
        size = 0
        for response in responses:
            if response is not None:
                length = sum(map(len, response))
                size += length + _HEAD
                buffers.append(_LENGTH.pack(length))
                buffers += response
        self.task = None
        self._give_back()
        self.active = asyncio.get_running_loop().time()
        transport = self.transport
        if buffers and transport is not None and not transport.is_closing():
            self._bytes_out += size
            if any(isinstance(buffer, FilePart) for buffer in buffers):
                self._sending = Sending(transport, buffers, self._sent, self._not_taken)
                self._sending.start()
                return
            transport.writelines(cast(list[Buffer], buffers))
        self._continue()

    def answered_before(self, responses: Sequence[Answer], error: CloseConnection) -> None:
        """Send the responses of the frames before a malformed one, then close; call it on the loop."""
        log.warning("connection from %s closed: %s", self.peer, printable(str(error)))
        self._forget()
        self._closing = True
        self.answered(responses)

    def appended(self) -> None:
        """Release the memory of the frames begun last, whose responses are still pending."""
        under_way = self.under_way
        self._give_back()
        self.under_way = under_way

    def _sent(self, error: BaseException | None) -> None:
        """Continue after a response with parts of files; after an error, close the connection.

        The response's length has been sent, so that no other response can follow an incomplete one.
        """
        self._sending = None
        self._table.taken(self)
        self.active = asyncio.get_running_loop().time()
        if error is not None:
            if not isinstance(error, ConnectionError):
                log.warning("connection from %s closed: sending a response failed: %s", self.peer, error)
            self._drop()
            return
        self._continue()

    def _continue(self) -> None:
        self._busy = False
        if self._closing:
            self.close()
        self._next()

    def failed(self, error: BaseException) -> None:
        """Log the error and close the connection; call it on the loop."""
        self.task = None
        self._busy = False
        self._give_back()
        if isinstance(error, CloseConnection):
            log.warning("connection from %s closed: %s", self.peer, printable(str(error)))
        else:
            log.error("connection from %s closed after an error", self.peer, exc_info=error)
        self._forget()
        self.close()
        self._next()

    def _read_on(self) -> None:
        """Resume reading ahead once few of the received requests are left."""
        while (
            self._ahead and len(self._queue) <= READ_AHEAD_FRAMES // 2 and self._queued_bytes <= READ_AHEAD_BYTES // 2
        ):
            self._ahead = False
            behind, self._behind = self._behind, b""
            if behind:
                self._cut_frames(memoryview(behind))
                self._memory.give(len(behind))
            if self._lost:
                self._drop_reads()
            if self._lost or self._ended:
                self._forget_part()
        self._resume_reading()

    # What it holds

    @property
    def held(self) -> int:
        return self._begun_bytes + self._queued_bytes + len(self._behind) + self._part

    @property
    def ends_by_itself(self) -> bool:
        """Whether appends are under way: their bytes stay in use until they finish, even if the connection closes."""
        return self._busy and self.task is None and self._sending is None

    def _give_back(self) -> None:
        """Release the memory of the frames that were begun."""
        size, self._begun_bytes = self._begun_bytes, 0
        self.under_way = ""
        if self._beyond_begun:
            self._beyond, self._beyond_begun = None, False
            self._memory.answered(self)
        self._memory.give(size)

    def _forget(self) -> None:
        """Drop all requests that were received but not begun."""
        size = self._queued_bytes + len(self._behind)
        if not self._beyond_begun:
            self._beyond = None
            self._memory.answered(self)
        self._queue.clear()
        self._queued_bytes = 0
        self._behind = b""
        self._memory.give(size)
        self._forget_part()

    def _forget_part(self) -> None:
        super()._forget_part()
        if self._beyond is None:
            self._memory.answered(self)

    def _drop_reads(self) -> None:
        """Drop the received requests that only read: their connection is lost."""
        kept = [frame for frame in self._queue if self._effect_of(frame) is Effect.CHANGE]
        size = self._queued_bytes - sum(map(len, kept))
        if self._beyond is not None and not self._beyond_begun and not any(each is self._beyond for each in kept):
            self._beyond = None
            self._memory.answered(self)
        self._queue = deque(kept)
        self._queued_bytes -= size
        self._memory.give(size)

    # Ending it

    def _refuse(self, why: str) -> None:
        log.warning("connection from %s closed: %s", self.peer, printable(why))
        self._pause_reading()
        self._ended = True
        self._forget_part()
        if self._effect is Effect.MEMBERSHIP and self._busy and not self._queue:
            self.close()
        # The requests before it are handled and their responses sent, as after a half-close.
        self._next()

    def close(self) -> None:
        """Close the connection once the pending responses are sent."""
        self._closing = True
        if self.transport is not None and self._sending is None:
            self.transport.close()

    def finish(self) -> None:
        """Finish the request under way, begin no further one, then close."""
        self._closing = True
        self._forget()
        if not self._busy:
            self.close()
        self._next()

    def cut(self, why: str, level: int = logging.WARNING) -> None:
        log.log(level, "connection from %s closed: %s", self.peer, why)
        self._closing = True
        if self._lost:
            self._cancel()
        self._drop()

    def _drop(self) -> None:
        self._forget()
        if self.transport is not None:
            self.transport.abort()
        self._next()

    # For the table

    def idle(self, now: float, seconds: float) -> bool:
        """Return whether no byte was sent or received for `seconds`, and no request is being handled."""
        sending = self._sending
        left = sending.left if sending is not None else self._unsent()
        if left != self._left:
            # The client has read bytes since the last check.
            self._left, self.active = left, now
            return False
        return (not self._busy or sending is not None) and not self._waits and now - self.active > seconds

    def _unsent(self) -> int:
        return self.transport.get_write_buffer_size() if self.transport is not None else 0

    def view(self, now: float) -> dict[str, Any]:
        """Return the connection's row of the table, times in seconds."""
        under_way = self.under_way if self._busy else ""
        return {
            "peer": f"[{self.peer}]:{self._port}" if ":" in self.peer else f"{self.peer}:{self._port}",
            "client_id": printable(self.client_id),
            "software": printable(self.software),
            "age": round(now - self._opened, 3),
            "idle": 0.0 if under_way else round(now - self.active, 3),
            "requests": self._requests,
            "bytes_in": self._bytes_in,
            "bytes_out": self._bytes_out,
            "under_way": under_way,
            "under_way_seconds": round(now - self._begun, 3) if under_way else 0.0,
            "queued": len(self._queue),
            "request_bytes": self.held,
            "waits_for_room": self._waits,
        }
