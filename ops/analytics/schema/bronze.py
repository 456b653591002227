"""Bronze: what Temporal wrote, unchanged. Events of unknown types and of unknown workflows pass."""

from __future__ import annotations

from ops.analytics.schema.columns import DATE, INT, LONG, STRING, TIME, Table, columns

RUN = columns(
    STRING,
    namespace="Temporal's namespace",
    workflow_id="the workflow's id",
    run_id="the run's id",
)
_EVENT = (
    *RUN,
    *columns(LONG, event_id="the event's number in its run"),
    *columns(TIME, event_time="when the server wrote the event"),
    *columns(
        STRING,
        event_type="the type without its prefix; the number of a type that this version does not know",
        attributes="the event's own part as Temporal's JSON",
        summary="the label that the workflow gave an activity, a timer or a child",
        snapshot="the file and the place in it: one copy of the run's history",
        source_file="the file's name, relative to the export folder",
        export_id="the export that wrote the file",
    ),
    *columns(LONG, sequence="the number of the export's manifest"),
    *columns(DATE, ingest_date="the day of the export"),
)

HISTORY_EVENTS = Table(
    "bronze",
    "history_events",
    "event of a closed run, per snapshot of the run",
    ("namespace", "workflow_id", "run_id", "snapshot", "event_id"),
    _EVENT,
    partition=("ingest_date",),
)

OPEN_SNAPSHOTS = Table(
    "bronze",
    "open_snapshots",
    "event of a run that is open, from the newest snapshot of the run; replaced when a newer one comes",
    ("namespace", "workflow_id", "run_id", "event_id"),
    _EVENT,
)

PENDING_ACTIVITIES = Table(
    "bronze",
    "pending_activities",
    "pending activity of a run, as last described while the run was open; one row without id for a run without any",
    ("namespace", "workflow_id", "run_id", "activity_id"),
    (
        *RUN,
        *columns(TIME, taken_at="when the server described the run"),
        *columns(LONG, history_length="events of the run at that time"),
        *columns(
            STRING,
            activity_id="the activity's id in its run",
            activity_type="the activity's name",
            state="scheduled, started or cancel_requested",
        ),
        *columns(INT, attempt="the attempt under way or next, from 1"),
        *columns(TIME, heartbeat_at="the last heartbeat"),
        *columns(
            STRING,
            heartbeat="the last heartbeat's details",
            last_failure="the last attempt's failure as Temporal's JSON",
        ),
        *columns(TIME, next_attempt_at="when the next attempt is due"),
    ),
)
