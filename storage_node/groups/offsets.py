"""What is kept of all groups: committed offsets and memberships, changed by entries that are JSON values.

An entry sets or removes; it never depends on what was there before, so that the entries of a file may be applied again
to a state that already has them, all of them in order.

| entry | what it does |
|---|---|
| `["o", group, [[topic, partition, offset, leader epoch, metadata, timestamp, topic id], ...]]` | offsets are set |
| `["x", group, [[topic, partition], ...]]` | offsets are removed |
| `["e", group, [[topic, partition, timestamp], ...]]` | offsets expire: removed where no later commit has come |
| `["g", group, membership]` | the membership is set (see `rows`), null removes it |
| `["d", group]` | the group is removed |
| `["t", [topic id, ...]]` | the offsets of deleted topics are removed, in all groups |
| `["a", group, membership, offsets]` | a group comes from another node: of two offsets the later commit holds |
| `["s", generation]` | this node has all its groups, for a cluster generation (see `handover`) |

Behind an offset's topic id may be when it expires, or null, and the host of the client that committed it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from sys import getsizeof, intern
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from storage_node.metadata import TopicImage

__all__ = [
    "LONGEST_ID",
    "NOT_SETTLED",
    "Entry",
    "GroupData",
    "GroupsState",
    "Offset",
    "offset_row",
    "replaced_ids",
    "weight_of",
]

Entry = list[Any]
NOT_SETTLED: Final = -1
MEMBERS: Final = 4
"""Where the members are in a membership's row."""
EMPTY_SINCE: Final = 5
"""Where a membership's row has the time, in milliseconds, at which it was written; earlier rows lack it."""

_HOST: Final = 3
"""Where a member has its host."""

LONGEST_ID: Final = 32_767
"""Bytes of a group id or member id: what Kafka's strings hold."""

_CHUNK: Final = 500  # offsets in one entry of a snapshot

# Bytes of memory that each thing takes, without its strings: what holds it, and its place in a dict.
_GROUP_WEIGHT: Final = 350
_OFFSET_WEIGHT: Final = 280
_MEMBER_WEIGHT: Final = 400


@dataclass(frozen=True, slots=True)
class Offset:
    """A committed offset; `timestamp` is the commit's, in milliseconds, `topic_id` that of the topic then.

    `expires` is the time, in milliseconds, that a commit of version 2 to 4 asked for; None: as configured. `host` is
    the address of the client that committed it, "" where that is not known.
    """

    offset: int
    leader_epoch: int
    metadata: str
    timestamp: int
    topic_id: str
    expires: int | None = None
    host: str = ""

    @property
    def weight(self) -> int:
        """About how many bytes of memory it takes, with its place in the group."""
        return _OFFSET_WEIGHT + (getsizeof(self.metadata) if self.metadata else 0)


def weight_of(name: str, row: list[Any] | None) -> int:
    """About how many bytes of memory a group takes besides its offsets: its id and its membership as a row."""
    return _GROUP_WEIGHT + getsizeof(name) + sum(_weights_of_members(row).values())


def _weights_of_members(row: list[Any] | None) -> Counter[str]:
    """About how many bytes of memory the members of a membership take, by their hosts."""
    found: Counter[str] = Counter()
    for member in row[MEMBERS] if row is not None else ():
        found[str(member[_HOST])] += _MEMBER_WEIGHT + sum(getsizeof(one) for one in member if isinstance(one, str))
    return found


def offset_row(topic: str, partition: int, offset: Offset) -> list[Any]:
    """An offset as it stands in an entry."""
    row = [
        topic,
        partition,
        offset.offset,
        offset.leader_epoch,
        offset.metadata,
        offset.timestamp,
        offset.topic_id,
    ]
    if offset.host:
        return [*row, offset.expires, offset.host]
    return row if offset.expires is None else [*row, offset.expires]


def _read(row: list[Any]) -> tuple[tuple[str, int], Offset]:
    topic, partition, offset, leader_epoch, metadata, timestamp, topic_id, *more = row
    expires, host = (*more, None, "")[:2] if len(more) != 1 else (more[0], "")
    # The names of topics are shared by all who have read them.
    key = intern(str(topic)), int(partition)
    return key, Offset(offset, leader_epoch, metadata, timestamp, intern(str(topic_id)), expires, intern(str(host)))


@dataclass(slots=True)
class GroupData:
    """One group: its offsets by (topic, partition), and its membership as a row (None: it never had members); `host` is
    the client's that made it.
    """

    offsets: dict[tuple[str, int], Offset] = field(default_factory=dict)
    row: list[Any] | None = None
    host: str = ""


class GroupsState:
    """All groups. One thread changes it; others may look (each look sees one entry whole or not at all, per group)."""

    def __init__(self) -> None:
        self.groups: dict[str, GroupData] = {}
        self.settled = NOT_SETTLED
        self.weight = 0
        """About how many bytes of memory all groups take."""
        self._by_host: Counter[str] = Counter()

    def weight_by(self, host: str) -> int:
        """About how many bytes of that a client's address accounts for: groups that it made, offsets that it committed
        last, members.
        """
        return self._by_host.get(host, 0)

    def apply(self, entry: Entry) -> None:
        """Raises ValueError, TypeError, IndexError for what is no entry; nothing has changed then."""
        match entry:
            case ["o", str(group), list(rows)]:
                self._set(group, dict(map(_read, rows)))
            case ["x", str(group), list(rows)]:
                self._remove(group, {(str(topic), int(partition)) for topic, partition in rows})
            case ["e", str(group), list(rows)]:
                self._expire(group, {(str(topic), int(partition)): int(upto) for topic, partition, upto in rows})
            case ["g", str(group), list(row)]:
                weight_of(group, row)  # (raises for what is no membership)
                self._set_row(group, row)
            case ["g", str(group), None]:
                if group in self.groups:
                    self._set_row(group, None)
                    self._drop_if_empty(group)
            case ["d", str(group)]:
                self._drop(group)
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

    def drop_unreachable(self) -> int:
        """Drop groups whose id, or a member's, no request or response can hold; returns how many.

        Earlier versions of this node accepted them.
        """
        gone = [name for name in self.groups if _too_long(name)]
        for name in gone:
            self._drop(name)
        for name, data in list(self.groups.items()):
            if data.row is not None and any(_too_long(member[0]) for member in data.row[MEMBERS]):
                self._set_row(name, None)
                self._drop_if_empty(name)
        return len(gone)

    def _charge(self, host: str, more: int) -> None:
        self.weight += more
        self._by_host[host] += more
        if not self._by_host[host]:
            del self._by_host[host]

    def _charge_offsets(self, offsets: Iterable[Offset], sign: int) -> None:
        for one in offsets:
            self._charge(one.host, sign * one.weight)

    def _charge_members(self, row: list[Any] | None, sign: int) -> None:
        for host, weight in _weights_of_members(row).items():
            self._charge(host, sign * weight)

    def _data(self, group: str, host: str) -> GroupData:
        data = self.groups.get(group)
        if data is None:
            data = self.groups[group] = GroupData(host=host)
            self._charge(host, weight_of(group, None))
        return data

    def _set_row(self, group: str, row: list[Any] | None) -> None:
        data = self._data(group, str(row[MEMBERS][0][_HOST]) if row is not None and row[MEMBERS] else "")
        self._charge_members(row, 1)
        self._charge_members(data.row, -1)
        data.row = row

    def _set(self, group: str, offsets: dict[tuple[str, int], Offset]) -> None:
        if offsets:
            known = self._data(group, next(iter(offsets.values())).host).offsets
            self._charge_offsets(offsets.values(), 1)
            self._charge_offsets([known[key] for key in offsets if key in known], -1)
            known.update(offsets)

    def _remove(self, group: str, keys: Iterable[tuple[str, int]]) -> None:
        data = self.groups.get(group)
        if data is not None:
            # A new dict in place of the old one: who looks at it is not disturbed.
            gone = set(keys)
            self._charge_offsets([data.offsets[key] for key in gone if key in data.offsets], -1)
            data.offsets = {key: offset for key, offset in data.offsets.items() if key not in gone}
            self._drop_if_empty(group)

    def _expire(self, group: str, upto: dict[tuple[str, int], int]) -> None:
        data = self.groups.get(group)
        if data is not None:
            known = data.offsets
            self._remove(group, [key for key, at in upto.items() if key in known and known[key].timestamp <= at])

    def _forget(self, ids: frozenset[str]) -> None:
        for name, data in list(self.groups.items()):
            keys = [key for key, offset in data.offsets.items() if offset.topic_id in ids]
            if keys:
                self._remove(name, keys)

    def _adopt(self, group: str, row: list[Any] | None, offsets: dict[tuple[str, int], Offset]) -> None:
        first = next((one.host for one in offsets.values()), "")
        known = self._data(group, first).offsets
        self._set(
            group,
            {
                key: offset
                for key, offset in offsets.items()
                if key not in known or known[key].timestamp <= offset.timestamp
            },
        )
        data = self.groups[group]
        self._set_row(group, data.row or row)
        self._drop_if_empty(group)

    def _drop_if_empty(self, group: str) -> None:
        data = self.groups[group]
        if not data.offsets and data.row is None:
            self._drop(group)

    def _drop(self, group: str) -> None:
        data = self.groups.pop(group, None)
        if data is not None:
            self._charge(data.host, -weight_of(group, None))
            self._charge_members(data.row, -1)
            self._charge_offsets(data.offsets.values(), -1)


def _too_long(id_: str) -> bool:
    return len(id_.encode("utf-8", "surrogatepass")) > LONGEST_ID


def entries_of(name: str, data: GroupData) -> Iterator[Entry]:
    """The entries that make one group."""
    if data.row is not None:
        yield ["g", name, data.row]
    rows = [offset_row(topic, partition, offset) for (topic, partition), offset in list(data.offsets.items())]
    for start in range(0, len(rows), _CHUNK):
        yield ["o", name, rows[start : start + _CHUNK]]


def replaced_ids(groups: dict[str, GroupData], topics: Mapping[str, TopicImage]) -> set[str]:
    """The ids of topics with offsets, in place of which there is another topic by that name. Any thread may call it."""
    return {
        offset.topic_id
        for data in list(groups.values())
        for (topic, _), offset in data.offsets.copy().items()
        if topic in topics and topics[topic].id != offset.topic_id
    }
