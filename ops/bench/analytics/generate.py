"""A generated history: exports of as many moves as give so many events, spread over days."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from temporalio.api.common.v1 import Payload, Payloads
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import History, HistoryEvent

from activities.history.exporter import publish
from activities.history.files import PartWriter, make_folder
from activities.history.manifest import CLOSED, Manifest, RunEntry, manifest_name, to_iso
from storage_node.model.moves import Outcome
from workflows.model import calls, names

T0 = datetime(2026, 1, 1, tzinfo=UTC)
CLUSTER = "rehome"
PART_BYTES = 8 * 1024 * 1024
#: The steps of a move that goes well, with its outcome and its seconds.
STEPS = (
    (calls.CREATE_MOVE, Outcome.CREATED, 0.03),
    (calls.COPY, Outcome.CAUGHT_UP, 12.0),
    (calls.SWAP, Outcome.SWAPPED, 0.02),
    (calls.DELETE_REPLICA, Outcome.DELETED, 5.0),
)
#: The events of one move: a start and an end, and of each step its own three and those of a workflow task.
EVENTS = 2 + 6 * len(STEPS)
#: Moves that start on one day.
PER_DAY = 500


def _payloads(value: Any) -> Payloads:
    data = json.dumps(value, separators=(",", ":")).encode()
    return Payloads(payloads=[Payload(metadata={"encoding": b"json/plain"}, data=data)])


def move(number: int) -> tuple[RunEntry, History]:
    """Return the history of one move; every seventh has a second attempt, every fifth misses its SLA."""
    node, topic, partition = number % 9 + 1, f"topic-{number % 97}", number // 97
    run_id = str(uuid.UUID(int=(0xB0 << 120) + number))
    workflow_id = f"{CLUSTER}/move/{node}/{topic}-{partition}/1"
    at = T0 + timedelta(days=number // PER_DAY, seconds=number % PER_DAY * 150)
    events: list[HistoryEvent] = []

    def event(kind: str, seconds: float) -> HistoryEvent:
        nonlocal at
        at += timedelta(seconds=seconds)
        one = HistoryEvent(event_id=len(events) + 1, event_type=EventType.Value(f"EVENT_TYPE_{kind}"))
        one.event_time.FromDatetime(at)
        events.append(one)
        return one

    row: dict[str, Any] = {
        "topic": topic, "partition": partition, "source": f"/n{node}/d1", "directory": f"/n{node}/d2",
        "bytes_total": 10**8, "bytes_copied": 10**8, "bytes_written": 10**8, "seconds_copying": 9.0,
        "seconds_throttled": 2.0, "seconds_queued": 1.0, "attempts": 1 + (number % 7 == 0),
        "seconds_by_reason": {"copying": 9.0, "run_limit": 2.0, "queued": 1.0},
    }  # fmt: skip
    parameter = {"topic": topic, "partition": partition, "node": node, "directory": f"/n{node}/d2"}
    started = event("WORKFLOW_EXECUTION_STARTED", 0).workflow_execution_started_event_attributes
    started.workflow_id, started.workflow_type.name = workflow_id, names.MOVE_REPLICA
    started.task_queue.name, started.original_execution_run_id = CLUSTER, run_id
    started.first_execution_run_id = run_id
    started.input.CopyFrom(_payloads({**parameter, "sla_seconds": 10 if number % 5 == 0 else 60}))
    argument = {"workflow_id": workflow_id, "run_id": run_id, "node": node, "replicas": [parameter], "throttle": 10**7}
    for name, outcome, seconds in STEPS:
        for kind in ("SCHEDULED", "STARTED", "COMPLETED"):
            event(f"WORKFLOW_TASK_{kind}", 0.005)
        scheduled = event("ACTIVITY_TASK_SCHEDULED", 0.0)
        of = scheduled.activity_task_scheduled_event_attributes
        of.activity_id, of.activity_type.name = str(scheduled.event_id), name
        of.task_queue.name = f"{CLUSTER}/node-{node}" + ("/moves" if name == calls.COPY else "")
        of.input.CopyFrom(_payloads(argument))
        begun = event("ACTIVITY_TASK_STARTED", 0.001).activity_task_started_event_attributes
        begun.scheduled_event_id, begun.attempt = scheduled.event_id, row["attempts"] if name == calls.COPY else 1
        done = event("ACTIVITY_TASK_COMPLETED", seconds).activity_task_completed_event_attributes
        done.scheduled_event_id = scheduled.event_id
        done.result.CopyFrom(_payloads({"rows": [{**row, "outcome": outcome}]}))
    end = event("WORKFLOW_EXECUTION_COMPLETED", 0.01).workflow_execution_completed_event_attributes
    end.result.CopyFrom(_payloads({"rows": [{**row, "outcome": Outcome.DELETED}], "phases": []}))
    return RunEntry(workflow_id, run_id, names.MOVE_REPLICA, len(events), to_iso(at)), History(events=events)


def moves_of(events: int) -> int:
    """Return the number of moves that have so many events."""
    return -(-events // EVENTS)


def export(folder: Path, sequence: int, first: int, count: int) -> Manifest:
    """Write one export of the moves from `first` on. Raises OSError."""
    export_id = f"generated-{sequence}"
    to = folder / "dt=2026-01-01" / f"run={export_id}"
    make_folder(to)
    writer = PartWriter(folder, to, CLOSED, "part", PART_BYTES)
    for entry, history in _moves(first, count):
        writer.add(entry, history)
    files = writer.finish()
    newest = max(file.max_close_time for file in files)
    parent = manifest_name(sequence - 1) if sequence > 1 else ""
    manifest = Manifest(sequence, export_id, parent, "default", "", newest, newest, "generated", files)
    publish(folder, to, manifest)
    return manifest


def _moves(first: int, count: int) -> Iterator[tuple[RunEntry, History]]:
    for number in range(first, first + count):
        yield move(number)
