"""The parameter of a lane's run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from storage_node.model import fields
from storage_node.model.fields import BadField
from storage_node.model.ids import NO_LEADER
from workflows.model import names
from workflows.model.plans.running.calls import MoveSpec
from workflows.model.plans.values import MoveKind

_NEEDED = ("kind", "topic", "partition", "size")
_FIELDS = tuple(MoveSpec.__dataclass_fields__)
MOST_MOVES = 1_000
LONGEST_TOPIC = 249
_INT = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class LaneRequest:
    """The moves of a lane of a plan, by its workflow id. `throttled`: their replicas are listed as throttled."""

    cluster: str
    plan: str
    number: int
    moves: tuple[MoveSpec, ...]
    throttled: bool = False
    searchable: bool = False
    """Whether the server knows the search attributes."""

    def as_json(self) -> dict[str, Any]:
        """Return the parameter that `parse` reads."""
        return {
            "version": 1,
            "cluster": self.cluster,
            "plan": self.plan,
            "number": self.number,
            "moves": [spec.row() for spec in self.moves],
            "throttled": self.throttled,
        } | ({"searchable": True} if self.searchable else {})


def parse(parameter: Any) -> LaneRequest:
    """Read the parameter. Raises BadField."""
    row = fields.an_object(parameter, "$", ("version", "cluster", "plan", "number", "moves", "throttled", "searchable"))
    fields.a_number(fields.need(row, "version", "$"), "$.version", 1, 1)
    return LaneRequest(
        workflow_id(fields.need(row, "cluster", "$"), "$.cluster", names.LONGEST_CLUSTER),
        workflow_id(fields.need(row, "plan", "$"), "$.plan"),
        fields.a_number(fields.need(row, "number", "$"), "$.number"),
        specs(fields.need(row, "moves", "$"), "$.moves"),
        fields.a_flag(row.get("throttled", False), "$.throttled"),
        fields.a_flag(row.get("searchable", False), "$.searchable"),
    )


def workflow_id(value: Any, path: str, longest: int = names.LONGEST_ID) -> str:
    """Read an id of at most so many bytes: the server rejects the whole task for a longer one. Raises BadField."""
    found = fields.a_string(value, path)
    if len(found.encode()) > longest:
        raise BadField(path, f"has {len(found.encode())} bytes, but must have at most {longest}")
    return found


def specs(value: Any, path: str, least: int = 1) -> tuple[MoveSpec, ...]:
    """Read the moves of a lane: `least` to `MOST_MOVES`, each once. Raises BadField."""
    rows = fields.a_list(value, path)
    if not least <= len(rows) <= MOST_MOVES:
        raise BadField(path, f"has {len(rows)} entries, but must have {least} to {MOST_MOVES}")
    found = tuple(_spec(each, f"{path}[{at}]") for at, each in enumerate(rows))
    seen: dict[str, int] = {}
    for at, spec in enumerate(found):
        if (first := seen.setdefault(spec.move().key, at)) != at:
            raise BadField(f"{path}[{at}]", f"is the move of {path}[{first}] again")
    return found


def _spec(value: Any, path: str) -> MoveSpec:
    row = fields.an_object(value, path, _FIELDS)
    for name in _NEEDED:
        fields.need(row, name, path)
    read = {name: reader(row[name], f"{path}.{name}") for name, reader in _READERS.items() if name in row}
    spec = MoveSpec(**read)
    spec.move()
    return spec


def _kind(value: Any, path: str) -> str:
    found = fields.a_string(value, path)
    if found not in set(MoveKind):
        raise BadField(path, f"is {fields.shown(found)!r}, but must be one of {', '.join(MoveKind)}")
    return found


def _topic(value: Any, path: str) -> str:
    found = fields.a_string(value, path)
    if len(found) > LONGEST_TOPIC:
        raise BadField(path, f"has {len(found)} characters, but must have at most {LONGEST_TOPIC}")
    return found


def _paths(value: Any, path: str) -> dict[str, str]:
    row = fields.an_object(value, path)
    for node in row:
        if not (node.isascii() and node.isdecimal() and len(node) <= len(str(_INT))):
            raise BadField(f"{path}.{node}", "must be the id of a broker")
    return {node: fields.a_note(each, f"{path}.{node}") for node, each in row.items()}


def _disks(value: Any, path: str) -> list[list[Any]]:
    found = []
    for at, pair in enumerate(fields.a_list(value, path)):
        here = f"{path}[{at}]"
        if len(fields.a_list(pair, here)) != 2:
            raise BadField(here, "must be a node and a path")
        found.append([fields.a_number(pair[0], f"{here}[0]", 0, _INT), fields.a_note(pair[1], f"{here}[1]")])
    return found


def _nodes(value: Any, path: str) -> list[int]:
    return list(fields.numbers(value, path))


_READERS: Mapping[str, Callable[[Any, str], Any]] = {
    "kind": _kind,
    "topic": _topic,
    "partition": lambda value, path: fields.a_number(value, path, 0, _INT),
    "size": lambda value, path: fields.a_number(value, path, -1),
    "node": lambda value, path: fields.a_number(value, path, NO_LEADER, _INT),
    "source": fields.a_note,
    "target": fields.a_note,
    "before": _nodes,
    "after": _nodes,
    "directories": _paths,
    "reads": _disks,
    "writes": _disks,
}
