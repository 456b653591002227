"""The plain copy as a reference for moves: the same files to another folder, flushed by a second thread."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path

CHUNK = 1 << 20
INTERVAL = 32 << 20
"""Bytes after which the second thread flushes the file."""
SEGMENT_FILES = (".log", ".index", ".timeindex")


def drop_caches() -> bool:
    """Write back and drop the page cache; return False without the root privileges for it."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3\n")
    except OSError:
        return False
    return True


def flushed_copy(source: Path, target: Path) -> float:
    """Copy a replica's segments through the page cache, flush and remove the copy; return the seconds until flushed.

    Other files are not copied: the running node creates and removes them.
    """
    target.mkdir()
    buffer = memoryview(bytearray(CHUNK))
    try:
        began = time.perf_counter()
        for name in sorted(p.name for p in source.iterdir() if p.suffix in SEGMENT_FILES):
            _copy(source / name, target / name, buffer)
        descriptor = os.open(target, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return time.perf_counter() - began
    finally:
        shutil.rmtree(target)


def _copy(source: Path, target: Path, buffer: memoryview) -> None:
    with source.open("rb", buffering=0) as reading, target.open("wb", buffering=0) as writing:
        flusher: threading.Thread | None = None
        unflushed = 0
        while count := reading.readinto(buffer):
            writing.write(buffer[:count])
            unflushed += count
            if unflushed >= INTERVAL and (flusher is None or not flusher.is_alive()):
                flusher = threading.Thread(target=os.fdatasync, args=(writing.fileno(),))
                flusher.start()
                unflushed = 0
        if flusher is not None:
            flusher.join()
        os.fsync(writing.fileno())


def folder_bytes(folder: Path) -> int:
    """Return the size of the .log files in a replica's folder."""
    return sum(p.stat().st_size for p in folder.glob("*.log"))
