"""The plain copy that a move is compared with: `cp` of the same files to another folder, each flushed."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path


def drop_caches() -> bool:
    """Write back and forget the page cache; False where only root could."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3\n")
    except OSError:
        return False
    return True


def cp_and_fsync(source: Path, target: Path) -> float:
    """Seconds of `cp -r source target` and an fsync of every file and of the folder; the copy is removed after."""
    started = time.perf_counter()
    subprocess.run(["cp", "-r", str(source), str(target)], check=True)
    for name in [*target.iterdir(), target]:
        descriptor = os.open(name, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    seconds = time.perf_counter() - started
    shutil.rmtree(target)
    return seconds


def folder_bytes(folder: Path) -> int:
    """Bytes of the .log files in a replica's folder."""
    return sum(p.stat().st_size for p in folder.glob("*.log"))
