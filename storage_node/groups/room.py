"""How much memory the groups of a node take, and whether there is room for more (group.state.max.bytes).

Without a bound any client could fill a node with groups, members and offsets that nobody ever reads. What there is may
always change: a commit of an offset that has been committed before, a rebalance of a group that is known.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from storage_node.groups.group import Group
from storage_node.groups.offsets import GroupData, Offset, offset_row, weight_of
from storage_node.groups.values import GROUP_WEIGHT, Join, Sync

__all__ = ["Commit", "Room"]

_log = logging.getLogger(__name__)

_COMPLAINTS: Final = 60.0  # seconds between two lines in the log


@dataclass(frozen=True, slots=True)
class Commit:
    """Offsets to be kept, as rows of an entry, and about how many bytes of memory more these take."""

    rows: list[list[Any]]
    more: int

    @classmethod
    def of(cls, name: str, data: GroupData | None, offsets: Iterable[tuple[str, int, Offset]]) -> Commit:
        """Topics, partitions and offsets that are committed to a group, of which `data` is there."""
        rows, more = [], 0 if data is not None else weight_of(name, None)
        known = data.offsets if data is not None else {}
        for topic, partition, offset in offsets:
            before = known.get((topic, partition))
            more += offset.weight - (before.weight if before is not None else 0)
            rows.append(offset_row(topic, partition, offset))
        return cls(rows, max(more, 0))


class Room:
    """Used on the listener's loop only. Bytes are of memory, about."""

    def __init__(self, most: int, kept: Callable[[], int]) -> None:
        """`kept`: what all that is on disk takes."""
        self._most = most
        self._kept = kept
        self._weights: dict[str, int] = {}
        """What each group with members takes of `_live`."""
        self._live = 0
        self._reserved = 0
        """What entries will take that are being written."""
        self._complained = -math.inf

    @property
    def weight(self) -> int:
        """What all groups take."""
        return self._live + self._reserved + self._kept()

    def has(self, more: int, known: bool = False) -> bool:
        """Whether there is room for so much more. Members of groups that are `known` have a fifth beyond the limit:
        these still rebalance when there is no room for others.
        """
        most = self._most + self._most // 5 if known else self._most
        if more <= 0 or self.weight + more <= most:
            return True
        if time.monotonic() - self._complained >= _COMPLAINTS:
            self._complained = time.monotonic()
            _log.warning(
                "groups hold %d bytes, group.state.max.bytes=%d: new groups, members and offsets are refused",
                self.weight,
                self._most,
            )
        return False

    def has_for(self, ask: Join, group: Group | None, data: GroupData | None) -> bool:
        """Whether there is room for a member that joins a group, of which `data` is on disk."""
        before = group.members.get(ask.member_id) if group is not None else None
        more = ask.weight - (before.weighed if before is not None else 0) + (GROUP_WEIGHT if group is None else 0)
        return self.has(more, data is not None)

    def has_to_keep(self, ask: Sync, group: Group, data: GroupData | None) -> bool:
        """Whether there is room for assignments: they are kept for the members, and encoded in what is written."""
        before = weight_of(group.name, data.row) if data is not None else 0
        more = 3 * sum(map(len, ask.assignments.values())) + 2 * group.weight - before
        return self.has(more, data is not None)

    @contextmanager
    def reserved(self, more: int) -> Iterator[None]:
        """Room that something takes which is being written."""
        self._reserved += more
        try:
            yield
        finally:
            self._reserved -= more

    def takes(self, name: str, weight: int) -> None:
        """A group with members takes so much now, besides what is on disk of it; 0 when it has none any more."""
        self._live += weight - self._weights.pop(name, 0)
        if weight:
            self._weights[name] = weight
