"""How much memory the groups of a node take, and whether there is room for more (group.state.max.bytes).

Without a bound any client could fill a node with groups, members and offsets that nobody ever reads. What there is may
always change: a commit of an offset that has been committed before, a rebalance of a group that is known.

No client's address may take more than three times what is left for others: one alone three quarters, so that there is
room for the groups of others however many it makes. Each thing counts for the address that made it: a group for the one
that committed or joined first, an offset for the one that committed it last, a member for its own.
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
"""How many times of what is left an address may take."""

_COMPLAINTS: Final = 60.0  # seconds between two lines in the log


@dataclass(frozen=True, slots=True)
class Commit:
    """Offsets to be kept, as rows of an entry, about how many bytes of memory more these take, and the address of the
    client.
    """

    rows: list[list[Any]]
    more: int
    host: str = ""

    @classmethod
    def of(
        cls, name: str, data: GroupData | None, offsets: Iterable[tuple[str, int, Offset]], host: str = ""
    ) -> Commit:
        """Topics, partitions and offsets that are committed to a group, of which `data` is there."""
        rows, more = [], 0 if data is not None else weight_of(name, None)
        known = data.offsets if data is not None else {}
        for topic, partition, offset in offsets:
            before = known.get((topic, partition))
            more += offset.weight - (before.weight if before is not None else 0)
            rows.append(offset_row(topic, partition, offset))
        return cls(rows, max(more, 0), host)


class Room:
    """Used on the listener's loop only. Bytes are of memory, about."""

    def __init__(self, most: int, kept: Callable[[], GroupsState | None]) -> None:
        """`kept`: what is on disk."""
        self._most = most
        self._kept = kept
        self._groups: dict[str, Counter[str]] = {}
        """What each group with members takes, by address."""
        self._live = 0
        """What groups with members take besides what is on disk."""
        self._reserved = 0
        """What entries will take that are being written."""
        self._by_host: Counter[str] = Counter()
        """What of both each address accounts for."""
        self._complained = -math.inf

    @property
    def weight(self) -> int:
        """What all groups take."""
        kept = self._kept()
        return self._live + self._reserved + (kept.weight if kept is not None else 0)

    def weight_by(self, host: str) -> int:
        """What of it an address accounts for."""
        kept = self._kept()
        return self._by_host[host] + (kept.weight_by(host) if kept is not None else 0)

    def has(self, more: int, host: str, known: bool = False) -> bool:
        """Whether there is room for so much more of a client's address. Members of groups that are `known` have a fifth
        beyond the limit: these still rebalance when there is no room for others.
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
                "groups hold %d bytes, %d of them of %s, group.state.max.bytes=%d: its new groups, members and offsets "
                "are refused",
                self.weight,
                self.weight_by(host),
                host or "clients without a known address",
                self._most,
            )
        return False

    def has_for(self, ask: Join, group: Group | None, data: GroupData | None) -> bool:
        """Whether there is room for a member that joins a group, of which `data` is on disk."""
        before = group.members.get(ask.member_id) if group is not None else None
        more = ask.weight - (before.weighed if before is not None else 0) + (GROUP_WEIGHT if group is None else 0)
        return self.has(more, ask.host, data is not None)

    def has_to_keep(self, ask: Sync, group: Group, data: GroupData | None) -> bool:
        """Whether there is room for assignments: they are kept for the members, and encoded in what is written."""
        before = weight_of(group.name, data.row) if data is not None else 0
        more = 3 * sum(map(len, ask.assignments.values())) + 2 * group.weight - before
        leader = group.members.get(ask.member_id)
        return self.has(more, leader.host if leader is not None else group.host, data is not None)

    @contextmanager
    def reserved(self, more: int, host: str) -> Iterator[None]:
        """Room that something takes which is being written."""
        self._reserved += more
        self._count(host, more)
        try:
            yield
        finally:
            self._reserved -= more
            self._count(host, -more)

    def takes(self, group: Group) -> None:
        """Count what a group with members takes now, besides what is on disk of it."""
        self.lets_go(group.name)
        found = Counter(group.by_host)
        found[group.host] += group.weight - found.total()
        self._groups[group.name] = found
        self._live += group.weight
        for host, weight in found.items():
            self._count(host, weight)

    def lets_go(self, name: str) -> None:
        """Count a group as one that has no members any more."""
        for host, weight in self._groups.pop(name, {}).items():
            self._live -= weight
            self._count(host, -weight)

    def _count(self, host: str, more: int) -> None:
        self._by_host[host] += more
        if not self._by_host[host]:
            del self._by_host[host]
