"""The tables after several batches: they are what one batch would have made, also when one was killed on its way."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from activities.history.manifest import read_manifests
from ops.analytics import schema
from ops.analytics.gold.burn_rate import Evidence, burn_rate, slo_minutes
from ops.analytics.gold.plan_progress import plan_progress
from ops.analytics.gold.rates import rates_hourly
from ops.analytics.gold.replicas import counted, measured, measured_phases
from ops.analytics.gold.retries import retries
from ops.analytics.gold.sla import judged, sla_daily
from ops.analytics.gold.stalls import stalls
from ops.analytics.gold.transitions import transitions
from ops.analytics.job import report_of, stored
from ops.analytics.lake.ingest import newest_time
from ops.analytics.numbers import wilson
from tests.ops.analytics.conftest import at
from tests.ops.analytics.ingested import (
    DAY,
    KILLED_AT,
    RULES,
    SPECS,
    Made,
    Spec,
    carried_out_between,
    carried_out_inside,
    directed,
)
from tests.support.runs.histories import T0
from tests.support.runs.recorded import recorded_run

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

DIRECTED = {name: directed(name) for name in ("whole", "part")}


def rows(table: DataFrame, without: tuple[str, ...] = ()) -> list[tuple[Any, ...]]:
    """The rows in an order, floats rounded."""

    def plain(value: Any) -> Any:
        if isinstance(value, float):
            return round(value, 6)
        return tuple(sorted((key, plain(one)) for key, one in value.items())) if isinstance(value, dict) else value

    names = [name for name in table.columns if name not in without]
    return sorted((tuple(plain(row[name]) for name in names) for row in table.collect()), key=repr)


def test_second_batch_was_killed_at_several_commits(made: Made) -> None:
    # (A table of which the batch changes nothing has no commit.)
    assert list(made.kills) == [path for path in KILLED_AT if path in made.kills]
    assert {"bronze/history_events", "silver/moves"} <= set(made.kills)
    assert len(made.kills) >= len(KILLED_AT) / 2


def test_reader_sees_each_table_as_it_was_before_or_after_the_batch(made: Made) -> None:
    assert all(len(counts) == 2 for counts in made.seen.values()), made.seen


def test_silver_is_what_all_exports_at_once_give(made: Made) -> None:
    for table, whole in made.whole.frames.tables():
        assert rows(made.lake.read(table)) == rows(whole), table.path


def test_gold_is_what_all_exports_at_once_give(made: Made) -> None:
    whole = made.whole.frames
    verdicts = judged(measured(whole.moves), RULES, at(4 * DAY))
    evidence = Evidence(whole.runs, whole.move_phases, whole.throttle_spans, whole.moves)
    minutes = slo_minutes(verdicts, evidence, RULES, at(4 * DAY)).localCheckpoint()
    expected = {
        schema.SLA_DAILY: sla_daily(verdicts, RULES),
        schema.SLO_MINUTES: minutes,
        schema.BURN_RATE: burn_rate(minutes, RULES, at(4 * DAY)),
        schema.RATES_HOURLY: rates_hourly(whole.moves, whole.move_phases),
        schema.STALLS: stalls(whole.moves),
        schema.RETRIES: retries(whole.activities),
        schema.TRANSITIONS: transitions(whole.move_steps),
        schema.PLAN_PROGRESS: plan_progress(whole.plans, whole.moves),
    }
    for table, computed in expected.items():
        assert rows(made.lake.read(table)) == rows(computed) != [], table.path


def test_run_is_joined_with_the_plans_move_that_it_carries_out_whichever_came_first(made: Made) -> None:
    found = {row.workflow_id: row.carries_out for row in made.lake.read(schema.MOVES).collect() if row.carries_out}
    lanes = {name: recorded_run(f"plan-lane-{name}") for name in ("directory", "brokers")}
    inside, between = (f"{run.workflow_id}/{run.run_id}" for run in lanes.values())
    assert found == {
        carried_out_inside().workflow_id: f"{inside}/t-0@1",
        carried_out_between().workflow_id: f"{between}/t-1@2",
        # The run that directs a replica on its new node is part of its reassignment, whichever was exported first.
        **{inside.workflow_id: f"{of.workflow_id}/{of.run_id}/{name}-0@2" for name, (of, inside) in DIRECTED.items()},
    }


def test_totals_and_rates_count_each_replica_of_a_plan_once(made: Made) -> None:
    moves = made.lake.read(schema.MOVES).collect()
    total = made.lake.read(schema.SLA_DAILY).where("scope = 'all'").agg({"moves": "sum", "bytes_copied": "sum"}).first()
    once = [row for row in moves if row.carries_out is None]
    assert total is not None and len(once) == len(moves) - 2 - len(DIRECTED)
    assert (total["sum(moves)"], total["sum(bytes_copied)"]) == (len(once), sum(row.bytes_copied for row in once))
    rates = made.lake.read(schema.RATES_HOURLY).where("target = '/disk/b'").collect()
    # The run's own copy took 0.13 s; its lane waited for it for longer.
    assert [(row.moves, row.bytes, round(row.seconds, 3)) for row in rates] == [(1, 1000, 0.13)]


def test_move_of_a_plan_has_what_its_run_measured(made: Made) -> None:
    moves = made.lake.read(schema.MOVES)
    (lane,) = moves.where("workflow_type = 'PlanLane' AND kind = 'disk'").collect()
    (row,) = measured(moves).where("workflow_type = 'PlanLane' AND kind = 'disk'").collect()
    assert (row.outcome, row.plan, row.started, row.finished) == (lane.outcome, lane.plan, lane.started, lane.finished)
    assert (row.seconds_copying, row.seconds_throttled, row.seconds_locked) == (0.08, 0.05, 0.003)
    assert row.seconds_queued == pytest.approx(lane.seconds_queued + 0.02) == row.spent["queued"]
    assert row.mean_rate == pytest.approx(1000 / 0.13) and row.carried_by == carried_out_inside().workflow_id
    assert {row.id for row in measured(moves).collect()} == {row.id for row in counted(moves).collect()}
    phases = measured_phases(made.lake.read(schema.MOVE_PHASES), moves).where(F.col("id") == row.id)
    assert {one.phase for one in phases.collect()} >= {"queued", "copying", "throttled", "swapping"}
    assert phases.where("phase = 'copying'").count() == 1


def test_reassignment_to_a_directory_has_both_of_its_copies(made: Made) -> None:
    moves, phases = made.lake.read(schema.MOVES), made.lake.read(schema.MOVE_PHASES)
    for name, (of, inside) in DIRECTED.items():
        (row,) = measured(moves).where(F.col("topic") == name).collect()
        assert (row.kind, row.from_node, row.node, row.directory, row.source) == ("both", 1, 2, "/n2/b", None)
        assert (row.workflow_id, row.carried_by) == (of.workflow_id, inside.workflow_id)
        # Between the nodes 0.25 s in the queue and 3 s of copying under a limit of 1 s, then 0.5 s and 2 s inside.
        assert (row.seconds_queued, row.seconds_copying, row.seconds_throttled) == (0.75, 5.0, 1.0)
        assert (row.bytes_copied, row.bytes_written, row.seconds_locked) == (1000, 2000, 0.004)
        assert row.mean_rate == pytest.approx(2000 / 6) and row.spent["queued"] == 0.75
        spans = measured_phases(phases, moves).where(F.col("topic") == name).collect()
        assert {(one.id, one.phase) for one in spans} >= {(row.id, "copying"), (row.id, "swapping")}
    rates = made.lake.read(schema.RATES_HOURLY).where("target = '/n2/b' AND kind = 'disk'").collect()
    assert sum(one.bytes for one in rates) == len(DIRECTED) * 1000


def test_report_collects_no_row_for_each_plan(made: Made) -> None:
    found = report_of(stored(made.lake), made.lake.read(schema.QUARANTINE), RULES, at(4 * DAY))
    assert {row.scope for row in found.summary} == {"all", "kind", "node"} and found.plans


def test_closed_run_is_appended_once_and_open_one_is_replaced(made: Made) -> None:
    closed = rows(made.lake.read(schema.HISTORY_EVENTS).select("run_id", "event_id"))
    assert len(closed) == len(set(closed))
    assert {row[0] for row in rows(made.lake.read(schema.OPEN_SNAPSHOTS).select("run_id"))} == {"run-later"}
    pending = made.lake.read(schema.PENDING_ACTIVITIES)
    assert {row[0] for row in rows(pending.select("run_id"))} == {"run-now", "run-later"}


def test_every_file_is_accounted_for(made: Made) -> None:
    found = made.lake.read(schema.INGESTS).collect()
    manifests = read_manifests(made.folder)
    named = {file.name for manifest in manifests for file in manifest.files}
    named |= {f"_manifest/{manifest.name}" for manifest in manifests}
    assert {row.source_file for row in found} == named and len(found) == len(named)
    assert all(row.expected == row.read + row.quarantined and row.quarantined == 0 for row in found)
    assert newest_time(made.lake) == at(4 * DAY)


def test_tables_have_their_declared_schemas(made: Made) -> None:
    # A table appears with its first row: nothing was unreadable, and no run of a controller is in the sample.
    unwritten = {table.path for table in schema.TABLES if not made.lake.exists(table)}
    assert unwritten == {schema.QUARANTINE.path, schema.REPLICA_REPORTS.path}
    for table in schema.TABLES:
        if made.lake.exists(table):
            stored = made.lake.spark.read.format("delta").load(made.lake.path(table)).schema
            assert schema.same(stored, table), table.path
            assert [field.metadata["comment"] for field in stored] == [one.meaning for one in table.columns]


def test_attainment_of_a_day_is_what_plain_arithmetic_gives(made: Made) -> None:
    found = {
        (str(row.day), row.value): row for row in made.lake.read(schema.SLA_DAILY).where("scope = 'all'").collect()
    }
    by_day: dict[str, list[Spec]] = defaultdict(list)
    for spec in SPECS:
        by_day[spec.day].append(spec)
    first = f"{T0:%Y-%m-%d}"
    assert set(by_day) - {first} <= {day for day, _ in found}
    for day, specs in by_day.items():
        if day == first:
            continue  # other runs started on it, too
        row = found[day, ""]
        met = sum(spec.sla is not None and spec.seconds <= spec.sla for spec in specs)
        asked = sum(spec.sla is not None for spec in specs)
        assert (row.moves, row.moved, row.met, row.missed) == (len(specs), len(specs), met, asked - met)
        assert row.max_seconds == pytest.approx(max(spec.seconds for spec in specs), abs=1e-3)
        assert row.bytes_copied == sum(spec.size for spec in specs)
        if asked:
            assert (row.low, row.high) == pytest.approx(wilson(met, asked))


def test_stalls_of_a_day_are_what_plain_arithmetic_gives(made: Made) -> None:
    expected: dict[tuple[str, int, str], list[float]] = defaultdict(list)
    for spec in SPECS:
        expected[spec.day, spec.node, "queued"].append(1.5)
        expected[spec.day, spec.node, "run_limit"].append(spec.throttled)
    first = f"{T0:%Y-%m-%d}"
    found = {(str(row.day), row.node, row.reason): row for row in made.lake.read(schema.STALLS).collect()}
    for key, seconds in expected.items():
        if key[0] != first:
            row = found[key]
            assert (row.moves, row.seconds) == (len(seconds), pytest.approx(math.fsum(seconds)))
            assert row.longest_seconds == max(seconds)


def test_bytes_of_an_hour_add_up_to_those_of_the_moves(made: Made) -> None:
    total = sum(row.bytes for row in made.lake.read(schema.RATES_HOURLY).where("target like '/data/n_/d2'").collect())
    copied = [row for row in made.lake.read(schema.MOVES).collect() if (row.directory or "").startswith("/data/n")]
    assert total == pytest.approx(sum(row.bytes_written for row in copied if row.seconds_copying > 0), rel=1e-6)


def test_retries_of_a_day_are_counted(made: Made) -> None:
    (row,) = (
        made.lake.read(schema.RETRIES)
        .where(f"day = '{SPECS[-1].day}' AND activity_type = 'copy'")
        .where(f"node = {SPECS[-1].node}")
        .collect()
    )
    mine = [spec for spec in SPECS if (spec.day, spec.node) == (SPECS[-1].day, SPECS[-1].node)]
    assert (row.activities, row.attempts) == (len(mine), sum(spec.attempts for spec in mine))
    assert row.retried == sum(spec.attempts > 1 for spec in mine)


def test_every_transition_is_allowed_by_the_workflows_table(made: Made) -> None:
    found = made.lake.read(schema.TRANSITIONS).collect()
    assert {(row.phase, row.event, row.next_phase) for row in found} >= {
        ("creating", "created", "copying"), ("copying", "caught_up", "swapping"), ("swapping", "swapped", "deleting"),
        ("deleting", "deleted", ""),
    }  # fmt: skip
    assert [row for row in found if not row.allowed] == []


def test_rule_applies_to_moves_that_come_without_an_sla(made: Made) -> None:
    found = judged(made.lake.read(schema.MOVES), RULES, at(4 * DAY)).collect()
    by_rule = {row.topic: row for row in found if row.sla_rule == "between nodes"}
    assert set(by_rule) == {"t"} and by_rule["t"].deadline_seconds == 30.0 and by_rule["t"].met_sla == "yes"
    assert {row.sla_rule for row in found if row.kind == "disk"} == {"run", None}
