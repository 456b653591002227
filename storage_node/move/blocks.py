"""Reads and writes of a copier: past the page cache under a limit, through it where nothing limits.

What a move copies nobody reads soon, on neither disk. Under a limit large aligned blocks go past the page cache: that
pushes out nothing that consumers read and leaves nothing behind that has to be written back in a burst. Where that
cannot be (a position that is not aligned, the end of a file, a file system that refuses), the page cache is used for
just that part. Without a limit the page cache is the faster way, since the system reads and writes far ahead of one
thread: then what was copied is given back behind it, but for what was in memory before.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections import deque

from storage_node.directories.atomic import full_is_no_room
from storage_node.log.files import Handle, Home, write_all
from storage_node.log.segment import LOG, Segment, file_name

ALIGNMENT = 4096
DIRECT_FROM = 16 << 10
"""Bytes below which it is not worth going past the page cache."""
HOT_TAIL = 4 << 20
"""This close to the end of the log its bytes are most likely in the page cache, and are taken from there."""

WINDOW = 16 << 20
"""Bytes of a source whose pages are kept or given back together."""
_LOOK_AHEAD = 2
"""Windows that are looked at before the reading comes to them: the system reads ahead, and its pages are no sign."""

_REFUSED = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP)


class Buffers:
    """Aligned memory, used again and again. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: dict[int, list[memoryview]] = {}

    def take(self, size: int) -> memoryview:
        """A buffer of at least `size` bytes, a whole number of pages."""
        # Few sizes, whatever rates are set: what one move leaves fits the next.
        size = max(ALIGNMENT, 1 << (size - 1).bit_length())
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
        self._direct = _open_direct(segment.home, segment.base_offset, os.O_RDONLY)
        # Descriptors of its own: how far ahead the system reads for consumers is their business.
        self._own = _open(segment.home, segment.base_offset, os.O_RDONLY) or self._file
        self._looking = _open(segment.home, segment.base_offset, os.O_RDONLY)
        os.posix_fadvise(self._own.fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        if self._looking is not None:
            os.posix_fadvise(self._looking.fd, 0, 0, os.POSIX_FADV_RANDOM)
        self._lock = threading.Lock()
        self._looked = 0  # the window up to which it is known what was in memory
        self._cold: deque[int] = deque()  # windows that were not, and have been read since

    def read(self, buffer: memoryview, count: int, position: int, *, hot: bool, cached: bool = False) -> int:
        """Read up to `count` bytes at `position` into the buffer; fewer only at the end of the file.

        `hot`: they are likely to be in the page cache. `cached`: take the way through it.
        """
        if cached and not hot:
            self._look(position)
            return self._through(self._own, buffer, count, position, 0)
        got = 0
        direct = self._direct  # reads are made by several threads
        if direct is not None and not hot and count >= DIRECT_FROM and position % ALIGNMENT == 0:
            whole = min(len(buffer), -(-count // ALIGNMENT) * ALIGNMENT)
            try:
                got = min(count, os.preadv(direct.fd, [buffer[:whole]], position))
            except OSError as exc:
                if exc.errno not in _REFUSED:
                    raise
                self._direct = None
        return self._through(self._file, buffer, count, position, got)

    def _through(self, file: Handle, buffer: memoryview, count: int, position: int, got: int) -> int:
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

    def behind(self, position: int) -> bool:
        """Whether there is a window before `position` to give back."""
        return bool(self._cold) and (self._cold[0] + 1) * WINDOW <= position

    def give_back(self, position: int) -> None:
        """Give back the pages of the windows before `position` that only this copy has brought into memory."""
        with self._lock:
            while self.behind(position):
                window = self._cold.popleft()
                os.posix_fadvise(self._own.fd, window * WINDOW, WINDOW, os.POSIX_FADV_DONTNEED)


class Target:
    """One segment of the copy, for writing. Raises OSError, `NoRoom` for a full disk."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self._direct = _open_direct(segment.home, segment.base_offset, os.O_WRONLY)

    def write(self, data: memoryview, position: int, *, aligned: bool, cached: bool = False) -> None:
        """Write all of `data`. `aligned`: it begins where a page of memory does. `cached`: through the page cache."""
        done = 0
        if (
            self._direct is not None
            and not cached
            and aligned
            and len(data) >= DIRECT_FROM
            and position % ALIGNMENT == 0
        ):
            whole = len(data) // ALIGNMENT * ALIGNMENT
            try:
                with full_is_no_room():
                    while done < whole:
                        # A part that was cut short goes on where a block begins.
                        written = os.pwrite(self._direct.fd, data[done:whole], position + done)
                        done += written // ALIGNMENT * ALIGNMENT
                        if written % ALIGNMENT:
                            break
            except OSError as exc:
                if exc.errno not in _REFUSED:
                    raise
                self._direct = None
        if done < len(data):
            file = self.segment.file
            write_all(file.fd, data[done:], position + done)


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


def _open_direct(home: Home, base_offset: int, mode: int) -> Handle | None:
    """The .log opened past the page cache; None where that is refused."""
    try:
        return home.open(file_name(base_offset, LOG), mode | os.O_DIRECT)
    except FileNotFoundError:
        return None  # retention took the name; the file is still open
    except OSError as exc:
        if exc.errno not in _REFUSED:
            raise
        return None
