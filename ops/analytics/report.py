"""What the printed table and the page show: plain values, collected from gold."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from activities.history.manifest import to_iso
from ops.analytics import schema


@dataclass(frozen=True, slots=True)
class Move:
    """One row of `move_report`; times are ISO 8601, durations seconds, sizes bytes, rates bytes per second."""

    id: str
    workflow_id: str
    replica: str
    node: int | None
    source: str | None
    directory: str | None
    outcome: str
    reason: str | None
    message: str | None
    phase: str | None
    started: str
    finished: str | None
    duration_seconds: float
    open: bool
    bytes_total: int
    bytes_copied: int
    bytes_resumed: int
    bytes_written: int
    mean_rate: float | None
    throttle: float | None
    attempts: int
    seconds_queued: float
    seconds_copying: float
    seconds_throttled: float
    seconds_stalled: float
    seconds_locked: float
    seconds_delete_wait: float
    spent: dict[str, float]
    stall: str | None
    stall_message: str | None
    deadline_seconds: float | None
    deadline: str | None
    met_sla: str


@dataclass(frozen=True, slots=True)
class Phase:
    """One interval of one move."""

    id: str
    phase: str
    began: str
    ended: str
    seconds: float
    measured: bool


@dataclass(frozen=True, slots=True)
class Attainment:
    """One row of `sla_summary`."""

    scope: str
    value: str
    moves: int
    moved: int
    failed: int
    cancelled: int
    open: int
    asked: int
    met: int
    missed: int
    not_due: int
    excluded: int
    attainment: float | None
    low: float | None
    high: float | None
    bytes_copied: int
    p50_seconds: float | None
    p95_seconds: float | None
    max_seconds: float | None
    mean_rate: float | None


@dataclass(frozen=True, slots=True)
class Failure:
    """One row of `directory_failures`: `replicas` are those that went offline, `moves` those that ended with it."""

    workflow_id: str
    node: int
    directory: str
    directory_id: str
    reason: str
    noticed: str
    recorded: str | None
    seconds: float | None
    outcome: str
    replicas: list[str]
    moves: list[str]


@dataclass(frozen=True, slots=True)
class ReplicaFailure:
    """One row of `replica_failures`: a replica whose `file` took it offline, `back` None while it is."""

    node: int
    topic: str
    partition: int
    file: str
    reason: str
    reported: str
    back: str | None

    @property
    def replica(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that is shown, as of one time."""

    as_of: str
    runs: int
    moves: tuple[Move, ...]
    phases: tuple[Phase, ...]
    summary: tuple[Attainment, ...]
    failures: tuple[Failure, ...] = ()
    replica_failures: tuple[ReplicaFailure, ...] = ()

    @property
    def total(self) -> Attainment:
        """The row over all moves; all zeros where there was none."""
        for row in self.summary:
            if row.scope == "all":
                return row
        return Attainment("all", "", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, None, None, None, 0, None, None, None, None)

    @property
    def nodes(self) -> tuple[Attainment, ...]:
        """The rows per node, by the node's number."""
        rows = [row for row in self.summary if row.scope == "node"]
        return tuple(
            sorted(rows, key=lambda row: (not row.value.isdigit(), int(row.value) if row.value.isdigit() else 0))
        )


def build(
    moves: DataFrame,
    phases: DataFrame,
    summary: DataFrame,
    runs: DataFrame,
    as_of: datetime,
    failures: DataFrame | None = None,
    replica_failures: DataFrame | None = None,
) -> Report:
    """Collect the report, oldest move and oldest failure first."""
    named = phases.withColumn(
        "id",
        F.concat_ws(
            "/",
            "workflow_id",
            F.substring("chain", 1, 8),
            F.concat_ws("-", "topic", F.col("partition").cast("string")),
        ),
    )
    order = {phase: place for place, phase in enumerate(schema.PHASES)}
    intervals = sorted(
        _collect(named, Phase), key=lambda phase: (phase.id, phase.began, phase.ended, order.get(phase.phase, 99))
    )
    return Report(
        as_of=to_iso(as_of),
        runs=runs.count(),
        moves=tuple(sorted(_collect(moves, Move), key=lambda move: (move.started, move.id))),
        phases=tuple(intervals),
        summary=tuple(_collect(summary, Attainment)),
        failures=() if failures is None else collect_failures(failures),
        replica_failures=() if replica_failures is None else collect_replica_failures(replica_failures),
    )


def collect_failures(failures: DataFrame) -> tuple[Failure, ...]:
    """The failed directories, the oldest first."""
    return tuple(sorted(_collect(failures, Failure), key=lambda one: (one.noticed, one.workflow_id)))


def collect_replica_failures(failures: DataFrame) -> tuple[ReplicaFailure, ...]:
    """The replicas that are or were offline alone, the oldest report first."""
    return tuple(sorted(_collect(failures, ReplicaFailure), key=lambda one: (one.reported, one.node, one.replica)))


def _collect(table: DataFrame, kind: type[Any]) -> list[Any]:
    names = [field.name for field in fields(kind)]
    times = {field.name for field in table.schema.fields if field.dataType.simpleString() == "timestamp"}
    # Times as microseconds: a collected time stamp would come in the local time zone of this process.
    columns = [F.unix_micros(name).alias(name) if name in times else F.col(name) for name in names]
    return [
        kind(*[_iso(value) if name in times else value for name, value in zip(names, row, strict=True)])
        for row in table.select(columns).collect()
    ]


def _iso(micros: int | None) -> str | None:
    from datetime import UTC, timedelta

    return None if micros is None else to_iso(datetime.fromtimestamp(0, UTC) + timedelta(microseconds=micros))
