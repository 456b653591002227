"""Throttle leases: a run holds throttles while its replicas are copied; then the controller restores the old values.

A lease names config values of nodes (KIP-73's rates, and the rate of moves between directories of KIP-113) and entries
of the topics' lists of throttled replicas. The controller sets them and records what it replaced, in one command.
Several runs may lease one config: the newest lease's value applies, then that of the newest remaining one, and after
the last the value from before the first. Leases may end in any order, and none changes a value that an operator has set
meanwhile. Pure.

The record is a row among the dynamic configs (`RECORD`), so that it travels with them: through continue-as-new, in the
images, and into a controller that is rebuilt from those.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from storage_node.model import fields
from workflows.model import names
from workflows.model.metadata.outcome import Change
from workflows.model.metadata.state import ClusterState
from workflows.model.throttles import LISTS, MOVE_RATE, RATES, parse

#: Kind and name of the row that holds the leases. Nodes keep it in their images and do not read it.
RECORD = ("lease", "throttles")


@dataclass(frozen=True, slots=True)
class _Value:
    """The leases on one config of one node: the value before the first (None: not set), and the value of each holder,
    the newest last.
    """

    before: str | None
    claims: tuple[tuple[str, str], ...]

    @staticmethod
    def of(text: str) -> _Value | None:
        """Read [before, [[holder, value]]]; None for anything else."""
        before, claims = _pair(text)
        if not (before is None or _is_text(before)) or not claims:
            return None
        if not all(_is_pair(each) and all(map(_is_text, each)) for each in claims):
            return None
        return _Value(before, tuple((holder, value) for holder, value in claims))

    @property
    def applies(self) -> str:
        return self.claims[-1][1]

    def without(self, holder: str) -> tuple[tuple[str, str], ...]:
        return tuple(each for each in self.claims if each[0] != holder)


@dataclass(frozen=True, slots=True)
class _Entries:
    """The leases on one list of one topic (by its id): each entry that a lease has added, with its holders."""

    topic_id: str
    holders: Mapping[str, tuple[str, ...]]

    @staticmethod
    def of(text: str) -> _Entries | None:
        """Read [topic id, [[entry, [holder]]]]; None for anything else."""
        topic_id, held = _pair(text)
        if not _is_text(topic_id) or not held:
            return None
        if not all(_is_pair(each) and _is_text(each[0]) and _are_texts(each[1]) for each in held):
            return None
        return _Entries(topic_id, {entry: tuple(holders) for entry, holders in held})

    def without(self, holder: str) -> dict[str, tuple[str, ...]]:
        return {entry: tuple(each for each in held if each != holder) for entry, held in self.holders.items()}


@dataclass(frozen=True, slots=True)
class _Record:
    """All leases. Unreadable rows are skipped: they may come from a node's image, which its disks may have damaged."""

    values: Mapping[tuple[str, str], _Value]  # by node and config
    entries: Mapping[tuple[str, str], _Entries]  # by topic and config

    @staticmethod
    def of(state: ClusterState) -> _Record:
        values: dict[tuple[str, str], _Value] = {}
        entries: dict[tuple[str, str], _Entries] = {}
        row = state.configs.get(RECORD)
        for name, text in row.items() if row is not None else ():
            kind, _, rest = name.partition("/")
            resource, _, key = rest.partition("/")
            if kind == "broker" and key in (*RATES, MOVE_RATE) and (value := _Value.of(text)) is not None:
                values[resource, key] = value
            elif kind == "topic" and key in LISTS and (listed := _Entries.of(text)) is not None:
                entries[resource, key] = listed
        return _Record(values, entries)

    def into(self, state: ClusterState) -> ClusterState:
        values = {
            f"broker/{node}/{key}": _text([each.before, list(map(list, each.claims))])
            for (node, key), each in self.values.items()
        } | {
            f"topic/{topic}/{key}": _text([each.topic_id, [[one, list(held)] for one, held in each.holders.items()]])
            for (topic, key), each in self.entries.items()
        }
        return state if values == state.configs.get(RECORD, {}) else state.with_configs(*RECORD, values)


def _pair(text: str) -> tuple[Any, list[Any]]:
    """Return the two parts of a row's value, the second a list; (None, []) for anything else."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None, []
    return (found[0], found[1]) if _is_pair(found) and isinstance(found[1], list) else (None, [])


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and fields.is_text(value)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_text, value))


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def holders(state: ClusterState) -> list[str]:
    """Return the holders of leases, in order of their names."""
    record = _Record.of(state)
    found = {holder for each in record.values.values() for holder, _ in each.claims}
    found |= {holder for each in record.entries.values() for held in each.holders.values() for holder in held}
    return sorted(found)


def run_of(holder: str) -> tuple[str, str] | None:
    """Return the workflow id and the run id of a holder; None if they are not ids that the server accepts."""
    workflow_id, _, run_id = holder.rpartition(" ")
    return (workflow_id, run_id) if names.is_workflow_id(workflow_id) and names.is_run_id(run_id) else None


# --- the commands


def hold(state: ClusterState, command: Mapping[str, Any], _new_id: Callable[[], str]) -> Change:
    """Apply {"holder", "topics", "nodes"}: set these values and add these entries, as a lease of `holder`.

    A holder's earlier claim to a config is replaced. An entry that an operator has listed, or a list that names all
    replicas, does not belong to the lease. Nodes and topics that do not exist are left out. Applied twice, the command
    changes nothing the second time.
    """
    holder = fields.a_string(fields.need(command, "holder", "$"), "$.holder")
    wanted = parse({key: command[key] for key in ("topics", "nodes") if key in command}, "$")
    record = _Record.of(state)
    values: dict[tuple[str, str], _Value] = {}
    for node, rates in wanted["nodes"].items():
        for key, rate in rates.items() if int(node) in state.nodes else ():
            now, known = _node_value(state, node, key), record.values.get((node, key))
            if known is not None and (holder, rate) in known.claims:
                continue
            if known is None or known.applies != now:  # The first lease, or an operator has set another value since.
                values[node, key] = _Value(now, ((holder, rate),))
            else:
                values[node, key] = replace(known, claims=(*known.without(holder), (holder, rate)))
    entries: dict[tuple[str, str], _Entries] = {}
    for name, lists in wanted["topics"].items():
        topic = state.topics.get(name)
        for key, requested in lists.items() if topic is not None else ():
            assert topic is not None
            listed, held = _items(topic.configs.get(key, "")), record.entries.get((name, key))
            mine = dict(held.holders) if held is not None and held.topic_id == topic.id else {}
            for entry in () if "*" in listed else requested:
                if entry in mine or entry not in listed:
                    mine[entry] = tuple(dict.fromkeys((*mine.get(entry, ()), holder)))
            if mine and (held is None or mine != held.holders):
                entries[name, key] = _Entries(topic.id, mine)
    # The record comes first: an image that is cut between the two then holds no value without its record.
    after = _Record({**record.values, **values}, {**record.entries, **entries}).into(state)
    for (node, key), each in values.items():
        after = _set(after, node, key, each.applies)
    for (name, key), each_list in entries.items():
        before = record.entries.get((name, key))
        known_before = before.holders if before is not None else {}
        listed = _items(after.topics[name].configs.get(key, ""))
        new = [one for one, by in each_list.holders.items() if by != known_before.get(one) and one not in listed]
        after = _listing(after, name, key, [*listed, *new])
    return _done(after)


def release(state: ClusterState, command: Mapping[str, Any], _new_id: Callable[[], str]) -> Change:
    """Apply {"holder", "nodes"?: [node]}: end the lease of `holder`, or its part for these nodes' values.

    A config without another lease gets its value from before the first one; one that an operator has changed since
    stays as it is. Applied twice, the command changes nothing the second time.
    """
    holder = fields.a_string(fields.need(command, "holder", "$"), "$.holder")
    nodes = command.get("nodes")
    only = (
        None if nodes is None else {str(fields.a_number(each, "$.nodes")) for each in fields.a_list(nodes, "$.nodes")}
    )
    record = _Record.of(state)
    values, entries = dict(record.values), dict(record.entries)
    after = state
    for (node, key), held in record.values.items():
        claims = held.without(holder)
        if claims == held.claims or (only is not None and node not in only):
            continue
        if _node_value(state, node, key) != held.applies:
            del values[node, key]  # An operator has set another value, which stays.
            continue
        after = _set(after, node, key, claims[-1][1] if claims else held.before)
        if claims:
            values[node, key] = replace(held, claims=claims)
        else:
            del values[node, key]
    for (name, key), listed in record.entries.items() if only is None else ():
        left = listed.without(holder)
        gone = {entry for entry, held_by in left.items() if not held_by}
        if not gone and left == listed.holders:
            continue
        topic = after.topics.get(name)
        if topic is not None and topic.id == listed.topic_id:
            after = _listing(
                after, name, key, [each for each in _items(topic.configs.get(key, "")) if each not in gone]
            )
        kept = {entry: held_by for entry, held_by in left.items() if held_by}
        if kept:
            entries[name, key] = replace(listed, holders=kept)
        else:
            del entries[name, key]
    return _done(_Record(values, entries).into(after))


def set_by_operator(state: ClusterState, node: str, keys: Iterable[str]) -> ClusterState:
    """Return the state after an operator has set these configs of a node: no lease changes them at its end, whichever
    value they have.
    """
    record = _Record.of(state)
    left = {key: each for key, each in record.values.items() if key[0] != node or key[1] not in keys}
    return state if len(left) == len(record.values) else replace(record, values=left).into(state)


def _done(after: ClusterState) -> Change:
    return Change(after, [{"version": after.version}])


def _node_value(state: ClusterState, node: str, key: str) -> str | None:
    known = state.configs.get(("broker", node))
    return None if known is None else known.get(key)


def _items(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def _set(state: ClusterState, node: str, key: str, value: str | None) -> ClusterState:
    known = state.configs.get(("broker", node), {})
    values = {name: each for name, each in known.items() if name != key}
    if value is not None:
        values[key] = value
    return state if values == known else state.with_configs("broker", node, values)


def _listing(state: ClusterState, name: str, key: str, listed: Sequence[str]) -> ClusterState:
    topic = state.topics[name]
    values = {each: value for each, value in topic.configs.items() if each != key}
    if listed:
        values[key] = ",".join(listed)
    same = _items(topic.configs.get(key, "")) == list(listed)
    return state if same else state.with_topics(replace(topic, configs=values))
