"""The recorder: everything a client asked and was told, as one JSON line each, and the reader of such files.

Times are nanoseconds: `invoked` and `completed` of the machine's monotonic clock, which all processes share, `wall`
since the epoch, for people. An operation whose outcome is not known (a timeout above all) is of type "info".
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

OK, FAIL, INFO = "ok", "fail", "info"

SEND = "send"  # one record: `value`, and its `offset` when it was acknowledged
POLL = "poll"  # what one poll gave of one partition: `records`; or an error, at the position `offset`
ASSIGN = "assign"  # the consumer was put to `offset` on purpose
MARKS = "marks"  # ListOffsets: log start (`low`) and end (`high`)
DELETE = "delete-records"  # the log start was asked to become `offset`
SESSION = "session"  # an idempotent producer began a new producer epoch by itself: `error` says why

#: The error of a poll below the log start or beyond the end.
OUT_OF_RANGE = "OFFSET_OUT_OF_RANGE"


@dataclass(frozen=True, slots=True)
class Event:
    """One operation. `topic` is the label of one life of a topic: a topic made again under its name has another.

    `sound` marks a send by an idempotent producer. Offsets are -1 where there are none: an idempotent producer takes
    the acknowledgement of a later request for one of an earlier whose own was lost, and nobody told it the offset.
    """

    process: str
    op: str
    topic: str
    partition: int
    type: str
    invoked: int
    completed: int
    wall: int = 0
    value: str = ""
    offset: int = -1
    error: str = ""
    records: tuple[tuple[int, str], ...] = ()
    low: int = -1
    high: int = -1
    sound: bool = True

    @property
    def place(self) -> tuple[str, int]:
        """Topic label and partition."""
        return self.topic, self.partition


_KEYS = {
    "p": "process",
    "op": "op",
    "topic": "topic",
    "part": "partition",
    "type": "type",
    "invoke": "invoked",
    "complete": "completed",
    "wall": "wall",
    "value": "value",
    "offset": "offset",
    "error": "error",
    "records": "records",
    "low": "low",
    "high": "high",
    "idempotent": "sound",
}
_LEAVE_OUT: dict[str, Any] = {
    "value": "",
    "offset": -1,
    "error": "",
    "records": (),
    "low": -1,
    "high": -1,
    "sound": True,
}


def to_line(event: Event) -> str:
    """The event as one line of JSON, without what says nothing."""
    row = {}
    for key, name in _KEYS.items():
        value = getattr(event, name)
        if name not in _LEAVE_OUT or value != _LEAVE_OUT[name]:
            row[key] = value
    return json.dumps(row, separators=(",", ":"))


def from_line(line: str) -> Event:
    """The event of one line. Raises ValueError, KeyError or TypeError for a line that `to_line` would not write."""
    row = json.loads(line)
    values = {_KEYS[key]: value for key, value in row.items()}
    if "records" in values:
        values["records"] = tuple((int(offset), str(value)) for offset, value in values["records"])
    return Event(**values)


class Recorder:
    """Appends events to a file; a line is written whole or, if the process is killed, missing at the end."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[str] = path.open("a", encoding="utf-8", buffering=1 << 16)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def note(self, event: Event) -> None:
        self._file.write(to_line(event) + "\n")

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read(paths: Iterable[Path]) -> Iterator[Event]:
    """The events of some files, file by file in the order written. A last line that was cut short is left out."""
    for path in paths:
        with path.open(encoding="utf-8") as file:
            for line in file:
                if line.endswith("\n"):
                    yield from_line(line)


def now() -> int:
    """The monotonic clock of all events, ns."""
    return time.monotonic_ns()
