"""Throttles as leases: who holds which, what stood there before, and what has to be written next (KIP-73, KIP-113).

A holder is a run. Rates are configs of brokers; entries belong to the topics' lists of throttled replicas. Several
holders may hold one config: the newest one's value applies, and after the last one the value from before the first is
there again. A value that another client sets meanwhile is its own: it is neither replaced nor restored. Pure.

A broker returns its configs as far as it has applied the metadata log, so that a read may miss the latest writes. What
a read shows is therefore never taken for another client's, nor for the value from before, if it may be an earlier one
of our own; and a restored config is forgotten only when a read shows it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from storage_node.model import fields
from storage_node.model.fields import BadField
from workflows.model.plans.running import packing
from workflows.model.plans.running.keeper_results import (
    Claim,
    HeldEntryRow,
    HeldRateRow,
    Holding,
    ThrottleKeeperProgress,
)
from workflows.model.plans.values import MoveKind, PlannedMove
from workflows.model.throttles import LISTS, MOVE_RATE, RATES

LEADER_RATE, FOLLOWER_RATE = RATES
LEADER_LIST, FOLLOWER_LIST = LISTS
#: The entry of a list that stands for all replicas of the topic.
ALL = "*"
_LONGEST_NODE = 10  # digits
_LONGEST_RATE = 19  # digits
#: How many of its own values a lease remembers: a broker that is further behind has long lost its session.
MAX_OURS = 8

Key = tuple[str, str]
"""A broker's id or a topic's name, and the config."""


def rates_of(nodes: Iterable[int], between_brokers: int | None, between_directories: int | None) -> Holding:
    """Return the rates that a plan's options mean for its brokers."""
    row: dict[str, str] = {}
    if between_brokers is not None:
        row |= {LEADER_RATE: str(between_brokers), FOLLOWER_RATE: str(between_brokers)}
    if between_directories is not None:
        row |= {MOVE_RATE: str(between_directories)}
    return Holding({str(node): dict(row) for node in sorted(nodes)} if row else {})


def entries_of(moves: Iterable[PlannedMove]) -> Holding:
    """Return the throttled replicas of moves between brokers: all sources, and the added replicas (KIP-73)."""
    found: dict[str, dict[str, list[str]]] = {}
    for move in moves:
        added = [node for node in move.after if node not in move.before]
        if move.kind != MoveKind.REPLICAS or not added:
            continue
        lists = found.setdefault(move.partition.topic, {LEADER_LIST: [], FOLLOWER_LIST: []})
        lists[LEADER_LIST] += [f"{move.partition.partition}:{node}" for node in move.before]
        lists[FOLLOWER_LIST] += [f"{move.partition.partition}:{node}" for node in added]
    return Holding(entries=found)


def holding_of(value: Any, path: str = "$") -> Holding:
    """Read {"rates": {node: {config: value}}, "entries": {topic: {list: [partition:node]}}}. Raises BadField."""
    row = fields.an_object(value, path, ("rates", "entries"))
    rates = {
        a_node(node, f"{path}.rates"): {
            key: fields.a_string(each, f"{path}.rates.{node}.{key}")
            for key, each in fields.an_object(held, f"{path}.rates.{node}", (*RATES, MOVE_RATE)).items()
        }
        for node, held in fields.an_object(row.get("rates", {}), f"{path}.rates").items()
    }
    for node, held in rates.items():
        for key, each in held.items():
            if not (each.isascii() and each.isdecimal() and len(each) <= _LONGEST_RATE and 0 < int(each) < 1 << 63):
                raise BadField(f"{path}.rates.{node}.{key}", f"is {each!r}, but must be bytes per second above 0")
    entries = {
        fields.a_string(topic, f"{path}.entries"): {
            key: [_entry(each, f"{path}.entries.{topic}.{key}") for each in fields.a_list(listed, path)]
            for key, listed in fields.an_object(held, f"{path}.entries.{topic}", LISTS).items()
        }
        for topic, held in fields.an_object(row.get("entries", {}), f"{path}.entries").items()
    }
    return Holding(rates, entries)


def _entry(value: Any, path: str) -> str:
    entry = fields.a_string(value, path)
    partition, _, node = entry.partition(":")
    for part in (partition, node):
        if not (part.isascii() and part.isdecimal() and len(part) <= _LONGEST_NODE):
            raise BadField(path, f"is {entry!r}, but must be a partition and a broker, as 0:1")
    return entry


@dataclass(frozen=True)
class Current:
    """What the cluster has: configs by broker and by topic (missing: not set), and whom it could not ask."""

    rates: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    lists: Mapping[str, Mapping[str, list[str]]] = field(default_factory=dict)
    silent: tuple[str, ...] = ()
    """Brokers that did not respond; their configs are unknown."""


@dataclass(frozen=True, slots=True)
class HeldValue:
    """A config of a broker: the value before the first holder (None: not set), and the claims, the newest last.

    `written` is what was last written, None before that. `ours` are the values that a read may show because of this
    lease, also those whose write has not been confirmed: a broker that does not respond in time may have applied it.
    `theirs` says that another client has set another value since; `restored`, that the value from before is written.
    """

    before: str | None
    claims: tuple[tuple[str, str], ...]
    written: str | None = None
    theirs: bool = False
    ours: tuple[str, ...] = ()
    restored: bool = False

    def setting(self, value: str) -> HeldValue:
        """Return this one while `value` is being written."""
        return replace(self, ours=(*(each for each in self.ours if each != value), value)[-MAX_OURS:], restored=False)


@dataclass(frozen=True, slots=True)
class HeldEntry:
    """An entry of a topic's list that the first holder has added, and its holders.

    `tried`: its write was sent; `written`: and confirmed; `removed`: it was taken off the list again.
    """

    holders: tuple[str, ...]
    tried: bool = False
    written: bool = False
    removed: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """One write: `kind` is "broker" or "topic", `operation` SET, DELETE, APPEND or SUBTRACT."""

    kind: str
    name: str
    key: str
    operation: str
    value: str | None


@dataclass
class Leases:
    """All leases of a cluster. `known` are the configs whose value before is recorded."""

    holdings: dict[str, Holding] = field(default_factory=dict)
    values: dict[Key, HeldValue] = field(default_factory=dict)
    entries: dict[tuple[str, str, str], HeldEntry] = field(default_factory=dict)

    @property
    def idle(self) -> bool:
        """Return whether nothing is held, and nothing is left to restore."""
        return not self.holdings and not self.values and not self.entries

    @property
    def restoring(self) -> bool:
        """Return whether something is no longer held that no read has shown to be restored."""
        return any(not one.claims for one in self.values.values()) or any(
            not one.holders for one in self.entries.values()
        )

    @property
    def nodes(self) -> list[str]:
        """Return the brokers whose configs have to be read."""
        held = {node for holding in self.holdings.values() for node in holding.rates}
        return sorted(held | {node for node, _ in self.values}, key=int)

    @property
    def topics(self) -> list[str]:
        """Return the topics whose lists have to be read."""
        held = {topic for holding in self.holdings.values() for topic in holding.entries}
        return sorted(held | {topic for topic, _, _ in self.entries})

    def hold(self, holder: str, holding: Holding) -> None:
        """Note what a holder holds from now on, in place of what it held before."""
        self.holdings.pop(holder, None)
        self.holdings[holder] = holding

    def release(self, holder: str) -> None:
        """Note that a holder holds nothing any more."""
        self.holdings.pop(holder, None)

    def holders_of(self, node: str) -> list[str]:
        """Return the holders of rates of a broker."""
        return [holder for holder, holding in self.holdings.items() if node in holding.rates]

    def forget(self, node: str) -> dict[str, str | None]:
        """Give up what is to be restored on a broker; return the values from before by config (None: not set)."""
        places = [place for place in self.values if place[0] == node]
        return {place[1]: self.values.pop(place).before for place in places}

    def changes(
        self, now: Current, nodes: Collection[str] | None = None, topics: Collection[str] | None = None
    ) -> list[Change]:
        """Compare the leases with the cluster; return what has to be written, and note what stood there before.

        Configs of silent brokers stay as they are, until they respond. `nodes` and `topics` are those that were read
        (None: all): what has been held since then waits for the next read, since its config is not known yet.
        Call `written` with what was written.
        """
        silent = set(now.silent) if nodes is None else {*now.silent, *(set(self.nodes) - set(nodes))}
        unread = set() if topics is None else set(self.topics) - set(topics)
        return [*self._rates(now, silent), *self._lists(now, unread)]

    def _rates(self, now: Current, silent: Collection[str]) -> list[Change]:
        found: list[Change] = []
        claims: dict[Key, list[tuple[str, str]]] = {}
        for holder, holding in self.holdings.items():
            for node, row in holding.rates.items():
                for key, value in row.items():
                    claims.setdefault((node, key), []).append((holder, value))
        for place in self.values:
            claims.setdefault(place, [])
        for (node, key), wanted in sorted(claims.items()):
            if node in silent:
                continue
            current = now.rates.get(node, {}).get(key)
            one = self.values.get((node, key)) or HeldValue(current, ())
            foreign = bool(one.ours) and current not in (one.before, one.written, *one.ours)
            # A throttle that another client removes is set again; a value from before that it removes stays away.
            foreign = foreign and (current is not None or one.restored)
            if wanted and one.theirs and current is None:
                one = HeldValue(None, ())  # The other client has removed its value: the lease applies again.
            one = replace(one, claims=tuple(wanted), theirs=one.theirs or foreign)
            if not wanted and (one.theirs or not one.ours or (one.restored and current == one.before)):
                self.values.pop((node, key), None)
                continue
            if wanted and not one.theirs:
                value = wanted[-1][1]
                if current != value:
                    found.append(Change("broker", node, key, "SET", value))
                if current != value or not one.ours:
                    one = one.setting(value)
            elif not wanted and one.before is None:
                found.append(Change("broker", node, key, "DELETE", None))
            elif not wanted:
                found.append(Change("broker", node, key, "SET", one.before))
            self.values[node, key] = one
        return found

    def _lists(self, now: Current, unread: Collection[str]) -> list[Change]:
        holders: dict[tuple[str, str, str], tuple[str, ...]] = {}
        for holder, holding in self.holdings.items():
            for topic, lists in holding.entries.items():
                for key, listed in lists.items():
                    for entry in listed:
                        holders[topic, key, entry] = (*holders.get((topic, key, entry), ()), holder)
        append: dict[Key, list[str]] = {}
        subtract: dict[Key, list[str]] = {}
        for place in sorted({*holders, *self.entries}):
            topic, key, entry = place
            if topic in unread:
                continue
            there = now.lists.get(topic, {}).get(key, [])
            held, mine = holders.get(place, ()), self.entries.get(place)
            if held and mine is None and (entry in there or ALL in there):
                continue  # Another client throttles it already: it is not ours to remove.
            one = replace(mine or HeldEntry(held), holders=held)
            if held and entry not in there:
                append.setdefault((topic, key), []).append(entry)
                one = replace(one, tried=True, removed=False)
            elif held:
                one = replace(one, removed=False)
            elif not one.tried or (one.removed and entry not in there):
                self.entries.pop(place, None)
                continue
            else:
                subtract.setdefault((topic, key), []).append(entry)
            self.entries[place] = one
        return [
            *(Change("topic", topic, key, "APPEND", ",".join(each)) for (topic, key), each in sorted(append.items())),
            *(
                Change("topic", topic, key, "SUBTRACT", ",".join(each))
                for (topic, key), each in sorted(subtract.items())
            ),
        ]

    def written(self, changes: Iterable[Change], gone: Collection[str] = ()) -> None:
        """Note what was written, and which topics are `gone`: the controller does not know them any more.

        A broker that is behind lacks a new topic, too: its list of topics ends no lease.
        """
        for deleted in [each for each in self.entries if each[0] in gone]:
            del self.entries[deleted]
        for change in changes:
            if change.kind == "broker":
                place = (change.name, change.key)
                held = self.values.get(place)
                if held is not None:
                    self.values[place] = replace(held, written=change.value, restored=not held.claims)
                continue
            for entry in (change.value or "").split(","):
                spot = (change.name, change.key, entry)
                if spot in self.entries:
                    removed = change.operation == "SUBTRACT"
                    self.entries[spot] = replace(self.entries[spot], written=not removed, removed=removed)

    def as_json(self) -> dict[str, Any]:
        """Return the leases for the run that continues the keeper."""
        return {
            "holdings": {
                holder: {"rates": _plain(each.rates), "entries": _plain(each.entries)}
                for holder, each in self.holdings.items()
            },
            "values": [
                [
                    *(node, key, one.before, [list(claim) for claim in one.claims]),
                    *(one.written, one.theirs, list(one.ours), one.restored),
                ]
                for (node, key), one in self.values.items()
            ],
            "entries": [
                [*place, list(one.holders), one.tried, one.written, one.removed] for place, one in self.entries.items()
            ],
        }

    @staticmethod
    def of(value: Any, path: str = "$.leases") -> Leases:
        """Read `as_json`. Raises BadField."""
        row = fields.an_object(value, path, ("holdings", "values", "entries"))
        leases = Leases(
            {
                fields.a_string(holder, f"{path}.holdings"): holding_of(each, f"{path}.holdings.{holder}")
                for holder, each in fields.an_object(row.get("holdings", {}), f"{path}.holdings").items()
            }
        )
        for each, here in _rows(row, "values", path, 8):
            node, key = a_node(each[0], here), _one_of((*RATES, MOVE_RATE), each[1], here)
            claims = tuple((_text(pair[0], at), _text(pair[1], at)) for pair, at in _each(each[3], f"{here}[3]", 2))
            before, written = (None if one is None else fields.a_string(one, here) for one in (each[2], each[4]))
            ours = tuple(_text(one, here) for one in fields.a_list(each[6], here))
            flags = fields.a_flag(each[5], here), fields.a_flag(each[7], here)
            leases.values[node, key] = HeldValue(before, claims, written, flags[0], ours, flags[1])
        for each, here in _rows(row, "entries", path, 7):
            place = (_text(each[0], here), _one_of(LISTS, each[1], here), _text(each[2], here))
            holders = tuple(_text(holder, here) for holder in fields.a_list(each[3], here))
            leases.entries[place] = HeldEntry(holders, *(fields.a_flag(flag, here) for flag in each[4:]))
        return leases


@dataclass(frozen=True, slots=True)
class ThrottlesLeft:
    """Throttles at the end of a plan, each as "broker 1: leader.replication.throttled.rate=1000".

    `left` are those of the plan that are still set, `awaited` those of brokers that do not respond: the keeper restores
    them once they do. `found` are all that were read, whoever has set them.
    """

    left: tuple[str, ...] = ()
    awaited: tuple[str, ...] = ()
    found: tuple[str, ...] = ()


def left_by(holder: str, leases: Leases, now: Current) -> ThrottlesLeft:
    """Return what a plan that has released its throttles has left behind; `now` has what was read.

    What other runs hold stays, and what other clients have set.
    """
    held = {
        (node, key)
        for each, holding in leases.holdings.items()
        if each != holder
        for node, row in holding.rates.items()
        for key in row
    }
    found: list[str] = []
    awaited: list[str] = []
    for (node, key), one in sorted(leases.values.items()):
        if one.theirs or not one.ours or (node, key) in held:
            continue
        current = now.rates.get(node, {}).get(key)
        if node in now.silent:
            awaited.append(f"broker {node}: {key}={one.written}")
        elif node in now.rates and current not in (one.before, None):
            found.append(f"broker {node}: {key}={current}")
    others = {
        (topic, key, entry)
        for each, holding in leases.holdings.items()
        if not each.startswith(f"{holder}/")  # a lane of the plan
        for topic, lists in holding.entries.items()
        for key, listed in lists.items()
        for entry in listed
    }
    found += [
        f"topic {topic}: {key} lists {entry}"
        for topic, key, entry in sorted(leases.entries)
        if (topic, key, entry) not in others and entry in now.lists.get(topic, {}).get(key, ())
    ]
    return ThrottlesLeft(tuple(found), tuple(awaited), tuple(_shown(now)))


def _shown(now: Current) -> list[str]:
    rates = [f"broker {node}: {key}={value}" for node, row in now.rates.items() for key, value in sorted(row.items())]
    lists = [
        f"topic {topic}: {key}={','.join(entries)}"
        for topic, row in now.lists.items()
        for key, entries in sorted(row.items())
        if entries
    ]
    return sorted(rates) + sorted(lists)


def progress_of(leases: Leases, workflow_id: str, failed: Mapping[str, str]) -> ThrottleKeeperProgress:
    """Return what the keeper responds to the query `progress`."""
    return ThrottleKeeperProgress(
        workflow_id,
        dict(failed),
        dict(leases.holdings),
        [
            HeldRateRow(
                int(node),
                key,
                one.before,
                [Claim(*claim) for claim in one.claims],
                one.written,
                one.theirs,
                list(one.ours),
                one.restored,
            )
            for (node, key), one in leases.values.items()
        ],
        [
            HeldEntryRow(*place, list(one.holders), one.tried, one.written, one.removed)
            for place, one in leases.entries.items()
        ],
    )


def leases_in(progress: ThrottleKeeperProgress) -> Leases:
    """Return the leases that a response to the query `progress` has."""
    return Leases(
        dict(progress.holdings),
        {
            (str(row.broker), row.config): HeldValue(
                row.before,
                tuple((claim.holder, claim.value) for claim in row.claims),
                row.written,
                row.theirs,
                tuple(row.ours),
                row.restored,
            )
            for row in progress.rates
        },
        {
            (row.topic, row.config, row.entry): HeldEntry(tuple(row.holders), row.tried, row.written, row.removed)
            for row in progress.entries
        },
    )


def packed(leases: Leases) -> str:
    """Return the leases for the run that continues the keeper: thousands of entries fit into one payload."""
    return packing.pack(json.dumps(leases.as_json()))


def unpacked(value: Any, path: str) -> Leases:
    """Read `packed`. Raises BadField."""
    text = packing.unpack(fields.a_string(value, path))
    try:
        return Leases.of(json.loads(text), path)
    except (ValueError, RecursionError) as error:
        if isinstance(error, BadField):
            raise
        raise BadField(path, f"is not JSON: {error}") from error


def _text(value: Any, path: str) -> str:
    return fields.a_string(value, path)


def a_node(value: Any, path: str) -> str:
    """Read the id of a broker. Raises BadField."""
    node = fields.a_string(value, path)
    if not (node.isascii() and node.isdecimal() and len(node) <= _LONGEST_NODE):
        raise BadField(path, f"is {node!r}, but must be the id of a broker")
    return node


def _one_of(known: Sequence[str], value: Any, path: str) -> str:
    found = fields.a_string(value, path)
    if found not in known:
        raise BadField(path, f"is {found!r}, but must be one of {', '.join(known)}")
    return found


def _rows(row: Mapping[str, Any], name: str, path: str, length: int) -> Iterator[tuple[Sequence[Any], str]]:
    yield from _each(row.get(name, []), f"{path}.{name}", length)


def _each(value: Any, path: str, length: int) -> Iterator[tuple[Sequence[Any], str]]:
    """Yield the rows of a list with their paths; each has as many values."""
    for at, row in enumerate(fields.a_list(value, path)):
        here = f"{path}[{at}]"
        if len(fields.a_list(row, here)) != length:
            raise BadField(here, f"must have {length} values")
        yield row, here


def _plain(held: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: dict(row) for name, row in held.items()}
