"""The updates that operators send to an open run of a move, read as strictly as a run's parameter. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, TypeVar

from temporalio.exceptions import ApplicationError

from storage_node.model import fields
from storage_node.model.error_types import ErrorType
from workflows import errors
from workflows.model.move.parameter import absolute, size

Key = tuple[str, int]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReplicaUpdate:
    """An update of one replica: another directory, or (None) to drop it. `taken`: the run has applied it; `rejected` is
    the reason if it came too late, or if the node rejected the directory, and `kind` the reason's stable type.
    """

    directory: str | None = None
    taken: bool = False
    rejected: str = ""
    kind: str = ErrorType.TOO_LATE


def rejection(problem: str, kind: str = ErrorType.INVALID_PLAN) -> ApplicationError:
    """Return the error with which an update is rejected."""
    return ApplicationError(fields.shown(problem), type=kind, non_retryable=True)


def replica_of(update: Any, known: Collection[Key], *more: str) -> Key:
    """Return the replica that an update {topic, partition, ...} names; the fields in `more` are required as well.

    Raises BadField.
    """
    row = fields.an_object(update, "$", ("topic", "partition", *more))
    key = (
        fields.a_string(fields.need(row, "topic", "$"), "$.topic"),
        fields.a_number(fields.need(row, "partition", "$"), "$.partition"),
    )
    for name in more:
        fields.need(row, name, "$")
    if key not in known:
        raise fields.BadField("$", f"names {key[0]}-{key[1]}, which this run does not move")
    return key


def directory_of(update: Any) -> str:
    """Return the directory that an update names; raises BadField."""
    return absolute(update["directory"], "$.directory", any_allowed=False)


def rate_of(update: Any) -> int | None:
    """Return the limit of an update {rate}, in bytes per second, None for no limit; raises BadField."""
    row = fields.an_object(update, "$", ("rate",))
    rate = fields.need(row, "rate", "$")
    return None if rate is None else size(rate, "$.rate")


def checked(read: Callable[[], T]) -> T:
    """Return what `read` returns; for a bad field raise the error with which the update is rejected."""
    try:
        return read()
    except fields.BadField as bad:
        raise errors.invalid_plan(bad) from bad


def may_pause(paused: bool) -> None:
    """Raise the rejection of a pause unless the run may be paused."""
    if paused:
        raise rejection("The run is paused already; resume it first.", ErrorType.NOTHING_TO_CHANGE)


def may_resume(paused: bool) -> None:
    """Raise the rejection of a resume unless the run is paused."""
    if not paused:
        raise rejection("The run is not paused.", ErrorType.NOTHING_TO_CHANGE)
