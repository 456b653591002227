"""The state of all groups: committed offsets and memberships, which entries change. An entry is a JSON value.

An entry sets or removes, independently of the state before, so that applying the entries of a file again, in order, to
a state that has them does not change it.

| entry | what it does |
|---|---|
| `["o", group, [[topic, partition, offset, leader epoch, metadata, timestamp, topic id], ...]]` | offsets are set |
| `["x", group, [[topic, partition], ...]]` | offsets are removed |
| `["e", group, [[topic, partition, timestamp], ...]]` | offsets expire: removed unless there is a later commit |
| `["g", group, membership]` | the membership is set (see `rows`), null removes it |
| `["d", group]` | the group is removed |
| `["t", [topic id, ...]]` | the offsets of deleted topics are removed, in all groups |
| `["a", group, membership, offsets]` | a group is adopted from another node: of two offsets the later commit counts |
| `["s", generation]` | this node has all its groups, for a cluster generation (see `handover`) |

An offset's topic id may be followed by the time of its expiry, or null, and the host of the client that committed it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from sys import getsizeof, intern
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from storage_node.model.metadata import TopicImage

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
"""The index of the members in a membership's row."""
EMPTY_SINCE: Final = 5
"""The index of the time, in milliseconds, at which a membership's row was written; older rows lack it."""

_HOST: Final = 3
"""The index of the host in a member's row."""

LONGEST_ID: Final = 32_767
"""Bytes of a group id or member id: the longest of Kafka's strings."""

_CHUNK: Final = 500  # offsets in one entry of a snapshot

# Bytes of memory that each object takes without its strings, with its place in a dict.
_GROUP_WEIGHT: Final = 350
_OFFSET_WEIGHT: Final = 280
_MEMBER_WEIGHT: Final = 400


@dataclass(frozen=True, slots=True)
class Offset:
    """A committed offset; `timestamp`: of the commit, in milliseconds; `topic_id`: of the topic at the commit.

    `expires`: the time, in milliseconds, of a commit of version 2 to 4 with a retention time; None: as configured.
    `host`: the address of the client that committed it, "" if unknown.
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
        """About how many bytes of memory the offset takes."""
        return _OFFSET_WEIGHT + (getsizeof(self.metadata) if self.metadata else 0)


def weight_of(name: str, row: list[Any] | None) -> int:
    """Estimate the bytes of memory of a group without its offsets: of its id and its membership's row."""
    return _GROUP_WEIGHT + getsizeof(name) + sum(_weights_of_members(row).values())


def _weights_of_members(row: list[Any] | None) -> Counter[str]:
    """Estimate the bytes of memory of a membership's members, by their hosts."""
    found: Counter[str] = Counter()
    for member in row[MEMBERS] if row is not None else ():
        found[str(member[_HOST])] += _MEMBER_WEIGHT + sum(getsizeof(one) for one in member if isinstance(one, str))
    return found


def offset_row(topic: str, partition: int, offset: Offset) -> list[Any]:
    """Return an offset's row in an entry."""
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
    # Interned, since many groups have offsets of the same topics.
    key = intern(str(topic)), int(partition)
    return key, Offset(offset, leader_epoch, metadata, timestamp, intern(str(topic_id)), expires, intern(str(host)))


@dataclass(slots=True)
class GroupData:
    """One group: its offsets by (topic, partition), and its membership as a row (None: it never had members).

    `host`: of the client that created it.
    """

    offsets: dict[tuple[str, int], Offset] = field(default_factory=dict)
    row: list[Any] | None = None
    host: str = ""


class GroupsState:
    """All groups. One thread changes them; others may read, and per group an entry is visible as a whole or not."""

    def __init__(self) -> None:
        self.groups: dict[str, GroupData] = {}
        self.settled = NOT_SETTLED
        self.weight = 0
        """About how many bytes of memory all groups take."""
        self._by_host: Counter[str] = Counter()

    def weight_by(self, host: str) -> int:
        """Estimate the bytes of memory of a client's address: groups that it created, offsets that it committed last,
        members.
        """
        return self._by_host.get(host, 0)

    def apply(self, entry: Entry) -> None:
        """Apply an entry; raises ValueError, TypeError, IndexError, without a change, if it is not valid."""
        match entry:
            case ["o", str(group), list(rows)]:
                self._set(group, dict(map(_read, rows)))
            case ["x", str(group), list(rows)]:
                self._remove(group, {(str(topic), int(partition)) for topic, partition in rows})
            case ["e", str(group), list(rows)]:
                self._expire(group, {(str(topic), int(partition)): int(upto) for topic, partition, upto in rows})
            case ["g", str(group), list(row)]:
                weight_of(group, row)  # (raises if it is not a valid membership)
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
        """Return the entries that create this state from an empty one."""
        for name, data in list(self.groups.items()):
            yield from entries_of(name, data)
        if self.settled != NOT_SETTLED:
            yield ["s", self.settled]

    def drop_unreachable(self) -> int:
        """Drop groups with an id, or a member's id, that no request or response can hold; returns how many.

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
            # A new dict: another thread may be iterating over the old one.
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
    """Return the entries that create one group."""
    if data.row is not None:
        yield ["g", name, data.row]
    rows = [offset_row(topic, partition, offset) for (topic, partition), offset in list(data.offsets.items())]
    for start in range(0, len(rows), _CHUNK):
        yield ["o", name, rows[start : start + _CHUNK]]


def replaced_ids(groups: dict[str, GroupData], topics: Mapping[str, TopicImage]) -> set[str]:
    """Return the ids of topics with offsets that another topic with the same name has replaced.

    Any thread may call it.
    """
    return {
        offset.topic_id
        for data in list(groups.values())
        for (topic, _), offset in data.offsets.copy().items()
        if topic in topics and topics[topic].id != offset.topic_id
    }
