"""Classification of I/O errors (KIP-18): the disk failed, a file is in the wrong state, or a single step failed.

One table of error numbers, so that equal errors are classified equally everywhere. `LogDirectory.fail_on` acts on the
classification. (A start takes a directory offline for any error while it reads it, and a swap for a rename that it
cannot confirm.)
"""

from __future__ import annotations

import errno
from enum import StrEnum
from pathlib import Path
from typing import Final

from storage_node.directories.atomic import is_no_room
from storage_node.directories.names import parse
from storage_node.errors import LogDirectoryOffline, LogFlushError, StorageError
from storage_node.model.evidence import Evidence, Verdict

__all__ = ["Fault", "evidence_of", "fault_of", "file_of", "reason_of"]


class Fault(StrEnum):
    """The scope of a failure."""

    DISK = "disk"  # the directory is taken offline without a retry
    FILE = "file"  # a file or directory is in the wrong state: a health check decides whether the disk failed
    STEP = "step"  # disk full before a flush, no descriptor free, name too long: only the step fails


#: The process or the system had no free descriptor: the disk was not accessed.
_NOT_ASKED: Final = frozenset({errno.EMFILE, errno.ENFILE})
#: The request was invalid or lacked resources; errors of a flush are never among these, except the ones above.
_REFUSED: Final = _NOT_ASKED | {errno.ENAMETOOLONG, errno.ENOMEM, errno.EINTR, errno.EAGAIN}
#: A file or directory is missing, is of another type or is not accessible; so are all on a disk that was unmounted.
_NAMES: Final = frozenset(
    {
        errno.ENOENT,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.EEXIST,
        errno.ENOTEMPTY,
        errno.ELOOP,
        errno.EINVAL,
        errno.EFBIG,
        errno.EXDEV,
        errno.EACCES,
        errno.EPERM,
        errno.ETXTBSY,
    }
)


def fault_of(error: StorageError) -> Fault:
    """Return what a storage error indicates about its directory.

    A flush that the disk fails, also with ENOSPC, has lost acknowledged data: the disk failed. The same holds for an
    error number that is in no table.
    """
    if isinstance(error, LogDirectoryOffline) or is_no_room(error):
        return Fault.STEP
    cause = error.__cause__
    if not isinstance(cause, OSError) or cause.errno is None:
        return Fault.DISK
    if cause.errno in (_NOT_ASKED if isinstance(error, LogFlushError) else _REFUSED):
        return Fault.STEP
    if cause.errno not in _NAMES:
        return Fault.DISK
    return Fault.DISK if _own_file(cause, error.directory) else Fault.FILE


def _own_file(cause: OSError, directory: str) -> bool:
    """Return whether the error concerns a file of the log directory itself rather than of a replica in it.

    ENOENT and EEXIST do not count: this process may cause them itself, and the next step resolves them.
    """
    if cause.errno in (errno.ENOENT, errno.EEXIST) or not isinstance(cause.filename, str):
        return False
    path = Path(cause.filename)
    return path.parent == Path(directory) and parse(path.name).kind not in ("current", "move", "delete")


def file_of(error: BaseException, folder: Path) -> Path:
    """Return the absolute path of the file that an error in a replica's `folder` names; the folder if it names none."""
    cause = error.__cause__
    name = cause.filename if isinstance(cause, OSError) else None
    return folder / name if isinstance(name, str) else folder


def evidence_of(error: StorageError, time: float) -> Evidence:
    """Return what an error at `time` (seconds since the epoch) means for its directory.

    The path is the one that the error names; a file that it names without its folder is in a replica of the directory.
    """
    cause = error.__cause__
    number = cause.errno if isinstance(cause, OSError) else None
    name = cause.filename if isinstance(cause, OSError) else None
    match number:
        case errno.EROFS:
            verdict = Verdict.READ_ONLY
        case errno.ENOSPC | errno.EDQUOT:
            verdict = Verdict.FULL
        case _:
            verdict = Verdict.FILE if fault_of(error) is Fault.FILE else Verdict.DISK
    path = name if isinstance(name, str) else error.directory
    return Evidence(verdict, error.doing, path, errno.errorcode.get(number or 0, ""), time)


def reason_of(error: BaseException) -> str:
    """Return one line with the failed operation and the reason, in the operating system's words if there are any."""
    cause = error.__cause__
    if isinstance(cause, OSError):
        return f"{error}: {cause.strerror or cause}"
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
