"""Which node coordinates a group: rendezvous hashing over the registered nodes.

Every node scores every group, and the highest score has it. When a node registers, only those groups move that it
scores highest (one in n), and all of them to it.
"""

from __future__ import annotations

from collections.abc import Collection
from hashlib import blake2b
from typing import Final

__all__ = ["Placement", "ranked"]

_REMEMBERED: Final = 20_000  # groups; a client may send any number of group ids
_LONGEST: Final = 255  # characters of a group id that is remembered; a longer one is hashed again each time


def ranked(group: str, nodes: Collection[int]) -> tuple[int, ...]:
    """The nodes in the order in which they would have the group."""
    return tuple(sorted(nodes, key=lambda node: (_score(group, node), node), reverse=True))


def _score(group: str, node: int) -> bytes:
    # A surrogate cannot be in a string that came as UTF-8, but a lookup must not fail for one either.
    return blake2b(group.encode("utf-8", "surrogatepass"), digest_size=8, salt=str(node).encode()).digest()


class Placement:
    """The coordinator of each group for one set of nodes; remembers what it has computed. Any thread may call it."""

    def __init__(self) -> None:
        self._memo: tuple[frozenset[int], dict[str, int]] = (frozenset(), {})

    def coordinator(self, group: str, nodes: Collection[int]) -> int | None:
        """The node that has the group; None without nodes."""
        if not nodes:
            return None
        # The set of nodes and what was computed for it are replaced together: no thread mixes two sets.
        of, known = self._memo
        if of != nodes:
            of, known = self._memo = frozenset(nodes), {}
        found = known.get(group)
        if found is None:
            found = max(of, key=lambda node: (_score(group, node), node))
            if len(group) <= _LONGEST:
                if len(known) >= _REMEMBERED:
                    known.clear()
                known[group] = found
        return found
