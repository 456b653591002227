"""Why a log directory counts as failed: the verdict, and what it rests on (KIP-18: is the entire disk gone?)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from storage_node.model import fields

#: Characters of each text that travel with a failure.
LONGEST: Final = 1_000
#: Signs that travel with a failure.
MOST_SIGNS: Final = 10


class Verdict(StrEnum):
    """What is wrong with a disk."""

    DISK = "disk"  # it fails operations, or is no longer there
    FILE = "file"  # one file or folder of it is in the wrong state
    FULL = "full"  # a flush found no space
    READ_ONLY = "read-only"  # its file system does not accept changes any more
    HUNG = "hung"  # an operation did not end by the deadline


@dataclass(frozen=True, slots=True)
class Evidence:
    """One failed operation: what was done, to which file ("" where it is unknown), and how it failed.

    `errno` is the name of the system's error number, "" for none; `time` is in seconds since the epoch.
    """

    verdict: Verdict
    operation: str
    path: str = ""
    errno: str = ""
    time: float = 0.0

    def __str__(self) -> str:
        where = f" of {self.path}" if self.path else ""
        return f"{self.verdict}: {self.operation}{where}" + (f" ({self.errno})" if self.errno else "")


@dataclass(frozen=True, slots=True)
class Sign:
    """An early sign that a directory showed before it failed: its kind and words (`slow: ...`), and when it began,
    seconds since the epoch.
    """

    text: str
    time: float


_TEXTS: Final = ("operation", "path", "errno")


def evidence_row(one: Evidence) -> dict[str, Any]:
    """Return the evidence as JSON."""
    texts = {name: getattr(one, name)[:LONGEST] for name in _TEXTS}
    return {"verdict": one.verdict.value, **texts, "time": one.time}


def read_evidence(value: Any, path: str) -> Evidence | None:
    """Read what `evidence_row` wrote; None for null. Raises BadField."""
    if value is None:
        return None
    row: Mapping[str, Any] = fields.an_object(value, path, ("verdict", *_TEXTS, "time"))
    verdict = fields.a_string(fields.need(row, "verdict", path), f"{path}.verdict")
    if verdict not in [each.value for each in Verdict]:
        raise fields.BadField(f"{path}.verdict", f"must be one of {', '.join(Verdict)}")
    operation, file, number = [fields.a_note(row.get(name, ""), f"{path}.{name}") for name in _TEXTS]
    return Evidence(Verdict(verdict), operation, file, number, _time(row, path))


def sign_rows(signs: Sequence[Sign]) -> list[dict[str, Any]]:
    """Return the first signs as JSON."""
    return [{"text": one.text[:LONGEST], "time": one.time} for one in signs[:MOST_SIGNS]]


def read_signs(value: Any, path: str) -> tuple[Sign, ...]:
    """Read what `sign_rows` wrote; none for null. Raises BadField."""
    found = []
    for place, each in enumerate(fields.a_list(value or [], path)):
        here = f"{path}[{place}]"
        row: Mapping[str, Any] = fields.an_object(each, here, ("text", "time"))
        text = fields.a_string(fields.a_note(fields.need(row, "text", here), f"{here}.text"), f"{here}.text")
        found.append(Sign(text, _time(row, here)))
    return tuple(found)


def _time(row: Mapping[str, Any], path: str) -> float:
    time = row.get("time", 0.0)
    if isinstance(time, bool) or not isinstance(time, int | float) or not 0 <= time < 1e11:
        raise fields.BadField(f"{path}.time", "must be a time in seconds since the epoch")
    return float(time)
