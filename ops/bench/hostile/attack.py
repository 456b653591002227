"""An attack as a value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ops.bench.hostile.field import Field


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack: what clients do, and with which outcomes a server may let each request end.

    `outcomes` are Kafka's errors by name, `NONE`, and the words of `field` for connections.
    """

    name: str
    what: str
    run: Callable[[Field], None]
    outcomes: frozenset[str]
    ours_only: bool = False
    """Whether it makes no sense against Apache Kafka: it takes our private API, or a controller that is away."""
    crowded: bool = False
    """Whether it takes all places for connections: a newcomer may be rejected while it lasts."""


def allowed(*outcomes: str) -> frozenset[str]:
    """A set of outcomes."""
    return frozenset(outcomes)
