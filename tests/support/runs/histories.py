"""Builds histories as Temporal writes them, event by event, for tests of the exporter and the analytics."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from temporalio.api.common.v1 import Payload, Payloads
from temporalio.api.enums.v1 import EventType, TimeoutType
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import History, HistoryEvent

from activities.history.exporter import Exporter
from activities.history.source import Run
from storage_node.model.moves import Outcome
from workflows.model.calls import (
    COPY,
    CREATE_MOVE,
    DELETE_REPLICA,
    SWAP,
    ExportCall,
    ExportResult,
    MoveCall,
    MoveResult,
    MoveRow,
    ReplicaMove,
)

T0 = datetime(2026, 11, 20, 10, 0, tzinfo=UTC)
NAMESPACE = "default"
CLUSTER = "rehome"

COMPLETED, FAILED, CANCELED, TERMINATED, RUNNING, CONTINUED = 2, 3, 4, 5, 1, 6


def payloads(value: Any) -> Payloads:
    """One argument or result, as the default converter writes it."""
    data = json.dumps(value, separators=(",", ":")).encode()
    return Payloads(payloads=[Payload(metadata={"encoding": b"json/plain"}, data=data)])


@dataclass
class RunBuilder:
    """One run's history; every method appends events at `T0` plus so many seconds."""

    workflow_id: str
    run_id: str
    workflow_type: str = "MoveReplica"
    task_queue: str = CLUSTER
    parameter: Any = None
    start: float = 0.0
    first_run_id: str = ""
    continued_from: str = ""
    parent: str = ""
    events: list[HistoryEvent] = field(default_factory=list)
    pending: list[dict[str, Any]] = field(default_factory=list)
    status: int = RUNNING

    def __post_init__(self) -> None:
        event = self.event("WORKFLOW_EXECUTION_STARTED", self.start)
        started = event.workflow_execution_started_event_attributes
        started.workflow_id = self.workflow_id
        started.workflow_type.name = self.workflow_type
        started.task_queue.name = self.task_queue
        started.original_execution_run_id = self.run_id
        started.first_execution_run_id = self.first_run_id or self.run_id
        started.continued_execution_run_id = self.continued_from
        if self.parent:
            started.parent_workflow_execution.workflow_id = self.parent
        if self.parameter is not None:
            started.input.CopyFrom(payloads(self.parameter))

    def event(self, kind: str, at: float) -> HistoryEvent:
        """Append an event of that type without attributes and return it."""
        event = HistoryEvent(event_id=len(self.events) + 1, event_type=EventType.Value(f"EVENT_TYPE_{kind}"))
        event.event_time.FromDatetime(T0 + timedelta(seconds=at))
        self.events.append(event)
        return event

    def task(self, at: float) -> None:
        """A workflow task: three events that no table cares about."""
        for kind in ("WORKFLOW_TASK_SCHEDULED", "WORKFLOW_TASK_STARTED", "WORKFLOW_TASK_COMPLETED"):
            self.event(kind, at)

    def scheduled(self, name: str, argument: Any, at: float, queue: str = f"{CLUSTER}/node-1") -> int:
        """Schedule an activity; returns the event's id."""
        event = self.event("ACTIVITY_TASK_SCHEDULED", at)
        attributes = event.activity_task_scheduled_event_attributes
        attributes.activity_id = str(event.event_id)
        attributes.activity_type.name = name
        attributes.task_queue.name = queue
        attributes.input.CopyFrom(payloads(argument))
        return event.event_id

    def started(self, scheduled: int, at: float, attempt: int = 1) -> int:
        """The last attempt's start, which Temporal writes when the activity closes."""
        event = self.event("ACTIVITY_TASK_STARTED", at)
        event.activity_task_started_event_attributes.scheduled_event_id = scheduled
        event.activity_task_started_event_attributes.attempt = attempt
        return event.event_id

    def activity(
        self, name: str, argument: Any, begun: float, ended: float, result: Any, *, attempt: int = 1, queue: str = ""
    ) -> None:
        """An activity that completed."""
        scheduled = self.scheduled(name, argument, begun, queue or f"{CLUSTER}/node-1")
        start = self.started(scheduled, ended - min(0.001, ended - begun), attempt)
        attributes = self.event("ACTIVITY_TASK_COMPLETED", ended).activity_task_completed_event_attributes
        attributes.scheduled_event_id, attributes.started_event_id = scheduled, start
        attributes.result.CopyFrom(payloads(result))
        self.task(ended)

    def activity_failed(
        self, name: str, argument: Any, begun: float, ended: float, error: str, message: str, details: Any = None
    ) -> None:
        """An activity that failed for good."""
        scheduled = self.scheduled(name, argument, begun)
        start = self.started(scheduled, ended)
        attributes = self.event("ACTIVITY_TASK_FAILED", ended).activity_task_failed_event_attributes
        attributes.scheduled_event_id, attributes.started_event_id = scheduled, start
        attributes.failure.CopyFrom(application_failure(error, message, details))
        self.task(ended)

    def activity_timed_out(self, name: str, argument: Any, begun: float, ended: float, heartbeat: Any) -> None:
        """An activity whose node died: a heartbeat timeout that carries the last heartbeat."""
        scheduled = self.scheduled(name, argument, begun)
        start = self.started(scheduled, begun)
        attributes = self.event("ACTIVITY_TASK_TIMED_OUT", ended).activity_task_timed_out_event_attributes
        attributes.scheduled_event_id, attributes.started_event_id = scheduled, start
        attributes.failure.message = "activity Heartbeat timeout"
        attributes.failure.timeout_failure_info.timeout_type = TimeoutType.TIMEOUT_TYPE_HEARTBEAT
        attributes.failure.timeout_failure_info.last_heartbeat_details.CopyFrom(payloads(heartbeat))
        self.task(ended)

    def activity_canceled(self, name: str, argument: Any, begun: float, ended: float, details: Any) -> None:
        """An activity that ended because it was cancelled."""
        scheduled = self.scheduled(name, argument, begun)
        start = self.started(scheduled, begun)
        attributes = self.event("ACTIVITY_TASK_CANCELED", ended).activity_task_canceled_event_attributes
        attributes.scheduled_event_id, attributes.started_event_id = scheduled, start
        attributes.details.CopyFrom(payloads(details))
        self.task(ended)

    def open_activity(self, name: str, argument: Any, begun: float, attempt: int, heartbeat: Any) -> None:
        """An activity that is under way: no more than its schedule, the rest is known to the server only."""
        scheduled = self.scheduled(name, argument, begun)
        self.pending.append(
            {
                "activityId": str(scheduled),
                "activityType": {"name": name},
                "state": "PENDING_ACTIVITY_STATE_STARTED",
                "attempt": attempt,
                "heartbeatDetails": {
                    "payloads": [{"data": _base64(heartbeat), "metadata": {"encoding": "anNvbi9wbGFpbg=="}}]
                },
                "lastHeartbeatTime": (T0 + timedelta(seconds=begun + 1)).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
                "lastFailure": {"message": "node restarted", "applicationFailureInfo": {"type": "NodeRestarted"}},
            }
        )

    def update(self, name: str, at: float, argument: Any = None) -> None:
        """An accepted update."""
        attributes = self.event("WORKFLOW_EXECUTION_UPDATE_ACCEPTED", at)
        request = attributes.workflow_execution_update_accepted_event_attributes.accepted_request
        request.input.name = name
        if argument is not None:
            request.input.args.CopyFrom(payloads(argument))

    def signal(self, name: str, at: float, argument: Any) -> None:
        """A signal."""
        attributes = self.event("WORKFLOW_EXECUTION_SIGNALED", at).workflow_execution_signaled_event_attributes
        attributes.signal_name = name
        attributes.input.CopyFrom(payloads(argument))

    def cancel_requested(self, at: float) -> None:
        """Someone cancels the run."""
        self.event("WORKFLOW_EXECUTION_CANCEL_REQUESTED", at)

    def complete(self, at: float, result: Any = None) -> RunBuilder:
        """The run completes."""
        attributes = self.event("WORKFLOW_EXECUTION_COMPLETED", at).workflow_execution_completed_event_attributes
        if result is not None:
            attributes.result.CopyFrom(payloads(result))
        self.status = COMPLETED
        return self

    def fail(self, at: float, error: str, message: str, details: Any = None) -> RunBuilder:
        """The run fails with a named error."""
        attributes = self.event("WORKFLOW_EXECUTION_FAILED", at).workflow_execution_failed_event_attributes
        attributes.failure.CopyFrom(application_failure(error, message, details))
        self.status = FAILED
        return self

    def cancel(self, at: float) -> RunBuilder:
        """The run ends as cancelled."""
        self.event("WORKFLOW_EXECUTION_CANCELED", at).workflow_execution_canceled_event_attributes.SetInParent()
        self.status = CANCELED
        return self

    def terminate(self, at: float) -> RunBuilder:
        """The run is terminated."""
        attributes = self.event("WORKFLOW_EXECUTION_TERMINATED", at).workflow_execution_terminated_event_attributes
        attributes.reason = "by hand"
        self.status = TERMINATED
        return self

    def continue_as_new(self, at: float, new_run_id: str) -> RunBuilder:
        """The run goes on as another."""
        event = self.event("WORKFLOW_EXECUTION_CONTINUED_AS_NEW", at)
        event.workflow_execution_continued_as_new_event_attributes.new_execution_run_id = new_run_id
        self.status = CONTINUED
        return self

    @property
    def closed(self) -> bool:
        """Whether the run has ended."""
        return self.status != RUNNING

    def history(self) -> History:
        """The history so far."""
        return History(events=self.events)

    def listed(self) -> Run:
        """The run as the server lists it."""
        last = self.events[-1].event_time.ToDatetime(tzinfo=UTC)
        first = self.events[0].event_time.ToDatetime(tzinfo=UTC)
        closed_at = last if self.closed else None
        return Run(self.workflow_id, self.run_id, self.workflow_type, self.status, first, closed_at, len(self.events))


def application_failure(error: str, message: str, details: Any = None) -> Failure:
    """A failure with a stable type."""
    failure = Failure(message=message)
    failure.application_failure_info.type = error
    if details is not None:
        failure.application_failure_info.details.CopyFrom(payloads(details))
    return failure


def _base64(value: Any) -> str:
    import base64

    return base64.b64encode(json.dumps(value).encode()).decode()


def rows(*found: MoveRow) -> dict[str, Any]:
    """A MoveResult as JSON."""
    return asdict(MoveResult(list(found)))


def call(run: RunBuilder, *replicas: ReplicaMove, node: int = 1, throttle: int | None = None) -> dict[str, Any]:
    """The parameter of a step as JSON."""
    return asdict(MoveCall(run.workflow_id, run.run_id, node, list(replicas), throttle))


def moved(
    name: str,
    *,
    topic: str = "orders",
    partition: int = 0,
    node: int = 1,
    start: float = 0.0,
    copying: float = 10.0,
    queued: float = 2.0,
    throttled: float = 3.0,
    stalled: float = 0.0,
    size: int = 100_000_000,
    resumed: int = 0,
    attempts: int = 1,
    sla: float | None = None,
    throttle: int | None = 20_000_000,
    locked: float = 0.004,
    delete_wait: float = 5.0,
) -> RunBuilder:
    """A MoveReplica of one replica that went well, in the events and with the rows that a real one has."""
    parameter: dict[str, Any] = {
        "topic": topic, "partition": partition, "node": node, "directory": f"/data/n{node}/d2", "throttle": throttle
    }  # fmt: skip
    if sla is not None:
        parameter["sla_seconds"] = sla
    run = RunBuilder(
        f"{CLUSTER}/move/{node}/{topic}-{partition}/{name}", f"run-{name}", parameter=parameter, start=start
    )
    run.task(start)
    move = ReplicaMove(topic, partition, f"/data/n{node}/d2", claim=1)
    argument = call(run, move, node=node, throttle=throttle)
    short, long = f"{CLUSTER}/node-{node}", f"{CLUSTER}/node-{node}/moves"
    at = start + 0.02

    def row(outcome: str, **facts: Any) -> MoveRow:
        return MoveRow(
            topic, partition, outcome, f"/data/n{node}/d1", f"/data/n{node}/d2", 1, 0, bytes_total=size, **facts
        )

    run.activity(CREATE_MOVE, argument, at, at + 0.03, rows(row(Outcome.CREATED)), queue=short)
    at += 0.04
    length = queued + copying + throttled + stalled + (2.0 if attempts > 1 else 0.01)
    facts: dict[str, Any] = {
        "bytes_copied": size,
        "bytes_resumed": resumed,
        "bytes_written": size - resumed,  # what it resumed was there before this run
        "seconds_queued": queued,
        "seconds_copying": copying,
        "seconds_throttled": throttled,
        "seconds_stalled": stalled,
        "seconds_by_reason": {"copying": copying, "queued": queued, "run_limit": throttled, "slow_disk": stalled},
        "attempts": attempts,
    }
    run.activity(COPY, argument, at, at + length, rows(row(Outcome.CAUGHT_UP, **facts)), attempt=attempts, queue=long)
    at += length + 0.01
    facts["seconds_locked"] = locked
    run.activity(
        SWAP, argument, at, at + 0.02, rows(row(Outcome.SWAPPED, **facts, delete_after=delete_wait)), queue=short
    )
    at += 0.03
    timer = run.event("TIMER_STARTED", at)
    fired = run.event("TIMER_FIRED", at + delete_wait)
    fired.timer_fired_event_attributes.started_event_id = timer.event_id
    run.activity(
        DELETE_REPLICA,
        argument,
        at + delete_wait,
        at + delete_wait + 0.02,
        rows(row(Outcome.DELETED, **facts)),
        queue=short,
    )
    return run.complete(at + delete_wait + 0.03, rows(row(Outcome.DELETED, **facts)) | {"sla": {}, "phases": []})


class BuiltSource:
    """A history source of built runs, which counts what it is asked for."""

    def __init__(self, runs: Sequence[RunBuilder]) -> None:
        self.runs = {(run.workflow_id, run.run_id): run for run in runs}
        self.fetched: list[tuple[str, str]] = []
        self.queries: list[str] = []
        self.gone: set[tuple[str, str]] = set()
        self.kept: timedelta | None = None

    def add(self, *runs: RunBuilder) -> None:
        """More runs, or newer versions of known ones."""
        self.runs |= {(run.workflow_id, run.run_id): run for run in runs}

    async def list_runs(self, query: str) -> AsyncIterator[Run]:
        """The open or the closed ones, by what the query asks for, and closed since when."""
        self.queries.append(query)
        wants_open = "CloseTime IS NULL" in query
        since = query.partition('CloseTime >= "')[2].partition('"')[0]
        until = query.partition('CloseTime <= "')[2].partition('"')[0]
        for run in self.runs.values():
            listed = run.listed()
            if wants_open != (listed.closed_at is None):
                continue
            at = listed.closed_at.strftime("%Y-%m-%dT%H:%M:%S.%fZ") if listed.closed_at else ""
            if not wants_open and (at < since or (until and at > until)):
                continue
            yield listed

    async def retention(self) -> timedelta | None:
        """The chosen retention."""
        return self.kept

    async def history(self, run: Run) -> History | None:
        """The built history."""
        self.fetched.append(run.key)
        return None if run.key in self.gone else self.runs[run.key].history()

    async def pending(self, run: Run) -> dict[str, Any] | None:
        """The built pending activities."""
        return None if run.key in self.gone else {"activities": self.runs[run.key].pending}


def exporter(source: BuiltSource, at: datetime = T0 + timedelta(hours=1), part_bytes: int = 1 << 20) -> Exporter:
    """An exporter of built runs with a clock that stands still."""
    return Exporter(source, NAMESPACE, now=lambda: at, part_bytes=part_bytes)


def export(directory: Path, *runs: RunBuilder, at: float = 3600.0, part_bytes: int = 1 << 20) -> ExportResult:
    """Write an export of these runs as of `T0` plus so many seconds."""
    import asyncio

    source = BuiltSource(runs)
    when = T0 + timedelta(seconds=at)
    return asyncio.run(exporter(source, when, part_bytes).export(ExportCall(str(directory))))
