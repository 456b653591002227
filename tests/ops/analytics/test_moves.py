"""What the report says of each kind of run: outcome, times, bytes, deadlines."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ops.analytics import schema
from ops.analytics.page import lost
from tests.ops.analytics.bronze import Told, bronze, tell
from tests.ops.analytics.conftest import at
from tests.support.histories import RunBuilder, call, export, rows
from tests.support.sample_runs import morning
from workflows.model.calls import (
    CAUGHT_UP,
    COPY,
    CREATE_MOVE,
    CREATED,
    SWAP,
    SWAPPED,
    MoveRow,
    ReplicaMove,
)

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def told(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Told:
    folder = tmp_path_factory.mktemp("export")
    export(folder, *morning(), at=120)
    events, pending = bronze(spark, folder)
    return tell(events.cache(), pending.cache(), at(120))


def test_one_row_per_replica_and_none_for_other_workflows(told: Told) -> None:
    assert len(told.report.moves) == 19
    assert len({move.id for move in told.report.moves}) == 19
    assert told.report.runs == 20


def test_a_move_that_went_well(told: Told) -> None:
    move = told.move("clicks-5")
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
    assert move.seconds_delete_wait == pytest.approx(5.03)
    assert (move.deadline_seconds, move.met_sla) == (40.0, "yes")


def test_where_the_time_of_a_move_went_is_told_by_reason(told: Told) -> None:
    spent = told.move("clicks-5").spent
    assert set(spent) == set(schema.REASONS)
    assert {name: value for name, value in spent.items() if value} == pytest.approx(
        {"copying": 10.5, "queued": 0.5, "run_limit": 4.0, "away": 2.0}
    )
    open_one = told.move("payments-4", 3)
    assert {name: value for name, value in open_one.spent.items() if value and name != "away"} == pytest.approx(
        {"copying": 41.5, "queued": 3.0, "growing_source": 20.0}
    )
    assert (open_one.stall, open_one.stall_message) == ("growing_source", "growing_source: told")
    assert told.move("clicks-5").stall is None


def missed(partition: int, **absent: float) -> RunBuilder:
    """A move of 4 s of copying whose node was missed for 20 s after the first of two attempts; why, in seconds."""
    plan = {"topic": "missed", "partition": partition, "node": 1, "directory": "/data/n1/d2"}
    run = RunBuilder(f"rehome/move/1/missed-{partition}/a", f"run-missed-{partition}", parameter=plan)
    argument = call(run, ReplicaMove("missed", partition, "/data/n1/d2", 1))
    beat = MoveRow(
        "missed", partition, CREATED, "/data/n1/d1", "/data/n1/d2", 1,
        seconds_copying=1.0, bytes_written=10, seconds_by_reason={"copying": 1.0},
    )  # fmt: skip
    run.activity(CREATE_MOVE, argument, 0.0, 0.0, rows(replace(beat, seconds_copying=0.0, seconds_by_reason={})))
    run.activity_timed_out(COPY, argument, 0.0, 1.0, rows(beat))
    copied = replace(beat, outcome=CAUGHT_UP, seconds_copying=4.0, seconds_by_reason={"copying": 4.0})
    run.activity(COPY, argument, 21.0, 24.0, rows(copied), attempt=2)
    run.activity(SWAP, argument, 24.0, 24.0, rows(replace(copied, outcome=SWAPPED)))
    done = replace(copied, outcome=SWAPPED, seconds_by_reason={"copying": 4.0, **absent})
    return run.complete(24.0, {**rows(done), "phases": []})


def test_seconds_without_a_node_are_told_apart_as_dead_cut_off_and_fenced(spark: Any, tmp_path: Path) -> None:
    absences = [{"dead": 12.0}, {"cut_off": 8.0}, {"fenced": 5.0}, {"dead": 3.0, "cut_off": 2.0, "fenced": 1.5}, {}]
    export(tmp_path, *[missed(partition, **absent) for partition, absent in enumerate(absences)], at=120)
    events, pending = bronze(spark, tmp_path)
    told = tell(events.cache(), pending.cache(), at(120))
    exported = {row["partition"]: row["spent"] for row in told.frames.move_report.collect()}
    for partition, absent in enumerate(absences):
        expected = {"copying": 4.0, "away": 20.0 - sum(absent.values()), **absent}
        spent = told.move(f"missed-{partition}").spent
        assert spent == exported[partition]
        assert {name: value for name, value in spent.items() if value} == pytest.approx(expected)
    totals = {reason: seconds for reason, seconds, _, _ in lost(told.report.moves)}
    assert {name: totals[name] for name in schema.ABSENCES} == pytest.approx(
        {"dead": 15.0, "cut_off": 10.0, "fenced": 6.5}
    )


def test_a_history_that_tells_no_reasons_has_its_times_and_its_rate(told: Told) -> None:
    move = told.move("audit-0")
    assert {name: value for name, value in move.spent.items() if value and name != "away"} == pytest.approx(
        {"copying": 8.0, "queued": 0.5}
    )
    assert move.mean_rate == pytest.approx(410_000_000 / 8.0)


def test_a_rate_counts_what_the_run_itself_wrote(told: Told) -> None:
    adopted = told.move("clicks-5")
    assert (adopted.bytes_copied, adopted.bytes_written) == (175_000_000, 111_000_000)
    again = told.move("orders-9")  # of 200 bytes it had copied 80 itself when it was paused
    assert again.bytes_written == 200


def test_a_failed_move_tells_why_and_what_was_done_until_then(told: Told) -> None:
    move = told.move("audit-0")
    assert (move.outcome, move.reason, move.met_sla) == ("failed", "TargetFull", "no")
    assert move.message == "/data/n1/d2 is full: audit-0 stays in /data/n1/d1"
    assert (move.bytes_total, move.bytes_copied) == (900_000_000, 410_000_000)


def test_a_cancelled_move_counts_neither_way_and_its_facts_are_told_by_the_step_that_undoes_it(told: Told) -> None:
    move = told.move("clicks-7")
    assert (move.outcome, move.met_sla, move.bytes_copied) == ("cancelled", "excluded", 80_000_000)
    spent = told.spent("clicks-7")
    assert (spent["copying"], spent["undoing"]) == (4.0, 0.2)
    assert spent["waiting"] == pytest.approx(1.3 + 0.1 + 0.1)


def test_an_open_move_is_told_by_its_heartbeat(told: Told) -> None:
    move = told.move("payments-4", 3)
    assert (move.outcome, move.phase, move.open, move.finished) == ("open", "copying", True, None)
    assert (move.attempts, move.bytes_copied, move.bytes_resumed) == (3, 1_200_000_000, 700_000_000)
    assert move.duration_seconds == pytest.approx(110.0)
    assert move.met_sla == "not due"


def test_each_replica_of_a_lane_has_its_own_outcome(told: Told) -> None:
    assert [told.move(f"small-{p}").outcome for p in (0, 1, 2)] == ["moved", "in place", "cancelled"]
    assert [told.move(f"small-{p}").met_sla for p in (0, 1, 2)] == ["yes", "yes", "excluded"]
    assert told.move("small-1").duration_seconds == pytest.approx(0.1)


def test_in_place_after_the_deadline_is_missed(told: Told) -> None:
    assert (told.move("clicks-1").outcome, told.move("clicks-1").met_sla) == ("moved", "no")


def test_a_parameter_that_cannot_be_used_is_one_row_that_does_not_count(told: Told) -> None:
    (move,) = [move for move in told.report.moves if not move.replica]
    assert (move.outcome, move.reason, move.met_sla) == ("failed", "InvalidPlan", "excluded")
    assert move.message == "$.topic is missing"


def test_a_terminated_move_has_missed_its_deadline(told: Told) -> None:
    assert (told.move("orders-11").outcome, told.move("orders-11").met_sla) == ("terminated", "no")


def test_phases_of_a_move_follow_each_other_and_add_up(told: Told) -> None:
    phases = told.phases("clicks-5")
    assert [phase.phase for phase in phases] == [
        "preparing", "queued", "copying", "throttled", "waiting", "swap", "delete-wait", "delete-wait",
    ]  # fmt: skip
    assert all(a.ended <= b.began for a, b in pairwise(phases))
    assert told.spent("clicks-5") == {
        "preparing": 0.03, "queued": 0.5, "copying": 10.5, "throttled": 4.0, "waiting": 2.0, "swap": 0.02,
        "delete-wait": 5.03,
    }  # fmt: skip


def test_a_pause_between_two_copies_is_told_as_such_and_totals_are_not_counted_twice(told: Told) -> None:
    spent = told.spent("orders-9")
    assert (spent["preparing"], spent["copying"], spent["paused"], spent["swap"]) == (0.1, 10.0, 60.0, 0.1)
    assert spent["waiting"] < 1.0
    assert told.move("orders-9").seconds_copying == 10.0


def test_the_summary_counts_what_is_asked_and_leaves_out_what_does_not_count(told: Told) -> None:
    total = told.report.total
    assert (total.moves, total.moved, total.failed, total.cancelled, total.open) == (19, 13, 3, 2, 1)
    assert (total.met, total.missed, total.not_due, total.excluded) == (8, 3, 1, 3)
    assert total.asked == total.met + total.missed + total.not_due + total.excluded
    assert total.attainment == pytest.approx(8 / 11)
    assert sum(row.moves for row in told.report.nodes) == 19


def test_every_table_has_its_declared_schema(told: Told) -> None:
    declared = {
        "workflow_runs": schema.WORKFLOW_RUNS,
        "activity_executions": schema.ACTIVITY_EXECUTIONS,
        "move_facts": schema.MOVE_FACTS,
        "move_phases": schema.MOVE_PHASES,
        "move_report": schema.MOVE_REPORT,
        "sla_summary": schema.SLA_SUMMARY,
    }
    for name, wanted in declared.items():
        found = getattr(told.frames, name).schema
        assert [(f.name, f.dataType) for f in found] == [(f.name, f.dataType) for f in wanted], name


def test_runs_and_activities_of_every_workflow_are_in_silver(told: Told) -> None:
    runs = {row.run_id: row for row in told.frames.workflow_runs.collect()}
    assert (runs["run-c1"].status, runs["run-c2"].status) == ("continued as new", "open")
    assert runs["run-c2"].chain == "run-c1"
    assert runs["run-stop"].status == "cancelled" and runs["run-stop"].cancel_requested is not None
    assert runs["run-killed"].failure_message == "by hand"
    lease = [row for row in told.frames.activity_executions.collect() if row.activity_type == "hold_lease"]
    assert [(row.state, row.attempt, row.node) for row in lease] == [("open", 5, 1)]
