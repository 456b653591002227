"""The options of plans that `rehome plan submit`, `set`, `throttle`, `slots` and `rehome drain` have in common."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import typer

from ops.stack.errors import UsageError
from workflows.model.plans import options
from workflows.model.plans.options import PlanOptions
from workflows.model.plans.problems import PlanProblems
from workflows.model.plans.running import orders

BetweenBrokers = Annotated[
    str | None,
    typer.Option(metavar="RATE", help="Bytes per second and broker, such as 20MB (KIP-73); none: no limit."),
]
BetweenDirectories = Annotated[
    str | None,
    typer.Option(
        metavar="RATE", help="Bytes per second and broker, between its directories (KIP-113); none: no limit."
    ),
]
SlotsPerDisk = Annotated[int | None, typer.Option(min=1, help="Lanes that use a disk at a time; one.")]
SlotsPerBroker = Annotated[int | None, typer.Option(min=1, help="Lanes that use a broker at a time.")]
SlotsOfCluster = Annotated[int | None, typer.Option(min=1, help="Lanes that are under way in the cluster at a time.")]
Window = Annotated[
    str | None, typer.Option(metavar="WINDOW", help='When moves may begin: "22:00-06:00 Europe/Berlin"; none: always.')
]
Deadline = Annotated[
    str | None, typer.Option(metavar="TIME", help="When it should have ended, ISO 8601; none: no deadline.")
]
Priority = Annotated[int | None, typer.Option(min=0, max=100, help="Which plan gets a slot that several want; 50.")]
Alerts = Annotated[
    str | None, typer.Option(metavar="WEBHOOK", help="The webhook of the worker's --alerts file to alert.")
]
HealthGate = Annotated[
    bool | None,
    typer.Option(
        "--health-gate/--no-health-gate",
        help="Whether no move begins while other partitions are under-replicated.",
    ),
]

PerDisk = Annotated[int | None, typer.Option("--per-disk", min=1, help="Lanes that use a disk at a time.")]
PerBroker = Annotated[
    str | None, typer.Option("--per-broker", metavar="N", help="Lanes that use a broker at a time; none: no limit.")
]
WholeCluster = Annotated[
    str | None,
    typer.Option("--whole-cluster", metavar="N", help="Lanes under way in the cluster at a time; none: no limit."),
]


class Between(StrEnum):
    """Between what replicas move."""

    BROKERS = "brokers"
    DIRECTORIES = "directories"


#: The options that "none" resets to their defaults.
_RESETTABLE = ("throttle_between_brokers", "throttle_between_directories", "window", "deadline")
_NONE = "none"


def chosen(**values: Any) -> dict[str, Any]:
    """Return the options that were given; None resets one to its default."""
    return {name: _value(name, value) for name, value in values.items() if value is not None}


def _value(name: str, value: Any) -> Any:
    return None if name in _RESETTABLE and value.strip().lower() == _NONE else value


def read(values: dict[str, Any]) -> PlanOptions:
    """Return the options of a plan. Raises `UsageError`."""
    try:
        return options.read(values, "$")
    except PlanProblems as error:
        raise UsageError(f"the options are not valid: {error}") from error


def throttle(rate: str, between: Between | None) -> dict[str, Any]:
    """Return the argument of `set_throttle`. Raises `UsageError`."""
    name = "rate" if between is None else f"between_{between}"
    return _checked({name: None if rate.strip().lower() == _NONE else rate}, orders.throttle)


def slots(**values: int | str | None) -> dict[str, Any]:
    """Return the argument of `set_slots`, of the numbers that were given. Raises `UsageError`."""
    found = {name: _number(each) for name, each in values.items() if each is not None}
    if not found:
        raise UsageError("nothing to set; see: rehome plan slots --help")
    return _checked(found, orders.slots)


def _number(given: int | str) -> Any:
    text = str(given).strip().lower()
    return None if text == _NONE else int(text) if text.isascii() and text.isdecimal() else given


def _checked(argument: dict[str, Any], changes: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    read(changes(argument))
    return argument
