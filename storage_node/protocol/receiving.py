"""Cutting a connection's bytes into frames: what is received goes where, and when reading pauses.

What is read goes into a buffer that all connections share, and small frames are cut out of it; one that has come in
part goes on in a buffer of its own, which takes memory with the bytes that really arrive. All that is held counts
towards the listener's limit.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
import struct
from abc import ABC, abstractmethod

from storage_node.protocol.connections import RECEIVE_BUFFER, Connections
from storage_node.protocol.request_memory import SMALL
from storage_node.small_first import SMALL_FIRST

Frame = bytes | memoryview

#: A frame of which more than this has arrived gets address space for all of itself, so that nothing is copied any more;
#: the kernel adds memory page by page as bytes arrive.
GROWTH = 2 * 1024 * 1024
#: The first piece of memory for a frame of which next to nothing has come.
LEAST = 4096

#: A request header is at least key, version and correlation id.
SMALLEST_FRAME = 8

_LENGTH = struct.Struct(">i")
_HEAD = _LENGTH.size


class CloseConnection(Exception):
    """The peer sent something that cannot be answered: one log line, then the connection is closed."""


class FrameReader(asyncio.BufferedProtocol, ABC):
    """The receiving half of a connection; what it cuts out goes to `_deliver`."""

    def __init__(self, table: Connections) -> None:
        self._table = table
        self._memory = table.memory
        self._turns = table.turns
        self._rest = b""
        """The first bytes of a frame whose length is not known yet, or the length alone while it waits for room."""
        self._large: memoryview | None = None
        """The memory of a frame that has arrived in part: all of it, or less while little of it has arrived."""
        self._room = 0
        """So many bytes of it are counted as held, and may be received."""
        self._length = 0
        self._filled = 0
        self._behind = b""
        """What arrived behind as many requests as are read ahead, not yet cut into frames."""
        self._ahead = False
        """So much was read ahead that reading is paused."""
        self._waits = False
        """Reading is paused until the listener has room."""
        self._rests = False
        """Reading is paused until the loop's next turn."""
        self._turn = 0
        """Bytes of large frames received since the last rest."""
        self._closing = False
        """No further request is begun."""
        self._ended = False
        """The client has closed its direction: nothing more arrives."""
        self._lost = False
        """The connection is gone in both directions."""
        self.transport: asyncio.Transport | None = None
        self.peer = ""
        """The address, without the port."""
        self.active = asyncio.get_running_loop().time()
        """When bytes last went either way, by the loop's clock."""
        self._bytes_in = 0

    @property
    @abstractmethod
    def held(self) -> int:
        """Bytes of requests: under way, read ahead, and come in part."""

    @property
    @abstractmethod
    def ends_by_itself(self) -> bool:
        """Whether what is held is given back soon in any case, and not earlier by closing the connection."""

    @abstractmethod
    def cut(self, why: str, level: int = logging.WARNING) -> None:
        """Close at once, with what was not sent thrown away."""

    @abstractmethod
    def _deliver(self, frame: Frame) -> None:
        """Take a whole frame, which is counted as held."""

    @abstractmethod
    def _refuse(self, why: str) -> None:
        """Read no further, since what arrives is no frame; close once the frames before it are answered."""

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._large is not None:
            return self._large[self._filled : min(self._room, self._filled + self._turns.share)]
        have = len(self._rest)
        view = self._table.receive_view
        if have:
            view[:have] = self._rest
        # Without room for more requests only the length of the next one is read.
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
        if self._turn >= self._turns.share:
            self._rest_until_next_turn()
        if self._filled == self._room:
            self._grow()

    def _rest_until_next_turn(self) -> None:
        """Leave this turn of the loop to the other connections."""
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
        """Deliver the whole frames in a buffer; what is left of it becomes this connection's own."""
        have, position = len(view), 0
        while have - position >= _HEAD:
            if self._ahead:
                self._behind = bytes(view[position:])
                self._memory.take(len(self._behind))
                return
            (length,) = _LENGTH.unpack_from(view, position)
            if not SMALLEST_FRAME <= length <= self._table.limits.frame:
                self._refuse(f"a frame of {length} bytes; at most {self._table.limits.frame} are taken")
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
        """Memory of its own for a frame that has come in part; where much of it came at once there is more to come."""
        size = len(came)
        more_comes = 2 * size >= RECEIVE_BUFFER
        # What is small is let in although there is no room, and is not asked again half-way.
        least = SMALL if self._memory.full else LEAST
        room = min(self._length, GROWTH if more_comes else max(4 * size, least))
        self._large, self._filled, self._room = memoryview(bytearray(room)), size, room
        self._large[:size] = came
        self._memory.take(room)

    def _grow(self) -> None:
        """A frame's own memory is full: it is whole, or goes on in more of it as soon as there is room."""
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
        """There is room for more: go on where the reading was paused."""
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
        """Whether nothing further can be read."""
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
        """Bytes counted for a frame that has arrived in part."""
        return self._room if self._large is not None else 0

    def _forget_part(self) -> None:
        """A frame of which the rest never arrives."""
        size, self._large, self._rest = self._part, None, b""
        self._waits = False
        self._memory.wait_no_more(self)
        self._memory.give(size)


def _memory(size: int, length: int) -> memoryview:
    """Memory for `size` bytes of a frame of `length` bytes; raises OSError."""
    if size <= GROWTH:
        return memoryview(bytearray(size))
    return memoryview(mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
