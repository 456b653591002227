"""The client of the faulty file system, and other small disks: mounted, told how to fail, unmounted."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
_PR_SET_PDEATHSIG = 1

#: What reads, and what changes a disk.
READS = ("getattr", "open", "opendir", "readdir", "read", "statfs")
FLUSHES = ("fsync", "fdatasync", "fsyncdir")
CHANGES = ("create", "write", "truncate", "rename", "unlink", "mkdir", "rmdir", *FLUSHES)


def missing() -> str:
    """Why there is no faulty file system here, "" when there is."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "needs /dev/fuse"
    return "" if shutil.which("fusermount3") else "needs fusermount3 (package fuse3)"


needs_fuse = pytest.mark.skipif(bool(missing()) and not os.environ.get("CI"), reason=missing() or "-")
needs_root = pytest.mark.skipif(os.geteuid() != 0 and not os.environ.get("CI"), reason="mounts disks, needs root")


class Disk:
    """A faulty file system mounted at `path`, its data in a folder beside it."""

    def __init__(self, root: Path, name: str) -> None:
        self.backing, self.path = root / f"{name}.backing", root / name
        for folder in (self.backing, self.path):
            folder.mkdir(parents=True, exist_ok=True)
        control = root / f"{name}.socket"
        self._log = (root / f"{name}.log").open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.faulty_fs", str(self.backing), str(self.path), str(control)],
            cwd=ROOT,
            stderr=self._log,
            preexec_fn=lambda: ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM),
        )
        deadline = time.monotonic() + 60
        while not os.path.ismount(self.path):
            assert self._process.poll() is None and time.monotonic() < deadline, "the file system does not come up"
            time.sleep(0.01)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(control))
        self._lines = self._socket.makefile("rw", encoding="utf-8")

    def _ask(self, **command: Any) -> Any:
        self._lines.write(json.dumps(command) + "\n")
        self._lines.flush()
        return json.loads(self._lines.readline())

    def rules(self, *rules: dict[str, Any]) -> None:
        """Put exactly these rules in force (see `faulty_fs.Rule`)."""
        self._ask(rules=rules)

    def heal(self) -> None:
        """No rules: what hangs goes on."""
        self.rules()

    @contextlib.contextmanager
    def failing(self, *ops: str, **rule: Any) -> Iterator[Disk]:
        """One rule while the block runs; fails with EIO unless another fault is given."""
        if not {"errno", "delay", "hang", "rate"} & set(rule):
            rule["errno"] = errno.EIO
        self.rules({"ops": ops, **rule})
        try:
            yield self
        finally:
            self.heal()

    @property
    def hits(self) -> int:
        """How many operations the rules in force have hit."""
        return sum(self._ask()["hits"])

    @property
    def hanging(self) -> int:
        """How many operations hang now."""
        return int(self._ask()["hanging"])

    def trace(self, on: bool = True) -> list[tuple[str, str]]:
        """Begin or end to note operations; answers (operation, path) of what was noted."""
        return [(op, path) for op, path in self._ask(trace=on)]

    def evict(self) -> int:
        """What failed flushes dropped is read as zeros from now on; answers the bytes."""
        return int(self._ask(evict=True))

    def close(self) -> None:
        """Unmount; whoever still hangs in it gets an error."""
        with contextlib.suppress(OSError, ValueError):
            self.heal()
        self._lines.close()
        self._socket.close()
        self._process.terminate()  # it then unmounts by itself
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if os.path.ismount(self.path):
            subprocess.run(["fusermount3", "-u", "-z", str(self.path)], check=False, capture_output=True)
        self._log.close()


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
