"""Durable updates of small files: after any crash a file has its old or its new content, never a part.

These functions raise plain OSError; `io_errors` wraps it once, with the log directory.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from storage_node import failpoints
from storage_node.errors import MetadataIOError, StorageError
from storage_node.failpoints import failpoint

__all__ = [
    "NoRoom",
    "WritePoints",
    "fsync_dir",
    "full_is_no_room",
    "io_errors",
    "is_no_room",
    "make_directory",
    "points",
    "read_bytes",
    "remove",
    "rename_new",
    "write_atomic",
]

TMP_SUFFIX: Final = ".tmp"

_AT_FDCWD: Final = -100
_RENAME_NOREPLACE: Final = 1


class NoRoom(OSError):
    """The disk was full (ENOSPC, EDQUOT) before anything was flushed: the old content is intact.

    Unlike the same error from a flush, this does not indicate a failed disk.
    """


@dataclass(frozen=True, slots=True)
class WritePoints:
    """The failpoints between the steps of `write_atomic`, in order."""

    start: str
    written: str
    flushed: str
    renamed: str
    done: str


def points(prefix: str) -> WritePoints:
    """Register the five failpoints of a file written with `write_atomic`: `<prefix>.start` ... `<prefix>.done`."""
    names = ("start", "written", "flushed", "renamed", "done")
    return WritePoints(*(failpoints.register(f"{prefix}.{name}") for name in names))


_GENERIC: Final = points("atomic")
FSYNC_DIR: Final = failpoints.register("atomic.fsync_dir")
REMOVED: Final = failpoints.register("atomic.removed")


def write_atomic(
    path: Path | str,
    data: bytes | Iterable[bytes],
    points: WritePoints = _GENERIC,
    *,
    name: bool = True,
    like: os.stat_result | None = None,
) -> None:
    """Replace a file durably: write and flush `<name>.tmp`, rename it over the file, flush the directory.

    `data` may be an iterable of pieces, written one by one, so that a large file is never in memory as a whole.

    Without `name` the directory is not flushed: until the caller flushes it, a crash may restore the old content (or
    the file's absence), but never leave a part. With `like` the file gets that owner, where this user may give it away,
    and those permissions. After an error the file has its old content; only if the flush of the
    directory failed, it may have either. The caller ensures that no two threads write the same file. Raises OSError,
    and `NoRoom` if the disk is full before the flush.
    """
    path = Path(path)
    tmp = path.with_name(path.name + TMP_SUFFIX)
    failpoint(points.start)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        with full_is_no_room():
            fd = os.open(tmp, flags, 0o600 if like else 0o644)
        try:
            if like is not None:
                with contextlib.suppress(PermissionError):
                    os.fchown(fd, like.st_uid, like.st_gid)
                os.fchmod(fd, stat.S_IMODE(like.st_mode))
            with full_is_no_room():
                for piece in (data,) if isinstance(data, bytes) else data:
                    view = memoryview(piece)
                    while view:
                        view = view[os.write(fd, view) :]
                failpoint(points.written)
            os.fsync(fd)
        finally:
            os.close(fd)
        failpoint(points.flushed)
        with full_is_no_room():
            tmp.rename(path)
    except OSError:
        with contextlib.suppress(OSError):
            tmp.unlink()
        raise
    failpoint(points.renamed)
    if name:
        fsync_dir(path.parent)
    failpoint(points.done)


def fsync_dir(path: Path | str) -> None:
    """Flush a directory, which makes the names in it durable. Raises OSError; their state is then unknown."""
    failpoint(FSYNC_DIR)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def remove(path: Path | str) -> bool:
    """Remove a file durably; return whether it existed. Raises OSError."""
    path = Path(path)
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    failpoint(REMOVED)
    fsync_dir(path.parent)
    return True


def make_directory(path: Path | str) -> None:
    """Create a directory and its missing parents, each name flushed; it may exist already. Raises OSError."""
    path = Path(path)
    if path.is_dir():
        return
    make_directory(path.parent)
    with contextlib.suppress(FileExistsError):
        path.mkdir()
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    fsync_dir(path.parent)


def read_bytes(path: Path | str, limit: int) -> bytes:
    """Read a small regular file without following a symlink; raises OSError, with EFBIG above `limit` bytes."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        data = bytearray()
        while len(data) <= limit and (more := os.read(fd, min(1 << 20, limit + 1 - len(data)))):
            data += more
    finally:
        os.close(fd)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"more than {limit} bytes", str(path))
    return bytes(data)


def rename_new(source: Path | str, target: Path | str) -> None:
    """Rename to a name that must not exist; a plain rename would silently replace an empty directory.

    Flushes nothing. Raises OSError: EEXIST (FileExistsError) if the target exists.
    """
    renameat2 = _renameat2()
    if renameat2 is not None:
        if renameat2(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), _RENAME_NOREPLACE) == 0:
            return
        code = ctypes.get_errno()
        # Some file systems do not support the flag. The caller's lock then makes the check before the rename
        # sufficient.
        if code not in (errno.EINVAL, errno.ENOSYS):
            raise OSError(code, os.strerror(code), str(source), None, str(target))
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(source), None, str(target))
    Path(source).rename(target)


@functools.cache
def _renameat2() -> Callable[..., int] | None:
    found = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if found is None:
        return None
    found.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    found.restype = ctypes.c_int

    def call(*arguments: object) -> int:
        return int(found(*arguments))

    return call


@contextmanager
def full_is_no_room() -> Iterator[None]:
    """Raise `NoRoom` for a full disk during operations that allocate but do not flush (create, write, rename)."""
    try:
        yield
    except OSError as exc:
        if exc.errno in (errno.ENOSPC, errno.EDQUOT) and not isinstance(exc, NoRoom):
            raise NoRoom(exc.errno, exc.strerror, exc.filename) from exc
        raise


def is_no_room(error: BaseException) -> bool:
    """Return whether an error is or wraps `NoRoom`: the operation failed, but the directory is healthy."""
    return isinstance(error, NoRoom) or isinstance(error.__cause__, NoRoom)


@contextmanager
def io_errors(directory: Path | str, doing: str, error: type[StorageError] = MetadataIOError) -> Iterator[None]:
    """Wrap an OSError of the block into `error`, with the log directory and the operation `doing`."""
    try:
        yield
    except OSError as exc:
        raise error(str(directory), doing) from exc
