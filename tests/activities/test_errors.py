"""Every exception of the storage node has a stable type; what a retry cannot mend is not retried."""

from __future__ import annotations

import errno
import inspect
import os

import pytest
from temporalio.exceptions import ApplicationError

from activities.errors import (
    TABLE,
    application_error,
    classify,
    classify_name,
    expected,
    raise_application_error,
)
from storage_node import errors as storage
from storage_node.model.error_types import FINAL, ErrorType


def storage_error(number: int) -> storage.StorageError:
    error = storage.MetadataIOError("/d", "making a folder")
    error.__cause__ = OSError(number, os.strerror(number), "/d/t-0/marker")
    return error


@pytest.mark.parametrize(
    ("number", "kind", "retryable"),
    [
        (errno.EIO, ErrorType.LOG_DIR_OFFLINE, False),
        (errno.EMFILE, ErrorType.NODE_FAILURE, True),
        (errno.EEXIST, ErrorType.NODE_FAILURE, False),
    ],
)
def test_only_a_disk_error_is_log_dir_offline(number: int, kind: str, retryable: bool) -> None:
    found = classify(storage_error(number))
    assert (found.type, found.retryable) == (kind, retryable)
    assert "/d" in found.message


@pytest.mark.parametrize(
    ("error", "kind", "retryable"),
    [
        (storage.LogDirNotFound("no"), ErrorType.LOG_DIR_NOT_FOUND, False),
        (storage.LogFlushError("/d", "flushing"), ErrorType.LOG_DIR_OFFLINE, False),
        (storage.LogDirectoryOffline("/d", "it failed"), ErrorType.LOG_DIR_OFFLINE, False),
        (storage.NotEnoughSpace("full"), ErrorType.TARGET_FULL, False),
        (storage.Superseded("newer"), ErrorType.SUPERSEDED, False),
        (storage.ReplicaBusy("busy", "other-run"), ErrorType.REPLICA_BUSY, False),
        (storage.RequestTimedOut("late"), ErrorType.CONTROLLER_UNAVAILABLE, True),
        (storage.MovesStopped("stopped"), ErrorType.MOVES_STOPPED, True),
        (storage.RequestRefused("a folder of that name is there"), ErrorType.NODE_FAILURE, False),
        (OSError("anything"), ErrorType.NODE_FAILURE, True),
        (ZeroDivisionError("a bug"), ErrorType.NODE_FAILURE, True),
    ],
)
def test_classify_returns_the_stable_type(error: Exception, kind: str, retryable: bool) -> None:
    found = classify(error)
    assert (found.type, found.retryable) == (kind, retryable)
    raised = application_error(error)
    assert (raised.type, raised.non_retryable) == (kind, not retryable)
    assert found.message and classify_name(type(error).__name__, "x").type == kind


def test_every_final_type_is_one_that_the_workflows_do_not_retry() -> None:
    for error, (kind, retryable) in TABLE.items():
        assert retryable == (kind not in FINAL) or error is storage.RequestRefused


def test_classify_name_accepts_a_stable_type() -> None:
    assert classify_name(ErrorType.TARGET_FULL, "full").retryable is False
    assert classify_name(ErrorType.NODE_FAILURE, "bug").retryable is True


def test_every_exception_of_the_storage_node_has_a_row() -> None:
    refused = [
        one
        for _, one in inspect.getmembers(storage, inspect.isclass)
        if issubclass(one, storage.StorageError) and one is not storage.StorageError
    ]
    assert refused
    for one in refused:
        assert classify_name(one.__name__, "").type == ErrorType.LOG_DIR_OFFLINE


def test_error_that_passes_unchanged_is_not_its_own_cause() -> None:
    """The server is sent the whole chain of causes."""
    already = expected("the node stops", ErrorType.NODE_RESTARTED)
    with pytest.raises(ApplicationError) as told:
        try:
            raise already
        except ApplicationError as error:
            raise_application_error(error, "observing replicas failed")
    assert told.value is already and told.value.__cause__ is None
    with pytest.raises(ApplicationError, match="a copy is interrupted") as made:
        try:
            raise storage.LogDirNotFound("no")
        except storage.LogDirNotFound as error:
            raise_application_error(error, "a copy is interrupted")
    assert isinstance(made.value.__cause__, storage.LogDirNotFound)
