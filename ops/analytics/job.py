"""The job: ingests an export folder into the tables, and makes a page of them. This module only connects the parts."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from activities.history.files import ExportBusy, locked
from activities.history.manifest import from_iso, to_iso
from ops.analytics import schema
from ops.analytics.errors import AnalyticsError, NoExport
from ops.analytics.gold.burn_rate import Evidence, burn_rate, slo_minutes
from ops.analytics.gold.plan_progress import judged_plans
from ops.analytics.gold.replicas import measured, measured_phases
from ops.analytics.gold.rules import Rules, read_rules
from ops.analytics.gold.sla import judged, sla_summary
from ops.analytics.gold.slos import read_slos
from ops.analytics.lake.ingest import ingest_exports, keep, newest_export, newest_time
from ops.analytics.lake.tables import Lake
from ops.analytics.location import SUMMARY, is_uri, tables_root
from ops.analytics.page import write_page, write_text
from ops.analytics.report import ALL, Only, Report, Shown, build
from ops.analytics.session import CORES, spark_session, tasks_for
from ops.analytics.silver.build import Silver, silver
from ops.analytics.silver.failures import replica_failures
from ops.analytics.threads import side_by_side
from ops.dashboards.site.collect import Sources, collect
from ops.dashboards.site.tables import Site
from ops.dashboards.site.write import write_site

#: The folder of the tables.
TABLES = "tables"
#: The folder of the site.
SITE = "site"
#: Seconds to wait for another report in the same folder, and between two looks.
PATIENCE, LOOK = 300.0, 0.2


@dataclass(frozen=True, slots=True)
class Summary:
    """A report's numbers and its path. `attainment` is a share from 0 to 1; None if no move counts."""

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
    quarantined: int
    page: Path
    site: Path
    tables: str
    report: Report

    def counts(self) -> dict[str, Any]:
        """Return the summary without its tables as JSON values."""
        plain = {name: getattr(self, name) for name in self.__slots__ if name != "report"}
        return plain | {"page": str(self.page), "site": str(self.site)}

    def to_json(self) -> dict[str, Any]:
        """Return the summary and all moves as JSON values."""
        return self.counts() | {
            "moves_table": [asdict(move) for move in self.report.moves],
            "slos": [asdict(budget) for budget in self.report.budgets],
            "plans": [asdict(plan) for plan in self.report.plans],
            "directory_failures": [asdict(failure) for failure in self.report.failures],
            "replica_failures": [asdict(failure) for failure in self.report.replica_failures],
            "quarantine": [asdict(one) for one in self.report.quarantine],
        }


def run(
    export_dir: Path,
    out_dir: Path,
    as_of: str | None = None,
    rules_file: Path | None = None,
    temporal_ui: str = "",
    only: Only = ALL,
    slo_file: Path | None = None,
    tables: str = "",
) -> Summary:
    """Ingest the new exports of a folder into the tables, write `out_dir`/report.html, report.json and the site,
    and return their summary.

    `as_of` (ISO 8601) is the time of the report: later events are ignored, open moves last until then. The default is
    the time of the newest export. `temporal_ui` is the address of Temporal's UI, for the site's links to runs; without
    it there are none. `only` are the moves that the page and the summary list; the site has filters of its own.
    `slo_file` has the SLOs (default: the package's own). `tables` is their location, a path or a URI (default:
    `out_dir`/tables). Raises AnalyticsError.
    """
    wanted = time_of(as_of) if as_of else None
    rules = replace(read_rules(rules_file), slos=read_slos(slo_file))
    root = tables_root(tables or str(out_dir / TABLES))
    remote, nothing = is_uri(root), not newest_export(export_dir)
    none = NoExport(f"{export_dir} contains no export: create one with `rehome export`, then try again")
    if nothing and not remote and not Path(root).is_dir():
        raise none
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AnalyticsError(f"cannot create the folder {out_dir} ({error.strerror}): choose another one") from error
    sizes = CORES if remote else tasks_for(export_dir, Path(root))
    with _alone(out_dir), spark_session(out_dir / ".spark", tasks=sizes) as spark:
        lake = Lake(spark, root)
        if nothing and not lake.exists(schema.INGESTS):
            raise none
        ingest_exports(lake, export_dir, rules)
        at = wanted or newest_time(lake)
        made = stored(lake) if wanted is None else at_time(lake, wanted)
        burned = lake.read(schema.BURN_RATE) if wanted is None else burned_at(made, rules, at).persist()
        # The page and the site ask for these many times: Spark takes what is kept for this part of their plans.
        kept = graded(made, rules, at).persist()
        try:
            kept.count()  # Once: the two parts below would both begin to compute it.
            counted = made.runs.agg(F.count(F.lit(1)), F.coalesce(F.sum("events"), F.lit(0))).first()
            runs, events = counted or (0, 0)
            report, site = side_by_side(
                spark,
                lambda: report_of(made, lake.read(schema.QUARANTINE), rules, at, only, burned),
                lambda: site_of(lake, made, rules, at, runs, temporal_ui, burned),
            )
        finally:
            kept.unpersist()
    first = write_site(site, out_dir / SITE)
    page = write_page(report, out_dir / "report.html")
    total = report.total
    summary = Summary(
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
        quarantined=report.quarantined,
        page=page,
        site=first,
        tables=root,
        report=report,
    )
    write_text(out_dir / SUMMARY, json.dumps(summary.to_json(), indent=2) + "\n")
    return summary


@contextmanager
def _alone(out_dir: Path) -> Iterator[None]:
    """Hold the lock of a report's folder: two jobs would ingest the same exports. Waits for another one, as for a round
    of `--follow`. Raises AnalyticsError once that has taken `PATIENCE` seconds.
    """
    deadline = time.monotonic() + PATIENCE
    with ExitStack() as held:
        while True:
            try:
                held.enter_context(locked(out_dir))
                break
            except ExportBusy as error:
                if time.monotonic() >= deadline:
                    raise AnalyticsError(
                        f"another report is being made in {out_dir}: wait until it has ended, or choose another folder"
                    ) from error
                time.sleep(LOOK)
        yield


def time_of(text: str) -> datetime:
    """Return the time of an option. Raises AnalyticsError."""
    try:
        return from_iso(text)
    except ValueError as error:
        raise AnalyticsError(f"{text!r} is not a valid ISO 8601 time stamp, such as 2026-11-20T12:00:00Z") from error


def site_of(
    lake: Lake,
    made: Silver,
    rules: Rules,
    as_of: datetime,
    runs: int,
    temporal_ui: str = "",
    burned: DataFrame | None = None,
) -> Site:
    """Return the values of the site. Its days, rates, stalls, retries, transitions and progress of plans are gold's,
    as of the newest export; so are the budgets, unless `burned` has those of another time.
    """
    moves = graded(made, rules, as_of)
    sources = Sources(
        moves=moves,
        sla_daily=lake.read(schema.SLA_DAILY),
        burn_rate=lake.read(schema.BURN_RATE) if burned is None else burned,
        stalls=lake.read(schema.STALLS),
        retries=lake.read(schema.RETRIES),
        rates_hourly=lake.read(schema.RATES_HOURLY),
        transitions=lake.read(schema.TRANSITIONS),
        plans=judged_plans(made.plans, moves, as_of),
        plan_progress=lake.read(schema.PLAN_PROGRESS),
        directories=made.directories,
        ingests=lake.read(schema.INGESTS),
        quarantine=lake.read(schema.QUARANTINE),
    )
    return collect(sources, as_of, runs, rules.digest, temporal_ui)


def stored(lake: Lake) -> Silver:
    """Return silver as the tables have it."""
    tables = (
        *(schema.RUNS, schema.ACTIVITIES, schema.MOVES, schema.MOVE_PHASES, schema.MOVE_STEPS, schema.THROTTLE_SPANS),
        *(schema.PLANS, schema.DIRECTORIES, schema.REPLICA_REPORTS),
    )
    return Silver(*[lake.read(table) for table in tables])


def at_time(lake: Lake, as_of: datetime) -> Silver:
    """Return silver as of an earlier time, computed from bronze; the tables stay as they are."""
    events = lake.read(schema.HISTORY_EVENTS).unionByName(lake.read(schema.OPEN_SNAPSHOTS))
    return silver(events, lake.read(schema.PENDING_ACTIVITIES), as_of, keep)


def burned_at(made: Silver, rules: Rules, as_of: datetime) -> DataFrame:
    """Return the budgets as of a time, computed from the silver of it; no rows without SLOs."""
    if not rules.slos:
        return made.runs.sparkSession.createDataFrame([], schema.BURN_RATE.struct)
    evidence = Evidence(made.runs, made.move_phases, made.throttle_spans, made.moves)
    minutes = slo_minutes(graded(made, rules, as_of), evidence, rules, as_of)
    return burn_rate(keep("slo_minutes", minutes), rules, as_of)


def report_of(
    made: Silver,
    quarantine: DataFrame,
    rules: Rules,
    as_of: datetime,
    only: Only = ALL,
    burned: DataFrame | None = None,
) -> Report:
    """Return the values that the report shows; `burned` are the budgets of SLOs."""
    moves = graded(made, rules, as_of)
    shown = Shown(
        moves=moves,
        phases=measured_phases(made.move_phases, made.moves),
        summary=sla_summary(moves),
        runs=made.runs,
        plans=judged_plans(made.plans, moves, as_of),
        failures=made.directories,
        replica_failures=replica_failures(made.replica_reports),
        quarantine=quarantine,
        burned=burned,
    )
    return build(shown, as_of, only)


def graded(made: Silver, rules: Rules, as_of: datetime) -> DataFrame:
    """Return the moves, each with what was measured of it and whether it met its deadline."""
    return judged(measured(made.moves), rules, as_of)
