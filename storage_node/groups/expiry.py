"""The expiry of committed offsets, by the rules of KIP-211.

- A group that had members and has none: all its offsets, `offsets.retention.minutes` after it became empty.
- A group that never had members (its offsets are committed by an admin client, or by a consumer without a
  subscription): each offset that long after its commit.
- A stable group of consumers: offsets of topics to which no member subscribes, that long after their commit.
- Offsets that were committed with their own retention time (OffsetCommit up to version 4): at that time.

A group without members whose last offset has expired is removed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import Any, Final

from storage_node.config.group_limits import Limits
from storage_node.groups.group import Group
from storage_node.groups.host import Groups
from storage_node.groups.offsets import EMPTY_SINCE, MEMBERS, GroupData
from storage_node.groups.values import CONSUMER, GroupState

__all__ = ["Expired", "OffsetExpiry", "expired"]

_log = logging.getLogger(__name__)

_TURN: Final = 200  # groups whose entries are written before the loop waits for the disk


@dataclass(frozen=True, slots=True)
class Expired:
    """The expired offsets of a group as (topic, partition, time of the commit), and the group's state at the check."""

    group: str
    offsets: tuple[tuple[str, int, int], ...]
    all_gone: bool
    """The group has no members and no other offsets."""
    row: list[Any] | None
    state: GroupState | None
    """The state of a group with members; None for a group without."""


def expired(name: str, data: GroupData, group: Group | None, now: int, retention: int) -> Expired | None:
    """Return what has expired of a group by `now`, None for nothing; times in milliseconds. Any thread may call it."""
    row, state = data.row, group.state if group is not None else None
    since: int | None = None
    subscribed: frozenset[str] = frozenset()
    if row is not None and row[1] is not None:
        if state is None and not row[MEMBERS]:
            since = row[EMPTY_SINCE] if len(row) > EMPTY_SINCE else None
        elif group is not None and state is GroupState.STABLE and row[1] == CONSUMER:
            topics = group.subscribed()
            if topics is None:
                return None
            subscribed = topics
        else:
            return None
    elif group is not None:
        return None
    offsets = data.offsets.copy()
    gone = tuple(
        (topic, partition, offset.timestamp)
        for (topic, partition), offset in offsets.items()
        if topic not in subscribed
        and (
            now >= offset.expires
            if offset.expires is not None
            else now - (offset.timestamp if since is None else since) >= retention
        )
    )
    empty = state is None and (row is None or not row[MEMBERS])
    all_gone = empty and len(gone) == len(offsets)
    if not gone and not (all_gone and row is not None):
        return None
    return Expired(name, gone, all_gone, row, state)


class OffsetExpiry:
    """Removes expired offsets periodically; on the listener's loop, except for the search, which a thread does."""

    def __init__(self, groups: Groups, limits: Limits) -> None:
        self._groups = groups
        self._limits = limits

    @staticmethod
    def now() -> int:
        """Return the wall-clock time, in milliseconds."""
        return time.time_ns() // 1_000_000

    async def run(self) -> None:
        """Remove expired offsets every offsets.retention.check.interval.ms."""
        while True:
            await asyncio.sleep(self._limits.retention_check)
            try:
                await self.expire(self.now())
            except Exception:
                _log.exception("removing expired offsets failed")

    async def expire(self, now: int) -> None:
        """Remove what has expired by `now` (milliseconds), and groups without members and offsets."""
        for turn, found in enumerate(await asyncio.to_thread(self._expired, now), 1):
            if self._is_still(found):
                if found.offsets:
                    self._groups.put(["e", found.group, [list(row) for row in found.offsets]])
                if found.all_gone:
                    self._groups.put(["g", found.group, None])
            if turn % _TURN == 0:
                await self._groups.drain()

    def _expired(self, now: int) -> list[Expired]:
        groups, retention = self._groups, round(self._limits.retention * 1000)
        look = ((name, data, groups.live(name)) for name, data in list(groups.data.items()))
        return [found for name, data, group in look if (found := expired(name, data, group, now, retention))]

    def _is_still(self, found: Expired) -> bool:
        """Return whether the group is unchanged: members may have joined, or another node coordinates it now."""
        data, group = self._groups.data.get(found.group), self._groups.live(found.group)
        same = (
            data is not None and data.row is found.row and (group.state if group is not None else None) is found.state
        )
        return same and self._groups.is_own(found.group)
