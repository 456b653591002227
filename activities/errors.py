"""From the storage node's exceptions to the stable error types that stand in histories.

One table says for each exception its type and whether a retry can mend it. Analytics groups by these types, so they
never change with the name of a class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from storage_node import errors as storage
from storage_node.directories.atomic import is_no_room
from storage_node.directories.latch import Fault, fault_of, reason_of
from workflows import errors as types
from workflows.model.calls import FAILED, SUPERSEDED


@dataclass(frozen=True, slots=True)
class Classified:
    """A stable error type, whether trying again can help, and one sentence for a person."""

    type: str
    retryable: bool
    message: str

    @property
    def outcome(self) -> str:
        """What a replica ends as when this is final for it."""
        return SUPERSEDED if self.type == types.SUPERSEDED else FAILED


#: Exception -> (stable type, retryable). A subclass that is not listed has its nearest listed base's row.
TABLE: dict[type[Exception], tuple[str, bool]] = {
    storage.UnknownTopicOrPartition: (types.UNKNOWN_REPLICA, False),
    storage.ReplicaNotAvailable: (types.UNKNOWN_REPLICA, False),
    storage.LogDirNotFound: (types.LOG_DIR_NOT_FOUND, False),
    storage.InvalidTopic: (types.INVALID_TOPIC, False),
    storage.NotEnoughSpace: (types.TARGET_FULL, False),
    storage.ReplicaBusy: (types.REPLICA_BUSY, False),
    storage.StaleClaim: (types.STALE_CLAIM, False),
    storage.Superseded: (types.SUPERSEDED, False),
    storage.CorruptRecord: (types.CORRUPT_SOURCE, False),
    storage.MovesStopped: (types.MOVES_STOPPED, True),
    storage.RequestTimedOut: (types.CONTROLLER_UNAVAILABLE, True),
    storage.StorageError: (types.LOG_DIR_OFFLINE, False),
    storage.RequestRefused: (types.NODE_FAILURE, False),
    Exception: (types.NODE_FAILURE, True),
}

#: The same by class name, as a move's status may carry it.
_BY_NAME: dict[str, tuple[str, bool]] = {error.__name__: row for error, row in TABLE.items()} | {
    name: (types.LOG_DIR_OFFLINE, False)
    for name, value in vars(storage).items()
    if isinstance(value, type) and issubclass(value, storage.StorageError)
}

_STABLE = frozenset(value for name, value in vars(types).items() if name.isupper() and isinstance(value, str))


def classify(error: BaseException) -> Classified:
    """The stable type of an exception; anything unknown is a failure of the node that a retry may mend.

    A storage error that says nothing about the disk is one, too: no descriptor left may be mended by a retry, a name
    that is taken or gone may not.
    """
    if isinstance(error, storage.StorageError) and not isinstance(error, storage.LogDirectoryOffline):
        fault = Fault.DISK if is_no_room(error) else fault_of(error)
        if fault is not Fault.DISK:
            return Classified(types.NODE_FAILURE, fault is Fault.STEP, reason_of(error))
    kind, retryable = next((TABLE[base] for base in type(error).__mro__ if base in TABLE), (types.NODE_FAILURE, True))
    message = getattr(error, "message", "") or str(error) or type(error).__name__
    return Classified(kind, retryable, message)


def classify_name(name: str, message: str) -> Classified:
    """The same for an error that a move's status carries by the name of its class (or already by its stable type)."""
    if name in _BY_NAME:
        return Classified(*_BY_NAME[name], message or name)
    if name in _STABLE:
        return Classified(name, name not in types.FINAL, message or name)
    return Classified(types.NODE_FAILURE, True, message or name)


def application_error(error: BaseException, doing: str = "") -> ApplicationError:
    """The error that an activity raises; one that is an ApplicationError already passes unchanged."""
    if isinstance(error, ApplicationError):
        return error
    found = classify(error)
    message = f"{doing}: {found.message}" if doing else found.message
    return expected(message, found.type, retryable=found.retryable, benign=found.type != types.NODE_FAILURE)


def raise_application_error(error: BaseException, doing: str = "") -> NoReturn:
    """Raise it, from `error`, unless that is what is raised: an error that is its own cause cannot be sent."""
    found = application_error(error, doing)
    raise found from (error.__cause__ if found is error else error)


def expected(
    message: str, kind: str, *details: object, retryable: bool = True, benign: bool = True
) -> ApplicationError:
    """An ApplicationError of a stable type; a benign one is part of the plan and is no warning in the logs."""
    category = ApplicationErrorCategory.BENIGN if benign else ApplicationErrorCategory.UNSPECIFIED
    return ApplicationError(message, *details, type=kind, non_retryable=not retryable, category=category)


def disowned() -> ApplicationError | None:
    """What an attempt ends with that the server gave up (timed out, or its run is gone); None while it is asked for."""
    details = activity.cancellation_details()
    if details is None or details.cancel_requested or not (details.not_found or details.timed_out):
        return None
    return expected("the server does not wait for this attempt any more", types.NODE_FAILURE)
