"""The values of the printed table and the page, collected from gold."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from activities.history.manifest import to_iso
from ops.analytics import schema
from ops.analytics.gold.replicas import counted

#: The numbers of rows that are collected for one report; the tables have all.
MOST_MOVES, MOST_PLANS, MOST_FAILURES, MOST_QUARANTINED = 2000, 200, 2000, 20


@dataclass(frozen=True, slots=True)
class Move:
    """One judged row of `moves`; times are ISO 8601, durations seconds, sizes bytes, rates bytes per second."""

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
    seconds_delete_delay: float
    spent: dict[str, float]
    stall: str | None
    stall_message: str | None
    deadline_seconds: float | None
    deadline: str | None
    met_sla: str
    kind: str = schema.DISK
    from_node: int | None = None

    @property
    def origin(self) -> str | None:
        """Return where the replica comes from: a directory of its node, or another node."""
        return self.source if self.kind == schema.DISK or self.from_node is None else f"node {self.from_node}"

    @property
    def target(self) -> str | None:
        """Return where it goes to: a directory, of a move between nodes with its node."""
        if self.kind == schema.DISK or self.node is None or self.node == self.from_node:
            return self.directory
        return f"node {self.node}" + (f": {self.directory}" if self.directory else "")


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
class Plan:
    """One row of `JUDGED_PLANS`. `done` moves have reached their targets, `missed` ones have ended elsewhere."""

    workflow_id: str
    cluster: str | None
    outcome: str
    open: bool
    phase: str | None
    reason: str | None
    message: str | None
    started: str
    finished: str | None
    seconds: float | None
    moves: int | None
    done: int
    missed: int
    running: int
    bytes_total: int | None
    bytes_done: int
    deadline: str | None
    met_sla: str
    verified: bool | None
    differences: int | None


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
class Budget:
    """One row of `burn_rate`: an SLO as of the report's time."""

    slo: str
    event: str
    objective: float
    window_days: int
    weight: str
    until: str
    good: int
    bad: int
    share: float | None
    low: float | None
    high: float | None
    budget_left: float | None
    burn_5m: float | None
    burn_30m: float | None
    burn_1h: float | None
    burn_6h: float | None
    burn_3d: float | None
    alarm: str | None


@dataclass(frozen=True, slots=True)
class Failure:
    """One row of `directory_failures`: `replicas` went offline and `moves` ended because of it."""

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
    """One row of `replica_failures`: a replica that `file` took offline; `back` is None while it is offline."""

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
class Quarantined:
    """One row of `quarantine`."""

    source_file: str
    offset: int
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Only:
    """Which moves a report lists: those under way at `since` or later, the open ones, those of some kinds."""

    since: datetime | None = None
    open: bool = False
    kinds: tuple[str, ...] = ()

    def of(self, moves: DataFrame) -> DataFrame:
        """Return the judged moves that match."""
        if self.since is not None:
            moves = moves.where(F.col("open") | (F.col("finished") >= F.lit(self.since)))
        if self.open:
            moves = moves.where(F.col("open"))
        return moves.where(F.col("kind").isin(*self.kinds)) if self.kinds else moves

    def __str__(self) -> str:
        """Return the choice in words, "" for all moves."""
        parts = [
            "open" if self.open else "",
            f"of kind {' or '.join(self.kinds)}" if self.kinds else "",
            f"under way since {to_iso(self.since)[:19].replace('T', ' ')} UTC" if self.since else "",
        ]
        return ", ".join(part for part in parts if part)


ALL = Only()


@dataclass(frozen=True, slots=True)
class Report:
    """All values that are shown, as of one time. `moves` are the latest ones, `quarantine` has the newest rows.

    `only` says which moves are listed, "" for all, and `matching` how many match it. All other numbers are of all.
    """

    as_of: str
    runs: int
    moves: tuple[Move, ...]
    phases: tuple[Phase, ...]
    summary: tuple[Attainment, ...]
    plans: tuple[Plan, ...] = ()
    failures: tuple[Failure, ...] = ()
    replica_failures: tuple[ReplicaFailure, ...] = ()
    quarantine: tuple[Quarantined, ...] = ()
    quarantined: int = 0
    only: str = ""
    matching: int = 0
    budgets: tuple[Budget, ...] = ()

    @property
    def listed(self) -> int:
        """Return the number of moves from which `moves` are the latest."""
        return self.matching if self.only else self.total.moves

    @property
    def total(self) -> Attainment:
        """Return the row over all moves; all zeros without moves."""
        for row in self.summary:
            if row.scope == "all":
                return row
        return Attainment("all", "", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, None, None, None, 0, None, None, None, None)

    @property
    def nodes(self) -> tuple[Attainment, ...]:
        """Return the rows per node, by the node's number."""
        rows = [row for row in self.summary if row.scope == "node"]
        return tuple(
            sorted(rows, key=lambda row: (not row.value.isdigit(), int(row.value) if row.value.isdigit() else 0))
        )


@dataclass(frozen=True, slots=True)
class Shown:
    """The tables of a report."""

    moves: DataFrame
    phases: DataFrame
    summary: DataFrame
    runs: DataFrame
    plans: DataFrame
    failures: DataFrame
    replica_failures: DataFrame
    quarantine: DataFrame
    burned: DataFrame | None = None


def build(shown: Shown, as_of: datetime, only: Only = ALL) -> Report:
    """Collect the report, oldest move and oldest failure first. `MOST_MOVES` are collected: those under way, those that
    missed their deadline, then the latest.
    """
    chosen = only.of(shown.moves)
    alarming = (F.desc("open"), F.desc(F.col("met_sla") == schema.NO))
    latest = chosen.orderBy(*alarming, F.desc("started"), F.desc("id")).limit(MOST_MOVES)
    phases = shown.phases.join(F.broadcast(latest.select("id")), "id", "left_semi")
    order = {phase: place for place, phase in enumerate(schema.PHASES)}
    intervals = sorted(
        _collect(phases, Phase), key=lambda phase: (phase.id, phase.began, phase.ended, order.get(phase.phase, 99))
    )
    bad = shown.quarantine.orderBy(F.desc("sequence"), "source_file", "offset")
    quarantined = shown.quarantine.count()
    return Report(
        as_of=to_iso(as_of),
        runs=shown.runs.count(),
        moves=tuple(sorted(_collect(latest, Move), key=lambda move: (move.started, move.id))),
        phases=tuple(intervals),
        # (Plans grow in number with the history; theirs are not shown.)
        summary=tuple(_collect(shown.summary.where(F.col("scope") != "plan"), Attainment)),
        plans=tuple(
            sorted(
                _collect(shown.plans.orderBy(F.desc("started")).limit(MOST_PLANS), Plan),
                key=lambda plan: (plan.started, plan.workflow_id),
            )
        ),
        failures=collect_failures(shown.failures.orderBy(F.desc("noticed")).limit(MOST_FAILURES)),
        replica_failures=collect_replica_failures(
            shown.replica_failures.orderBy(F.desc("reported")).limit(MOST_FAILURES)
        ),
        quarantine=tuple(_collect(bad.limit(MOST_QUARANTINED), Quarantined)) if quarantined else (),
        quarantined=quarantined,
        only=str(only),
        matching=counted(chosen).count() if str(only) else 0,
        budgets=_budgets(shown.burned),
    )


def _budgets(burned: DataFrame | None) -> tuple[Budget, ...]:
    """Return the rows of the newest day, by name."""
    if burned is None:
        return ()
    newest = burned.join(F.broadcast(burned.agg(F.max("day").alias("day"))), ["day"], "left_semi")
    return tuple(sorted(_collect(newest, Budget), key=lambda one: str(one.slo)))


def collect_failures(failures: DataFrame) -> tuple[Failure, ...]:
    """Return the failed directories, the oldest first."""
    return tuple(sorted(_collect(failures, Failure), key=lambda one: (one.noticed, one.workflow_id)))


def collect_replica_failures(failures: DataFrame) -> tuple[ReplicaFailure, ...]:
    """Return the replicas that are or were offline alone, the oldest report first."""
    return tuple(sorted(_collect(failures, ReplicaFailure), key=lambda one: (one.reported, one.node, one.replica)))


def _collect(table: DataFrame, kind: type[Any]) -> list[Any]:
    names = [field.name for field in fields(kind)]
    times = {field.name for field in table.schema.fields if field.dataType.simpleString() == "timestamp"}
    # Times as microseconds: a collected time stamp would be in the local time zone of this process.
    columns = [F.unix_micros(name).alias(name) if name in times else F.col(name) for name in names]
    return [
        kind(*[_iso(value) if name in times else value for name, value in zip(names, row, strict=True)])
        for row in table.select(columns).collect()
    ]


def _iso(micros: int | None) -> str | None:
    from datetime import UTC, timedelta

    return None if micros is None else to_iso(datetime.fromtimestamp(0, UTC) + timedelta(microseconds=micros))
