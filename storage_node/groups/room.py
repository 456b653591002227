"""The limit on the memory that the groups of a node take (group.state.max.bytes).

Without a limit any client could fill a node with groups, members and offsets. Existing state may always change: a
client may commit a partition's offset again, and a known group may rebalance.

No client address may take more than three times the memory that is left, alone three quarters, so that there is room
for the groups of other clients. A group counts for the address of its first commit or member, an offset for the address
of its last commit, and a member for its own address.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from storage_node.groups.group import Group
from storage_node.groups.offsets import GroupData, GroupsState, Offset, offset_row, weight_of
from storage_node.groups.values import GROUP_WEIGHT, Join, Sync

__all__ = ["Commit", "Room"]

_log = logging.getLogger(__name__)

SHARE: Final = 3
"""How many times the remaining memory an address may take."""

_COMPLAINTS: Final = 60.0  # seconds between two lines in the log


@dataclass(frozen=True, slots=True)
class Commit:
    """Offsets to commit as rows of an entry, about how many bytes of memory they add, and the client's address."""

    rows: list[list[Any]]
    more: int
    host: str = ""

    @classmethod
    def of(
        cls, name: str, data: GroupData | None, offsets: Iterable[tuple[str, int, Offset]], host: str = ""
    ) -> Commit:
        """Return the commit of some topics, partitions and offsets to a group; `data`: the group's data on disk."""
        rows, more = [], 0 if data is not None else weight_of(name, None)
        known = data.offsets if data is not None else {}
        for topic, partition, offset in offsets:
            before = known.get((topic, partition))
            more += offset.weight - (before.weight if before is not None else 0)
            rows.append(offset_row(topic, partition, offset))
        return cls(rows, max(more, 0), host)


class Room:
    """The estimated bytes of memory of the groups. Not thread-safe: use it on the listener's loop only."""

    def __init__(self, most: int, kept: Callable[[], GroupsState | None]) -> None:
        """`most`: group.state.max.bytes; `kept` returns the state on disk."""
        self._most = most
        self._kept = kept
        self._groups: dict[str, Counter[str]] = {}
        """The bytes of each group with members, by address."""
        self._live = 0
        """The bytes of the groups' state machines, in addition to the state on disk."""
        self._reserved = 0
        """The bytes of entries that are being written."""
        self._by_host: Counter[str] = Counter()
        """The bytes of `_live` and `_reserved`, by address."""
        self._complained = -math.inf

    @property
    def weight(self) -> int:
        """The bytes of all groups."""
        kept = self._kept()
        return self._live + self._reserved + (kept.weight if kept is not None else 0)

    def weight_by(self, host: str) -> int:
        """Return the bytes that count for an address."""
        kept = self._kept()
        return self._by_host[host] + (kept.weight_by(host) if kept is not None else 0)

    def has(self, more: int, host: str, known: bool = False) -> bool:
        """Return whether there is room for `more` bytes of a client's address.

        Members of `known` groups may exceed the limit by a fifth, so that these groups can rebalance at the limit.
        """
        most = self._most + self._most // 5 if known else self._most
        if more <= 0:
            return True
        left = most - self.weight - more
        if left >= 0 and self.weight_by(host) + more <= SHARE * left:
            return True
        if time.monotonic() - self._complained >= _COMPLAINTS:
            self._complained = time.monotonic()
            _log.warning(
                "groups take %d bytes, of which %d count for %s, with group.state.max.bytes=%d: the node rejects its "
                "new groups, members and offsets",
                self.weight,
                self.weight_by(host),
                host or "clients without a known address",
                self._most,
            )
        return False

    def has_for(self, ask: Join, group: Group | None, data: GroupData | None) -> bool:
        """Return whether there is room for a member that joins a group; `data`: the group's data on disk."""
        before = group.members.get(ask.member_id) if group is not None else None
        more = ask.weight - (before.weighed if before is not None else 0) + (GROUP_WEIGHT if group is None else 0)
        return self.has(more, ask.host, data is not None)

    def has_to_keep(self, ask: Sync, group: Group, data: GroupData | None) -> bool:
        """Return whether there is room for assignments, which the members and the written entry have."""
        before = weight_of(group.name, data.row) if data is not None else 0
        more = 3 * sum(map(len, ask.assignments.values())) + 2 * group.weight - before
        leader = group.members.get(ask.member_id)
        return self.has(more, leader.host if leader is not None else group.host, data is not None)

    @contextmanager
    def reserved(self, more: int, host: str) -> Iterator[None]:
        """Count `more` bytes while an entry is being written."""
        self._reserved += more
        self._count(host, more)
        try:
            yield
        finally:
            self._reserved -= more
            self._count(host, -more)

    def takes(self, group: Group) -> None:
        """Count the current bytes of a group's state machine."""
        self.lets_go(group.name)
        found = Counter(group.by_host)
        found[group.host] += group.weight - found.total()
        self._groups[group.name] = found
        self._live += group.weight
        for host, weight in found.items():
            self._count(host, weight)

    def lets_go(self, name: str) -> None:
        """Stop counting a group's state machine, which is closed."""
        for host, weight in self._groups.pop(name, {}).items():
            self._live -= weight
            self._count(host, -weight)

    def _count(self, host: str, more: int) -> None:
        self._by_host[host] += more
        if not self._by_host[host]:
            del self._by_host[host]
