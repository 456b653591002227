"""Frames on a connection: length checks before memory is spent, one request after the other, answers in order.

While a request is being answered the next ones are read ahead up to a limit, and all that is held counts towards the
listener's limit (`receiving` cuts out the frames).

A client may close its connection behind its requests. After it has closed its direction (a half-close, or a close of
which the node sees no more than that) every request that arrived is served and answered. After the connection is lost
the requests that change something are still carried out, in order, as by the closing channels of Apache Kafka's
Selector; those that only read are dropped.
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
from storage_node.protocol.connections import Connections, plain_address
from storage_node.protocol.receiving import CloseConnection, Frame, FrameReader
from storage_node.protocol.sending import Buffer, FilePart, Sending

log = logging.getLogger(__name__)

#: What to write, None for no answer.
Answer = Sequence[Buffer | FilePart] | None

#: Begins to answer frames that came one after the other, and later calls the connection's `answered` or `failed`. It is
#: given as many as it said by `together` that it takes at once.
Begin = Callable[[list[Frame], "Connection"], None]
Together = Callable[[Frame, Frame], bool]

READ_AHEAD_FRAMES = 64
#: Frames that are begun together at most.
TOGETHER = 16
READ_AHEAD_BYTES = 8 * 1024 * 1024
#: Answers that a peer does not take wait here; with more than this nothing further is begun for it.
WRITE_BUFFER = 64 * 1024

_LENGTH = struct.Struct(">i")
_HEAD = _LENGTH.size


class Effect(Enum):
    """What a request does besides being answered, which decides what becomes of it when its client goes."""

    NONE = auto()
    """It only reads: dropped once nobody can receive the answer."""
    CHANGE = auto()
    """It changes something: carried out once it has been read in full."""
    MEMBERSHIP = auto()
    """It makes its sender a member of a group: given up as soon as the sender sends nothing any more."""


EffectOf = Callable[[Frame], Effect]


class Connection(FrameReader):
    """One client's connection."""

    def __init__(self, begin: Begin, together: Together, effect: EffectOf, table: Connections) -> None:
        super().__init__(table)
        self.number = next(table.numbers)
        """By which the requests of this connection know each other."""
        self._begin = begin
        self._together = together
        self._effect_of = effect
        self._queue: deque[Frame] = deque()
        self._queued_bytes = 0
        self._begun_bytes = 0
        self._beyond: Frame | None = None
        """The request that was read beyond the listener's limit."""
        self._beyond_begun = False
        self._busy = False
        self._writable = True
        self._sending: Sending | None = None
        self._effect = Effect.NONE
        """That of the requests that were begun last."""
        self.task: asyncio.Task[None] | None = None
        # For the table of connections.
        self.client_id = ""
        self.software = ""
        self.under_way = ""
        """The name of the API that is being answered."""
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
        # A peer that has gone without a word is found out even while a request of it is under way.
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
        """End the request under way without an answer; produce, which is no task, always finishes."""
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
        """Begin with what waits, unless something is being answered or the peer does not take its answers."""
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

    def answered(self, answers: Sequence[Answer]) -> None:
        """Write the answers of the frames begun last, in order, and go on; called on the loop."""
        buffers: list[Buffer | FilePart] = []
        size = 0
        for answer in answers:
            if answer is not None:
                length = sum(map(len, answer))
                size += length + _HEAD
                buffers.append(_LENGTH.pack(length))
                buffers += answer
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
        self._go_on()

    def answered_before(self, answers: Sequence[Answer], error: CloseConnection) -> None:
        """Write the responses of the frames before a malformed one, then close; call it on the loop."""
        log.warning("connection from %s closed: %s", self.peer, printable(str(error)))
        self._forget()
        self._closing = True
        self.answered(answers)

    def appended(self) -> None:
        """The frames begun last are not needed any more, only their answers are still to come."""
        under_way = self.under_way
        self._give_back()
        self.under_way = under_way

    def _sent(self, error: BaseException | None) -> None:
        """An answer that holds parts of files has gone out, or cannot: its length was told, so nothing may follow."""
        self._sending = None
        self._table.taken(self)
        self.active = asyncio.get_running_loop().time()
        if error is not None:
            if not isinstance(error, ConnectionError):
                log.warning("connection from %s closed: an answer could not be sent: %s", self.peer, error)
            self._drop()
            return
        self._go_on()

    def _go_on(self) -> None:
        self._busy = False
        if self._closing:
            self.close()
        self._next()

    def failed(self, error: BaseException) -> None:
        """Close the connection with one line in the log; called on the loop."""
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
        """Read further ahead once few of the requests that were read are left."""
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
        """Appends under way: their bytes are in use until they are done, whatever becomes of the connection."""
        return self._busy and self.task is None and self._sending is None

    def _give_back(self) -> None:
        """The frames that were begun are done with."""
        size, self._begun_bytes = self._begun_bytes, 0
        self.under_way = ""
        if self._beyond_begun:
            self._beyond, self._beyond_begun = None, False
            self._memory.answered(self)
        self._memory.give(size)

    def _forget(self) -> None:
        """Everything that was read but not begun."""
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
        """The connection is lost: requests that change nothing have nobody to be answered to."""
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
        # What came before it is served and answered, as behind a half-close.
        self._next()

    def close(self) -> None:
        """Close after what is written has gone out."""
        self._closing = True
        if self.transport is not None and self._sending is None:
            self.transport.close()

    def finish(self) -> None:
        """Answer what is under way, begin nothing more, then close."""
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
        """Whether nothing has gone either way for so long, and no request is being worked on."""
        sending = self._sending
        left = sending.left if sending is not None else self._unsent()
        if left != self._left:
            # The peer has taken something since the last look.
            self._left, self.active = left, now
            return False
        return (not self._busy or sending is not None) and not self._waits and now - self.active > seconds

    def _unsent(self) -> int:
        return self.transport.get_write_buffer_size() if self.transport is not None else 0

    def view(self, now: float) -> dict[str, Any]:
        """One row of the table, times in seconds."""
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
