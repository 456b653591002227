"""Read the source of a copy through the page cache, and leave the cache as it was.

Clients seldom read what a move copies, on either disk: pages that were in memory before stay, and those that the copy
loaded are dropped behind it (pages that it writes are dropped after their flush, see `flusher`). Direct I/O would not
touch the cache, but each read and write would wait for its disk, which serves producers too: a copy at 20 MB/s from a
disk that reads thirty times as fast then pauses for up to a second, and reaches only 0.94 of its rate.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections import deque

from storage_node.log.files import Handle, Home
from storage_node.log.segment import LOG, Segment, file_name

PAGE = 4096
HOT_TAIL = 4 << 20
"""Bytes before the end of the log that are most likely in the page cache, and are read from there."""

WINDOW = 16 << 20
"""Bytes of a source whose pages are kept or dropped together."""
AHEAD = 4 << 20
"""Bytes that the system is advised to read before the copy needs them. A disk that is busy for a moment then does not
delay the copy, and it reads large pieces however small the pieces are that a limit admits.
"""
ADVISED = 1 << 20
"""Bytes in one piece of advice, at least."""
_LOOK_AHEAD = 2
"""Windows that are probed ahead of the reads: the system reads ahead, so later its pages prove nothing."""


class Buffers:
    """A pool of buffers for reuse. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: dict[int, list[memoryview]] = {}

    def take(self, size: int) -> memoryview:
        """Return a buffer of at least `size` bytes, a whole number of pages."""
        # There are few sizes, whatever rates are set, so that another move can reuse a move's buffers.
        size = max(PAGE, 1 << (size - 1).bit_length())
        with self._lock:
            free = self._free.get(size)
            if free:
                return free.pop()
        return memoryview(mmap.mmap(-1, size))

    def give(self, buffer: memoryview, keep: int = 8) -> None:
        """Return a buffer to the pool, which keeps some of each size."""
        with self._lock:
            free = self._free.setdefault(len(buffer), [])
            if len(free) < keep:
                free.append(buffer)


class Source:
    """One segment of the source, opened for reading. Methods raise OSError."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self._file: Handle = segment.file
        # Descriptors of its own, so that the read-ahead of consumers does not change.
        self._own = _open(segment.home, segment.base_offset, os.O_RDONLY) or self._file
        self._looking = _open(segment.home, segment.base_offset, os.O_RDONLY)
        os.posix_fadvise(self._own.fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        if self._looking is not None:
            os.posix_fadvise(self._looking.fd, 0, 0, os.POSIX_FADV_RANDOM)
        self._lock = threading.Lock()
        self._advised = 0  # offset of the end
        self._looked = 0  # the first window that was not probed yet
        self._cold: deque[int] = deque()  # windows that were not cached, and have been read since

    def read(self, buffer: memoryview, count: int, position: int, *, hot: bool) -> int:
        """Read up to `count` bytes at `position` into the buffer; fewer only at the end of the file.

        `hot`: the bytes are likely in the page cache.
        """
        if not hot:
            self._look(position)
            self._advise(position)
        file, got = self._file if hot else self._own, 0
        while got < count:
            more = os.preadv(file.fd, [buffer[got:count]], position + got)
            if not more:
                break
            got += more
        return got

    def _look(self, position: int) -> None:
        """Record which of the next windows are not in memory now."""
        upto = position // WINDOW + _LOOK_AHEAD + 1
        if upto <= self._looked or self._looking is None:
            return
        with self._lock:
            for window in range(max(self._looked, position // WINDOW), upto):
                if not _in_memory(self._looking, window * WINDOW + WINDOW // 2):
                    self._cold.append(window)
            self._looked = max(self._looked, upto)

    def _advise(self, position: int) -> None:
        """Advise the system to read what follows `position`, without waiting for I/O."""
        if position + AHEAD < self._advised + ADVISED:
            return
        with self._lock:
            while (at := max(self._advised, position)) + ADVISED <= position + AHEAD:
                os.posix_fadvise(self._own.fd, at, ADVISED, os.POSIX_FADV_WILLNEED)
                self._advised = at + ADVISED

    def behind(self, position: int) -> bool:
        """Return whether there is a window before `position` to drop."""
        return bool(self._cold) and (self._cold[0] + 1) * WINDOW <= position

    def give_back(self, position: int) -> None:
        """Drop the pages of the windows before `position` that only this copy has loaded into memory."""
        with self._lock:
            while self.behind(position):
                window = self._cold.popleft()
                os.posix_fadvise(self._own.fd, window * WINDOW, WINDOW, os.POSIX_FADV_DONTNEED)


def _in_memory(file: Handle, position: int) -> bool:
    """Return whether the byte at `position` is in the page cache or beyond the end, without waiting for I/O."""
    try:
        os.preadv(file.fd, [bytearray(1)], position, os.RWF_NOWAIT)
    except OSError:
        return False
    return True


def _open(home: Home, base_offset: int, mode: int) -> Handle | None:
    try:
        return home.open(file_name(base_offset, LOG), mode)
    except FileNotFoundError:
        return None  # retention removed the name; the segment's own file is still open
