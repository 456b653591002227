"""What is kept of all groups: committed offsets and memberships, changed by entries that are JSON values.

An entry sets or removes; it never depends on what was there before, so that the entries of a file may be applied again
to a state that already has them, all of them in order.

| entry | what it does |
|---|---|
| `["o", group, [[topic, partition, offset, leader epoch, metadata, timestamp, topic id], ...]]` | offsets are set |
| `["x", group, [[topic, partition], ...]]` | offsets are removed |
| `["g", group, membership]` | the membership is set (see `rows`), null removes it |
| `["d", group]` | the group is removed |
| `["t", [topic id, ...]]` | the offsets of deleted topics are removed, in all groups |
| `["a", group, membership, offsets]` | a group comes from another node: of two offsets the later commit holds |
| `["s", generation]` | this node has all its groups, for a cluster generation (see `handover`) |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = ["NOT_SETTLED", "Entry", "GroupData", "GroupsState", "Offset", "offset_row"]

Entry = list[Any]
NOT_SETTLED: Final = -1

_CHUNK: Final = 500  # offsets in one entry of a snapshot


@dataclass(frozen=True, slots=True)
class Offset:
    """A committed offset; `timestamp` is the commit's, in milliseconds, `topic_id` that of the topic then."""

    offset: int
    leader_epoch: int
    metadata: str
    timestamp: int
    topic_id: str


def offset_row(topic: str, partition: int, offset: Offset) -> list[Any]:
    """An offset as it stands in an entry."""
    return [
        topic,
        partition,
        offset.offset,
        offset.leader_epoch,
        offset.metadata,
        offset.timestamp,
        offset.topic_id,
    ]


def _read(row: list[Any]) -> tuple[tuple[str, int], Offset]:
    topic, partition, *rest = row
    return (str(topic), int(partition)), Offset(*rest)


@dataclass(slots=True)
class GroupData:
    """One group: its offsets by (topic, partition), and its membership as a row (None: it never had members)."""

    offsets: dict[tuple[str, int], Offset] = field(default_factory=dict)
    row: list[Any] | None = None


class GroupsState:
    """All groups. One thread changes it; others may look (each look sees one entry whole or not at all, per group)."""

    def __init__(self) -> None:
        self.groups: dict[str, GroupData] = {}
        self.settled = NOT_SETTLED

    def apply(self, entry: Entry) -> None:
        """Raises ValueError, TypeError, IndexError for what is no entry; nothing has changed then."""
        match entry:
            case ["o", str(group), list(rows)]:
                self._set(group, dict(map(_read, rows)))
            case ["x", str(group), list(rows)]:
                self._remove(group, {(str(topic), int(partition)) for topic, partition in rows})
            case ["g", str(group), list(row)]:
                self._data(group).row = row
            case ["g", str(group), None]:
                if group in self.groups:
                    self.groups[group].row = None
                    self._drop_if_empty(group)
            case ["d", str(group)]:
                self.groups.pop(group, None)
            case ["t", list(ids)]:
                self._forget(frozenset(ids))
            case ["a", str(group), row, list(rows)]:
                self._adopt(group, row, dict(map(_read, rows)))
            case ["s", int(generation)]:
                self.settled = generation
            case _:
                raise ValueError(f"not an entry: {entry!r:.100}")

    def entries(self) -> Iterator[Entry]:
        """Entries that make this state from an empty one."""
        for name, data in list(self.groups.items()):
            yield from entries_of(name, data)
        if self.settled != NOT_SETTLED:
            yield ["s", self.settled]

    def _data(self, group: str) -> GroupData:
        return self.groups.setdefault(group, GroupData())

    def _set(self, group: str, offsets: dict[tuple[str, int], Offset]) -> None:
        if offsets:
            self._data(group).offsets.update(offsets)

    def _remove(self, group: str, keys: Iterable[tuple[str, int]]) -> None:
        data = self.groups.get(group)
        if data is not None:
            # A new dict in place of the old one: who looks at it is not disturbed.
            gone = set(keys)
            data.offsets = {key: offset for key, offset in data.offsets.items() if key not in gone}
            self._drop_if_empty(group)

    def _forget(self, ids: frozenset[str]) -> None:
        for name, data in list(self.groups.items()):
            keys = [key for key, offset in data.offsets.items() if offset.topic_id in ids]
            if keys:
                self._remove(name, keys)

    def _adopt(self, group: str, row: list[Any] | None, offsets: dict[tuple[str, int], Offset]) -> None:
        data = self._data(group)
        for key, offset in offsets.items():
            known = data.offsets.get(key)
            if known is None or known.timestamp <= offset.timestamp:
                data.offsets[key] = offset
        data.row = data.row or row
        self._drop_if_empty(group)

    def _drop_if_empty(self, group: str) -> None:
        data = self.groups[group]
        if not data.offsets and data.row is None:
            del self.groups[group]


def entries_of(name: str, data: GroupData) -> Iterator[Entry]:
    """The entries that make one group."""
    if data.row is not None:
        yield ["g", name, data.row]
    rows = [offset_row(topic, partition, offset) for (topic, partition), offset in list(data.offsets.items())]
    for start in range(0, len(rows), _CHUNK):
        yield ["o", name, rows[start : start + _CHUNK]]
