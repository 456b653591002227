"""The coordinator of a group, by rendezvous hashing over the registered nodes.

Each node has a score for each group, and the node with the highest score coordinates the group. When a node registers,
only the groups move for which it has the highest score (one in n), all of them to the new node.
"""

from __future__ import annotations

from collections.abc import Collection
from hashlib import blake2b
from typing import Final

__all__ = ["Placement", "ranked"]

_REMEMBERED: Final = 20_000  # groups; a client may send any number of group ids
_LONGEST: Final = 255  # characters of a cached group id; a longer one is hashed again each time


def ranked(group: str, nodes: Collection[int]) -> tuple[int, ...]:
    """Return the nodes in the order in which they would coordinate the group."""
    return tuple(sorted(nodes, key=lambda node: (_score(group, node), node), reverse=True))


def _score(group: str, node: int) -> bytes:
    # A string decoded from UTF-8 has no surrogates, but a lookup must not fail for one either.
    return blake2b(group.encode("utf-8", "surrogatepass"), digest_size=8, salt=str(node).encode()).digest()


class Placement:
    """A cache of the groups' coordinators for one set of nodes. Any thread may call it."""

    def __init__(self) -> None:
        self._memo: tuple[frozenset[int], dict[str, int]] = (frozenset(), {})

    def coordinator(self, group: str, nodes: Collection[int]) -> int | None:
        """Return the node that coordinates the group; None without nodes."""
        if not nodes:
            return None
        # The set of nodes and its cache are replaced together, so that no thread mixes two sets.
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
