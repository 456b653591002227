"""Strict readers of what activities and child runs return: each returns its value, or raises BadField. Pure.

Nodes and controller may be of different versions, and a node may have a defect: a result that raised in workflow code
would fail its workflow task at every retry. Unknown fields are ignored: a newer node may send more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields as fields_of
from enum import StrEnum
from typing import Any, TypeVar

from storage_node.model import fields
from storage_node.model.fields import BadField
from storage_node.model.moves import Outcome
from storage_node.model.reassignments import ReplicaOutcome
from workflows.model.calls import (
    ExportResult,
    ImageResult,
    MoveResult,
    MoveRow,
    ProbeResult,
    ReassignResult,
    ReplicaRow,
)
from workflows.model.versioned import Versioned

_INT = (1 << 31) - 1
Reader = Callable[[Any, str], Any]

#: Maximum characters of a path: each of its bytes may be escaped.
_LONGEST_PATH = 20_000
#: Maximum characters of an outcome, an error's type, a reason.
_LONGEST_WORD = 100
_MOST_REASONS = 50
#: Maximum seconds until a `.delete` is due: Temporal's timers are limited to some thousand years.
_LONGEST_DELAY = 10 * 365 * 86_400.0


def unreadable(what: str, node: int, problem: BadField) -> str:
    """Return the sentence for operators about a node's unreadable result."""
    return (
        f"The result of {what} on node {node} cannot be read: {problem}. "
        "Do the node and the controller run the same version? See the node's log."
    )


def _text(value: Any, path: str, longest: int) -> str:
    found = fields.a_note(value, path)
    if len(found) > longest:
        raise BadField(path, f"has {len(found)} characters, but must have at most {longest}")
    return found


def _word(value: Any, path: str) -> str:
    return _text(value, path, _LONGEST_WORD)


def _one_of(words: type[StrEnum]) -> Reader:
    """Return the reader of a word that must be one of the enum's values."""

    def read(value: Any, path: str) -> StrEnum:
        word = _word(value, path)
        if word not in set(words):
            raise BadField(path, f"is {fields.shown(word)!r}, but must be one of {', '.join(words)}")
        return words(word)

    return read


def _path(value: Any, path: str) -> str:
    return _text(value, path, _LONGEST_PATH)


def _message(value: Any, path: str) -> str:
    return fields.shown(fields.a_note(value, path))


def _name(value: Any, path: str) -> str:
    return fields.a_string(value, path)


def _index(value: Any, path: str) -> int:
    return fields.a_number(value, path, high=_INT)


def _count(value: Any, path: str) -> int:
    return fields.a_number(value, path)


def _delay(value: Any, path: str) -> float:
    past = isinstance(value, int | float) and not isinstance(value, bool) and -_LONGEST_DELAY <= value < 0
    return 0.0 if past else min(fields.a_measure(value, path), _LONGEST_DELAY)


def _nodes(value: Any, path: str) -> list[int]:
    return list(fields.numbers(value, path))


def _by_reason(value: Any, path: str) -> dict[str, float]:
    row = fields.an_object(value, path)
    if len(row) > _MOST_REASONS:
        raise BadField(path, f"has {len(row)} reasons, but must have at most {_MOST_REASONS}")
    return {_word(reason, path): fields.a_measure(seconds, f"{path}.{reason}") for reason, seconds in row.items()}


_ROW: Mapping[str, Reader] = {
    "topic": _name,
    "partition": _index,
    "directory": _path,
    "error": _word,
    "message": _message,
    **dict.fromkeys(("generation", "bytes_total", "bytes_copied", "attempts"), _count),
    "seconds_throttled": fields.a_measure,
}
_MOVE: Mapping[str, Reader] = {
    **_ROW,
    "outcome": _one_of(Outcome),
    "source": _path,
    **dict.fromkeys(("claim", "bytes_resumed", "bytes_written"), _count),
    **dict.fromkeys(("seconds_queued", "seconds_copying", "seconds_stalled", "seconds_locked"), fields.a_measure),
    "delete_after": _delay,
    "seconds_by_reason": _by_reason,
}
_REPLICA: Mapping[str, Reader] = {
    **_ROW,
    "outcome": _one_of(ReplicaOutcome),
    "node": _index,
    "replicas": _nodes,
    "version": _count,
    **dict.fromkeys(
        ("seconds_placing", "seconds_catching_up", "seconds_in_sync", "seconds_deleting"), fields.a_measure
    ),
}

T = TypeVar("T")


def _read(kind: Callable[..., T], readers: Mapping[str, Reader], needed: int, value: Any, path: str) -> T:
    """Read a dataclass's fields, of which the first `needed` are required."""
    row = fields.an_object(value, path)
    names = [each.name for each in fields_of(kind) if each.name in readers]  # type: ignore[arg-type]
    found = {
        name: readers[name](fields.need(row, name, path), f"{path}.{name}")
        for place, name in enumerate(names)
        if name in row or place < needed
    }
    return kind(**found)


def _a_result(kind: type[Versioned], value: Any) -> Mapping[str, Any]:
    """Return the fields of a result whose format this program reads; without a version it is the first."""
    row = fields.an_object(value, "$")
    version = fields.a_number(row.get("format_version", 1), "$.format_version")
    if version > kind.format_version:
        raise BadField("$.format_version", f"is {version}, but this program reads up to {kind.format_version}")
    return row


def move_row(value: Any, path: str = "$") -> MoveRow:
    """Read one replica's row of a step of a move; topic, partition and outcome are required."""
    return _read(MoveRow, _MOVE, 3, value, path)


def moved(value: Any) -> MoveResult:
    """Read the result of a step of a move, {"rows"}; that of a run of moves has it as well, beside other fields."""
    rows = fields.a_list(fields.need(_a_result(MoveResult, value), "rows", "$"), "$.rows")
    return MoveResult([move_row(each, f"$.rows[{place}]") for place, each in enumerate(rows)])


def reassigned(value: Any, node: int) -> ReassignResult:
    """Read the result of a step of a reassignment: {"rows"}, each of this node."""
    rows = fields.a_list(fields.need(_a_result(ReassignResult, value), "rows", "$"), "$.rows")
    found = [_read(ReplicaRow, _REPLICA, 4, each, f"$.rows[{place}]") for place, each in enumerate(rows)]
    for place, row in enumerate(found):
        if row.node != node:
            raise BadField(f"$.rows[{place}].node", f"is {row.node}, but the result is of node {node}")
    return ReassignResult(found)


_IMAGE: Mapping[str, Reader] = {"generation": _count, "version": _count, "incarnation": fields.a_note}
_PROBE: Mapping[str, Reader] = {"incarnation": fields.a_note, "reason": _message, "refused": fields.a_flag}
_EXPORT: Mapping[str, Reader] = {
    "manifest": _path,
    **dict.fromkeys(("closed", "open", "events", "bytes", "retention_seconds"), _count),
    "oldest_closed": _path,
}


def applied(value: Any) -> ImageResult:
    """Read the result of `apply_image`."""
    return _read(ImageResult, _IMAGE, 2, _a_result(ImageResult, value), "$")


def probed(value: Any) -> ProbeResult:
    """Read the result of `probe_node`; the incarnation is required."""
    return _read(ProbeResult, _PROBE, 1, _a_result(ProbeResult, value), "$")


def exported(value: Any) -> ExportResult:
    """Read the result of `export_histories`."""
    return _read(ExportResult, _EXPORT, 5, _a_result(ExportResult, value), "$")
