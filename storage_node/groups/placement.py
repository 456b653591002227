"""Which node coordinates a group: rendezvous hashing over the registered nodes.

Every node scores every group, and the highest score has it. When a node registers, only those groups move that it
scores highest (one in n), and all of them to it.
"""

from __future__ import annotations

from collections.abc import Collection
from hashlib import blake2b
from typing import Final

__all__ = ["Placement", "ranked"]

_REMEMBERED: Final = 50_000  # groups; a client may ask for any number of names


def ranked(group: str, nodes: Collection[int]) -> tuple[int, ...]:
    """The nodes in the order in which they would have the group."""
    return tuple(sorted(nodes, key=lambda node: (_score(group, node), node), reverse=True))


def _score(group: str, node: int) -> bytes:
    # A surrogate cannot be in a string that came as UTF-8, but a lookup must not fail for one either.
    return blake2b(group.encode("utf-8", "surrogatepass"), digest_size=8, salt=str(node).encode()).digest()


class Placement:
    """The coordinator of each group for one set of nodes; remembers what it has worked out."""

    def __init__(self) -> None:
        self._nodes: frozenset[int] = frozenset()
        self._known: dict[str, int] = {}

    def coordinator(self, group: str, nodes: Collection[int]) -> int | None:
        """The node that has the group; None without nodes."""
        if not nodes:
            return None
        if self._nodes != nodes:
            self._nodes, self._known = frozenset(nodes), {}
        found = self._known.get(group)
        if found is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            found = self._known[group] = max(self._nodes, key=lambda node: (_score(group, node), node))
        return found
