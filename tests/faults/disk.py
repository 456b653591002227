"""The faulty file system under test, and other small disks: mounted, filled, unmounted."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import time
from pathlib import Path

from ops.faults.disk import CHANGES, FLUSHES, READS, Disk, missing
from tests.support.needs import needs

__all__ = ["CHANGES", "FLUSHES", "READS", "Disk", "SmallDisk", "missing", "needs_fuse", "run"]

needs_fuse = needs("/dev/fuse" if "/dev/fuse" in missing() else "fusermount3", missing())


class SmallDisk:
    """A real ext4 of `megabytes` on a loop device, mounted at `path`.

    With `behind` the image is sparse and lies on a tmpfs of that many megabytes: the file system believes in room that
    is not there, so that writes succeed and the flush of what they left in the cache fails.
    """

    def __init__(self, root: Path, name: str, megabytes: int, behind: int = 0) -> None:
        self.path, self._below = root / name, root / f"{name}.below"
        self.path.mkdir(parents=True)
        self._below.mkdir()
        self._image = self._below / "image"
        if behind:
            run("mount", "-t", "tmpfs", "-o", f"size={behind}m", "none", str(self._below))
        with self._image.open("wb") as file:
            file.truncate(megabytes << 20)
        lazy = "-Elazy_itable_init=1,lazy_journal_init=1,nodiscard"
        run("mkfs.ext4", "-q", "-F", "-m", "0", "-J", "size=4", lazy, str(self._image))
        self.mount()

    def mount(self) -> None:
        run("mount", "-o", "loop,errors=remount-ro,commit=300", str(self._image), str(self.path))

    @property
    def backing(self) -> Path:
        """Where its files can be looked at."""
        return self.path

    def heal(self) -> None:
        """Nothing: what is wrong with it, a test undoes itself."""

    @property
    def device(self) -> str:
        """Its loop device, such as loop0."""
        found = subprocess.run(["findmnt", "-no", "SOURCE", str(self.path)], check=True, capture_output=True, text=True)
        return Path(found.stdout.strip()).name

    def fill(self) -> Path:
        """Take the last byte, with a file whose path is answered."""
        filler = self.path / "filler"
        with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(b"x" * 65536):
                pass
        with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(b"x"):
                pass
        return filler

    def make_room(self, megabytes: int) -> None:
        """Give the disk behind the image more room."""
        run("mount", "-o", f"remount,size={megabytes}m", str(self._below))

    def remount(self, check: bool = False) -> None:
        """Unmount and mount again; nothing of it is in any cache then."""
        deadline = time.monotonic() + 60
        while subprocess.run(["umount", str(self.path)], check=False, capture_output=True).returncode:
            assert time.monotonic() < deadline, f"{self.path} is in use"
            time.sleep(0.05)
            gc.collect()
        if check:
            subprocess.run(["e2fsck", "-fy", str(self._image)], check=False, capture_output=True)
        self.mount()

    def close(self) -> None:
        """Unmount everything, whoever still holds it."""
        for path in (self.path, self._below):
            if os.path.ismount(path):
                subprocess.run(["umount", "-l", str(path)], check=False, capture_output=True)


def run(*command: str) -> None:
    """Run a command; fails with what it said."""
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
