"""Histories that a server wrote (tests/golden/histories), as runs of an export."""

from __future__ import annotations

from datetime import UTC

from tests.support.runs.histories import CANCELED, COMPLETED, CONTINUED, FAILED, RUNNING, T0, TERMINATED, RunBuilder
from tests.workflows.conftest import HISTORIES, read_history

_CLOSING = {
    "completed": COMPLETED, "failed": FAILED, "canceled": CANCELED, "terminated": TERMINATED,
    "continued_as_new": CONTINUED,
}  # fmt: skip


def recorded_run(name: str, workflow_id: str = "") -> RunBuilder:
    """Return the run of a recorded history, moved in time so that it starts at `T0`.

    `workflow_id` takes the place of its own: a plan and its lanes may be recorded on different days.
    """
    history = read_history(HISTORIES / f"{name}.json.gz")
    earlier = history.events[0].event_time.ToDatetime(tzinfo=UTC) - T0
    for event in history.events:
        event.event_time.FromDatetime(event.event_time.ToDatetime(tzinfo=UTC) - earlier)
    started = history.events[0].workflow_execution_started_event_attributes
    run = RunBuilder(workflow_id or history.workflow_id, started.original_execution_run_id, started.workflow_type.name)
    run.events[:] = history.events
    last = history.events[-1].WhichOneof("attributes") or ""
    run.status = _CLOSING.get(last.removeprefix("workflow_execution_").removesuffix("_event_attributes"), RUNNING)
    return run
