"""The strict parser of MoveReplica's parameter, and readers of what operators type: sizes, directories, JSON.

They report every error as `BadField` with the path of the bad field in the input: `$[1].directory is missing`.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from storage_node.model import fields
from storage_node.model.fields import BadField
from workflows.model.calls import ReplicaMove
from workflows.model.metadata import topic_rules

#: The directory of a replica whose broker chooses it, or whose broker has not reported it.
ANY = "any"

#: The maximum number of replicas of one run: its rows must fit into one event.
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
#: The maximum digits of a size: a number with hundreds of digits is infinite as a float.
_DIGITS = 40
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)(?:/s)?")


def size(value: Any, path: str = "$") -> int:
    """Return the bytes of a number, or of a string like "20MB", "512 KiB" or "1.5GB/s", at least 1. Raises BadField."""
    if isinstance(value, str):
        found = _SIZE.fullmatch(value.strip())
        unit = _UNITS.get(found.group(2).upper()) if found else None
        if found is None or unit is None:
            raise BadField(path, f'is \'{value}\', which is not a size such as 20000000, "20MB" or "64MiB"')
        if len(found.group(1)) > _DIGITS:
            raise BadField(path, f"is '{value}', but must have at most {_DIGITS} digits")
        value = int(float(found.group(1)) * unit)
    return fields.a_number(value, path, 1)


def absolute(value: Any, path: str, *, any_allowed: bool) -> str:
    """Return a log directory: a normalised absolute path, or "any" if that is allowed. Raises BadField."""
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
class ParsedMoves:
    """MoveReplica's parameter: replicas of one node. `throttle` is in bytes/s, `sla_seconds` from the run's start; both
    may be None.
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


def parse_moves(parameter: Any) -> ParsedMoves:
    """Parse MoveReplica's parameter: one object or a list of objects, or a string that holds either as JSON.

    Fields: topic, partition, node, directory; optional throttle (bytes/s or a size), sla_seconds (alias
    deadline_seconds), claim, generation. All entries of a list must have the same node, and those with a throttle or an
    SLA the same one. Raises BadField.
    """
    if isinstance(parameter, str):
        parameter = loads(parameter)
    single = isinstance(parameter, Mapping)
    entries = [parameter] if single else fields.a_list(parameter, "$")
    if not 1 <= len(entries) <= MAX_REPLICAS:
        raise BadField("$", f"has {len(entries)} entries, but must have 1 to {MAX_REPLICAS}")
    return _moves(entries, single)


def _moves(entries: Any, single: bool) -> ParsedMoves:
    replicas: list[ReplicaMove] = []
    seen: dict[tuple[str, int], str] = {}
    shared: dict[str, tuple[str, Any]] = {}
    for place, entry in enumerate(entries):
        path = "$" if single else f"$[{place}]"
        row = fields.an_object(entry, path, _MOVE_FIELDS)
        topic = topic_name(fields.need(row, "topic", path), f"{path}.topic")
        partition = fields.a_number(fields.need(row, "partition", path), f"{path}.partition", 0, _INT)
        if (topic, partition) in seen:
            raise BadField(path, f"names {topic}-{partition} again, after {seen[topic, partition]}")
        seen[topic, partition] = path
        _agree(shared, "node", fields.a_number(fields.need(row, "node", path), f"{path}.node", 0, _INT), path)
        if row.get("throttle") is not None:
            _agree(shared, "throttle", size(row["throttle"], f"{path}.throttle"), path)
        for name in ("sla_seconds", "deadline_seconds"):
            if row.get(name) is not None:
                _agree(shared, "sla_seconds", seconds(row[name], f"{path}.{name}"), path)
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
    return ParsedMoves(values["node"], tuple(replicas), values.get("throttle"), values.get("sla_seconds"))


def topic_name(value: Any, path: str) -> str:
    """Return a valid topic name. Raises BadField."""
    name = fields.a_string(value, path)
    if problem := topic_rules.name_problem(name):
        raise BadField(path, f"is not a valid topic name: {problem}")
    return name


def _agree(shared: dict[str, tuple[str, Any]], name: str, value: Any, path: str) -> None:
    """Record a value of the whole run; raises BadField if an earlier entry has another one."""
    where, known = shared.setdefault(name, (path, value))
    if known != value:
        raise BadField(f"{path}.{name}", f"is {value}, but {where}.{name} is {known}: one run has one {name}")


def seconds(value: Any, path: str) -> float:
    """Read an SLA. Raises BadField."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 10**9:
        raise BadField(path, f"must be a number of seconds above 0, not {fields.told(value)}")
    return float(value)


def no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields of a JSON object that has none twice. Raises BadField."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise BadField("$", f"has the field '{name}' twice in one object")
        found[name] = value
    return found


def loads(text: str, to_object: Callable[[list[tuple[str, Any]]], dict[str, Any]] = no_duplicates) -> Any:
    """Decode JSON; `to_object` makes its objects, by default those without a field twice. Raises BadField."""
    try:
        return json.loads(text, object_pairs_hook=to_object)
    except (ValueError, RecursionError) as problem:  # Python raises ValueError also for more than 4,300 digits.
        if isinstance(problem, BadField):
            raise
        raise BadField("$", f"is not JSON: {problem}") from problem
