"""What people ask of a run that is under way: their updates, read as strictly as a run's parameter. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, TypeVar

from temporalio.exceptions import ApplicationError

from workflows import errors
from workflows.model import fields
from workflows.model.plan import absolute, size

TOO_LATE = "TooLate"

Key = tuple[str, int]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Order:
    """What an update asks for one replica: another directory, or (None) to drop it. `refused` is the reason if it came
    too late, or if its node rejected the directory; `kind` is the reason's stable type.
    """

    directory: str | None = None
    taken: bool = False
    refused: str = ""
    kind: str = TOO_LATE


def refuse(problem: str, kind: str = errors.INVALID_PLAN) -> ApplicationError:
    """The error by which an update is refused."""
    return ApplicationError(fields.shown(problem), type=kind, non_retryable=True)


def replica_of(order: Any, known: Collection[Key], *more: str) -> Key:
    """The replica that an order {topic, partition, ...} names; the fields in `more` must be there too.

    Raises BadField.
    """
    row = fields.an_object(order, "$", ("topic", "partition", *more))
    key = (
        fields.a_string(fields.need(row, "topic", "$"), "$.topic"),
        fields.a_number(fields.need(row, "partition", "$"), "$.partition"),
    )
    for name in more:
        fields.need(row, name, "$")
    if key not in known:
        raise fields.BadField("$", f"names {key[0]}-{key[1]}, which this run does not move")
    return key


def directory_of(order: Any) -> str:
    """The directory that an order names; raises BadField."""
    return absolute(order["directory"], "$.directory", any_allowed=False)


def rate_of(order: Any) -> int | None:
    """The limit that an order {rate} gives, in bytes per second, None for no limit; raises BadField."""
    row = fields.an_object(order, "$", ("rate",))
    rate = fields.need(row, "rate", "$")
    return None if rate is None else size(rate, "$.rate")


def checked(read: Callable[[], T]) -> T:
    """What `read` reads; a bad field refuses the update, with its path."""
    try:
        return read()
    except fields.BadField as bad:
        raise errors.invalid_plan(bad) from bad
