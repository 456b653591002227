"""Reads and writes of a copier: in large aligned blocks past the page cache where the file system can do that.

What a move copies nobody reads soon, on neither disk. Past the page cache it pushes out nothing that consumers read,
leaves nothing behind that has to be written back in a burst, and costs no processor time for pages. Where that cannot
be (a position that is not aligned, the end of a file, a file system that refuses), the page cache is used for just
that part.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading

from storage_node.directories.atomic import full_is_no_room
from storage_node.log.files import Handle, Home, write_all
from storage_node.log.segment import LOG, Segment, file_name

ALIGNMENT = 4096
DIRECT_FROM = 16 << 10
"""Bytes below which it is not worth going past the page cache."""
HOT_TAIL = 4 << 20
"""This close to the end of the log its bytes are most likely in the page cache, and are taken from there."""

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
        if self._direct is None:
            os.posix_fadvise(self._file.fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)

    def read(self, buffer: memoryview, count: int, position: int, *, hot: bool) -> int:
        """Read up to `count` bytes at `position` into the buffer; fewer only at the end of the file.

        `hot`: they are likely to be in the page cache.
        """
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
        while got < count:
            more = os.preadv(self._file.fd, [buffer[got:count]], position + got)
            if not more:
                break
            got += more
        return got


class Target:
    """One segment of the copy, for writing. Raises OSError, `NoRoom` for a full disk."""

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self._direct = _open_direct(segment.home, segment.base_offset, os.O_WRONLY)

    def write(self, data: memoryview, position: int, *, aligned: bool) -> None:
        """Write all of `data`. `aligned`: it begins where a page of memory does."""
        done = 0
        if self._direct is not None and aligned and len(data) >= DIRECT_FROM and position % ALIGNMENT == 0:
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
            write_all(self.segment.file.fd, data[done:], position + done)


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
