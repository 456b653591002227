"""The receiving half of a connection: it cuts the bytes into frames, and pauses reading at the limits.

Bytes are read into a buffer that all connections share, from which small frames are copied. A frame that has arrived in
part gets its own buffer, which grows with the bytes that have arrived. All bytes that a connection holds count towards
the listener's limit.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
import struct
from abc import ABC, abstractmethod

from storage_node.protocol.network.connections import RECEIVE_BUFFER, Connections
from storage_node.protocol.network.request_memory import SMALL
from storage_node.small_first import SMALL_FIRST

Frame = bytes | memoryview

#: A frame of which more than this has arrived is mapped in full, so that no byte is copied again; the kernel allocates
#: memory page by page as bytes arrive.
GROWTH = 2 * 1024 * 1024
#: The first allocation for a frame of which few bytes have arrived.
LEAST = 4096

#: A request header is at least key, version and correlation id.
SMALLEST_FRAME = 8

_LENGTH = struct.Struct(">i")
_HEAD = _LENGTH.size


class CloseConnection(Exception):
    """The client has sent bytes to which the node cannot respond; it logs the reason and closes the connection."""


class FrameReader(asyncio.BufferedProtocol, ABC):
    """The receiving half of a connection; it passes whole frames to `_deliver`."""

    def __init__(self, table: Connections) -> None:
        self._table = table
        self._memory = table.memory
        self._turns = table.turns
        self._rest = b""
        """The first bytes of a frame whose length has not arrived in full, or the length while the frame waits for
        room.
        """
        self._large: memoryview | None = None
        """The buffer of a frame that has arrived in part: of the whole frame, or smaller while little has arrived."""
        self._room = 0
        """The bytes of the frame that are counted as held, and may be received."""
        self._length = 0
        self._filled = 0
        self._behind = b""
        """The bytes after the requests that were read ahead, not cut into frames yet."""
        self._ahead = False
        """Reading is paused: the limit of reading ahead is reached."""
        self._waits = False
        """Reading is paused until the listener has room."""
        self._rests = False
        """Reading is paused until the loop's next iteration."""
        self._turn = 0
        """The bytes of large frames received in this iteration."""
        self._closing = False
        """No further request is begun."""
        self._ended = False
        """The client has closed its direction: nothing more arrives."""
        self._lost = False
        """The connection is closed in both directions."""
        self.transport: asyncio.Transport | None = None
        self.peer = ""
        """The address, without the port."""
        self.active = asyncio.get_running_loop().time()
        """When bytes were last sent or received, by the loop's clock."""
        self._bytes_in = 0

    @property
    @abstractmethod
    def held(self) -> int:
        """The bytes of requests that are under way, read ahead, or received in part."""

    @property
    @abstractmethod
    def ends_by_itself(self) -> bool:
        """Whether the held bytes are released soon anyway, and closing the connection does not release them earlier."""

    @abstractmethod
    def cut(self, why: str, level: int = logging.WARNING) -> None:
        """Log the reason and close at once; unsent responses are dropped."""

    @abstractmethod
    def _deliver(self, frame: Frame) -> None:
        """Queue a whole frame, which is counted as held."""

    @abstractmethod
    def _refuse(self, why: str) -> None:
        """Stop reading, since the bytes are not a valid frame; close after the responses to the frames before it."""

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._large is not None:
            return self._large[self._filled : min(self._room, self._filled + self._turns.share)]
        have = len(self._rest)
        view = self._table.receive_view
        if have:
            view[:have] = self._rest
        # While the listener's limit is reached, only the length of the next frame is read.
        return view[have:_HEAD] if self._memory.full and have < _HEAD else view[have:]

    def buffer_updated(self, nbytes: int) -> None:
        self._bytes_in += nbytes
        SMALL_FIRST.let_go()
        self.active = SMALL_FIRST.heard = asyncio.get_running_loop().time()
        if self._closing or self._ended:
            return
        if self._large is None:
            have, self._rest = len(self._rest) + nbytes, b""
            self._cut_frames(self._table.receive_view[:have])
            return
        self._filled += nbytes
        self._turn += nbytes
        self._turns.received(nbytes)
        if self._turn >= self._turns.share:
            self._rest_until_next_turn()
        if self._filled == self._room:
            self._grow()

    def _rest_until_next_turn(self) -> None:
        """Leave the rest of this iteration of the loop to the other connections."""
        self._rests = True
        self._turns.rests()
        self._pause_reading()
        asyncio.get_running_loop().call_soon(self._end_rest)

    def _end_rest(self) -> None:
        self._rests, self._turn = False, 0
        self._turns.begins()
        if not self._closing:
            self._resume_reading()

    def _cut_frames(self, view: memoryview) -> None:
        """Deliver the whole frames in a buffer; the connection keeps a copy of the remaining bytes."""
        have, position = len(view), 0
        while have - position >= _HEAD:
            if self._ahead:
                self._behind = bytes(view[position:])
                self._memory.take(len(self._behind))
                return
            (length,) = _LENGTH.unpack_from(view, position)
            if not SMALLEST_FRAME <= length <= self._table.limits.frame:
                self._refuse(f"a frame of {length} bytes; at most {self._table.limits.frame} are valid")
                return
            start = position + _HEAD
            if have - start < length:
                self._length = length
                if have > start or self._memory.may_begin(self, length):
                    self._begin_large(view[start:have])
                else:
                    self._rest = bytes(view[position:have])
                    self._wait()
                return
            frame = bytes(view[start : start + length])
            self._memory.take(length)
            position = start + length
            self._deliver(frame)
            if self._closing:
                return
        self._rest = bytes(view[position:have])

    def _begin_large(self, came: memoryview | bytes) -> None:
        """Allocate the buffer of a frame that has arrived in part; `came` are its first bytes."""
        size = len(came)
        # The client probably sends much more if these bytes nearly fill the receive buffer.
        more_comes = 2 * size >= RECEIVE_BUFFER
        # A small request was admitted beyond the limit, and must not wait for room again half-way.
        least = SMALL if self._memory.full else LEAST
        room = min(self._length, GROWTH if more_comes else max(4 * size, least))
        self._large, self._filled, self._room = memoryview(bytearray(room)), size, room
        self._large[:size] = came
        self._memory.take(room)

    def _grow(self) -> None:
        """Deliver the frame if it is complete; else enlarge its full buffer, or wait for room."""
        large, have = self._large, self._room
        assert large is not None
        if have == self._length:
            self._large = None
            self._deliver(large.toreadonly())
        elif self._memory.may_grow(self):
            more = min(have if have >= GROWTH else 3 * have, self._length - have)
            if have + more > len(large):
                try:
                    self._large = _memory(have + more, self._length)
                except OSError as error:
                    self._refuse(f"no memory for a frame of {self._length} bytes: {error}")
                    return
                self._large[:have] = large
            self._room = have + more
            self._memory.take(more)
        else:
            self._wait()

    def _wait(self) -> None:
        self._waits = True
        self._pause_reading()

    def read_again(self) -> None:
        """Resume reading once the listener has room."""
        self._waits = False
        if self._closing or self._lost:
            return
        if self._large is not None:
            self._grow()
        elif len(self._rest) == _HEAD:
            self._rest = b""
            self._begin_large(b"")
        if not self._waits:
            self._resume_reading()

    @property
    def _over(self) -> bool:
        """Whether the connection cannot receive further bytes."""
        return self._ended or self._lost or self.transport is None or self.transport.is_closing()

    def _pause_reading(self) -> None:
        if not self._over and self.transport is not None and self.transport.is_reading():
            self.transport.pause_reading()

    def _resume_reading(self) -> None:
        if (
            self._over
            or self._ahead
            or self._waits
            or self._rests
            or self.transport is None
            or self.transport.is_reading()
        ):
            return
        self.transport.resume_reading()

    @property
    def _part(self) -> int:
        """The bytes counted for a frame that has arrived in part."""
        return self._room if self._large is not None else 0

    def _forget_part(self) -> None:
        """Drop a frame that has arrived in part."""
        size, self._large, self._rest = self._part, None, b""
        self._waits = False
        self._memory.wait_no_more(self)
        self._memory.give(size)


def _memory(size: int, length: int) -> memoryview:
    """Allocate memory for `size` bytes of a frame of `length` bytes; raises OSError."""
    if size <= GROWTH:
        return memoryview(bytearray(size))
    return memoryview(mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
