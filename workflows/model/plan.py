"""What people type, parsed strictly: MoveReplica's parameter, and the JSON of kafka-reassign-partitions with `log_dirs`
(KIP-113).

Everything wrong is reported as `BadField` with the path of the bad field, the way it was typed: `$[1].directory is
missing`.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workflows.model import fields, topic_rules
from workflows.model.calls import ReplicaMove
from workflows.model.fields import BadField

ANY = "any"
#: One run moves at most so many replicas: its rows must fit into one event.
MAX_REPLICAS = 1_000
_INT = (1 << 31) - 1
_LONGEST_PATH = 4_096

_UNITS = {"": 1, "B": 1, "KB": 1000, "MB": 1000**2, "GB": 1000**3, "TB": 1000**4}
_UNITS |= {
    "KIB": 1 << 10,
    "MIB": 1 << 20,
    "GIB": 1 << 30,
    "TIB": 1 << 40,
    "K": 1000,
    "M": 1000**2,
    "G": 1000**3,
    "T": 1000**4,
}
#: More digits than any size has: a number of hundreds is infinite as a float.
_DIGITS = 40
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)(?:/s)?")


def size(value: Any, path: str = "$") -> int:
    """Bytes of a number, or of a string like "20MB", "512 KiB" or "1.5GB/s". Raises BadField; at least 1 byte."""
    if isinstance(value, str):
        found = _SIZE.fullmatch(value.strip())
        unit = _UNITS.get(found.group(2).upper()) if found else None
        if found is None or unit is None:
            raise BadField(path, f'is \'{value}\', which is not a size such as 20000000, "20MB" or "64MiB"')
        if len(found.group(1)) > _DIGITS:
            raise BadField(path, f"is '{value}', which is more than any disk holds")
        value = int(float(found.group(1)) * unit)
    return fields.a_number(value, path, 1)


def absolute(value: Any, path: str, *, any_allowed: bool) -> str:
    """A log directory: an absolute path, normalised, or where it is allowed "any". Raises BadField."""
    text = fields.a_string(value, path)
    if text == ANY and any_allowed:
        return ANY
    if len(text) > _LONGEST_PATH:
        raise BadField(path, f"has {len(text)} characters; a path has at most {_LONGEST_PATH}")
    if not text.startswith("/") or "\0" in text:
        raise BadField(
            path, f"is '{text}', but must be {'any or ' if any_allowed else ''}an absolute path that begins with '/'"
        )
    return posixpath.normpath("/" + text.lstrip("/"))


@dataclass(frozen=True, slots=True)
class MovePlan:
    """MoveReplica's parameter: replicas of one node. `throttle` in bytes/s or None; `sla_seconds` from the start or
    None.
    """

    node: int
    replicas: tuple[ReplicaMove, ...]
    throttle: int | None = None
    sla_seconds: float | None = None


_MOVE_FIELDS = (
    "topic",
    "partition",
    "node",
    "directory",
    "throttle",
    "deadline_seconds",
    "sla_seconds",
    "claim",
    "generation",
)


def parse_moves(parameter: Any) -> MovePlan:
    """Parse MoveReplica's parameter: one object or a list of objects, or a string that holds either as JSON.

    Fields: topic, partition, node, directory; optional throttle (bytes/s or a size), sla_seconds (alias
    deadline_seconds), claim, generation. A list has the same node throughout, and one throttle and SLA: those of the
    entries that give them, which must agree. Raises BadField.
    """
    if isinstance(parameter, str):
        parameter = loads(parameter)
    single = isinstance(parameter, Mapping)
    entries = [parameter] if single else fields.a_list(parameter, "$")
    if not 1 <= len(entries) <= MAX_REPLICAS:
        raise BadField("$", f"has {len(entries)} entries, but must have 1 to {MAX_REPLICAS}")
    return _moves(entries, single)


def _moves(entries: Any, single: bool) -> MovePlan:
    replicas: list[ReplicaMove] = []
    seen: dict[tuple[str, int], str] = {}
    shared: dict[str, tuple[str, Any]] = {}
    for place, entry in enumerate(entries):
        path = "$" if single else f"$[{place}]"
        row = fields.an_object(entry, path, _MOVE_FIELDS)
        topic = _topic(fields.need(row, "topic", path), f"{path}.topic")
        partition = fields.a_number(fields.need(row, "partition", path), f"{path}.partition", 0, _INT)
        if (topic, partition) in seen:
            raise BadField(path, f"names {topic}-{partition} again, after {seen[topic, partition]}")
        seen[topic, partition] = path
        _agree(shared, "node", fields.a_number(fields.need(row, "node", path), f"{path}.node", 0, _INT), path)
        if row.get("throttle") is not None:
            _agree(shared, "throttle", size(row["throttle"], f"{path}.throttle"), path)
        for name in ("sla_seconds", "deadline_seconds"):
            if row.get(name) is not None:
                _agree(shared, "sla_seconds", _seconds(row[name], f"{path}.{name}"), path)
        replicas.append(
            ReplicaMove(
                topic,
                partition,
                absolute(fields.need(row, "directory", path), f"{path}.directory", any_allowed=False),
                fields.a_number(row.get("claim", 0), f"{path}.claim"),
                fields.a_number(row.get("generation", 0), f"{path}.generation"),
            )
        )
    values = {name: value for name, (_, value) in shared.items()}
    return MovePlan(values["node"], tuple(replicas), values.get("throttle"), values.get("sla_seconds"))


def _topic(value: Any, path: str) -> str:
    name = fields.a_string(value, path)
    if problem := topic_rules.name_problem(name):
        raise BadField(path, f"is no topic's name: {problem}")
    return name


def _agree(shared: dict[str, tuple[str, Any]], name: str, value: Any, path: str) -> None:
    """One value for the whole run: every entry that gives one must give the same."""
    where, known = shared.setdefault(name, (path, value))
    if known != value:
        raise BadField(f"{path}.{name}", f"is {value}, but {where}.{name} is {known}: one run has one {name}")


def _seconds(value: Any, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 10**9:
        raise BadField(path, "must be a number of seconds above 0")
    return float(value)


def loads(text: str) -> Any:
    """JSON in which no object has a field twice. Raises BadField."""

    def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in pairs:
            if name in found:
                raise BadField("$", f"has the field '{name}' twice in one object")
            found[name] = value
        return found

    try:
        return json.loads(text, object_pairs_hook=no_duplicates)
    except (ValueError, RecursionError) as problem:  # (ValueError: also a number of more than 4,300 digits)
        if isinstance(problem, BadField):
            raise
        raise BadField("$", f"is not JSON: {problem}") from problem


@dataclass(frozen=True, slots=True)
class PlannedPartition:
    """One partition of a reassignment: its replicas in order, and for each "any" or an absolute path."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    log_dirs: tuple[str, ...]


def parse_reassignment(parameter: Any) -> tuple[PlannedPartition, ...]:
    """Parse {"version": 1, "partitions": [{"topic", "partition", "replicas": [...], "log_dirs": [...]}]} (KIP-113).

    The parameter is that object or a string that holds it as JSON. `log_dirs` may be missing: then it is "any" for each
    replica. A plan has at least one partition. Raises BadField for anything else, unknown fields included.
    """
    if isinstance(parameter, str):
        parameter = loads(parameter)
    plan = fields.an_object(parameter, "$", ("version", "partitions"))
    version = fields.a_number(fields.need(plan, "version", "$"), "$.version")
    if version != 1:
        raise BadField("$.version", f"is {version}, but only version 1 is known")
    rows = fields.a_list(fields.need(plan, "partitions", "$"), "$.partitions")
    if not rows:
        raise BadField("$.partitions", "is empty: there is nothing to do")
    return _partitions(rows, "$.partitions")


def parse_partitions(parameter: Any) -> tuple[PlannedPartition, ...]:
    """Parse one object {"topic", "partition", "replicas", "log_dirs"} or a list of them. Raises BadField."""
    if isinstance(parameter, Mapping):
        return (_partition(parameter, "$"),)
    rows = fields.a_list(parameter, "$")
    if not rows:
        raise BadField("$", "is empty: there is nothing to do")
    return _partitions(rows, "$")


def _partitions(rows: Sequence[Any], path: str) -> tuple[PlannedPartition, ...]:
    planned = tuple(_partition(row, f"{path}[{place}]") for place, row in enumerate(rows))
    seen: dict[tuple[str, int], int] = {}
    for place, each in enumerate(planned):
        first = seen.setdefault((each.topic, each.partition), place)
        if first != place:
            raise BadField(f"{path}[{place}]", f"names {each.topic}-{each.partition} again, after {path}[{first}]")
    return planned


def _partition(value: Any, path: str) -> PlannedPartition:
    row = fields.an_object(value, path, ("topic", "partition", "replicas", "log_dirs"))
    topic = _topic(fields.need(row, "topic", path), f"{path}.topic")
    partition = fields.a_number(fields.need(row, "partition", path), f"{path}.partition", 0, _INT)
    nodes = fields.a_list(fields.need(row, "replicas", path), f"{path}.replicas")
    replicas = tuple(fields.a_number(node, f"{path}.replicas[{at}]", 0, _INT) for at, node in enumerate(nodes))
    if not replicas:
        raise BadField(f"{path}.replicas", "is empty: a partition needs a replica")
    _no_repeats(replicas, f"{path}.replicas")
    if row.get("log_dirs") is None:
        return PlannedPartition(topic, partition, replicas, (ANY,) * len(replicas))
    paths = fields.a_list(row["log_dirs"], f"{path}.log_dirs")
    if len(paths) != len(replicas):
        raise BadField(f"{path}.log_dirs", f"has {len(paths)} entries for {len(replicas)} replicas")
    held = tuple(absolute(each, f"{path}.log_dirs[{at}]", any_allowed=True) for at, each in enumerate(paths))
    return PlannedPartition(topic, partition, replicas, held)


def _no_repeats(values: Collection[int], path: str) -> None:
    seen: set[int] = set()
    for at, value in enumerate(values):
        if value in seen:
            raise BadField(f"{path}[{at}]", f"is {value} again: a node holds one replica of a partition")
        seen.add(value)


def lanes(planned: Collection[PlannedPartition]) -> dict[int, tuple[ReplicaMove, ...]]:
    """The moves that a plan asks for, by node, in order of topic and partition; "any" asks for none."""
    moves: dict[int, list[ReplicaMove]] = {}
    for each in sorted(planned, key=lambda one: (one.topic, one.partition)):
        for node, directory in zip(each.replicas, each.log_dirs, strict=True):
            if directory != ANY:
                moves.setdefault(node, []).append(ReplicaMove(each.topic, each.partition, directory))
    return {node: tuple(rows) for node, rows in sorted(moves.items())}
