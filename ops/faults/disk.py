"""The client of the faulty file system: mount it, set its rules, unmount it."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from ctypes.util import find_library
from pathlib import Path
from typing import Any

from ops.stack.errors import OpsError

ROOT = Path(__file__).resolve().parents[2]
UP_SECONDS = 60.0
_PR_SET_PDEATHSIG = 1

#: The operations that read a disk, and those that change it.
READS = ("getattr", "open", "opendir", "readdir", "read", "statfs")
FLUSHES = ("fsync", "fdatasync", "fsyncdir")
CHANGES = ("create", "write", "truncate", "rename", "unlink", "mkdir", "rmdir", *FLUSHES)


def missing() -> str:
    """Return why the faulty file system is not available on this machine, "" if it is."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "needs /dev/fuse"
    if not shutil.which("fusermount3"):
        return "needs fusermount3 (package fuse3)"
    if not (find_library("fuse") or find_library("fuse3")):
        return "needs libfuse (package libfuse3-3)"
    return "" if importlib.util.find_spec("mfusepy") else "needs mfusepy"


class Disk:
    """A faulty file system mounted at `path`, with its data in a folder beside it. Thread-safe."""

    def __init__(self, root: Path, name: str) -> None:
        """Mount it. Raises `OpsError`."""
        self.backing, self.path = root / f"{name}.backing", root / name
        for folder in (self.backing, self.path):
            folder.mkdir(parents=True, exist_ok=True)
        self._socket, control = socket.socketpair()
        self._socket.settimeout(UP_SECONDS)
        self._lines = self._socket.makefile("rw", encoding="utf-8")
        self._guard = threading.Lock()
        self._log = (root / f"{name}.log").open("wb")
        # In a session of its own: Ctrl-C must not unmount the disk.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ops.faults.faulty_fs", str(self.backing), str(self.path), str(control.fileno())],
            cwd=ROOT,
            pass_fds=[control.fileno()],
            stderr=self._log,
            start_new_session=True,
            preexec_fn=lambda: ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM),
        )
        control.close()
        deadline = time.monotonic() + UP_SECONDS
        while not os.path.ismount(self.path):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise OpsError(f"cannot mount the faulty file system {self.path}; see {self._log.name}")
            time.sleep(0.01)

    def _request(self, **command: Any) -> Any:
        with self._guard:
            self._lines.write(json.dumps(command) + "\n")
            self._lines.flush()
            return json.loads(self._lines.readline())

    def rules(self, *rules: Mapping[str, Any]) -> None:
        """Replace all rules by these (see `rules.Rule`)."""
        self._request(rules=rules)

    def heal(self) -> None:
        """Remove all rules; operations that hang continue."""
        self.rules()

    @contextlib.contextmanager
    def failing(self, *ops: str, **rule: Any) -> Iterator[Disk]:
        """Apply one rule while the block runs; its fault is EIO by default."""
        if not {"errno", "delay", "hang", "rate"} & set(rule):
            rule["errno"] = errno.EIO
        self.rules({"ops": ops, **rule})
        try:
            yield self
        finally:
            self.heal()

    @property
    def hits(self) -> int:
        """The number of operations that the current rules have affected."""
        return int(sum(self._request()["hits"]))

    @property
    def hanging(self) -> int:
        """The number of operations that hang."""
        return int(self._request()["hanging"])

    def trace(self, on: bool = True) -> list[tuple[str, str]]:
        """Start or stop recording operations; return the recorded (operation, path) pairs."""
        return [(op, path) for op, path in self._request(trace=on)]

    def evict(self) -> int:
        """Replace the data that failed flushes have dropped by zeros; return the number of bytes."""
        return int(self._request(evict=True))

    def close(self) -> None:
        """Unmount; operations that still hang fail."""
        with contextlib.suppress(OSError, ValueError):
            self.heal()
        with contextlib.suppress(OSError):
            self._lines.close()
        self._socket.close()
        self._process.terminate()  # it unmounts on SIGTERM
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if os.path.ismount(self.path):
            subprocess.run(["fusermount3", "-u", "-z", str(self.path)], check=False, capture_output=True)
        self._log.close()
