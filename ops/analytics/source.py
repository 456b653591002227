"""A Spark data source for the files of an export: `spark.read.format("temporal_history")`, one row per event.

The option `files` is a JSON list of what to read (see `io.history_files`); the manifests stay with the driver, so
that the source is a plain value that can be sent to Spark's Python workers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from google.protobuf.json_format import MessageToJson
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from temporalio.api.enums.v1 import EventType
from temporalio.api.export.v1 import WorkflowExecutions
from temporalio.api.history.v1 import HistoryEvent

from ops.analytics import schema

NAME = "temporal_history"

#: Events per Arrow batch.
BATCH = 4096

_ARROW = pa.schema(
    [
        pa.field(field.name, {"bigint": pa.int64(), "timestamp": pa.timestamp("us", tz="UTC")}.get(kind, pa.string()))
        for field in schema.HISTORY_EVENTS.fields
        for kind in [field.dataType.simpleString()]
    ]
)


@dataclass
class HistoryFiles(InputPartition):  # type: ignore[misc]
    """Files that one task reads: each a dict of path, name, export_id, namespace and runs ([workflow id, run id])."""

    files: list[dict[str, Any]]

    def __init__(self, files: list[dict[str, Any]]) -> None:
        self.files = files


class TemporalHistory(DataSource):  # type: ignore[misc]
    """Histories as Temporal's export protobuf, by the exporter of rehome or by anything that writes the same."""

    @classmethod
    def name(cls) -> str:
        """The name after `format`."""
        return NAME

    def schema(self) -> Any:
        """One row per event."""
        return schema.HISTORY_EVENTS

    def reader(self, schema: Any) -> DataSourceReader:
        """Reads the files that the option `files` lists, in as many tasks as the option `tasks` says."""
        return HistoryReader(json.loads(self.options["files"]), int(self.options.get("tasks", "1")))


class HistoryReader(DataSourceReader):  # type: ignore[misc]
    """Spreads files over tasks by size and yields their events as Arrow batches."""

    def __init__(self, files: list[dict[str, Any]], tasks: int) -> None:
        self._files, self._tasks = files, tasks

    def partitions(self) -> Sequence[InputPartition]:
        """At most as many as tasks, evenly filled, the largest files first."""
        bins: list[list[dict[str, Any]]] = [[] for _ in range(max(1, min(self._tasks, len(self._files))))]
        sizes = [0] * len(bins)
        for file in sorted(self._files, key=lambda file: -int(file["bytes"])):
            smallest = sizes.index(min(sizes))
            bins[smallest].append(file)
            sizes[smallest] += int(file["bytes"])
        return [HistoryFiles(files) for files in bins]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """All events of the partition's files."""
        rows: list[tuple[Any, ...]] = []
        for file in partition.files if isinstance(partition, HistoryFiles) else []:
            for row in read_events(file):
                rows.append(row)
                if len(rows) == BATCH:
                    yield _batch(rows)
                    rows = []
        if rows:
            yield _batch(rows)


def read_events(file: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    """The events of one file as rows of `schema.HISTORY_EVENTS`. Raises DecodeError for what is no such file."""
    executions = WorkflowExecutions.FromString(Path(file["path"]).read_bytes())
    runs = file.get("runs") or []
    for index, item in enumerate(executions.items):
        events = item.history.events
        workflow_id, run_id = runs[index] if index < len(runs) else named_by(events)
        snapshot = f"{file['name']}#{index}"
        for event in events:
            yield (
                file["namespace"],
                workflow_id,
                run_id,
                event.event_id,
                event.event_time.ToMicroseconds(),
                event_name(event.event_type),
                attributes_json(event),
                summary(event),
                snapshot,
                file["name"],
                file["export_id"],
            )


def named_by(events: Sequence[HistoryEvent]) -> tuple[str, str]:
    """Workflow id and run id as the first event has them, for files that come without a manifest's list of runs."""
    if not events:
        return "", ""
    started = events[0].workflow_execution_started_event_attributes
    return started.workflow_id, started.original_execution_run_id


def event_name(number: int) -> str:
    """The event's type without its prefix; the bare number for one that this version does not know."""
    try:
        return EventType.Name(number).removeprefix("EVENT_TYPE_")  # type: ignore[arg-type]
    except ValueError:
        return str(number)


def attributes_json(event: HistoryEvent) -> str:
    """The event's own part as Temporal's JSON, "{}" where this version does not know it."""
    which = event.WhichOneof("attributes")
    return MessageToJson(getattr(event, which), indent=None, ensure_ascii=False) if which else "{}"


def summary(event: HistoryEvent) -> str | None:
    """The label that a workflow gave an activity, a timer or a child."""
    if not event.HasField("user_metadata") or not event.user_metadata.HasField("summary"):
        return None
    try:
        text = json.loads(event.user_metadata.summary.data)
    except ValueError:
        return None
    return text if isinstance(text, str) else None


def _batch(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(list(column), type=field.type) for column, field in zip(columns, _ARROW, strict=True)], schema=_ARROW
    )
