"""The history: each operation of a client with its outcome, one JSON line each; recorder and reader.

Times are nanoseconds: `invoked` and `completed` of the machine's monotonic clock, which all processes share, `wall`
since the epoch, for operators. An operation with an unknown outcome (such as a timeout) has the type "info".
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
POLL = "poll"  # one poll's `records` of one partition; or its error, at the position `offset`
ASSIGN = "assign"  # the consumer was assigned the partition at `offset`
MARKS = "marks"  # ListOffsets: log start (`low`) and end (`high`)
DELETE = "delete-records"  # a DeleteRecords request up to `offset`
SESSION = "session"  # an idempotent producer bumped its epoch: `error` is librdkafka's log message

#: The error of a poll below the log start or beyond the log end.
OUT_OF_RANGE = "OFFSET_OUT_OF_RANGE"


@dataclass(frozen=True, slots=True)
class Event:
    """One operation. `topic` is the label of one life of a topic: a recreated topic has a new label.

    `sound` marks a send by an idempotent producer. `offset` is -1 if unknown: if the response to a batch is lost, an
    idempotent producer infers from a later batch's acknowledgement that it was appended.
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
    """Return the event as one line of JSON, without fields that have their default."""
    row = {}
    for key, name in _KEYS.items():
        value = getattr(event, name)
        if name not in _LEAVE_OUT or value != _LEAVE_OUT[name]:
            row[key] = value
    return json.dumps(row, separators=(",", ":"))


def from_line(line: str) -> Event:
    """Parse a line of `to_line`. Raises ValueError, KeyError or TypeError for any other line."""
    row = json.loads(line)
    values = {_KEYS[key]: value for key, value in row.items()}
    if "records" in values:
        values["records"] = tuple((int(offset), str(value)) for offset, value in values["records"])
    return Event(**values)


class Recorder:
    """Append events to a file; a process that is killed may leave an incomplete last line."""

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
    """Yield the events of the files, file by file in the order written. An incomplete last line is skipped."""
    for path in paths:
        with path.open(encoding="utf-8") as file:
            for line in file:
                if line.endswith("\n"):
                    yield from_line(line)


def now() -> int:
    """Return the monotonic clock of all events, ns."""
    return time.monotonic_ns()
