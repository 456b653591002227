"""What led partitions need of the node around them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from storage_node.replication.leading import LeaderState


class LeaderHost(Protocol):
    """The node around led partitions."""

    @property
    def lag(self) -> float:
        """replica.lag.time.max.ms in seconds."""
        ...

    @property
    def brokers(self) -> Mapping[int, int]:
        """The broker epochs of the nodes that are not fenced; kept up to date in place."""
        ...

    def wants_change(self, state: LeaderState) -> None:
        """An ISR is to be asked for; returns at once."""
        ...

    def watch(self, state: LeaderState, due: float) -> None:
        """Call `state.look` at this time, unless `state.due` is another one by then; returns at once."""
        ...


class NoHost:
    """A host for partitions outside of a node: nobody is up, and nothing can be asked for."""

    lag = 30.0
    brokers: Mapping[int, int] = {}

    def wants_change(self, state: LeaderState) -> None:
        """Nobody to ask."""

    def watch(self, state: LeaderState, due: float) -> None:
        """Nobody to look."""
