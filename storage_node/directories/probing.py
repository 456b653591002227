"""A probe of a disk: write, flush, read back and remove a small file."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import threading
from pathlib import Path
from typing import Final

from storage_node import failpoints
from storage_node.directories.atomic import full_is_no_room, io_errors
from storage_node.failpoints import failpoint

FILE: Final = "health-check"
"""The file of the checks that are repeated, which overwrite what a crash has left."""
START: Final = failpoints.register("health.start")
WRITTEN: Final = failpoints.register("health.written")
FLUSHED: Final = failpoints.register("health.flushed")

_TEXT: Final = b"written, flushed, read back and removed to check whether the disk works\n"
_numbers: Final = itertools.count()  # so that no probe takes the text of an earlier one for its own


def _differs(written: bytes, read: bytes) -> str:
    """Return how what was read differs: in length, or from which byte on."""
    if len(read) != len(written):
        return f"the disk returns {len(read)} bytes where {len(written)}"
    first = next(place for place, (one, other) in enumerate(zip(written, read, strict=True)) if one != other)
    return f"the disk returns other bytes from position {first} on than"


def probe(path: Path, directory: str = "", *, name: str = "") -> None:
    """Write, flush, read back and remove a small file in a log directory, or in a replica's folder of `directory`.

    By default the file is the thread's own: two checks at once, of which one may have hung for long, must not read each
    other's bytes. It is read from the disk, not from the system's cache, where the file system allows that (a tmpfs has
    no disk). Raises MetadataIOError; a full disk or a lack of descriptors does not indicate a failed disk (see
    `io_faults`).
    """
    file = path / (name or f"{FILE}.{threading.get_ident()}")
    block = b"%d: %b" % (next(_numbers), _TEXT)
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    with io_errors(directory or path, f"the health check of {path}" if directory else "the health check"):
        failpoint(START)
        with full_is_no_room():
            fd = os.open(file, flags, 0o644)
        try:
            with full_is_no_room():
                os.write(fd, block)
            failpoint(WRITTEN)
            os.fsync(fd)
            failpoint(FLUSHED)
            with contextlib.suppress(OSError):
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            found = os.pread(fd, len(block) + 1, 0)
            if found != block:
                raise OSError(errno.EIO, f"{_differs(block, found)} were written and flushed", str(file))
        finally:
            os.close(fd)
            # Also after an error; the next probe overwrites a file that cannot be removed now.
            with contextlib.suppress(OSError):
                file.unlink()
