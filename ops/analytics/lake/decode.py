"""From a file of an export to records: its events, or why they cannot be read. Plain Python, run by Spark's workers.

A file that is missing, truncated or altered gives one row of quarantine. In a file that is as its manifest says, each
history is decoded by itself, so that a malformed one costs only itself.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError
from temporalio.api.enums.v1 import EventType
from temporalio.api.export.v1 import WorkflowExecution
from temporalio.api.history.v1 import HistoryEvent

from activities.history.manifest import PENDING

#: A record's kind beside those of files: what cannot be read, the account of a file, and what one history of it is.
QUARANTINE, FILE, HISTORY = "quarantine", "file", "history"
#: The kind of the account of an export itself, which may have no files.
MANIFEST = "manifest"
#: Reasons for which a file, or a manifest, may be read later: the disk is mounted again, the file restored.
MISSING, UNREADABLE, TRUNCATED, ALTERED, UNKNOWN_MANIFEST = "missing", "unreadable", "truncated", "altered", "manifest"
RESTORABLE = (MISSING, UNREADABLE, TRUNCATED, ALTERED, UNKNOWN_MANIFEST)

Record = tuple[Any, ...]
_JSON = json.JSONEncoder(ensure_ascii=False)
_ITEMS = 0x0A  # field 1, length-delimited: `items` of temporal.api.export.v1.WorkflowExecutions


@dataclass(frozen=True, slots=True)
class Bad(Exception):
    """A part of a file that cannot be read: where it begins, its reason, and a sentence."""

    offset: int
    reason: str
    message: str


def read_file(file: Mapping[str, Any]) -> Iterator[Record]:
    """Yield the records of one file: its events or descriptions, what is unreadable, and last the account of it.

    Before the events of each history comes what it is, so that no one has to read its events to know.
    """
    read = 0
    try:
        if file["kind"] == MANIFEST:
            yield _head(
                file, FILE, json.dumps({"file_kind": MANIFEST, "bytes": file["bytes"], "expected": 0, "read": 0})
            )
            return
        for record in _records(file, checked(file)):
            read += record[0] == file["kind"]
            yield record
    except Bad as bad:
        yield quarantined(file, bad, max(0, int(file["events"]) - read))
    if file["kind"] != QUARANTINE:
        account = {"file_kind": file["kind"], "bytes": file["bytes"], "expected": max(int(file["events"]), read)}
        yield _head(file, FILE, json.dumps({**account, "read": read}))


def checked(file: Mapping[str, Any]) -> bytes:
    """Return the file's bytes. Raises Bad if they are not those of the manifest, or are not to be read at all."""
    path, name = Path(file["path"]), file["name"]
    again = "restore it, and the next report reads it"
    if file["kind"] == QUARANTINE:
        raise Bad(0, file["reason"], file["message"])
    try:
        data = path.read_bytes()
    except OSError as error:
        reason = MISSING if isinstance(error, FileNotFoundError) else UNREADABLE
        raise Bad(0, reason, f"{name} cannot be read ({error.strerror}), but a manifest names it: {again}") from error
    if len(data) != int(file["bytes"]):
        reason = TRUNCATED if len(data) < int(file["bytes"]) else ALTERED
        raise Bad(0, reason, f"{name} has {len(data)} bytes, its manifest says {file['bytes']}: {again}")
    if file["sha256"] and hashlib.sha256(data).hexdigest() != file["sha256"]:
        raise Bad(0, ALTERED, f"{name} differs from its manifest: {again}")
    return data


def _records(file: Mapping[str, Any], data: bytes) -> Iterator[Record]:
    if file["kind"] == PENDING:
        yield from _described(file, data)
        return
    runs = file.get("runs") or []
    for index, (offset, item) in enumerate(items(data, file["name"])):
        where = f"the history at byte {offset} of {file['name']}"
        try:
            events = WorkflowExecution.FromString(bytes(item)).history.events
        except DecodeError as error:
            bad = Bad(offset, "malformed", f"{where} is not Temporal's export protobuf ({error})")
            yield quarantined(file, bad, runs[index][2] if index < len(runs) else 0)
            continue
        if not events:
            yield quarantined(file, Bad(offset, "empty", f"{where} has no events"), 0)
            continue
        workflow_id, run_id = runs[index][:2] if index < len(runs) else named_by(events)
        snapshot = f"{file['name']}#{index}"
        yield history(file, workflow_id, run_id, snapshot, events)
        yield from _events(file, workflow_id, run_id, snapshot, events)


def items(data: bytes, name: str) -> Iterator[tuple[int, memoryview]]:
    """Yield each history of a file with its offset. Raises Bad where the file is not a list of histories."""
    at, whole = 0, memoryview(data)
    while at < len(data):
        if data[at] != _ITEMS:
            raise Bad(at, "malformed", f"byte {at} of {name} does not begin a history: it is not an export of Temporal")
        size, start = _varint(data, at + 1)
        if start + size > len(data):
            raise Bad(at, "malformed", f"the history at byte {at} of {name} goes beyond the file's end")
        yield at, whole[start : start + size]
        at = start + size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 64:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not data[at - 1] & 0x80:
            return value, at
    return len(data), at  # goes beyond the end


def history(
    file: Mapping[str, Any], workflow_id: str, run_id: str, snapshot: str, events: Sequence[HistoryEvent]
) -> Record:
    """Return what one history is: how far it goes, its workflow's type, its chain, and its parent."""
    started = events[0].workflow_execution_started_event_attributes
    parent = started.parent_workflow_execution.workflow_id or None
    chain = started.first_execution_run_id or run_id
    text = json.dumps({"file_kind": file["kind"], "chain": chain, "parent": parent})
    return (
        *(HISTORY, file["sequence"], file["export_id"], file["taken_at"], file["namespace"], workflow_id, run_id),
        max(event.event_id for event in events),
        max(event.event_time.ToMicroseconds() for event in events),
        started.workflow_type.name or None,
        *(text, None, snapshot, file["name"]),
    )


def _events(
    file: Mapping[str, Any], workflow_id: str, run_id: str, snapshot: str, events: Sequence[HistoryEvent]
) -> Iterator[Record]:
    head = (file["kind"], file["sequence"], file["export_id"], file["taken_at"], file["namespace"], workflow_id, run_id)
    for event in events:
        yield (
            *head,
            event.event_id,
            event.event_time.ToMicroseconds(),
            event_name(event.event_type),
            attributes_json(event),
            summary(event),
            snapshot,
            file["name"],
        )


def _described(file: Mapping[str, Any], data: bytes) -> Iterator[Record]:
    try:
        runs = json.loads(data)["runs"]
        rows = [(run["workflow_id"], run["run_id"], json.dumps(run)) for run in runs]
    except (ValueError, KeyError, TypeError) as error:
        raise Bad(0, "malformed", f"{file['name']} is not a list of described runs ({error!r})") from error
    for workflow_id, run_id, text in rows:
        yield _head(file, PENDING, text, workflow_id, run_id)


def _head(
    file: Mapping[str, Any], kind: str, attributes: str, workflow_id: str | None = None, run_id: str | None = None
) -> Record:
    head = (kind, file["sequence"], file["export_id"], file["taken_at"], file["namespace"], workflow_id, run_id)
    return (*head, None, None, None, attributes, None, None, file["name"])


def quarantined(file: Mapping[str, Any], bad: Bad, events: int) -> Record:
    """Return the record of a part that cannot be read."""
    text = json.dumps({"offset": bad.offset, "reason": bad.reason, "message": bad.message, "events": events})
    return _head(file, QUARANTINE, text)


def named_by(events: Sequence[HistoryEvent]) -> tuple[str, str]:
    """Return the workflow id and run id of the first event, for files without a manifest's list of runs."""
    started = events[0].workflow_execution_started_event_attributes
    return started.workflow_id, started.original_execution_run_id


def event_name(number: int) -> str:
    """Return the event's type without its prefix; the number of a type that this version does not know."""
    try:
        return EventType.Name(number).removeprefix("EVENT_TYPE_")  # type: ignore[arg-type]
    except ValueError:
        return str(number)


def attributes_json(event: HistoryEvent) -> str:
    """Return the event's attributes as Temporal's JSON; "{}" for a type that this version does not know."""
    which = event.WhichOneof("attributes")
    return _JSON.encode(MessageToDict(getattr(event, which))) if which else "{}"


def summary(event: HistoryEvent) -> str | None:
    """Return the label that a workflow gave an activity, a timer or a child."""
    if not event.HasField("user_metadata") or not event.user_metadata.HasField("summary"):
        return None
    try:
        text = json.loads(event.user_metadata.summary.data)
    except ValueError:
        return None
    return text if isinstance(text, str) else None
