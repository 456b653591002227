"""Reads of a copier, through the page cache, which they leave as they found it.

What a move copies nobody reads soon, on neither disk: what was in memory before stays there, and what the copy has
brought there is given back behind it (what it writes is given back once it is flushed, see `flusher`). Reads and writes
past the page cache would not touch it at all, but each of them waits for its disk, which serves producers too: a copy
at 20 MB/s of a disk that does thirty times as much then stands still for up to a second, and has only 0.94 of its rate.
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
"""This close to the end of the log its bytes are most likely in the page cache, and are taken from there."""

WINDOW = 16 << 20
"""Bytes of a source whose pages are kept or given back together."""
AHEAD = 4 << 20
"""Bytes that the system is advised to read before the copy comes to them: a disk that is busy for a moment then holds
up no copy, and reads large pieces however small those are that a limit lets pass."""
ADVISED = 1 << 20
"""Bytes that the system takes of one advice, at least."""
_LOOK_AHEAD = 2
"""Windows that are looked at before the reading comes to them: the system reads ahead, and its pages are no sign."""


class Buffers:
    """Memory that is used again and again. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: dict[int, list[memoryview]] = {}

    def take(self, size: int) -> memoryview:
        """A buffer of at least `size` bytes, a whole number of pages."""
        # Few sizes, whatever rates are set: what one move leaves fits the next.
        size = max(PAGE, 1 << (size - 1).bit_length())
        with self._lock:
            free = self._free.get(size)
            if free:
                return free.pop()
        return memoryview(mmap.mmap(-1, size))

    def give(self, buffer: memoryview, keep: int = 8) -> None:
        """Give a buffer back; some of each size are kept."""
        with self._lock:
            free = self._free.setdefault(len(buffer), [])
            if len(free) < keep:
                free.append(buffer)


class Source:
    """One segment of the source, for reading. Raises OSError."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self._file: Handle = segment.file
        # Descriptors of its own: how far ahead the system reads for consumers is their business.
        self._own = _open(segment.home, segment.base_offset, os.O_RDONLY) or self._file
        self._looking = _open(segment.home, segment.base_offset, os.O_RDONLY)
        os.posix_fadvise(self._own.fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        if self._looking is not None:
            os.posix_fadvise(self._looking.fd, 0, 0, os.POSIX_FADV_RANDOM)
        self._lock = threading.Lock()
        self._advised = 0  # up to where
        self._looked = 0  # the window up to which it is known what was in memory
        self._cold: deque[int] = deque()  # windows that were not, and have been read since

    def read(self, buffer: memoryview, count: int, position: int, *, hot: bool) -> int:
        """Read up to `count` bytes at `position` into the buffer; fewer only at the end of the file.

        `hot`: they are likely to be in the page cache.
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
        """Note which of the next windows are not in memory now."""
        upto = position // WINDOW + _LOOK_AHEAD + 1
        if upto <= self._looked or self._looking is None:
            return
        with self._lock:
            for window in range(max(self._looked, position // WINDOW), upto):
                if not _in_memory(self._looking, window * WINDOW + WINDOW // 2):
                    self._cold.append(window)
            self._looked = max(self._looked, upto)

    def _advise(self, position: int) -> None:
        """Have the system read what comes after `position`; no I/O is waited for."""
        if position + AHEAD < self._advised + ADVISED:
            return
        with self._lock:
            while (at := max(self._advised, position)) + ADVISED <= position + AHEAD:
                os.posix_fadvise(self._own.fd, at, ADVISED, os.POSIX_FADV_WILLNEED)
                self._advised = at + ADVISED

    def behind(self, position: int) -> bool:
        """Whether there is a window before `position` to give back."""
        return bool(self._cold) and (self._cold[0] + 1) * WINDOW <= position

    def give_back(self, position: int) -> None:
        """Give back the pages of the windows before `position` that only this copy has brought into memory."""
        with self._lock:
            while self.behind(position):
                window = self._cold.popleft()
                os.posix_fadvise(self._own.fd, window * WINDOW, WINDOW, os.POSIX_FADV_DONTNEED)


def _in_memory(file: Handle, position: int) -> bool:
    """Whether the byte there is in the page cache, or beyond the end. No I/O is waited for."""
    try:
        os.preadv(file.fd, [bytearray(1)], position, os.RWF_NOWAIT)
    except OSError:
        return False
    return True


def _open(home: Home, base_offset: int, mode: int) -> Handle | None:
    try:
        return home.open(file_name(base_offset, LOG), mode)
    except FileNotFoundError:
        return None  # retention took the name; the file is still open
