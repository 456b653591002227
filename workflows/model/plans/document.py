"""The JSON of kafka-reassign-partitions with `log_dirs` (KIP-113, KIP-455): its one strict reader, and its writer.

{"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2], "log_dirs": ["any", "/disk/b"]}]}.
A plan may have an object "options" beside "partitions" (`workflows.model.plans.options`), and a number "sla_seconds";
Kafka's own tools ignore both. Readers report all mistakes at once.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256 as _sha256
from typing import Any

from storage_node.model import fields
from workflows.model.calls import ReplicaMove
from workflows.model.move import parameter as move_parameter
from workflows.model.move.parameter import ANY
from workflows.model.plans import options, window
from workflows.model.plans.options import PlanOptions
from workflows.model.plans.problems import Decoded, Problems

VERSION = 1
#: The fields of a plan, and of a partition in it.
FIELDS = ("version", "partitions", "options", "sla_seconds")
ROW_FIELDS = ("topic", "partition", "replicas", "log_dirs")
#: A file with more partitions is rejected before its rows are read.
MAX_PARTITIONS = 200_000
_INT = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class PlannedPartition:
    """One partition of a reassignment: its replicas in order, and the log directory of each, or "any"."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    log_dirs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlanDocument:
    """What an operator submits: the partitions in the order of the file, and how to carry the plan out."""

    partitions: tuple[PlannedPartition, ...]
    options: PlanOptions = field(default_factory=PlanOptions)
    sla_seconds: float | None = None
    """The time from the plan's start within which the replicas should be in place."""

    def due(self, began: float) -> PlanOptions:
        """Return the options, with the deadline of a plan that begins then (epoch seconds)."""
        if self.sla_seconds is None:
            return self.options
        return replace(self.options, deadline=window.timestamp(began + self.sla_seconds))


def parse(text: str) -> PlanDocument:
    """Parse a plan. Raises PlanProblems with every mistake and its path, as `$.partitions[3].replicas[1]`."""
    return read(text)


def read(parameter: Any) -> PlanDocument:
    """Read a plan: the decoded JSON object, or a string that holds it. Raises PlanProblems."""
    problems = Problems()
    row = _root(parameter, problems, FIELDS)
    held = row.get("options")
    chosen = PlanOptions() if held is None else problems.read(options.read, held, "$.options")
    planned = _of_root(row, problems)
    sla = row.get("sla_seconds")
    seconds = None if sla is None else problems.read(move_parameter.seconds, sla, "$.sla_seconds")
    if seconds is not None and chosen is not None and chosen.deadline:
        problems.add("$.sla_seconds", "is a deadline beside $.options.deadline: remove one")
    problems.finish()
    return PlanDocument(planned, chosen or PlanOptions(), seconds)


def parse_reassignment(parameter: Any) -> tuple[PlannedPartition, ...]:
    """Parse {"version": 1, "partitions": [{"topic", "partition", "replicas": [...], "log_dirs": [...]}]} (KIP-113).

    The parameter is that object or a string that holds it as JSON. `log_dirs` is optional, "any" for each replica by
    default. A plan has at least one partition. Raises PlanProblems for anything else, also for unknown fields.
    """
    problems = Problems()
    planned = _of_root(_root(parameter, problems, ("version", "partitions")), problems)
    problems.finish()
    return planned


def parse_partitions(parameter: Any) -> tuple[PlannedPartition, ...]:
    """Parse one object {"topic", "partition", "replicas", "log_dirs"} or a list of them. Raises PlanProblems."""
    problems = Problems()
    if isinstance(parameter, Mapping):
        planned = _partitions([parameter], problems, lambda _: "$")
    else:
        planned = _rows(parameter, problems, "$")
    problems.finish()
    return planned


def to_text(document: PlanDocument) -> str:
    """Return the document as canonical JSON: one partition a line, in order of topic and partition.

    `log_dirs` is left out where each is "any", and an option where it has its default.
    """
    rows = [json.dumps(_row(each)) for each in sorted(document.partitions, key=lambda p: (p.topic, p.partition))]
    changed = {name: value for name, value in document.options.as_json().items() if value != _DEFAULTS[name]}
    more = f',\n "options": {json.dumps(changed)}' if changed else ""
    listed = ",\n  ".join(rows)
    return f'{{"version": {VERSION},\n "partitions": [\n  {listed}]{more}}}\n'


_DEFAULTS = PlanOptions().as_json()


def sha256(text: str) -> str:
    """Return the digest that an approval names: of the text's UTF-8, as `sha256sum` prints it."""
    return _sha256(text.encode()).hexdigest()


def lanes(planned: Collection[PlannedPartition]) -> dict[int, tuple[ReplicaMove, ...]]:
    """Return the moves of a plan by node, in order of topic and partition; "any" requests none."""
    moves: dict[int, list[ReplicaMove]] = {}
    for each in sorted(planned, key=lambda one: (one.topic, one.partition)):
        for node, directory in zip(each.replicas, each.log_dirs, strict=True):
            if directory != ANY:
                moves.setdefault(node, []).append(ReplicaMove(each.topic, each.partition, directory))
    return {node: tuple(rows) for node, rows in sorted(moves.items())}


def _row(each: PlannedPartition) -> dict[str, Any]:
    row: dict[str, Any] = {"topic": each.topic, "partition": each.partition, "replicas": list(each.replicas)}
    if any(path != ANY for path in each.log_dirs):
        row["log_dirs"] = list(each.log_dirs)
    return row


def _root(parameter: Any, problems: Problems, known: Collection[str]) -> Mapping[str, Any]:
    if isinstance(parameter, str):
        parameter = problems.read(move_parameter.loads, parameter, Decoded)
        problems.finish()
    row = problems.object(parameter, "$", known)
    if not isinstance(parameter, Mapping):
        problems.finish()
    return row


def _of_root(row: Mapping[str, Any], problems: Problems) -> tuple[PlannedPartition, ...]:
    if "version" not in row:
        problems.add("$.version", "is missing")
    else:
        version = problems.read(fields.a_number, row["version"], "$.version")
        if version is not None and version != VERSION:
            problems.add("$.version", f"is {version}, but only version {VERSION} is known")
    if "partitions" not in row:
        problems.add("$.partitions", "is missing")
        return ()
    return _rows(row["partitions"], problems, "$.partitions")


def _rows(value: Any, problems: Problems, path: str) -> tuple[PlannedPartition, ...]:
    rows: Sequence[Any] | None = problems.read(fields.a_list, value, path)
    if rows is None:
        return ()
    if not rows:
        problems.add(path, "is empty: there is nothing to do")
    if len(rows) > MAX_PARTITIONS:
        problems.add(path, f"has {len(rows)} entries, but must have at most {MAX_PARTITIONS}: split the plan")
        return ()
    return _partitions(rows, problems, lambda place: f"{path}[{place}]")


def _partitions(rows: Sequence[Any], problems: Problems, path_of: Any) -> tuple[PlannedPartition, ...]:
    planned: list[PlannedPartition] = []
    seen: dict[tuple[str, int], str] = {}
    for place, row in enumerate(rows):
        path = path_of(place)
        each = _partition(row, path, problems)
        if each is None:
            continue
        first = seen.setdefault((each.topic, each.partition), path)
        if first != path:
            problems.add(path, f"names {each.topic}-{each.partition} again, after {first}")
        planned.append(each)
    return tuple(planned)


def _partition(value: Any, path: str, problems: Problems) -> PlannedPartition | None:
    """Return a row, or None after recording mistakes in its topic, partition or replicas."""
    before = len(problems.found)
    row = problems.object(value, path, ROW_FIELDS, ("topic", "partition", "replicas"))
    topic = problems.read(move_parameter.topic_name, row["topic"], f"{path}.topic") if "topic" in row else None
    partition = (
        problems.read(fields.a_number, row["partition"], f"{path}.partition", 0, _INT) if "partition" in row else None
    )
    replicas = _replicas(row["replicas"], f"{path}.replicas", problems) if "replicas" in row else None
    held: tuple[str, ...] = ()
    if row.get("log_dirs") is not None:
        held = _log_dirs(row["log_dirs"], f"{path}.log_dirs", replicas, problems)
    if topic is None or partition is None:
        return None
    if len(problems.found) > before:
        # Its name still counts: a second row for the partition is one more mistake.
        return PlannedPartition(topic, partition, (), ())
    nodes = tuple(each for each in replicas or () if each is not None)
    return PlannedPartition(topic, partition, nodes, held or (ANY,) * len(nodes))


def _replicas(value: Any, path: str, problems: Problems) -> list[int | None] | None:
    nodes: Sequence[Any] | None = problems.read(fields.a_list, value, path)
    if nodes is None:
        return None
    if not nodes:
        problems.add(path, "is empty: a partition needs a replica")
    found: list[int | None] = []
    seen: dict[int, int] = {}
    for at, node in enumerate(nodes):
        number = problems.read(fields.a_number, node, f"{path}[{at}]", 0, _INT)
        if number is not None and seen.setdefault(number, at) != at:
            problems.add(f"{path}[{at}]", f"is {number} again: a node has at most one replica of a partition")
        found.append(number)
    return found


def _log_dirs(value: Any, path: str, replicas: Sequence[Any] | None, problems: Problems) -> tuple[str, ...]:
    paths: Sequence[Any] | None = problems.read(fields.a_list, value, path)
    if paths is None:
        return ()
    if replicas is not None and len(paths) != len(replicas):
        problems.add(path, f"has {len(paths)} entries for {len(replicas)} replicas")
    held = [
        problems.read(move_parameter.absolute, each, f"{path}[{at}]", any_allowed=True) for at, each in enumerate(paths)
    ]
    return tuple(each or ANY for each in held)
