"""Maps the storage node's exceptions to the stable error types in histories.

One table has each exception's type and whether a retry can mend it. Analytics groups by these types, so they do not
change with the name of a class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from storage_node import errors as storage
from storage_node.directories.atomic import is_no_room
from storage_node.directories.io_faults import Fault, fault_of, reason_of
from storage_node.model.error_types import FINAL, ErrorType
from storage_node.model.moves import Outcome


@dataclass(frozen=True, slots=True)
class Classified:
    """A stable error type, whether a retry can mend it, and one sentence for operators."""

    type: ErrorType
    retryable: bool
    message: str

    @property
    def outcome(self) -> Outcome:
        """Return the outcome of a replica for which this error is final."""
        return Outcome.SUPERSEDED if self.type == ErrorType.SUPERSEDED else Outcome.FAILED


#: Exception -> (stable type, retryable). A subclass that is not listed has its nearest listed base's row.
TABLE: dict[type[Exception], tuple[ErrorType, bool]] = {
    storage.UnknownTopicOrPartition: (ErrorType.UNKNOWN_REPLICA, False),
    storage.ReplicaNotAvailable: (ErrorType.UNKNOWN_REPLICA, False),
    storage.LogDirNotFound: (ErrorType.LOG_DIR_NOT_FOUND, False),
    storage.InvalidTopic: (ErrorType.INVALID_TOPIC, False),
    storage.NotEnoughSpace: (ErrorType.TARGET_FULL, False),
    storage.ReplicaBusy: (ErrorType.REPLICA_BUSY, False),
    storage.StaleClaim: (ErrorType.STALE_CLAIM, False),
    storage.Superseded: (ErrorType.SUPERSEDED, False),
    storage.CorruptRecord: (ErrorType.CORRUPT_SOURCE, False),
    storage.MovesStopped: (ErrorType.MOVES_STOPPED, True),
    storage.RequestTimedOut: (ErrorType.CONTROLLER_UNAVAILABLE, True),
    storage.StorageError: (ErrorType.LOG_DIR_OFFLINE, False),
    storage.RequestRefused: (ErrorType.NODE_FAILURE, False),
    Exception: (ErrorType.NODE_FAILURE, True),
}

#: The same by class name, which a move's status may have.
_BY_NAME: dict[str, tuple[ErrorType, bool]] = {error.__name__: row for error, row in TABLE.items()} | {
    name: (ErrorType.LOG_DIR_OFFLINE, False)
    for name, value in vars(storage).items()
    if isinstance(value, type) and issubclass(value, storage.StorageError)
}

_STABLE = frozenset(ErrorType)


def classify(error: BaseException) -> Classified:
    """Return the stable type of an exception; an unknown one is a failure of the node that a retry may mend.

    So is a storage error that does not concern the disk: a retry may mend a lack of descriptors, but not a name that
    exists already or is missing.
    """
    if isinstance(error, storage.StorageError) and not isinstance(error, storage.LogDirectoryOffline):
        fault = Fault.DISK if is_no_room(error) else fault_of(error)
        if fault is not Fault.DISK:
            return Classified(ErrorType.NODE_FAILURE, fault is Fault.STEP, reason_of(error))
    kind, retryable = next(
        (TABLE[base] for base in type(error).__mro__ if base in TABLE), (ErrorType.NODE_FAILURE, True)
    )
    message = getattr(error, "message", "") or str(error) or type(error).__name__
    return Classified(kind, retryable, message)


def classify_name(name: str, message: str) -> Classified:
    """Return the same for an error in a move's status: the name of its class, or its stable type."""
    if name in _BY_NAME:
        return Classified(*_BY_NAME[name], message or name)
    if name in _STABLE:
        return Classified(ErrorType(name), name not in FINAL, message or name)
    return Classified(ErrorType.NODE_FAILURE, True, message or name)


def application_error(error: BaseException, doing: str = "") -> ApplicationError:
    """Return the error for an activity to raise; an ApplicationError is returned as it is."""
    if isinstance(error, ApplicationError):
        return error
    found = classify(error)
    message = f"{doing}: {found.message}" if doing else found.message
    return expected(message, found.type, retryable=found.retryable, benign=found.type != ErrorType.NODE_FAILURE)


def raise_application_error(error: BaseException, doing: str = "") -> NoReturn:
    """Raise the `application_error` of `error`, which is its cause unless they are the same: the SDK cannot send an
    error that is its own cause.
    """
    found = application_error(error, doing)
    raise found from (error.__cause__ if found is error else error)


def expected(
    message: str, kind: ErrorType, *details: object, retryable: bool = True, benign: bool = True
) -> ApplicationError:
    """Return an ApplicationError of a stable type; a benign one is expected, and is not logged as a warning."""
    category = ApplicationErrorCategory.BENIGN if benign else ApplicationErrorCategory.UNSPECIFIED
    return ApplicationError(message, *details, type=kind, non_retryable=not retryable, category=category)


def given_up() -> ApplicationError | None:
    """Return the error of an attempt that the server has given up (timed out, or its run has ended), else None."""
    details = activity.cancellation_details()
    if details is None or details.cancel_requested or not (details.not_found or details.timed_out):
        return None
    return expected("the server has given up this attempt", ErrorType.NODE_FAILURE)
