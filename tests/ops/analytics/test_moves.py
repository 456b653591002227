"""The report of each kind of run: outcome, times, bytes, deadlines."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from pyspark.sql import functions as F

from ops.analytics import report, schema
from ops.analytics.gold.rules import Rules
from ops.analytics.gold.sla import met_sla
from ops.analytics.job import report_of
from tests.ops.analytics.bronze import Collected, bronze, collect
from tests.ops.analytics.conftest import at
from tests.support.runs.histories import export
from tests.support.runs.sample_runs import morning, retargeted
from tests.support.sla_cases import CASES

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def collected(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Collected:
    folder = tmp_path_factory.mktemp("export")
    export(folder, *morning(), retargeted(), at=120)
    events, pending = bronze(spark, folder)
    return collect(events.cache(), pending.cache(), at(120))


def test_one_row_per_replica_and_none_for_other_workflows(collected: Collected) -> None:
    assert len(collected.report.moves) == 20
    assert len({move.id for move in collected.report.moves}) == 20
    assert collected.report.runs == 21


def test_successful_move_has_its_times_and_bytes(collected: Collected) -> None:
    move = collected.move("clicks-5")
    assert (move.outcome, move.reason, move.node, move.open) == ("moved", None, 3, False)
    assert (move.source, move.directory) == ("/data/n3/d1", "/data/n3/d2")
    assert (move.bytes_total, move.bytes_copied, move.bytes_resumed) == (175_000_000, 175_000_000, 64_000_000)
    assert move.attempts == 2
    assert (move.seconds_queued, move.seconds_copying, move.seconds_throttled) == pytest.approx((0.5, 10.5, 4.0))
    assert move.seconds_locked == 0.004
    assert move.mean_rate == pytest.approx(111_000_000 / 14.5)
    assert move.throttle == 20_000_000
    # From the run's start to the end of the swap; the wait for the old copy's end does not count.
    assert move.duration_seconds == pytest.approx(17.09)
    assert move.seconds_delete_delay == pytest.approx(5.03)
    assert (move.deadline_seconds, move.met_sla) == (40.0, "yes")


def test_seconds_of_a_move_are_split_by_reason(collected: Collected) -> None:
    spent = collected.move("clicks-5").spent
    assert set(spent) == set(schema.REASONS)
    assert {name: value for name, value in spent.items() if value} == pytest.approx(
        {"copying": 10.5, "queued": 0.5, "run_limit": 4.0, "unavailable": 2.0}
    )
    open_one = collected.move("payments-4", 3)
    assert {name: value for name, value in open_one.spent.items() if value and name != "unavailable"} == pytest.approx(
        {"copying": 41.5, "queued": 3.0, "growing_source": 20.0}
    )
    assert (open_one.stall, open_one.stall_message) == ("growing_source", "growing_source: told")
    assert collected.move("clicks-5").stall is None


def test_history_without_reasons_has_times_and_a_rate(collected: Collected) -> None:
    move = collected.move("audit-0")
    assert {name: value for name, value in move.spent.items() if value and name != "unavailable"} == pytest.approx(
        {"copying": 8.0, "queued": 0.5}
    )
    assert move.mean_rate == pytest.approx(410_000_000 / 8.0)


def test_rate_counts_only_bytes_written_by_the_run(collected: Collected) -> None:
    adopted = collected.move("clicks-5")
    assert (adopted.bytes_copied, adopted.bytes_written) == (175_000_000, 111_000_000)
    again = collected.move("orders-9")  # of 200 bytes it had copied 80 itself when it was paused
    assert again.bytes_written == 200


def test_failed_move_has_its_error_and_its_progress(collected: Collected) -> None:
    move = collected.move("audit-0")
    assert (move.outcome, move.reason, move.met_sla) == ("failed", "TargetFull", "no")
    assert move.message == "/data/n1/d2 is full: audit-0 stays in /data/n1/d1"
    assert (move.bytes_total, move.bytes_copied) == (900_000_000, 410_000_000)


def test_cancelled_move_is_excluded_and_reported_by_its_cleanup_step(collected: Collected) -> None:
    move = collected.move("clicks-7")
    assert (move.outcome, move.met_sla, move.bytes_copied) == ("cancelled", "excluded", 80_000_000)
    spent = collected.spent("clicks-7")
    assert (spent["copying"], spent["cancelling"]) == (4.0, 0.2)
    assert spent["unavailable"] == pytest.approx(1.3 + 0.1 + 0.1)


def test_open_move_is_reported_by_its_heartbeat(collected: Collected) -> None:
    move = collected.move("payments-4", 3)
    assert (move.outcome, move.phase, move.open, move.finished) == ("open", "copying", True, None)
    assert (move.attempts, move.bytes_copied, move.bytes_resumed) == (3, 1_200_000_000, 700_000_000)
    assert move.duration_seconds == pytest.approx(110.0)
    assert move.met_sla == "not due"


def test_move_whose_other_target_was_rejected_is_under_way(collected: Collected) -> None:
    move = collected.move("returns-0")
    assert (move.outcome, move.open, move.phase, move.bytes_copied) == ("open", True, "copying", 300)


def test_each_replica_of_a_lane_has_its_own_outcome(collected: Collected) -> None:
    assert [collected.move(f"small-{p}").outcome for p in (0, 1, 2)] == ["moved", "in_place", "cancelled"]
    assert [collected.move(f"small-{p}").met_sla for p in (0, 1, 2)] == ["yes", "yes", "excluded"]
    assert collected.move("small-1").duration_seconds == pytest.approx(0.1)


def test_deadlines_are_judged_by_the_table_of_the_model(spark: Any) -> None:
    rows = [
        (*one, (case.name, str(verdict)), case.deadline, case.after)
        for case in CASES
        for one, verdict in zip(case.rows, case.replicas, strict=True)
    ]
    rows += [(end, "", (end, found), 60.0, 5.0) for end, found in (("done", "yes"), ("rolled_back", "excluded"))]
    made = spark.createDataFrame(
        [
            (*wanted, outcome, error, outcome == "open", at(after), None if limit is None else at(limit))
            for outcome, error, wanted, limit, after in rows
        ],
        "name string, wanted string, outcome string, reason string, open boolean, now timestamp, deadline timestamp",
    ).withColumn("finished", F.when(~F.col("open"), F.col("now")))
    found = made.withColumn("met", met_sla(F.col("now"), F.col("reason"))).collect()
    assert [(row.name, row.met) for row in found] == [(row.name, row.wanted) for row in found]


def test_move_finished_after_its_deadline_misses_its_sla(collected: Collected) -> None:
    assert (collected.move("clicks-1").outcome, collected.move("clicks-1").met_sla) == ("moved", "no")


def test_unreadable_parameter_is_one_excluded_row(collected: Collected) -> None:
    (move,) = [move for move in collected.report.moves if not move.replica]
    assert (move.outcome, move.reason, move.met_sla) == ("failed", "InvalidPlan", "excluded")
    assert move.message == "$.topic is missing"


def test_terminated_move_misses_its_sla(collected: Collected) -> None:
    assert (collected.move("orders-11").outcome, collected.move("orders-11").met_sla) == ("terminated", "no")


def test_phases_of_a_move_are_consecutive_and_add_up(collected: Collected) -> None:
    phases = collected.phases("clicks-5")
    assert [phase.phase for phase in phases] == [
        "creating", "queued", "copying", "throttled", "unavailable", "swapping", "delete_delay", "delete_delay",
    ]  # fmt: skip
    assert all(a.ended <= b.began for a, b in pairwise(phases))
    assert collected.spent("clicks-5") == {
        "creating": 0.03, "queued": 0.5, "copying": 10.5, "throttled": 4.0, "unavailable": 2.0, "swapping": 0.02,
        "delete_delay": 5.03,
    }  # fmt: skip


def test_pause_between_two_copies_is_reported_and_totals_count_once(collected: Collected) -> None:
    spent = collected.spent("orders-9")
    assert (spent["creating"], spent["copying"], spent["paused"], spent["swapping"]) == (0.1, 10.0, 60.0, 0.1)
    assert spent["unavailable"] < 1.0
    assert collected.move("orders-9").seconds_copying == 10.0


def test_summary_counts_moves_with_an_sla_without_excluded_ones(collected: Collected) -> None:
    total = collected.report.total
    assert (total.moves, total.moved, total.failed, total.cancelled, total.open) == (20, 13, 3, 2, 2)
    assert (total.met, total.missed, total.not_due, total.excluded) == (8, 3, 1, 3)
    assert total.asked == total.met + total.missed + total.not_due + total.excluded
    assert total.attainment == pytest.approx(8 / 11)
    assert sum(row.moves for row in collected.report.nodes) == 20


def test_moves_that_need_attention_are_among_the_few_that_are_shown(
    collected: Collected, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = [move for move in collected.report.moves if move.met_sla == "no"]
    under_way = [move for move in collected.report.moves if move.open]
    monkeypatch.setattr(report, "MOST_MOVES", len(late) + len(under_way) + 1)
    empty = collected.frames.moves.sparkSession.createDataFrame([], schema.QUARANTINE.struct)
    shown = report_of(collected.frames, empty, Rules(), at(120)).moves
    assert {move.id for move in shown} > {move.id for move in (*late, *under_way)}
    (latest,) = {move.id for move in shown} - {move.id for move in (*late, *under_way)}
    others = [move for move in collected.report.moves if move not in late and not move.open]
    assert latest == max(others, key=lambda move: (move.started, move.id)).id


def test_every_table_has_its_declared_schema(collected: Collected) -> None:
    for table, found in collected.frames.tables():
        assert schema.same(found.schema, table), table.name


def test_no_two_rows_of_a_table_have_the_same_key(collected: Collected) -> None:
    for table, found in collected.frames.tables():
        keys = [tuple(row) for row in found.select(*table.key).collect()]
        assert len(keys) == len(set(keys)), table.name


def test_runs_and_activities_of_every_workflow_are_in_silver(collected: Collected) -> None:
    runs = {row.run_id: row for row in collected.frames.runs.collect()}
    assert (runs["run-c1"].status, runs["run-c2"].status) == ("continued as new", "open")
    assert runs["run-c2"].chain == "run-c1"
    assert runs["run-stop"].status == "cancelled" and runs["run-stop"].cancel_requested is not None
    assert runs["run-killed"].failure_message == "by hand"
    lease = [row for row in collected.frames.activities.collect() if row.activity_type == "hold_lease"]
    assert [(row.state, row.attempt, row.node) for row in lease] == [("open", 5, 1)]
