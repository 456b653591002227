"""What an I/O error says (KIP-18): the disk is bad, a file is not what it should be, or only one step failed.

One table of error numbers, so that no two places judge alike errors differently. The judgement is
carried out in `LogDirectory.fail_on`, the one place that takes a directory offline for an error.
"""

from __future__ import annotations

import errno
from enum import StrEnum
from pathlib import Path
from typing import Final

from storage_node.directories.atomic import is_no_room
from storage_node.directories.names import parse
from storage_node.errors import LogDirectoryOffline, LogFlushError, StorageError

__all__ = ["Fault", "fault_of", "file_of", "reason_of"]


class Fault(StrEnum):
    """What is wrong."""

    DISK = "disk"  # the directory goes offline, without a second try
    FILE = "file"  # names are not what they should be: the directory is asked whether it is more than that
    STEP = "step"  # a full disk before a flush, no descriptor left, a name too long: nothing but the step is wrong


#: This process, or the machine, had no descriptor left: the disk was not even asked.
_NOT_ASKED: Final = frozenset({errno.EMFILE, errno.ENFILE})
#: What was asked for cannot be; a flush is never among these.
_REFUSED: Final = _NOT_ASKED | {errno.ENAMETOOLONG, errno.ENOMEM, errno.EINTR, errno.EAGAIN}
#: A file or folder is gone, is something else or is forbidden; so is everything on a disk that is not there any more.
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
    """What a storage error says about its directory.

    A flush that fails for whatever a disk can say, "no space" included, has lost what was taken: the disk is bad. So is
    one whose error number is in no table.
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
    """Whether a file of the log directory itself, not of a replica in it, cannot be used as one.

    What is gone, or there too early, may be so by our own doing, and mends itself.
    """
    if cause.errno in (errno.ENOENT, errno.EEXIST) or not isinstance(cause.filename, str):
        return False
    path = Path(cause.filename)
    return path.parent == Path(directory) and parse(path.name).kind not in ("current", "move", "delete")


def file_of(error: BaseException, folder: Path) -> Path:
    """The file that an error of a replica's `folder` is about, absolute; the folder itself where it names none."""
    cause = error.__cause__
    name = cause.filename if isinstance(cause, OSError) else None
    return folder / name if isinstance(name, str) else folder


def reason_of(error: BaseException) -> str:
    """One line that says what failed and why, with the operating system's word for it where there is one."""
    cause = error.__cause__
    if isinstance(cause, OSError):
        return f"{error}: {cause.strerror or cause}"
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
