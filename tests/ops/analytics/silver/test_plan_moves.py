"""Plans and their moves: from histories that servers wrote, and from lanes that are open or were terminated."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ops.analytics.gold.plan_progress import judged_plans, plan_progress
from ops.analytics.page import plan_line
from ops.analytics.report import Move
from ops.analytics.silver.moves import chains, plans
from tests.ops.analytics.bronze import Collected, bronze, collect
from tests.ops.analytics.conftest import at
from tests.support.runs.histories import T0, RunBuilder, export
from tests.support.runs.recorded import recorded_run
from workflows.model import names
from workflows.model.plans.running import calls

pytestmark = pytest.mark.spark

RECORDED = ("done", "lane-directory", "lane-brokers", "cancelled", "lane-stopped", "failed", "refused")
PLAN, TWICE, UNDONE = "k/plan/wide", "k/plan/twice", "k/plan/undone"
DEADLINE = "2026-11-20T10:01:00+00:00"


def lane(
    number: int, moves: list[dict[str, Any]], start: float, plan: str = PLAN, run_id: str = ""
) -> tuple[RunBuilder, dict[str, Any]]:
    """Return a lane of a plan, and the parameter of its steps."""
    parameter = {"version": 1, "cluster": "k", "plan": plan, "number": number, "moves": moves, "throttled": False}
    run_id = run_id or f"run-lane-{number}"
    run = RunBuilder(names.plan_lane_id(plan, number), run_id, names.PLAN_LANE, parameter=parameter, start=start)
    started = run.events[0].workflow_execution_started_event_attributes
    started.parent_workflow_execution.workflow_id = plan
    # Its rows count their seconds from its start, a second before it requests the moves.
    requested = T0.timestamp() + start
    return run, {"cluster": "k", "workflow_id": run.workflow_id, "moves": moves, "requested": requested}


def row(key: str, outcome: str = "", **facts: Any) -> dict[str, Any]:
    """Return a row about a move."""
    return {"key": key, "outcome": outcome, "state": "copying", "copied": 0, "total": 0, "seconds": 0.0, **facts}


def built() -> list[RunBuilder]:
    """An open plan with a deadline, and lanes that ended, run and were terminated."""
    parameter = {"version": 1, "partitions": [], "options": {"deadline": DEADLINE}}
    plan = RunBuilder(PLAN, "run-wide", names.REASSIGNMENT_PLAN, parameter=parameter)
    check = {"cluster": "k", "plan": "x", "options": {"deadline": DEADLINE, "throttle_between_brokers": 1000}}
    checked = {"moves": 4, "lanes": 3, "in_place": 0, "bytes_total": 5000, "brokers": [1, 2, 3], "topics": ["w"]}
    plan.activity(calls.CHECK_PLAN, check, 0.1, 0.5, checked)

    two = {"kind": "replicas", "topic": "w", "partition": 0, "size": 900, "node": -1, "before": [1], "after": [2, 3]}
    two["directories"] = {"2": "/d2", "3": "any"}
    ended, call = lane(0, [two], 1.0)
    done = {"rows": [row("w-0", "moved", copied=2000, total=2000, seconds=10.0)]}
    ended.activity(calls.REQUEST_MOVES, call, 2.0, 3.0, {"rows": [row("w-0", total=2000)]})
    ended.activity(calls.FOLLOW_MOVES, call, 3.0, 12.5, done)
    ended.complete(12.6, {"version": 1, **done, "phases": []})

    inside = {"kind": "directory", "topic": "w", "size": 500, "node": 2, "source": "/a", "target": "/b"}
    running, call = lane(1, [{**inside, "partition": 1}, {**inside, "partition": 2}], 1.0)
    rows = [row("w-1@2", "moved", copied=500, total=500, seconds=4.0), row("w-2@2", copied=100, total=500)]
    running.activity(calls.REQUEST_MOVES, call, 2.0, 6.5, {"rows": rows})
    running.open_activity(calls.FOLLOW_MOVES, call, 7.0, 2, None)

    killed, call = lane(2, [{**inside, "partition": 3}], 70.0)
    killed.activity(calls.REQUEST_MOVES, call, 71.0, 72.0, {"rows": [row("w-3@2", copied=50, total=500)]})
    killed.terminate(80.0)
    return [plan, ended, running, killed, *reset(), *submitted_twice(), *rolled_back()]


def rolled_back() -> list[RunBuilder]:
    """A plan that was taken back in time: its lanes there and back have the same move."""
    parameter = {"version": 1, "partitions": [], "options": {"deadline": DEADLINE}}
    plan = RunBuilder(UNDONE, "run-undone", names.REASSIGNMENT_PLAN, parameter=parameter)
    check = {"cluster": "k", "plan": "x", "options": {"deadline": DEADLINE}}
    checked = {"moves": 1, "lanes": 1, "in_place": 0, "bytes_total": 5, "brokers": [2], "topics": ["undone"]}
    plan.activity(calls.CHECK_PLAN, check, 0.1, 0.5, checked)
    plan.complete(30.0, {"version": 1, "outcome": "rolled_back"})
    runs = [plan]
    for number, (start, source, target) in enumerate(((1.0, "/a", "/b"), (11.0, "/b", "/a"))):
        one = {"kind": "directory", "topic": "undone", "partition": 0, "size": 5, "node": 2}
        run, call = lane(number, [one | {"source": source, "target": target}], start, UNDONE, f"run-undone-{number}")
        done = {"rows": [row("undone-0@2", "moved", copied=5, total=5, seconds=8.0)]}
        run.activity(calls.REQUEST_MOVES, call, start + 0.1, start + 8.5, done)
        runs.append(run.complete(start + 9.0, {"version": 1, **done, "phases": []}))
    return runs


def submitted_twice() -> list[RunBuilder]:
    """The same plan on two days: each with a deadline and a lane, the first of which missed it."""
    runs = []
    for number, (start, ended, deadline) in enumerate(((0.0, 30.0, "10:00:20"), (40.0, 50.0, "10:01:40"))):
        options = {"deadline": f"2026-11-20T{deadline}+00:00"}
        parameter = {"version": 1, "partitions": [], "options": options}
        plan = RunBuilder(TWICE, f"run-{number}", names.REASSIGNMENT_PLAN, parameter=parameter, start=start)
        plan.complete(ended + 1, {"version": 1})
        inside = {"kind": "directory", "topic": "again", "partition": 0, "size": 5, "node": 2, "source": "/a"}
        run, call = lane(0, [{**inside, "target": "/b"}], start + 1, TWICE, f"run-{number}-lane")
        done = {"rows": [row("again-0@2", "moved", copied=5, total=5, seconds=ended - start - 1)]}
        run.activity(calls.REQUEST_MOVES, call, start + 1.1, start + 1.2, {"rows": []})
        run.activity(calls.FOLLOW_MOVES, call, start + 1.3, ended, done)
        runs += [plan, run.complete(ended, {"version": 1, **done, "phases": []})]
    return runs


def reset() -> list[RunBuilder]:
    """A lane whose run was reset: both runs of its chain have its moves in their parameters, and begin alike."""
    one = {"kind": "replicas", "topic": "r", "size": 900, "node": -1, "directories": {}, "before": [1, 2, 3]}
    moves = [{**one, "partition": 0, "after": [1]}, {**one, "partition": 1, "after": [1, 2, 4]}]
    parameter = {"version": 1, "cluster": "k", "plan": "k/plan/reset", "number": 0, "moves": moves, "throttled": False}
    workflow_id = names.plan_lane_id("k/plan/reset", 0)
    before, after = (
        RunBuilder(workflow_id, name, names.PLAN_LANE, parameter=parameter, start=1.0, first_run_id="run-reset")
        for name in ("run-reset", "run-reset-2")
    )
    before.terminate(5.0)
    after.activity(calls.REQUEST_MOVES, {"cluster": "k", "moves": moves}, 6.0, 7.0, {"rows": [row("r-1", total=900)]})
    after.complete(9.0, {"version": 1, "rows": [row("r-0", "moved"), row("r-1", "moved", copied=900)], "phases": []})
    return [before, after]


@pytest.fixture(scope="module")
def collected(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Collected:
    folder = tmp_path_factory.mktemp("plans")
    export(folder, *built(), *[recorded_run(f"plan-{name}") for name in RECORDED], at=100)
    return collect(*bronze(spark, folder), at(100))


def moves_of(collected: Collected, workflow_id: str) -> list[Move]:
    """Return the moves of one lane, by partition and node."""
    found = [one for one in collected.report.moves if one.workflow_id == workflow_id]
    return sorted(found, key=lambda one: (one.replica, one.node or 0))


def test_recorded_lanes_have_their_moves(collected: Collected) -> None:
    (inside,) = moves_of(collected, recorded_run("plan-lane-directory").workflow_id)
    assert (inside.kind, inside.replica, inside.node, inside.outcome) == ("disk", "t-0", 1, "moved")
    assert (inside.source, inside.directory, inside.bytes_copied, inside.bytes_total) == (
        "/disk/a",
        "/disk/b",
        1000,
        1000,
    )
    lane = recorded_run("plan-lane-brokers")
    (between,) = moves_of(collected, lane.workflow_id)
    assert (between.kind, between.from_node, between.node, between.outcome) == ("node", 1, 2, "moved")
    completed = lane.events[-1].workflow_execution_completed_event_attributes
    (row,) = json.loads(completed.result.payloads[0].data)["rows"]
    assert row["seconds"] > 0 and between.seconds_copying == row["seconds"]
    assert between.mean_rate == pytest.approx(1000 / row["seconds"])
    (stopped,) = moves_of(collected, recorded_run("plan-lane-stopped").workflow_id)
    assert (stopped.outcome, stopped.bytes_copied, stopped.met_sla) == ("cancelled", 0, "no deadline")
    assert [phase.phase for phase in collected.report.phases if phase.id == stopped.id] == [
        "asking", "copying", "cancelling",
    ]  # fmt: skip


def test_recorded_plans_have_their_outcomes(collected: Collected) -> None:
    found = {one.workflow_id: one for one in collected.frames.plans.collect()}

    def plan(name: str) -> Any:
        return found[recorded_run(f"plan-{name}").workflow_id]

    done = plan("done")
    assert (done.outcome, done.moves, done.lanes, done.bytes_total, done.bytes_copied) == ("done", 2, 2, 2000, 2000)
    assert (done.verified, done.differences, done.nodes, done.topics) == (True, 0, [1, 2], ["t"])
    assert (done.throttle_between_brokers, done.open, done.phase) == (200_000.0, False, None)
    failed = plan("failed")
    assert (failed.outcome, failed.verified, failed.differences, failed.bytes_copied) == ("failed", False, 3, 1000)
    assert (plan("cancelled").outcome, plan("cancelled").bytes_copied) == ("cancelled", None)
    refused = plan("refused")
    assert (refused.outcome, refused.reason, refused.moves) == ("failed", "PlanRefused", 0)
    assert refused.message.startswith("t-0: broker 9 is not registered in the cluster")


def test_open_plan_has_its_deadline_and_no_end(collected: Collected) -> None:
    (plan,) = collected.frames.plans.where(f"workflow_id = '{PLAN}'").collect()
    assert (plan.outcome, plan.open, plan.finished) == ("open", True, None)
    (shown,) = [one for one in collected.report.plans if one.workflow_id == PLAN]
    assert (shown.done, shown.running, shown.missed, shown.moves, shown.bytes_done) == (2, 1, 1, 4, 2500)
    assert (shown.deadline, shown.met_sla) == ("2026-11-20T10:01:00.000000Z", "no")
    line = plan_line(shown)
    assert line.startswith(
        f"plan {PLAN} open, 2 of 4 moves done, 1 open, 1 missed, 2.50 kB, deadline 2026-11-20 10:01:00: no"
    )
    assert (plan.deadline - plan.started).total_seconds() == 60.0


def test_every_added_replica_is_a_move_with_its_share_of_the_bytes(collected: Collected) -> None:
    first, second = moves_of(collected, f"{PLAN}/lane-0")
    assert [(one.kind, one.from_node, one.node, one.directory) for one in (first, second)] == [
        ("both", 1, 2, "/d2"), ("node", None, 3, None),
    ]  # fmt: skip
    assert (first.bytes_copied, second.bytes_copied) == (1000, 1000)
    assert (first.seconds_queued, first.seconds_copying, first.duration_seconds) == (1.0, 9.0, 10.0)
    # In place at 11 s of a plan that has until 60 s: its lanes began at 1 s.
    assert (first.met_sla, first.deadline_seconds, first.deadline) == ("yes", 59.0, "2026-11-20T10:01:00.000000Z")


def test_moves_of_an_open_lane_end_one_by_one(collected: Collected) -> None:
    moved, copying = moves_of(collected, f"{PLAN}/lane-1")
    assert (moved.outcome, moved.open, moved.duration_seconds) == ("moved", False, 4.0)
    assert (copying.outcome, copying.open, copying.phase, copying.bytes_copied) == ("open", True, "copying", 100)
    assert (copying.attempts, copying.met_sla) == (2, "no")


def test_terminated_lane_leaves_its_moves_where_they_were(collected: Collected) -> None:
    (one,) = moves_of(collected, f"{PLAN}/lane-2")
    assert (one.outcome, one.bytes_copied, one.met_sla) == ("terminated", 50, "no")


def test_lane_that_was_reset_has_each_move_once(collected: Collected) -> None:
    workflow_id = names.plan_lane_id("k/plan/reset", 0)
    found = [one.id.removeprefix(f"{workflow_id}/run-reset/") for one in moves_of(collected, workflow_id)]
    assert sorted(found) == ["r-0@from-2", "r-0@from-3", "r-1@4"]
    assert {one.outcome for one in moves_of(collected, workflow_id)} == {"moved"}
    (chain,) = (
        chains(collected.frames.runs, plans(collected.frames.runs)).where(f"workflow_id = '{workflow_id}'").collect()
    )
    assert (chain.status, chain.chain_closed.timestamp()) == ("completed", at(9.0).timestamp())


def test_plan_that_was_rolled_back_is_neither_missed_nor_done(collected: Collected) -> None:
    frames = collected.frames
    (found,) = judged_plans(frames.plans, frames.moves, at(100)).where(f"workflow_id = '{UNDONE}'").collect()
    assert (found.outcome, found.met_sla, found.done) == ("rolled_back", "excluded", 0)


def test_plan_that_is_submitted_again_changes_no_earlier_deadline(collected: Collected) -> None:
    found = moves_of(collected, names.plan_lane_id(TWICE, 0))
    assert [(one.met_sla, one.deadline) for one in sorted(found, key=lambda one: one.started)] == [
        ("no", "2026-11-20T10:00:20.000000Z"), ("yes", "2026-11-20T10:01:40.000000Z"),
    ]  # fmt: skip


def test_moves_carry_their_plan_and_their_lane(collected: Collected) -> None:
    found = collected.frames.moves.where(f"plan = '{PLAN}'").collect()
    assert len(found) == 5 and {one.workflow_type for one in found} == {names.PLAN_LANE}
    assert {one.lane for one in found} == {f"{PLAN}/lane-{number}" for number in range(3)}


def test_progress_of_a_plan_adds_up(collected: Collected) -> None:
    progress = plan_progress(collected.frames.plans, collected.frames.moves).where(f"workflow_id = '{PLAN}'")
    first, last = sorted(progress.collect(), key=lambda one: one.minute)
    assert (first.ended, first.done, first.missed, first.bytes_done) == (2, 2, 0, 2500)
    assert (last.ended, last.done, last.missed, last.bytes_done) == (1, 2, 1, 2500)
    assert (first.moves_total, first.bytes_total, first.rate) == (4, 5000, pytest.approx(2500 / 59))
    # Half of the bytes in the 59 seconds since the first lane began: the rest would take as long again.
    assert (first.eta - first.minute).total_seconds() == pytest.approx(119.0)
