"""An attack as a value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ops.bench.hostile.field import Field


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack: the clients' actions, and the permitted outcomes of their requests.

    `outcomes` are the names of Kafka's errors, `NONE`, and the outcomes of connections in `field`.
    """

    name: str
    what: str
    run: Callable[[Field], None]
    outcomes: frozenset[str]
    ours_only: bool = False
    """Whether it does not apply to Apache Kafka: it uses the private API, or kills the controller's process."""
    crowded: bool = False
    """Whether it uses up all connections: the server may reject a new one meanwhile."""


def allowed(*outcomes: str) -> frozenset[str]:
    """Return a set of outcomes."""
    return frozenset(outcomes)
