"""All silver tables from bronze, as of a time: the wiring of the transforms."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from datetime import datetime
from functools import partial, reduce

from pyspark.sql import DataFrame

from ops.analytics import schema
from ops.analytics.silver import (
    facts,
    failures,
    histories,
    moves,
    phases,
    plan_moves,
    plan_runs,
    plans,
    reassignments,
    steps,
    throttle_spans,
)
from ops.analytics.threads import side_by_side
from workflows.model import names

Put = Callable[[str, DataFrame], DataFrame]


@dataclass(frozen=True, slots=True)
class Silver:
    """The silver tables of some runs."""

    runs: DataFrame
    activities: DataFrame
    moves: DataFrame
    move_phases: DataFrame
    move_steps: DataFrame
    throttle_spans: DataFrame
    plans: DataFrame
    directories: DataFrame
    replica_reports: DataFrame

    def tables(self) -> list[tuple[schema.Table, DataFrame]]:
        """Return the tables with their declarations, in order."""
        return [(getattr(schema, one.name.upper()), getattr(self, one.name)) for one in fields(self)]


def _pass(name: str, table: DataFrame) -> DataFrame:
    return table


def silver(
    events: DataFrame,
    pending: DataFrame,
    as_of: datetime,
    put: Put = _pass,
    known_plans: DataFrame | None = None,
    known_lanes: DataFrame | None = None,
    types: Collection[str] | None = None,
) -> Silver:
    """Return the silver tables of the runs whose events these are.

    A chain's runs must be together. `known_plans` are those of `moves.plans` that may have started these runs, beside
    the ones among them, and `known_lanes` those of `plan_runs.lanes_of` whose moves these runs may carry out; `types`
    are the types of workflows that the runs may have, by default found by computing them. `put` receives each table
    with its name and returns it, computed or not.
    """
    latest = put("latest", histories.latest_histories(events, as_of))
    runs = put("runs", histories.runs(latest))
    if types is None:
        types = {row[0] for row in runs.select("workflow_type").distinct().collect()}
    activities = put("activities", histories.activities(latest, pending, runs, as_of))
    started_by = moves.plans(runs)
    if known_plans is not None:
        # A plan that is among these runs may be newer than it is known.
        started_by = started_by.unionByName(known_plans.join(started_by, [*histories.CHAIN], "left_anti"))
    chains = put("chains", moves.chains(runs, started_by))
    spark = events.sparkSession
    of_moves: list[DataFrame] = []
    intervals: list[DataFrame] = []
    # What no run of the batch can have is not computed: most of the time of a small batch is that of its plans.
    if names.MOVE_REPLICA in types:
        reported = put("facts", facts.move_facts(runs, activities, latest, as_of))
        on_disks = put("disk_intervals", phases.disk_intervals(runs, activities, reported, latest, as_of))
        requested = facts.moves_asked(runs)
        of_moves.append(moves.disk_moves(chains, requested, reported, on_disks, activities, runs))
        intervals.append(on_disks)
    if names.PARTITION_REASSIGNMENT in types:
        between = reassignments.node_moves(runs, chains, activities, latest, as_of, put)
        of_moves.append(between.moves)
        intervals.append(between.intervals)
    if names.PLAN_LANE in types:
        planned = plan_moves.plan_moves(runs, chains, activities, latest, as_of, put)
        of_moves.append(planned.moves)
        intervals.append(planned.intervals)
    of_all = _all(of_moves) if of_moves else spark.createDataFrame([], schema.MOVES.struct)
    of_lanes = not plan_runs.TYPES.isdisjoint(types) and (names.PLAN_LANE in types or known_lanes is not None)
    if plan_runs.TYPES.issubset(types):
        of_all = plan_runs.directed(put("own_moves", of_all))
    if of_lanes:
        of_all = put("directed_moves", of_all)
        of_all = plan_runs.carried_out(of_all, plan_runs.all_lanes(of_all, runs, chains, known_lanes))

    def table(declared: schema.Table, rows: Callable[[], DataFrame], wanted: bool = True) -> DataFrame:
        return put(declared.name, rows()) if wanted else spark.createDataFrame([], declared.struct)

    def of_type(declared: schema.Table, name: str, rows: Callable[[], DataFrame]) -> Callable[[], DataFrame]:
        return partial(table, declared, rows, name in types)

    throttled = not throttle_spans.TYPES.isdisjoint(types)
    spans = partial(throttle_spans.throttle_spans, runs, activities, latest, chains)
    parts = side_by_side(
        spark,
        partial(table, schema.MOVES, lambda: of_all),
        partial(table, schema.MOVE_PHASES, lambda: phases.move_phases(_all(intervals), chains), bool(intervals)),
        of_type(schema.MOVE_STEPS, names.MOVE_REPLICA, lambda: steps.move_steps(runs, activities, reported)),
        partial(table, schema.THROTTLE_SPANS, spans, throttled),
        of_type(schema.PLANS, names.REASSIGNMENT_PLAN, lambda: plans.plans(runs, chains, activities, latest)),
        of_type(schema.DIRECTORIES, names.DIRECTORY_FAILURE, lambda: failures.directories(runs)),
        of_type(schema.REPLICA_REPORTS, names.CLUSTER, lambda: failures.replica_reports(latest)),
    )
    return Silver(runs, activities, *parts)


def _all(tables: list[DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionByName, tables)
