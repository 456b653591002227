"""What a plan, a lane and the keeper of throttles carry on, whatever comes in the very task in which they continue."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from temporalio.bridge.proto.activity_result import ActivityResolution
from temporalio.bridge.proto.child_workflow import StartChildWorkflowExecutionFailedCause
from temporalio.bridge.proto.workflow_activation import WorkflowActivationJob

from storage_node.model.error_types import ErrorType
from tests.support.runs.hand_activations import Driven, completed, plain, signals_in
from tests.support.scale import scaled
from tests.workflows.driven import (
    EXAMPLES,
    HELD,
    LANE,
    LANE_ENDED,
    PLAN,
    PLANNED,
    approving,
    draining,
    following,
    keeping,
    moving,
    planned,
    requesting,
)
from workflows import options
from workflows.model.plans.running import calls, packing
from workflows.model.throttles import RATES
from workflows.plans.plan_lane import PlanLane
from workflows.plans.reassignment_plan import ReassignmentPlan
from workflows.plans.slot_keeper import SlotKeeper
from workflows.plans.throttle_keeper import ThrottleKeeper

LONG = 100_000
CANCELLED = ActivityResolution()
CANCELLED.cancelled.failure.activity_failure_info.activity_type.name = calls.REQUEST_MOVES
CANCELLED.cancelled.failure.cause.canceled_failure_info.SetInParent()
FOLLOWED = ("t-0@1", "t-1")


def result_of(it: Driven, activity: str, result: Any = None) -> WorkflowActivationJob:
    """The job that brings the result of the open step of this name."""
    (key,) = [
        key
        for key, command in it.open.items()
        if key[0] == "schedule_activity" and command.schedule_activity.activity_type == activity
    ]
    call = json.loads(it.open.pop(key).schedule_activity.arguments[0].data)
    made = PLANNED[activity](call) if result is None else result
    job = WorkflowActivationJob()
    job.resolve_activity.seq = key[1]
    job.resolve_activity.result.CopyFrom(made if isinstance(made, ActivityResolution) else completed(made))
    return job


#: No lane begins, and the throttle is the one that is held.
NOTHING = {"lanes": [], "between_brokers": 1000}


def but(it: Driven, activity: str) -> Driven:
    """The run once it awaits this activity, all others having succeeded."""
    for _ in range(8):
        it.resolve({name: make for name, make in PLANNED.items() if name != activity})
    return it


def steps(it: Driven) -> list[str]:
    """The activities under way."""
    return [
        command.schedule_activity.activity_type for key, command in it.open.items() if key[0] == "schedule_activity"
    ]


def failed(kind: str, message: str = "why") -> ActivityResolution:
    resolution = ActivityResolution()
    resolution.failed.failure.activity_failure_info.activity_type.name = "step"
    resolution.failed.failure.cause.message = message
    resolution.failed.failure.cause.application_failure_info.type = kind
    return resolution


def lane_ended(number: int, outcome: str = "moved") -> WorkflowActivationJob:
    row = {**LANE_ENDED["rows"][0], "key": FOLLOWED[number], "outcome": outcome}
    return Driven.signal("lane_ended", plain({"number": number, "rows": [row]}))


def choosing() -> Driven:
    """A plan with a long history and two open lanes, which looks at the cluster."""
    it = moving()
    it.length = LONG
    it.resolve({}, timers=True)
    assert steps(it) == [calls.CHOOSE_LANES]
    return it


def choice_of(it: Driven) -> Any:
    """The argument of the choice that is under way."""
    (command,) = (each for each in it.open.values() if each.HasField("schedule_activity"))
    return json.loads(command.schedule_activity.arguments[0].data)


def next_run(it: Driven, kind: type) -> Driven:
    assert it.ended is not None and it.ended.HasField("continue_as_new_workflow_execution"), it.ended
    (parameter,) = it.ended.continue_as_new_workflow_execution.arguments
    return Driven(kind, parameter, workflow_id="c/plan/p", continued=True)


MESSAGES: dict[str, Callable[[], WorkflowActivationJob]] = {
    "lane 0 ends": lambda: lane_ended(0),
    "lane 1 fails": lambda: lane_ended(1, "failed"),
    "pause": lambda: Driven.update("pause", plain({"mode": "cancel"})),
    "skip": lambda: Driven.update("skip", plain({"moves": ["t-1"]})),
    "set_options": lambda: Driven.update("set_options", plain({"throttle_between_brokers": "50MB"})),
    "nothing that it knows": lambda: Driven.signal("lane_ended", plain({"number": 7, "rows": []})),
}
CARRIED = (
    "outcomes",
    "failures",
    "skipped",
    "options",
    "approvals",
    "paused",
    "started",
    "lanes_left",
    "lanes_running",
)


@settings(max_examples=scaled(25, 300), deadline=None)
@given(st.permutations(sorted(MESSAGES)), st.integers(0, len(MESSAGES)), st.integers(0, len(MESSAGES)))
def test_plan_loses_nothing_that_comes_in_the_task_that_continues(order: list[str], count: int, before: int) -> None:
    it = choosing()
    jobs = [MESSAGES[name]() for name in order[:count]]
    done = result_of(it, calls.CHOOSE_LANES, {**NOTHING, "copied": 7})
    it.send(*jobs[:before], done, *jobs[before:])
    known = it.query("progress")
    after = next_run(it, ReassignmentPlan)
    found = after.query("progress")
    assert {name: found[name] for name in CARRIED} == {name: known[name] for name in CARRIED}
    chosen = set(order[:count])
    assert found["outcomes"].get("moved", 0) == ("lane 0 ends" in chosen)
    assert found["outcomes"].get("failed", 0) == ("lane 1 fails" in chosen)
    assert found["paused"] == ("pause" in chosen)
    # Its lanes report to the new run, which ends with every move counted once.
    for number in range(2):
        after.send(lane_ended(number))
    if found["paused"] and after.query("progress")["phase"] == "paused":
        after.send(after.update("resume"))
    for _ in range(8):
        if after.ended is None:
            after.resolve(PLANNED)
    assert after.ended is not None
    result = json.loads(after.ended.complete_workflow_execution.result.data)
    assert sum(result["outcomes"].values()) == 2
    assert result["outcome"] == ("failed" if "lane 1 fails" in chosen else "done")


def test_rate_of_a_continued_plan_is_that_of_all_the_time_in_which_it_moved() -> None:
    it = choosing()
    seconds = options.PLAN_READ_AGAIN.total_seconds()
    it.send(lane_ended(0), result_of(it, calls.CHOOSE_LANES, {**NOTHING, "copied": int(200 * seconds) - 10}))
    after = next_run(it, ReassignmentPlan)
    assert choice_of(after)["rate"] == pytest.approx(200, abs=1)
    after.length = LONG
    after.now += timedelta(seconds=seconds)
    after.send(result_of(after, calls.CHOOSE_LANES, {**NOTHING, "copied": int(200 * seconds) - 10}))
    assert choice_of(next_run(after, ReassignmentPlan))["rate"] == pytest.approx(100, abs=1)


def test_cancel_in_the_task_that_would_continue_ends_the_plan_instead() -> None:
    for cancel in (Driven.update("cancel", plain({"rollback": False})), Driven.cancel()):
        it = choosing()
        it.send(cancel, result_of(it, calls.CHOOSE_LANES, NOTHING))
        assert it.ended is None and it.query("progress")["phase"] == "cancelling"


def test_approvals_and_held_throttles_are_carried() -> None:
    it = approving()
    for person in ("ada", "grace"):
        it.send(it.update("approve", plain({"by": person})))
    it.length = LONG
    it.send(result_of(it, calls.CHOOSE_LANES, NOTHING))
    it.resolve({calls.HOLD_THROTTLES: PLANNED[calls.HOLD_THROTTLES]})
    after = next_run(it, ReassignmentPlan)
    assert after.query("progress")["approvals"] == ["ada", "grace"]
    after.send(result_of(after, calls.CHOOSE_LANES, NOTHING))
    assert calls.HOLD_THROTTLES not in steps(after), "approved, and the keeper holds its rates still"


def test_moves_that_a_pause_cancels_begin_again_though_it_is_resumed_before_the_lane_ends() -> None:
    it = moving()
    sent = it.send(it.update("pause", plain({"mode": "cancel"})))
    assert [(run, name) for run, name, _ in signals_in(sent)] == [("c/plan/p/lane-0", "stop")]
    it.resolve({})
    it.resolve({})
    it.send(it.update("resume"))
    it.send(lane_ended(0, "cancelled"), lane_ended(1))
    found = it.query("progress")
    assert (found["outcomes"], found["lanes_left"], found["failures"]) == ({"moved": 1}, 1, [])


def test_paused_plan_releases_its_throttles_once_the_last_lane_has_ended() -> None:
    it = moving()
    it.send(it.update("pause", plain({"mode": "finish"})))
    it.send(lane_ended(0))
    it.resolve(PLANNED)
    assert calls.RELEASE_THROTTLES not in steps(it)
    it.send(lane_ended(1))
    it.resolve(PLANNED)
    assert calls.RELEASE_THROTTLES in steps(it)


def test_plan_that_begins_nothing_adapts_the_throttle_of_its_open_lanes_and_leaves_the_slots_of_others() -> None:
    it = moving()
    it.send(it.update("pause", plain({"mode": "finish"})))
    assert choice_of(it)["most"] == 0
    it.send(result_of(it, calls.CHOOSE_LANES, {"between_brokers": 700}))
    assert steps(it) == [calls.HOLD_THROTTLES], "the rate has changed"
    it.resolve(PLANNED)
    it.send(lane_ended(0))
    assert choice_of(it)["running"] == [1], "so that the keeper of slots hears of it"
    it.send(result_of(it, calls.CHOOSE_LANES, {"between_brokers": 700}))
    assert steps(it) == [] and it.query("progress")["phase"] == "paused"
    it.resolve({}, timers=True)
    assert steps(it) == [calls.CHOOSE_LANES]
    it.length = LONG
    it.send(result_of(it, calls.CHOOSE_LANES, {"between_brokers": 700}))
    after = next_run(it, ReassignmentPlan)
    assert after.query("progress")["phase"] == "paused" and choice_of(after)["most"] == 0
    after.send(result_of(after, calls.CHOOSE_LANES, {"between_brokers": 700, "closed": [1]}))
    assert steps(after) == [calls.RELEASE_THROTTLES], "the last lane was terminated"


def test_lane_whose_run_has_ended_without_a_signal_begins_again() -> None:
    it = choosing()
    it.length = 10
    it.send(result_of(it, calls.CHOOSE_LANES, {**NOTHING, "closed": [1]}))
    found = it.query("progress")
    assert [row["lane"] for row in found["lanes_running"]] == [0] and found["lanes_left"] == 1


def test_cancel_while_lanes_start_stops_them_before_the_plan_ends() -> None:
    it = planned()
    while not any(kind == "start_child_workflow_execution" for kind, _ in it.open):
        it.resolve(PLANNED)
    it.send(it.cancel())
    assert it.ended is None and it.query("progress")["phase"] == "moving"
    sent = []
    for _ in range(3):
        sent += signals_in(it.resolve({}))
    assert it.ended is None and it.query("progress")["phase"] == "cancelling"
    assert [(run, name) for run, name, _ in sent] == [("c/plan/p/lane-0", "stop"), ("c/plan/p/lane-1", "stop")]
    it.send(lane_ended(0, "cancelled"), lane_ended(1, "cancelled"))
    released = []
    for _ in range(4):
        released += steps(it)
        if it.ended is None:
            it.resolve(PLANNED)
    assert it.ended is not None and it.ended.HasField("cancel_workflow_execution")
    assert {calls.RELEASE_THROTTLES, calls.RELEASE_SLOTS} <= set(released)


def test_lane_of_an_earlier_run_that_is_open_is_awaited() -> None:
    it = planned()
    for _ in range(3):
        it.resolve(PLANNED)
    (kind, seq), *_ = [key for key in it.open if key[0] == "start_child_workflow_execution"]
    it.open.pop((kind, seq))
    job = WorkflowActivationJob()
    refused = job.resolve_child_workflow_execution_start.failed
    job.resolve_child_workflow_execution_start.seq = seq
    refused.workflow_id, refused.workflow_type = "c/plan/p/lane-0", "PlanLane"
    refused.cause = StartChildWorkflowExecutionFailedCause.Value(
        "START_CHILD_WORKFLOW_EXECUTION_FAILED_CAUSE_WORKFLOW_ALREADY_EXISTS"
    )
    it.send(job)
    found = it.query("progress")
    assert it.ended is None and found["lanes_left"] >= 1
    assert "lane 0 of an earlier run of this plan is open still" in found["reasons"][0]


def test_worker_that_lacks_the_plan_is_sent_it() -> None:
    it = planned()
    it.send(result_of(it, calls.CHECK_PLAN, failed(ErrorType.PLAN_NOT_STORED)))
    (command,) = (each for each in it.open.values() if each.HasField("schedule_activity"))
    text = packing.unpack(json.loads(command.schedule_activity.arguments[0].data)["packed"])
    assert json.loads(text)["partitions"][0]["log_dirs"] == ["/disk/b"]
    it.send(result_of(it, calls.KEEP_PLAN))
    assert steps(it) == [calls.CHECK_PLAN]


def test_worker_that_lacks_the_lanes_is_sent_both_texts() -> None:
    it = choosing()
    it.send(result_of(it, calls.CHOOSE_LANES, failed(ErrorType.PLAN_NOT_STORED)))
    sent = []
    while calls.KEEP_PLAN in steps(it):
        (command,) = (each for each in it.open.values() if each.HasField("schedule_activity"))
        sent.append(packing.unpack(json.loads(command.schedule_activity.arguments[0].data)["packed"]))
        it.send(result_of(it, calls.KEEP_PLAN))
    assert (len(sent), sent[1]) == (2, "lanes") and steps(it) == [calls.CHOOSE_LANES]


def test_plan_that_no_worker_can_keep_fails_with_the_reason() -> None:
    it = planned()
    for _ in range(options.PLAN_SENDS):
        it.send(result_of(it, calls.CHECK_PLAN, failed(ErrorType.PLAN_NOT_STORED, "/plans/1: no space left")))
        it.send(result_of(it, calls.KEEP_PLAN))
    it.send(result_of(it, calls.CHECK_PLAN, failed(ErrorType.PLAN_NOT_STORED, "/plans/1: no space left")))
    assert it.ended is not None
    failure = it.ended.fail_workflow_execution.failure
    assert (failure.application_failure_info.type, failure.message) == ("PlanNotStored", "/plans/1: no space left")


def test_named_plan_that_no_worker_has_fails_with_what_to_do() -> None:
    it = Driven(ReassignmentPlan, plain({"version": 1, "plan": "0" * 64}))
    it.send(result_of(it, calls.CHECK_PLAN, failed(ErrorType.PLAN_NOT_STORED)))
    assert it.ended is not None
    failure = it.ended.fail_workflow_execution.failure
    assert failure.application_failure_info.type == "InvalidPlan"
    assert "Submit the plan again, or let all workers share one plan folder" in failure.message


def test_plan_with_an_id_to_which_no_lane_fits_fails() -> None:
    it = Driven(ReassignmentPlan, plain(PLAN), workflow_id="p" * 990)
    assert it.ended is not None
    assert it.ended.fail_workflow_execution.failure.application_failure_info.type == "InvalidPlan"


def test_cancelled_plan_repeats_its_signals_ever_more_rarely() -> None:
    it = moving()
    it.send(it.update("cancel"))
    signals = 0
    began = it.now
    while it.now - began < timedelta(days=7):
        signals += len([key for key in it.open if key[0] == "signal_external_workflow_execution"])
        it.resolve({})
        it.resolve({}, timers=True)
    assert it.ended is None and 100 < signals < 1_000


def test_lane_repeats_a_cancel_that_has_no_effect_ever_more_rarely() -> None:
    it = following()
    it.send(it.cancel())
    still = {"rows": [{"key": key, "state": "unknown"} for key in FOLLOWED]}
    gone = ActivityResolution()
    gone.cancelled.failure.activity_failure_info.activity_type.name = calls.FOLLOW_MOVES
    gone.cancelled.failure.cause.canceled_failure_info.SetInParent()
    began, cancels = it.now, 0
    while it.now - began < timedelta(days=7):
        cancels += steps(it).count(calls.CANCEL_MOVES)
        it.resolve({calls.FOLLOW_MOVES: lambda _: gone, calls.CANCEL_MOVES: lambda _: still}, timers=True)
    assert it.ended is None and 100 < cancels < 1_000


def test_result_without_a_row_for_a_move_fails_that_move_with_the_reason() -> None:
    it = following()
    it.send(result_of(it, calls.FOLLOW_MOVES, {"rows": [{"key": FOLLOWED[0], "outcome": "moved"}]}))
    rows = {row["key"]: row for row in it.query("progress")["rows"]}
    assert rows[FOLLOWED[1]]["outcome"] == "failed" and "has no row for t-1" in rows[FOLLOWED[1]]["reason"]


# --- the keeper of throttles


def looking(length: int = LONG) -> Driven:
    """A keeper with a held rate and a held entry, which reads the cluster."""
    it = keeping()
    it.resolve({}, timers=True)
    it.length = length
    assert steps(it) == [calls.READ_THROTTLES]
    return it


HOLDING = {
    "rates": {"1": {RATES[0]: "1000"}},
    "lists": {"t": {"leader.replication.throttled.replicas": ["5:1", "0:1"]}},
}


def before_of(it: Driven) -> dict[tuple[int, str], str | None]:
    """The values from before by broker and config."""
    return {(row["broker"], row["config"]): row["before"] for row in it.query("progress")["rates"]}


def test_keeper_carries_what_it_holds_and_what_stood_there_before() -> None:
    it = looking()
    known = it.query("progress")
    while it.ended is None:
        it.resolve({calls.READ_THROTTLES: lambda _: HOLDING}, timers=True)
    after = next_run(it, ThrottleKeeper)
    assert after.query("progress")["holdings"] == known["holdings"]
    assert list(known["holdings"]) == [HELD["holder"]]
    assert after.query("progress")["rates"] == known["rates"]
    assert before_of(it) == {(1, RATES[0]): "500"}
    after.send(after.update("release", plain(EXAMPLES["ThrottleKeeper.release"])))
    written: list[Any] = []
    for _ in range(4):
        after.resolve({
            calls.READ_THROTTLES: lambda _: HOLDING,
            calls.WRITE_THROTTLES: lambda call: written.extend(call["changes"]) or {"written": call["changes"]},
        })  # fmt: skip
    assert ["broker", "1", RATES[0], "SET", "500"] in written
    assert ["topic", "t", "leader.replication.throttled.replicas", "SUBTRACT", "0:1"] in written


def test_keeper_gives_up_a_broker_on_request_once_no_run_holds_its_throttles() -> None:
    it = keeping()
    commands = it.send(it.update("forget", plain({"broker": "1"})))
    assert "holds throttles on broker 1" in str(commands[0].update_response.rejected)
    it.send(it.update("release", plain(EXAMPLES["ThrottleKeeper.release"])))
    for _ in range(3):
        it.resolve({calls.READ_THROTTLES: lambda _: {**HOLDING, "rates": {}, "silent": ["1"]}, **_WRITE})
    assert it.ended is None and it.query("progress")["rates"], "broker 1 is down"
    it.send(it.update("forget", plain({"broker": "1"})))
    assert it.query("progress")["rates"] == []


@pytest.mark.parametrize("message", ["hold", "release"])
def test_keeper_does_not_continue_while_an_update_awaits_its_response(message: str) -> None:
    it = keeping()
    it.length = LONG
    (key,) = [key for key in it.open if key[0] == "start_timer"]
    it.now += it.open.pop(key).start_timer.start_to_fire_timeout.ToTimedelta()
    timer = WorkflowActivationJob()
    timer.fire_timer.seq = key[1]
    given = {**HELD, "holder": "another"} if message == "hold" else EXAMPLES["ThrottleKeeper.release"]
    it.send(it.update(message, plain(given)), timer)
    assert it.ended is None
    responses = 0
    for _ in range(6):
        for command in it.resolve({calls.READ_THROTTLES: lambda _: HOLDING, **_WRITE}):
            responses += command.HasField("update_response") and command.update_response.HasField("completed")
    assert responses == 1, "it responds once the cluster has it"


_WRITE = {calls.WRITE_THROTTLES: lambda call: {"written": call["changes"]}}


def test_keeper_reads_a_broker_before_it_takes_its_value_for_that_from_before() -> None:
    """A hold comes while the keeper reads other brokers: nothing is known of this one yet."""
    it = looking(length=10)
    rates = {"2": {RATES[0]: "9"}}
    it.send(it.update("hold", plain({"holder": "another", "rates": rates})))
    it.send(result_of(it, calls.READ_THROTTLES, HOLDING))
    assert list(before_of(it)) == [(1, RATES[0])]
    current = {**HOLDING, "rates": {**HOLDING["rates"], "2": {RATES[0]: "7"}}}
    it.resolve({calls.READ_THROTTLES: lambda _: current})
    assert before_of(it)[2, RATES[0]] == "7"


@pytest.mark.parametrize("activity", [calls.READ_THROTTLES, calls.WRITE_THROTTLES])
def test_keeper_that_cannot_read_or_write_keeps_its_leases_and_tries_again(activity: str) -> None:
    it = looking(length=10)
    if activity == calls.WRITE_THROTTLES:
        it.send(result_of(it, calls.READ_THROTTLES, {"rates": {}, "lists": {}}))
    before = it.query("progress")["holdings"]
    it.send(result_of(it, activity, failed(ErrorType.INVALID_PLAN, "another version")))
    found = it.query("progress")
    assert it.ended is None and found["holdings"] == before and found["failed"] == {"cluster": "another version"}
    it.resolve({}, timers=True)
    assert steps(it) == [calls.READ_THROTTLES]


def test_lane_reports_before_it_ends_as_cancelled() -> None:
    it = Driven(PlanLane, plain({**LANE, "throttled": False}))
    sent = signals_in(it.send(it.cancel(), result_of(it, calls.REQUEST_MOVES)))
    for _ in range(4):
        sent += signals_in(it.resolve(PLANNED)) if it.ended is None else []
    assert it.ended is not None and it.ended.HasField("cancel_workflow_execution")
    ((run, name, (report,)),) = sent
    assert (run, name, [row["outcome"] for row in report["rows"]]) == ("c/plan/p", "lane_ended", ["cancelled"] * 2)


STALLED = EXAMPLES["ReassignmentPlan.lane_stalled"]


def test_lane_tells_the_plan_once_which_moves_do_not_advance_and_once_that_they_do() -> None:
    it = following()
    row = STALLED["rows"][0]
    still = {"rows": [row, {"key": "t-1", "state": "copying"}]}
    sent = signals_in(it.send(result_of(it, calls.FOLLOW_MOVES, still)))
    assert [(run, name, value[0]["number"]) for run, name, value in sent] == [("c/plan/p", "lane_stalled", 0)]
    assert [(each["key"], each["stalled"]) for each in sent[0][2][0]["rows"]] == [("t-0@1", "target_silent")]
    it.resolve({})
    assert it.query("progress")["phase"] == "stalled"
    (command,) = (each for each in it.open.values() if each.HasField("schedule_activity"))
    call = json.loads(command.schedule_activity.arguments[0].data)
    assert [(each["key"], each["since"], each["repeats"]) for each in call["stalled"]] == [("t-0@1", 1.5e9, 1)]
    assert signals_in(it.send(result_of(it, calls.FOLLOW_MOVES, still))) == []
    moves = {"rows": [{"key": key, "state": "copying"} for key in FOLLOWED]}
    ((_, name, (value,)),) = signals_in(it.send(result_of(it, calls.FOLLOW_MOVES, moves)))
    assert (name, value) == ("lane_stalled", {"number": 0, "rows": []})
    it.resolve({})
    assert it.query("progress")["phase"] == "following"


def test_stalled_moves_are_shown_and_carried_until_their_lane_ends() -> None:
    it = choosing()
    it.send(Driven.signal("lane_stalled", plain(STALLED)), result_of(it, calls.CHOOSE_LANES, NOTHING))
    after = next_run(it, ReassignmentPlan)
    (row,) = after.query("progress")["stalled"]
    assert (row["key"], row["reason"]) == ("t-0@1", "broker 1 does not respond")
    after.send(Driven.signal("lane_stalled", plain({**STALLED, "number": 7})))
    assert len(after.query("progress")["stalled"]) == 1, "of a lane that is not open"
    after.send(lane_ended(0))
    assert after.query("progress")["stalled"] == []


GROWN = {"change": {"grown": 9_000, "lost": [], "changed": 0}, "large_changes": ["9000 bytes more are left to copy"]}


def requested_recheck(it: Driven) -> Any:
    return choice_of(it)["recheck"]


def test_large_change_waits_for_approval_and_what_was_accepted_is_carried() -> None:
    it = planned({"on_drift": "approval"})
    for _ in range(6):
        it.resolve(PLANNED)
    it.now += timedelta(hours=1)
    it.resolve({}, timers=True)
    none = {"grown": 0, "lost": [], "changed": 0}
    assert requested_recheck(it) == {"seen": none, "accepted": none, "waits": True}
    it.send(result_of(it, calls.CHOOSE_LANES, {**NOTHING, **GROWN}))
    found = it.query("progress")
    assert (found["phase"], found["changes"]) == ("awaiting_approval", GROWN["large_changes"])
    assert choice_of(it)["most"] == 0 and requested_recheck(it) is None, "its open lanes go on, and no other begins"
    it.send(result_of(it, calls.CHOOSE_LANES, NOTHING))
    assert steps(it) == [] and it.ended is None
    it.send(it.update("approve", plain({"by": "ada"})))
    assert steps(it) == [calls.CHOOSE_LANES] and it.query("progress")["changes"] == []
    assert requested_recheck(it) is None, "it was just compared"
    it.length = LONG
    it.send(result_of(it, calls.CHOOSE_LANES, NOTHING))
    after = next_run(it, ReassignmentPlan)
    assert after.query("progress")["approvals"] == ["ada"]
    assert requested_recheck(after) is None
    after.send(result_of(after, calls.CHOOSE_LANES, NOTHING))
    after.now = it.now + timedelta(hours=1)
    after.resolve({}, timers=True)
    assert requested_recheck(after) == {"seen": GROWN["change"], "accepted": GROWN["change"], "waits": True}


def test_plan_that_waits_for_approval_alerts_each_time_though_it_is_stalled_as_well() -> None:
    it = planned({"on_drift": "approval", "alerts": "oncall"})
    for _ in range(6):
        it.resolve(PLANNED)
    it.send(Driven.signal("lane_stalled", plain(STALLED)))
    it.send(result_of(it, calls.CHOOSE_LANES, NOTHING))
    assert [event for event, _ in alerts_in(it)] == ["stalled"]
    it.resolve({})
    it.resolve({}, timers=True)
    for _ in range(2):
        it.send(result_of(it, calls.CHOOSE_LANES, {**NOTHING, **GROWN}))
        assert alerts_in(it) == [("approval", GROWN["large_changes"][0])]
        it.resolve({})
        assert it.query("progress")["phase"] == "awaiting_approval"
        it.send(it.update("approve", plain({"by": "ada"})))
        it.send(result_of(it, calls.CHOOSE_LANES, NOTHING))


def alerts_in(it: Driven) -> list[tuple[str, str]]:
    """The event and the reason of each alert whose run starts."""
    started = [
        each.start_child_workflow_execution for (kind, _), each in it.open.items() if kind.startswith("start_ch")
    ]
    rows = [json.loads(each.input[0].data) for each in started if each.workflow_type == "PlanAlert"]
    return [(row["event"], row["reason"]) for row in rows]


# --- the keeper of slots


def slots_asked(holder: str, disk: str, **more: Any) -> WorkflowActivationJob:
    wanted = [[0, [disk, ""]]]
    return Driven.update("share", plain({"holder": holder, "wanted": wanted, "limits": {disk: 1}, **more}))


def responses(commands: Any) -> list[Any]:
    done = [each.update_response for each in commands if each.HasField("update_response")]
    return [json.loads(each.completed.data) for each in done if each.HasField("completed")]


def test_keeper_of_slots_wakes_the_plan_that_waits_and_carries_the_shares() -> None:
    it = Driven(SlotKeeper, workflow_id="c/slots")
    assert [each["lanes"] for each in responses(it.send(slots_asked("p", "1:/a")))] == [[0]]
    (refused,) = responses(it.send(slots_asked("q", "1:/a")))
    assert (refused["lanes"], refused["taken"], refused["others"]) == ([], {"1:/a": 1, "": 1}, ["p"])
    it.length = LONG
    it.send(it.update("share", plain({"holder": "r", "running": [[3, ["2:/b"]]]})))
    after = next_run(it, SlotKeeper)
    assert after.query("progress")["plans"] == it.query("progress")["plans"]
    sent = signals_in(after.send(after.update("release", plain({"holder": "p"}))))
    assert sent == [("q", "slots_freed", [{}])]
    after.resolve({})
    assert [each["lanes"] for each in responses(after.send(slots_asked("q", "1:/a")))] == [[0]]
    for holder in ("q", "r"):
        after.send(after.update("release", plain({"holder": holder})))
    assert after.ended is not None and after.ended.HasField("complete_workflow_execution")


def test_plan_chooses_again_once_a_slot_is_free_and_releases_its_slots_when_it_rests() -> None:
    it = moving()
    it.send(Driven.signal("slots_freed", plain({})))
    assert steps(it) == [calls.CHOOSE_LANES]
    pause = it.update("pause", plain({"mode": "cancel"}))
    it.send(result_of(it, calls.CHOOSE_LANES, {**NOTHING, "shares": True}), pause)
    for _ in range(3):
        it.resolve({})
    it.send(lane_ended(0, "cancelled"), lane_ended(1))
    released = []
    for _ in range(4):
        released += steps(it)
        it.resolve(PLANNED)
    assert calls.RELEASE_SLOTS in released and it.query("progress")["phase"] == "paused"


def test_decision_about_an_adaptive_throttle_is_carried_with_its_inputs() -> None:
    decided = {
        "rates": {"between_brokers": 700},
        "at": 1.5e9,
        "why": "halved",
        "under_min_isr": 1,
        "under_replicated": 2,
    }
    it = choosing()
    it.send(result_of(it, calls.CHOOSE_LANES, {**NOTHING, "adaptive": decided}))
    after = next_run(it, ReassignmentPlan)
    assert choice_of(after)["adaptive"] == decided


def test_evacuation_that_is_cancelled_while_it_cordons_removes_the_cordon() -> None:
    it = but(draining(), calls.SET_CORDON)
    assert steps(it) == [calls.SET_CORDON]
    it.send(it.cancel())
    assert steps(it) == [calls.SET_CORDON], "the response may still come: the broker has set it then"
    it.send(result_of(it, calls.SET_CORDON))
    (key,) = it.open
    (released,) = [json.loads(it.open[key].schedule_activity.arguments[0].data)]
    assert steps(it) == [calls.SET_CORDON] and released["cordoned"] is False


def test_lane_that_is_stopped_while_it_requests_cancels_what_has_begun() -> None:
    it = but(requesting(), calls.REQUEST_MOVES)
    assert steps(it) == [calls.REQUEST_MOVES]
    sent = it.send(it.signal("stop", plain(None)))
    assert any(command.HasField("request_cancel_activity") for command in sent), "the step does not go on for ever"
    it.send(result_of(it, calls.REQUEST_MOVES, CANCELLED))
    assert steps(it) == [calls.CANCEL_MOVES]
