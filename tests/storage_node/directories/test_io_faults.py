"""The classification of I/O errors, and the one component that acts on it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_node import failpoints
from storage_node.directories.atomic import NoRoom
from storage_node.directories.directory import LogDirectory
from storage_node.directories.io_faults import Fault, fault_of
from storage_node.errors import (
    CheckpointIOError,
    LogAppendError,
    LogDirectoryOffline,
    LogFlushError,
    LogReadError,
    MetadataIOError,
    StorageError,
)

OTHER = [LogAppendError, LogReadError, CheckpointIOError, MetadataIOError]


def wrapped(kind: type[StorageError], cause: OSError | None, directory: str = "/d") -> StorageError:
    try:
        raise kind(directory, "doing something") from cause
    except StorageError as error:
        return error


@pytest.mark.feature("18-04")
@pytest.mark.parametrize("kind", [*OTHER, LogFlushError])
@pytest.mark.parametrize(
    ("code", "fault"),
    [
        (errno.EIO, Fault.DISK),
        (errno.EROFS, Fault.DISK),
        (errno.ENODEV, Fault.DISK),
        (errno.EUCLEAN, Fault.DISK),
        (errno.ESHUTDOWN, Fault.DISK),
        (errno.ENOTCONN, Fault.DISK),
        (errno.ENOSPC, Fault.DISK),  # not marked as found before a flush
        (errno.EDQUOT, Fault.DISK),
        (errno.ENOENT, Fault.FILE),
        (errno.EISDIR, Fault.FILE),
        (errno.EACCES, Fault.FILE),
        (errno.EMFILE, Fault.STEP),
        (errno.ENFILE, Fault.STEP),
    ],
)
def test_fault_of_an_error_number(kind: type[StorageError], code: int, fault: Fault) -> None:
    assert fault_of(wrapped(kind, OSError(code, "x"))) is fault


@pytest.mark.parametrize("kind", OTHER)
@pytest.mark.parametrize(
    "cause", [NoRoom(errno.ENOSPC, "x"), OSError(errno.ENAMETOOLONG, "x"), OSError(errno.EINTR, "x")]
)
def test_error_of_a_step_does_not_fail_the_disk(kind: type[StorageError], cause: OSError) -> None:
    assert fault_of(wrapped(kind, cause)) is Fault.STEP


@pytest.mark.feature("18-08")
def test_failed_flush_fails_the_disk_whatever_the_errno() -> None:
    """The same error number of another operation than a flush fails only the step."""
    for code in (errno.ENOMEM, errno.EINTR, errno.ENAMETOOLONG):
        assert fault_of(wrapped(LogFlushError, OSError(code, "x"))) is Fault.DISK
        assert {fault_of(wrapped(kind, OSError(code, "x"))) for kind in OTHER} == {Fault.STEP}
    assert fault_of(wrapped(LogFlushError, OSError(errno.ENOSPC, "x"))) is Fault.DISK
    assert fault_of(wrapped(LogFlushError, None)) is Fault.DISK, "it failed before"
    assert fault_of(wrapped(LogDirectoryOffline, None)) is Fault.STEP, "it is known already"


def test_unusable_file_of_the_directory_itself_fails_the_disk() -> None:
    own = OSError(errno.EISDIR, "x", "/d/replication-offset-checkpoint")
    assert fault_of(wrapped(MetadataIOError, own)) is Fault.DISK
    for name in ("/d/t-0", "/d/t-0.move", "/d/t-0/00000000000000000000.log", "/elsewhere/x"):
        assert fault_of(wrapped(MetadataIOError, OSError(errno.EISDIR, "x", name))) is Fault.FILE
    gone = OSError(errno.ENOENT, "x", "/d/replication-offset-checkpoint.tmp")
    assert fault_of(wrapped(CheckpointIOError, gone)) is Fault.FILE, "what is gone may be so by our own rename"


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[LogDirectory]:
    (tmp_path / "d1").mkdir()
    directory = LogDirectory(tmp_path / "d1", "an-id")
    yield directory
    directory.close()


@pytest.mark.feature("18-04", "18-07", "18-17")
def test_missing_file_does_not_fail_the_disk(directory: LogDirectory, tmp_path: Path) -> None:
    gone = wrapped(LogAppendError, OSError(errno.ENOENT, "No such file", "x"), directory.name)
    assert not directory.fail_on(gone) and directory.online
    assert not list(directory.path.iterdir()), "the health check leaves nothing behind"
    with failpoints.active({"health.flushed": "raise"}):
        assert directory.fail_on(gone)
    assert directory.failure is not None
    assert "doing something" in directory.failure and "No such file" in directory.failure
    assert "health check" in directory.failure and "Input/output error" in directory.failure


def test_missing_disk_is_detected_by_its_path(directory: LogDirectory, tmp_path: Path) -> None:
    directory.path.rename(tmp_path / "elsewhere")
    directory.path.mkdir()
    assert directory.fail_on(wrapped(LogReadError, OSError(errno.ENOENT, "No such file", "x"), directory.name))
    assert "no longer leads" in str(directory.failure)


@pytest.mark.parametrize("action", ["raise:ENOSPC", "raise:EMFILE"])
def test_health_check_that_fails_before_its_file_is_open(directory: LogDirectory, action: str) -> None:
    gone = wrapped(LogAppendError, OSError(errno.ENOENT, "x", "y"), directory.name)
    with failpoints.active({"health.start": action}) as armed:
        failed = directory.fail_on(gone)
        assert armed.hits("health.start") == 1
    # Before the file is open, the check cannot distinguish a full disk from a failed flush.
    assert failed is (action == "raise:ENOSPC")


def test_reason_names_directory_operation_and_error(directory: LogDirectory) -> None:
    assert directory.fail_on(wrapped(LogFlushError, OSError(errno.EIO, "Input/output error"), directory.name))
    assert directory.failure == f"doing something failed on log directory {directory.name}: Input/output error"
    again = wrapped(LogFlushError, OSError(errno.EROFS, "Read-only file system"), directory.name)
    assert not directory.fail_on(again) and "Input/output" in str(directory.failure), "the first error is the reason"
