"""A pass-through file system over a folder that fails, hangs, slows down or loses data by rules.

`python -m ops.faults.faulty_fs BACKING MOUNT FD` serves MOUNT in the foreground until it is unmounted. It receives
commands as JSON lines over the socket that it inherits as FD, and sends a line in response to each;
`ops.faults.disk.Disk` is the client.

It tracks the unflushed data of each file. A flush that fails with `drop` marks this data clean without writing it, as
Linux does: the next flush succeeds, and reads still return the data from the page cache until `evict` replaces it by
zeros.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import stat
import sys
import threading
import time
from typing import Any

import mfusepy

from ops.faults.rules import Rule


class Faults:
    """The current rules, their hits, and the recorded operations."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._rules: list[Rule] = []
        self._version = 0
        self._trace: list[tuple[str, str]] | None = None
        self._hanging = 0

    def before(self, op: str, path: str, size: int = 0) -> bool:
        """Apply the rules before an operation: wait, or raise OSError. Return whether a flush drops its data."""
        with self._changed:
            if self._trace is not None:
                self._trace.append((op, path))
            hit = [rule for rule in self._rules if rule.hit(op, path)]
            if not hit:
                return False
            for rule in hit:
                self._wait(rule, size)
        for rule in hit:
            if rule.errno and not rule.drop:
                raise OSError(rule.errno, os.strerror(rule.errno), path)
        return any(rule.drop for rule in hit)

    def _wait(self, rule: Rule, size: int) -> None:
        version = self._version
        if rule.hang:
            self._hanging += 1
            try:
                while self._version == version:
                    self._changed.wait(0.05)
                    # The kernel cannot end a killed process before its FUSE request has a response.
                    if mfusepy._libfuse.fuse_interrupted():
                        raise InterruptedError(errno.EINTR, os.strerror(errno.EINTR))
            finally:
                self._hanging -= 1
            return
        until = time.monotonic() + rule.delay
        if rule.rate and size:
            rule.free_at = max(rule.free_at, time.monotonic()) + size / rule.rate
            until = max(until, rule.free_at)
        while self._version == version and (left := until - time.monotonic()) > 0:
            self._changed.wait(left)

    def drop_errno(self, op: str, path: str) -> int:
        """Return the errno of the rule that dropped a flush's data."""
        with self._changed:
            return next((rule.errno for rule in self._rules if rule.drop), errno.EIO) or errno.EIO

    def set(self, rules: list[dict[str, Any]]) -> None:
        """Replace the rules; operations that hang or wait under the old ones continue."""
        with self._changed:
            self._rules = [Rule(**rule) for rule in rules]
            self._version += 1
            self._changed.notify_all()

    def trace(self, on: bool) -> list[tuple[str, str]]:
        """Restart or stop recording operations; return those recorded so far."""
        with self._changed:
            noted, self._trace = self._trace or [], [] if on else None
            return noted

    def stats(self) -> dict[str, Any]:
        with self._changed:
            return {"hits": [rule.hits for rule in self._rules], "hanging": self._hanging}


class Unflushed:
    """The byte ranges of each file, by inode, that are unflushed, or lost by a failed flush."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._dirty: dict[int, list[tuple[int, int]]] = {}
        self._lost: dict[int, tuple[int, list[tuple[int, int]]]] = {}

    def wrote(self, inode: int, offset: int, size: int) -> None:
        with self._lock:
            self._dirty.setdefault(inode, []).append((offset, size))

    def flushed(self, inode: int) -> None:
        with self._lock:
            self._dirty.pop(inode, None)

    def dropped(self, inode: int, fd: int) -> None:
        """Mark a file's dirty ranges as lost after a failed flush; `fd` is an open descriptor of it."""
        with self._lock:
            ranges = self._dirty.pop(inode, [])
            if not ranges:
                return
            held, before = self._lost.get(inode, (-1, []))
            if held < 0:
                held = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY)
            self._lost[inode] = (held, [*before, *ranges])

    def evict(self) -> int:
        """Overwrite the lost ranges with zeros, as an eviction from the page cache does; return the number of bytes."""
        with self._lock:
            lost, self._lost = self._lost, {}
        total = 0
        for fd, ranges in lost.values():
            end = os.fstat(fd).st_size
            for offset, size in ranges:
                size = max(0, min(size, end - offset))
                os.pwrite(fd, bytes(size), offset)
                total += size
            os.close(fd)
        return total


class FaultyFs(mfusepy.Operations):  # type: ignore[misc]
    """The FUSE operations. Rules use FUSE's operation names, with fdatasync and fsync distinguished."""

    use_ns = True
    flag_nopath = True
    flag_nullpath_ok = True

    def __init__(self, backing: str) -> None:
        self.root = os.path.realpath(backing)
        self.faults = Faults()
        self.unflushed = Unflushed()

    def _real(self, path: str) -> str:
        return self.root + path

    def _named(self, fh: int) -> str:
        return os.readlink(f"/proc/self/fd/{fh}").removeprefix(self.root)

    # Names

    def getattr(self, path: str | None, fh: int | None = None) -> dict[str, Any]:
        self.faults.before("getattr", path if path is not None else self._named(fh or 0))
        found = os.lstat(self._real(path)) if path is not None else os.fstat(fh or 0)
        names = ("st_mode", "st_nlink", "st_uid", "st_gid", "st_size", "st_ino", "st_blocks", "st_blksize")
        attributes = {name: getattr(found, name) for name in names}
        times = {name: getattr(found, f"{name}_ns") for name in ("st_atime", "st_mtime", "st_ctime")}
        return attributes | times

    def mkdir(self, path: str, mode: int) -> int:
        self.faults.before("mkdir", path)
        os.mkdir(self._real(path), mode)
        return 0

    def rmdir(self, path: str) -> int:
        self.faults.before("rmdir", path)
        os.rmdir(self._real(path))
        return 0

    def unlink(self, path: str) -> int:
        self.faults.before("unlink", path)
        os.unlink(self._real(path))
        return 0

    def symlink(self, target: str, source: str) -> int:
        self.faults.before("symlink", target)
        os.symlink(source, self._real(target))
        return 0

    def readlink(self, path: str) -> str:
        self.faults.before("readlink", path)
        return os.readlink(self._real(path))

    def rename(self, old: str, new: str) -> int:
        # The kernel has checked RENAME_NOREPLACE: it knows that the new name does not exist.
        self.faults.before("rename", old)
        os.rename(self._real(old), self._real(new))
        return 0

    def chmod(self, path: str, mode: int) -> int:
        os.chmod(self._real(path), mode)
        return 0

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> int:
        os.utime(self._real(path), ns=times) if times else os.utime(self._real(path))
        return 0

    def statfs(self, path: str) -> dict[str, int]:
        self.faults.before("statfs", path)
        found = os.statvfs(self._real(path))
        names = ("f_bsize", "f_frsize", "f_blocks", "f_bfree", "f_bavail", "f_files", "f_ffree", "f_favail")
        return {name: getattr(found, name) for name in (*names, "f_namemax")}

    # Files

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        self.faults.before("create", path)
        return os.open(self._real(path), os.O_RDWR | os.O_CREAT, mode)

    def open(self, path: str, flags: int) -> int:
        self.faults.before("open", path)
        if flags & os.O_TRUNC:
            self.faults.before("truncate", path)
        return os.open(self._real(path), flags & ~(os.O_APPEND | os.O_NOFOLLOW | os.O_CREAT | os.O_EXCL))

    def read(self, path: str | None, size: int, offset: int, fh: int) -> bytes:
        self.faults.before("read", self._named(fh), size)
        return os.pread(fh, size, offset)

    def write(self, path: str | None, data: bytes, offset: int, fh: int) -> int:
        self.faults.before("write", self._named(fh), len(data))
        self.unflushed.wrote(os.fstat(fh).st_ino, offset, len(data))
        return os.pwrite(fh, data, offset)

    def truncate(self, path: str | None, length: int, fh: int | None = None) -> int:
        if fh is not None:
            self.faults.before("truncate", self._named(fh))
            os.ftruncate(fh, length)
        elif path is not None:
            self.faults.before("truncate", path)
            os.truncate(self._real(path), length)
        return 0

    def flush(self, path: str | None, fh: int) -> int:
        self.faults.before("close", self._named(fh))
        return 0

    def fsync(self, path: str | None, datasync: int, fh: int) -> int:
        op, name = ("fdatasync" if datasync else "fsync"), self._named(fh)
        inode = os.fstat(fh).st_ino
        if self.faults.before(op, name):
            self.unflushed.dropped(inode, fh)
            failed = self.faults.drop_errno(op, name)
            raise OSError(failed, os.strerror(failed))
        self.unflushed.flushed(inode)
        return 0

    def release(self, path: str | None, fh: int) -> int:
        os.close(fh)
        return 0

    # Folders

    def opendir(self, path: str) -> int:
        self.faults.before("opendir", path)
        return os.open(self._real(path), os.O_RDONLY | os.O_DIRECTORY)

    def readdir(self, path: str | None, fh: int) -> list[tuple[str, dict[str, int], int]]:
        self.faults.before("readdir", self._named(fh))
        own = os.fstat(fh)
        found = [(name, {"st_ino": own.st_ino, "st_mode": own.st_mode}, 0) for name in (".", "..")]
        with os.scandir(fh) as entries:
            for entry in entries:
                kind = stat.S_IFLNK if entry.is_symlink() else stat.S_IFDIR if entry.is_dir() else stat.S_IFREG
                found.append((entry.name, {"st_ino": entry.inode(), "st_mode": kind}, 0))
        return found

    def fsyncdir(self, path: str | None, datasync: int, fh: int) -> int:
        self.faults.before("fsyncdir", self._named(fh))
        return 0

    def releasedir(self, path: str | None, fh: int) -> int:
        os.close(fh)
        return 0


class Fuse(mfusepy.FUSE):  # type: ignore[misc]
    """The FUSE binding, with the file handle passed to ftruncate."""

    def truncate_fuse_3(self, path: bytes | None, length: int, fip: Any) -> int:
        """Truncate a file, also one that has been unlinked."""
        handle = fip.contents.fh if fip else None
        return int(self.operations.truncate(path.decode() if path is not None else None, length, handle))


def respond(fs: FaultyFs, command: dict[str, Any]) -> Any:
    """Execute a command (rules, trace, evict, or stats) and return its response."""
    if "rules" in command:
        fs.faults.set(command["rules"])
        return True
    if "trace" in command:
        return fs.faults.trace(command["trace"])
    if command.get("evict"):
        return fs.unflushed.evict()
    return fs.faults.stats()


def listen(fs: FaultyFs, client: socket.socket) -> None:
    """Respond to commands until the client closes the socket."""
    with client, client.makefile("rw", encoding="utf-8") as lines, contextlib.suppress(OSError):
        for line in lines:
            lines.write(json.dumps(respond(fs, json.loads(line))) + "\n")
            lines.flush()


def main(backing: str, mount: str, control: str) -> None:
    """Serve until unmounted."""
    fs = FaultyFs(backing)
    client = socket.socket(fileno=int(control))
    threading.Thread(target=listen, args=(fs, client), daemon=True).start()
    Fuse(
        fs,
        mount,
        foreground=True,
        use_ino=True,
        direct_io=True,
        hard_remove=True,
        attr_timeout=0,
        entry_timeout=0,
        negative_timeout=0,
        max_threads=64,
        auto_unmount=True,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
