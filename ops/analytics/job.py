"""The whole job: an export folder in, tables and one page out. Everything here is wiring."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from activities.history.manifest import Manifest, from_iso, to_iso
from ops.analytics import facts, failures, gold, io, phases, silver
from ops.analytics.errors import AnalyticsError
from ops.analytics.page import write_page
from ops.analytics.report import Report, build
from ops.analytics.session import spark_session


@dataclass(frozen=True, slots=True)
class Summary:
    """What a report says in one line, and where it is. `attainment` is a share from 0 to 1, None if nothing counts."""

    as_of: str
    runs: int
    events: int
    moves: int
    moved: int
    failed: int
    cancelled: int
    open: int
    sla_met: int
    sla_missed: int
    sla_not_due: int
    attainment: float | None
    bytes_copied: int
    page: Path
    tables: Path
    report: Report

    def to_json(self) -> dict[str, Any]:
        """The summary and every move as plain JSON values."""
        plain = {name: getattr(self, name) for name in self.__slots__ if name != "report"}
        plain |= {"page": str(self.page), "tables": str(self.tables)}
        return plain | {
            "moves_table": [asdict(move) for move in self.report.moves],
            "directory_failures": [asdict(failure) for failure in self.report.failures],
            "replica_failures": [asdict(failure) for failure in self.report.replica_failures],
        }


@dataclass(frozen=True, slots=True)
class Frames:
    """The tables as DataFrames, each as `put` returned it."""

    latest_events: DataFrame
    workflow_runs: DataFrame
    activity_executions: DataFrame
    move_facts: DataFrame
    move_phases: DataFrame
    move_report: DataFrame
    sla_summary: DataFrame
    directory_failures: DataFrame
    replica_failures: DataFrame


Put = Callable[[str, DataFrame], DataFrame]


def _pass(name: str, table: DataFrame) -> DataFrame:
    return table


def run(export_dir: Path, out_dir: Path, as_of: str | None = None) -> Summary:
    """Read an export folder, write `out_dir`/tables and `out_dir`/report.html, and say what is in them.

    `as_of` (ISO 8601) is the time the report is for: nothing later counts, open moves last until then. Without it the
    report is for the time of the newest export. Raises AnalyticsError.
    """
    try:
        wanted = from_iso(as_of) if as_of else None
    except ValueError as error:
        raise AnalyticsError(f"{as_of!r} is not a time stamp in ISO 8601, such as 2026-11-20T12:00:00Z") from error
    manifests = io.load_export(export_dir)
    at = wanted or io.newest_time(manifests)
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AnalyticsError(f"cannot make the folder {out_dir} ({error.strerror}): choose another one") from error
    with spark_session(out_dir / ".spark") as spark:
        report, events = _tables(spark, export_dir, out_dir, manifests, at)
    page = write_page(report, out_dir / "report.html")
    total = report.total
    return Summary(
        as_of=to_iso(at),
        runs=report.runs,
        events=events,
        moves=total.moves,
        moved=total.moved,
        failed=total.failed,
        cancelled=total.cancelled,
        open=total.open,
        sla_met=total.met,
        sla_missed=total.missed,
        sla_not_due=total.not_due,
        attainment=total.attainment,
        bytes_copied=total.bytes_copied,
        page=page,
        tables=out_dir / "tables",
        report=report,
    )


def transform(history_events: DataFrame, pending: DataFrame, as_of: datetime, put: Put = _pass) -> Frames:
    """All silver and gold tables from bronze, as of a time.

    `put` is given each table by its name and returns it, computed or not; nothing else is read or written.
    """
    events = put("latest_events", silver.latest_histories(history_events, as_of))
    runs = put("workflow_runs", silver.workflow_runs(events))
    activities = put("activity_executions", silver.activity_executions(events, pending, as_of))
    told = put("move_facts", facts.move_facts(runs, activities, events, as_of))
    spent = put("move_phases", phases.move_phases(runs, activities, told, events, as_of))
    asked = put("moves_asked", facts.moves_asked(runs))
    report = put("move_report", gold.move_report(runs, asked, told, spent, activities, as_of))
    summary = put("sla_summary", gold.sla_summary(report, as_of))
    failed = put("directory_failures", failures.directory_failures(runs, as_of))
    alone = put("replica_failures", failures.replica_failures(events, as_of))
    return Frames(events, runs, activities, told, spent, report, summary, failed, alone)


def _tables(
    spark: SparkSession, export_dir: Path, out_dir: Path, manifests: tuple[Manifest, ...], as_of: datetime
) -> tuple[Report, int]:
    """Write every table, each read back before the next is made of it, and collect what the report shows."""
    files = io.history_files(export_dir, manifests)
    with io.Tables(spark, out_dir) as tables:
        bronze = tables.put("history_events", io.read_histories(spark, files))
        pending = tables.put("pending_activities", io.read_pending(spark, export_dir, manifests))
        frames = transform(bronze, pending, as_of, tables.put)
        report = build(
            frames.move_report,
            frames.move_phases,
            frames.sla_summary,
            frames.workflow_runs,
            as_of,
            frames.directory_failures,
            frames.replica_failures,
        )
        counted = frames.latest_events.count()
    return report, counted
