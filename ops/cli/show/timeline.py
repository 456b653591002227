"""The timeline of one run, from the events of its history. Pure: it reads nothing.

The workflow ids, phases and results are those of `workflows`; what an event does not have is left empty, never guessed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any

from temporalio.api.common.v1 import Payload, Payloads
from temporalio.api.enums.v1 import ApplicationErrorCategory, EventType
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent

from storage_node.model.moves import Phase
from storage_node.model.reassignments import ReassignmentPhase
from workflows.model import search_attributes
from workflows.model.calls import AWAIT_DELETION, CANCEL_MOVE, CATCH_UP, COPY, CREATE_MOVE, DELETE_REPLICA, SWAP

#: Characters of a sentence in a row.
LONGEST = 500

#: The phase of a run that waits for this activity, for an open run whose history does not name its phases.
PHASE_OF: Mapping[str, str] = {
    CREATE_MOVE: Phase.CREATING,
    COPY: Phase.COPYING,
    SWAP: Phase.SWAPPING,
    DELETE_REPLICA: Phase.DELETING,
    CANCEL_MOVE: Phase.CANCELLING,
    CATCH_UP: ReassignmentPhase.CATCHING_UP,
    AWAIT_DELETION: ReassignmentPhase.DELETING,
}


class Kind(StrEnum):
    """What a row is about."""

    STEP = "step"  # an activity
    RUN = "run"  # a child, such as a plan's lane
    TIMER = "timer"
    UPDATE = "update"  # pause, set_throttle, ...
    SIGNAL = "signal"
    REPORT = "report"  # a signal that the run has sent
    CANCEL = "cancel"  # a cancel of the run was requested


class State(StrEnum):
    """How far the subject of a row is."""

    OPEN = "open"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    TERMINATED = "terminated"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Row:
    """One entry of a timeline. `at` is in epoch seconds, `seconds` a duration, None while the entry is open.

    `attempts` counts the attempts of a step; `failure` is the last failure of one of them. `count` entries of the same
    name that followed each other, without a failure, are one row.
    """

    at: float
    seconds: float | None
    kind: Kind
    name: str
    about: str = ""
    state: State = State.DONE
    attempts: int = 0
    failure: str = ""
    by: str = ""
    count: int = 1


@dataclass(frozen=True, slots=True)
class Pending:
    """A step that the server describes as open: its attempt, the last failure, and what its worker last reported."""

    name: str
    attempt: int
    failure: str = ""
    reported: str = ""


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """A phase of the run; `seconds` is None for the current one."""

    name: str
    at: float
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Timeline:
    """A run. Times are epoch seconds; `outcome` is "" while it is open, `now` what it waits for then.

    `results` has a line for each part of the result. `earlier` counts the runs of the same chain (continue-as-new) that
    are not part of it.
    """

    workflow_id: str
    run_id: str
    type: str
    started: float
    ended: float | None
    started_by: str
    outcome: str
    reason: str
    now: str
    phases: list[PhaseRow] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    earlier: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the JSON of --json; the documentation has its shape."""
        return {"version": 1} | asdict(self)


_BENIGN = ApplicationErrorCategory.APPLICATION_ERROR_CATEGORY_BENIGN
_ENDS = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED: "completed",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED: "failed",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED: "cancelled",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED: "terminated",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT: "timed_out",
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW: "continued",
}
_STEP_ENDS = {
    EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED: State.DONE,
    EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED: State.FAILED,
    EventType.EVENT_TYPE_ACTIVITY_TASK_CANCELED: State.CANCELLED,
    EventType.EVENT_TYPE_ACTIVITY_TASK_TIMED_OUT: State.TIMED_OUT,
}
_CHILD_ENDS = {
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_COMPLETED: State.DONE,
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_FAILED: State.FAILED,
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_CANCELED: State.CANCELLED,
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_TIMED_OUT: State.TIMED_OUT,
    EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_TERMINATED: State.TERMINATED,
    EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_FAILED: State.FAILED,
}


def timeline(
    workflow_id: str, chain: Sequence[Sequence[HistoryEvent]], pending: Iterable[Pending] = (), earlier: int = 0
) -> Timeline:
    """Return the timeline of a run: the events of each run of its chain, in order; the first may not be the chain's.

    Raises ValueError without events.
    """
    if not chain or not all(chain):
        raise ValueError(f"the history of {workflow_id} is empty")
    reader = _Reader()
    for events in chain:
        reader.read(events)
    return reader.made(workflow_id, chain, list(pending), earlier)


class _Reader:
    """Reads events into rows. A row is known by the event that began it."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, int], Row] = {}
        self._run = 0
        self._attempts: dict[int, tuple[int, str, str]] = {}
        self._named: list[tuple[str, float]] = []
        self._end: HistoryEvent | None = None

    def read(self, events: Sequence[HistoryEvent]) -> None:
        """Read the events of the chain's next run."""
        self._run += 1
        self._attempts, self._end = {}, None
        for event in events:
            self._event(event)

    def _begin(self, event: HistoryEvent, kind: Kind, name: str, about: str = "", by: str = "") -> None:
        self._rows[self._run, event.event_id] = Row(_at(event), None, kind, name, about, State.OPEN, by=by)

    def _finish(self, begun: int, event: HistoryEvent, state: State, failure: str = "") -> None:
        row = self._rows.get((self._run, begun))
        if row is None:
            return
        attempts, last, by = self._attempts.get(begun, (row.attempts, "", row.by))
        self._rows[self._run, begun] = replace(
            row,
            seconds=round(max(0.0, _at(event) - row.at), 3),
            state=state,
            attempts=attempts,
            failure=failure or last,
            by=by,
        )

    def _event(self, event: HistoryEvent) -> None:
        kind = event.event_type
        if kind in _STEP_ENDS:
            self._step_ended(event, _STEP_ENDS[kind])
        elif kind in _CHILD_ENDS:
            self._child_ended(event, _CHILD_ENDS[kind])
        elif kind in _ENDS:
            self._end = event
        elif (reader := _READERS.get(kind)) is not None:
            reader(self, event)

    # --- steps and children

    def _step_begun(self, event: HistoryEvent) -> None:
        name = event.activity_task_scheduled_event_attributes.activity_type.name
        self._begin(event, Kind.STEP, name, _text(event.user_metadata.summary))

    def _step_started(self, event: HistoryEvent) -> None:
        began = event.activity_task_started_event_attributes
        self._attempts[began.scheduled_event_id] = began.attempt, sentence(began.last_failure), began.identity

    def _step_ended(self, event: HistoryEvent, state: State) -> None:
        ended = getattr(event, event.WhichOneof("attributes") or "")
        failure = "" if state in (State.DONE, State.CANCELLED) else sentence(ended.failure)
        if state is State.FAILED and ended.failure.application_failure_info.category == _BENIGN:
            # The run has checked for something that does not exist.
            state, failure = State.DONE, ""
        self._finish(ended.scheduled_event_id, event, state, failure)

    def _child_begun(self, event: HistoryEvent) -> None:
        child = event.start_child_workflow_execution_initiated_event_attributes
        self._begin(event, Kind.RUN, child.workflow_type.name, child.workflow_id)

    def _child_ended(self, event: HistoryEvent, state: State) -> None:
        ended = getattr(event, event.WhichOneof("attributes") or "")
        failure = sentence(ended.failure) if "failure" in ended.DESCRIPTOR.fields_by_name else ""
        self._finish(ended.initiated_event_id, event, state, failure)

    # --- timers

    def _timer_begun(self, event: HistoryEvent) -> None:
        duration = event.timer_started_event_attributes.start_to_fire_timeout.ToTimedelta().total_seconds()
        self._begin(event, Kind.TIMER, f"{duration:g} s", _text(event.user_metadata.summary))

    def _timer_fired(self, event: HistoryEvent) -> None:
        self._finish(event.timer_fired_event_attributes.started_event_id, event, State.DONE)

    def _timer_cancelled(self, event: HistoryEvent) -> None:
        self._finish(event.timer_canceled_event_attributes.started_event_id, event, State.CANCELLED)

    # --- updates, signals and cancels

    def _update_begun(self, event: HistoryEvent) -> None:
        request = event.workflow_execution_update_accepted_event_attributes.accepted_request
        given = ", ".join(_text(each) for each in request.input.args.payloads)
        self._begin(event, Kind.UPDATE, request.input.name, given, request.meta.identity)

    def _update_ended(self, event: HistoryEvent) -> None:
        ended = event.workflow_execution_update_completed_event_attributes
        if ended.outcome.WhichOneof("value") == "failure":
            self._finish(ended.accepted_event_id, event, State.REFUSED, sentence(ended.outcome.failure))
        else:
            self._finish(ended.accepted_event_id, event, State.DONE)

    def _signalled(self, event: HistoryEvent) -> None:
        signal = event.workflow_execution_signaled_event_attributes
        by = str(signal.external_workflow_execution.workflow_id or signal.identity)
        self._begin(event, Kind.SIGNAL, signal.signal_name, by=by)
        self._finish(event.event_id, event, State.DONE)

    def _report_begun(self, event: HistoryEvent) -> None:
        sent = event.signal_external_workflow_execution_initiated_event_attributes
        self._begin(event, Kind.REPORT, sent.signal_name, f"to {sent.workflow_execution.workflow_id}")

    def _report_received(self, event: HistoryEvent) -> None:
        begun = event.external_workflow_execution_signaled_event_attributes.initiated_event_id
        self._finish(begun, event, State.DONE)

    def _report_lost(self, event: HistoryEvent) -> None:
        begun = event.signal_external_workflow_execution_failed_event_attributes.initiated_event_id
        self._finish(begun, event, State.FAILED, "no run has received it")

    def _cancel_requested(self, event: HistoryEvent) -> None:
        asked = event.workflow_execution_cancel_requested_event_attributes
        by = asked.external_workflow_execution.workflow_id or asked.identity
        self._begin(event, Kind.CANCEL, "cancel requested", asked.cause, by)
        self._finish(event.event_id, event, State.DONE)

    def _phase_named(self, event: HistoryEvent) -> None:
        found = event.upsert_workflow_search_attributes_event_attributes.search_attributes.indexed_fields
        if search_attributes.PHASE in found:
            self._named.append((str(_value(found[search_attributes.PHASE])), _at(event)))

    def made(
        self, workflow_id: str, chain: Sequence[Sequence[HistoryEvent]], pending: list[Pending], earlier: int
    ) -> Timeline:
        """Return the timeline of what was read."""
        first = chain[0][0].workflow_execution_started_event_attributes
        last = chain[-1][0].workflow_execution_started_event_attributes
        started, end = _at(chain[0][0]), self._end
        rows = [_with_pending(row, pending) for row in sorted(self._rows.values(), key=lambda row: row.at)]
        ended = _at(end) if end is not None else None
        value, reason = _result(end)
        return Timeline(
            workflow_id=workflow_id,
            run_id=last.original_execution_run_id,
            type=last.workflow_type.name,
            started=started,
            ended=ended,
            started_by=_started_by(first),
            outcome=_ENDS[end.event_type] if end is not None else "",
            reason=reason,
            now="" if end is not None else now(rows),
            phases=_phases(value, self._named, rows, ended),
            rows=merged(rows),
            results=results(value),
            earlier=earlier,
        )


_READERS: Mapping[int, Callable[[_Reader, HistoryEvent], None]] = {
    EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED: _Reader._step_begun,
    EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED: _Reader._step_started,
    EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED: _Reader._child_begun,
    EventType.EVENT_TYPE_TIMER_STARTED: _Reader._timer_begun,
    EventType.EVENT_TYPE_TIMER_FIRED: _Reader._timer_fired,
    EventType.EVENT_TYPE_TIMER_CANCELED: _Reader._timer_cancelled,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED: _Reader._update_begun,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_COMPLETED: _Reader._update_ended,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED: _Reader._signalled,
    EventType.EVENT_TYPE_SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_INITIATED: _Reader._report_begun,
    EventType.EVENT_TYPE_EXTERNAL_WORKFLOW_EXECUTION_SIGNALED: _Reader._report_received,
    EventType.EVENT_TYPE_SIGNAL_EXTERNAL_WORKFLOW_EXECUTION_FAILED: _Reader._report_lost,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED: _Reader._cancel_requested,
    EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES: _Reader._phase_named,
}


def _with_pending(row: Row, pending: list[Pending]) -> Row:
    """Return an open step's row with the first of the server's pending steps of its name, which is taken out."""
    if row.kind is not Kind.STEP or row.state is not State.OPEN:
        return row
    for each in pending:
        if each.name == row.name:
            pending.remove(each)
            about = " ".join(part for part in (row.about, each.reported) if part)
            return replace(row, attempts=each.attempt, failure=each.failure, about=about)
    return row


def merged(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with those joined that follow each other, have one kind and name, and went well at once."""
    found: list[Row] = []
    for row in rows:
        last = found[-1] if found else None
        if (
            last is not None
            and (last.kind, last.name, last.state) == (row.kind, row.name, row.state)
            and row.kind in (Kind.STEP, Kind.SIGNAL, Kind.TIMER, Kind.REPORT)
            and row.state is State.DONE
            and not (last.failure or row.failure)
        ):
            seconds = round(row.at + (row.seconds or 0.0) - last.at, 3)
            about = last.about if last.about == row.about else ""
            found[-1] = replace(last, seconds=seconds, about=about, count=last.count + 1, by=row.by)
        else:
            found.append(row)
    return found


def now(rows: Sequence[Row]) -> str:
    """Return what an open run waits for."""
    paused = [row.name for row in rows if row.kind is Kind.UPDATE and row.name in ("pause", "resume")][-1:] == ["pause"]
    waits = [row for row in rows if row.state is State.OPEN]
    listed = []
    for row in waits[:3]:
        tries = f", attempt {row.attempts}" if row.attempts > 1 else ""
        failure = f" (the last one failed: {row.failure})" if row.failure else ""
        listed.append(f"{row.kind} {row.name}{f' {row.about}' if row.about else ''}{tries}{failure}")
    more = f", and {len(waits) - 3} more" if len(waits) > 3 else ""
    sentence = f"waits for {'; '.join(listed)}{more}" if listed else "waits for a message or its next step"
    return f"paused; {sentence}" if paused else sentence


def _phases(value: Any, named: Sequence[tuple[str, float]], rows: Sequence[Row], ended: float | None) -> list[PhaseRow]:
    """Return the phases that the result names, else those of the search attributes, else those of the steps."""
    listed = value.get("phases") if isinstance(value, Mapping) else None
    if isinstance(listed, list) and listed:
        return [
            PhaseRow(str(name), round(begin, 3), None if end is None else round(end - begin, 3))
            for name, begin, end in (each for each in listed if isinstance(each, list) and len(each) == 3)
        ]
    entered = [each for each in named if each[0] != "ended"]
    if not entered:
        entered = [(PHASE_OF[row.name], row.at) for row in rows if row.kind is Kind.STEP and row.name in PHASE_OF]
    found: list[PhaseRow] = []
    for name, at in entered:
        if found and found[-1].name == name:
            continue
        if found:
            found[-1] = replace(found[-1], seconds=round(at - found[-1].at, 3))
        found.append(PhaseRow(name, at, None))
    if found and ended is not None:
        found[-1] = replace(found[-1], seconds=round(ended - found[-1].at, 3))
    return found


def results(value: Any) -> list[str]:
    """Return a line for each row of a result, and one for the whole of a plan's."""
    if not isinstance(value, Mapping):
        return []
    found = []
    if isinstance(value.get("outcome"), str) and isinstance(value.get("outcomes"), Mapping):
        counts = ", ".join(f"{count} {name}" for name, count in sorted(value["outcomes"].items()))
        found.append(f"{value['outcome']}: {counts or 'no moves'}")
    for row in value.get("rows") or ():
        if not isinstance(row, Mapping) or not row.get("outcome"):
            continue
        what = row.get("key") or f"{row.get('topic')}-{row.get('partition')}"
        why = row.get("message") or row.get("reason") or ""
        found.append(f"{what}: {row['outcome']}{f' ({why})' if why else ''}"[:LONGEST])
    if value.get("recorded") is not None and value.get("directory"):
        found.append(f"{value['directory']} of node {value.get('node')}: {value.get('reason')}")
    return found


def _result(end: HistoryEvent | None) -> tuple[Any, str]:
    """Return the result of a run, of a failed one the first of its failure's details, and why it ended."""
    if end is None:
        return None, ""
    if end.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED:
        return _first(end.workflow_execution_completed_event_attributes.result), ""
    if end.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED:
        return _first(end.workflow_execution_canceled_event_attributes.details), ""
    if end.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED:
        failure = end.workflow_execution_failed_event_attributes.failure
        return _first(failure.application_failure_info.details), sentence(failure)
    if end.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED:
        ended = end.workflow_execution_terminated_event_attributes
        return None, f"{ended.reason or 'no reason was given'} (by {ended.identity or 'an unknown client'})"
    return None, ""


def _started_by(first: Any) -> str:
    """Return what started a run: a run, the schedule, or a client; from the attributes of its first event."""
    if first.parent_workflow_execution.workflow_id:
        return f"the run {first.parent_workflow_execution.workflow_id}"
    if first.continued_execution_run_id:
        return "the run before it (continue-as-new)"
    scheduled = first.search_attributes.indexed_fields.get("TemporalScheduledById")
    if scheduled is not None:
        return f"the schedule {_value(scheduled)}"
    requested = [by for by in _requesters(_first(first.input)) if by]
    by = f", for {', '.join(dict.fromkeys(requested))}" if requested else ""
    return f"the client {first.identity or 'unknown'}{by}"


def _requesters(parameter: Any) -> list[str]:
    """Return who a parameter names: of a plan its submitter, of the controller's changes their clients."""
    if not isinstance(parameter, Mapping):
        return []
    made = parameter.get("made")
    rows = [str(row[7]) for row in made if isinstance(row, list) and len(row) == 8] if isinstance(made, list) else []
    return [str(parameter.get("submitted_by") or ""), *rows]


def sentence(failure: Failure) -> str:
    """Return one sentence about a failure: the innermost cause, with its type."""
    if not failure.message and not failure.HasField("cause"):
        return ""
    while failure.HasField("cause") and not failure.application_failure_info.type:
        failure = failure.cause
    kind = failure.application_failure_info.type
    return f"{f'{kind}: ' if kind else ''}{failure.message}"[:LONGEST]


def _first(payloads: Payloads) -> Any:
    return _value(payloads.payloads[0]) if payloads.payloads else None


def _value(payload: Payload) -> Any:
    """Return the value of a payload as JSON; None for one that is not, such as an encrypted one."""
    try:
        return json.loads(payload.data) if payload.data else None
    except ValueError:
        return None


def _text(payload: Payload) -> str:
    value = _value(payload)
    found = value if isinstance(value, str) else "" if value is None else json.dumps(value, sort_keys=True)
    return found[:LONGEST]


def _at(event: HistoryEvent) -> float:
    return round(event.event_time.ToMicroseconds() / 1e6, 3)
