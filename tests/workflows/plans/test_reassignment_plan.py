"""ReassignmentPlan, its lanes and the keeper of throttles on a real Temporal server; their histories are recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError, CancelledError

from activities.plans import choosing
from activities.plans.lane_steps import LaneSteps
from storage_node.model.error_codes import ErrorCode
from storage_node.model.ids import TopicPartition
from tests.support.programs.temporal import TemporalServer
from tests.workflows.conftest import Recorder
from tests.workflows.fakes import until_true
from tests.workflows.plans.scene import BEFORE, Scene, run
from workflows import options
from workflows.model.plans import adaptive, recheck
from workflows.model.throttles import LISTS, MOVE_RATE, RATES

pytestmark = pytest.mark.temporal

FIRST, SECOND = (TopicPartition("t", number) for number in range(2))
AFTER = {FIRST: {1: "/disk/b"}, SECOND: {2: "/disk/a"}}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_plan_moves_throttled_and_restores_the_throttles(
    temporal_server: TemporalServer, task_queue: str, recorded: Recorder
) -> None:
    async def scene(it: Scene) -> None:
        it.kafka.held = True
        it.kafka.configs["broker", "2"] = {RATES[0]: "7"}
        plan = await it.submit()
        await it.running(plan, 2)
        assert it.kafka.configs["broker", "1"] == it.kafka.configs["broker", "2"] == dict.fromkeys(RATES, "200000")
        assert it.kafka.configs["topic", "t"] == dict(zip(LISTS, ("1:1", "1:2"), strict=True))
        it.kafka.held = False
        result = await plan.result()
        assert (result["outcome"], result["outcomes"], result["bytes_copied"]) == ("done", {"moved": 2}, 2_000)
        assert result["verified"]["ok"] and it.kafka.placed == AFTER

        async def restored() -> bool:
            return it.kafka.throttles == {("broker", "2"): {RATES[0]: "7"}}

        await until_true(restored)
        await recorded("plan-done", it.client, plan.id)
        for number, name in ((0, "plan-lane-directory"), (1, "plan-lane-brokers")):
            await it.lane(number).result()
            await recorded(name, it.client, it.lane(number).id)
        await it.keeper.cancel()  # it would end by itself half a minute later
        await it.keeper.result()
        await recorded("throttle-keeper", it.client, it.keeper.id)

    run(temporal_server, task_queue, scene)


def test_throttle_of_a_running_plan_is_set_at_once_and_what_stood_there_before_is_restored(
    temporal_server: TemporalServer, task_queue: str, recorded: Recorder
) -> None:
    before = {RATES[0]: "7"}

    async def scene(it: Scene) -> None:
        it.kafka.held = True
        it.kafka.configs["broker", "2"] = dict(before)
        plan = await it.submit({"throttle_between_brokers": None})
        await it.running(plan, 2)
        assert it.kafka.throttles == {("broker", "2"): before}, "the plan has no throttle yet"
        for argument, why in (({"rate": "fast"}, "throttle_between_brokers"), ({"rate": 0}, "0"), ({}, "is empty")):
            with pytest.raises(WorkflowUpdateFailedError) as raised:
                await plan.execute_update("set_throttle", argument)
            assert why in str(raised.value.cause)
        assert it.kafka.throttles == {("broker", "2"): before}, "a bad value changes nothing"

        async def held(rates: dict[str, str]) -> None:
            async def there() -> bool:
                listed = it.kafka.configs.get(("topic", "t"), {})
                brokers = [it.kafka.configs.get(("broker", node)) for node in ("1", "2")]
                return brokers == [rates, rates] and listed == dict(zip(LISTS, ("1:1", "1:2"), strict=True))

            await until_true(there)

        found = await plan.execute_update("set_throttle", {"rate": "1MB"})
        assert found["options"]["throttle_between_directories"] == 1_000_000
        await held(dict.fromkeys((*RATES, MOVE_RATE), "1000000"))
        await plan.execute_update("set_throttle", {"rate": "2MB"})
        await held(dict.fromkeys((*RATES, MOVE_RATE), "2000000"))
        await plan.execute_update("set_throttle", {"between_directories": None})
        await held(dict.fromkeys(RATES, "2000000"))
        assert len((await plan.query("progress"))["lanes_running"]) == 2, "both moves go on"
        it.kafka.held = False
        assert (await plan.result())["outcome"] == "done" and it.kafka.placed == AFTER

        async def restored() -> bool:
            return it.kafka.throttles == {("broker", "2"): before}

        await until_true(restored)
        await recorded("plan-throttled-later", it.client, plan.id)
        await recorded("plan-lane-throttled-later", it.client, it.lane(1).id)

    run(temporal_server, task_queue, scene)


def test_next_lane_begins_while_the_last_moves_of_the_one_before_end(
    temporal_server: TemporalServer, task_queue: str
) -> None:
    of = [TopicPartition("t", number) for number in range(10)]

    async def scene(it: Scene) -> None:
        it.kafka.placed = {partition: {1: "/disk/a"} for partition in of}
        it.kafka.holding = {of[0]}
        rows = [{"topic": "t", "partition": each.partition, "replicas": [1], "log_dirs": ["/disk/b"]} for each in of]
        plan = await it.submit({"lane_moves": 5, "slots_per_disk": 1}, partitions=rows)

        async def moved() -> bool:
            return len(it.kafka.futures) == 1 and all(it.kafka.placed[each][1] == "/disk/b" for each in of[1:])

        await until_true(moved)
        it.kafka.holding = set()
        result = await plan.result()
        assert (result["outcome"], result["outcomes"]) == ("done", {"moved": 10})

    run(temporal_server, task_queue, scene)


def test_each_run_of_a_plan_says_what_it_is_and_how_far_without_a_look_at_its_history(
    temporal_server: TemporalServer, task_queue: str
) -> None:
    async def scene(it: Scene) -> None:
        it.kafka.holding = {SECOND}
        plan = await it.submit()

        async def details(begin: str) -> None:
            async def there() -> bool:
                return (await it.shown(plan))[1].startswith(begin)

            await until_true(there)

        await details("moving: 1 of 2 moves, 50% of 2000 bytes")
        assert await it.shown(it.lane(0)) == ("lane 0: 1 moves, first t-0@1", "ended: 1 of 1 moves ended")
        summary, now = await it.shown(it.lane(1))
        assert summary == "lane 1: 1 moves, first t-1" and now.endswith("ing: 0 of 1 moves ended")
        assert (await it.shown(it.keeper))[0] == f"the throttles of {task_queue}'s plans"
        it.kafka.holding = set()
        await plan.result()
        await details("done: 2 of 2 moves, 100% of 2000 bytes")

    run(temporal_server, task_queue, scene)


def test_slots_of_a_running_plan_change_what_begins_and_cancel_nothing(
    temporal_server: TemporalServer, task_queue: str
) -> None:
    async def scene(it: Scene) -> None:
        it.kafka.held = True
        plan = await it.submit({"slots_per_disk": 1})
        await it.running(plan, 1)
        for argument in ({"per_disk": 0}, {"per_disk": "two"}, {"disks": 2}, {}):
            with pytest.raises(WorkflowUpdateFailedError):
                await plan.execute_update("set_slots", argument)
        assert (await plan.query("progress"))["options"]["slots_per_disk"] == 1
        await plan.execute_update("set_slots", {"per_disk": 2})
        await it.running(plan, 2)
        found = await plan.execute_update("set_slots", {"per_disk": 1, "cluster": 1})
        assert (found["options"]["slots_per_disk"], found["options"]["slots_cluster"]) == (1, 1)
        assert len((await plan.query("progress"))["lanes_running"]) == 2
        it.kafka.held = False
        assert (await plan.result())["outcomes"] == {"moved": 2}

    run(temporal_server, task_queue, scene)


def test_pause_that_cancels_begins_the_same_moves_again(
    temporal_server: TemporalServer, task_queue: str, recorded: Recorder
) -> None:
    async def scene(it: Scene) -> None:
        it.kafka.held = True
        plan = await it.submit()
        await it.running(plan, 2)
        await plan.execute_update("pause", {"mode": "cancel"})

        async def stopped() -> bool:
            return not (await plan.query("progress"))["lanes_running"] and not it.kafka.throttles

        await until_true(stopped)
        assert it.kafka.placed == BEFORE and not it.kafka.targets
        assert (await plan.query("progress"))["outcomes"] == {}
        it.kafka.held = False
        await plan.execute_update("resume")
        result = await plan.result()
        assert (result["outcome"], result["outcomes"]) == ("done", {"moved": 2})
        await recorded("plan-paused", it.client, plan.id)

    run(temporal_server, task_queue, scene)


def test_rollback_goes_back_even_on_a_worker_without_the_plan(
    temporal_server: TemporalServer, task_queue: str, recorded: Recorder
) -> None:
    async def scene(it: Scene) -> None:
        it.kafka.holding = {SECOND}
        plan = await it.submit()

        async def one_done() -> bool:
            progress = await plan.query("progress")
            return progress["outcomes"] == {"moved": 1} and SECOND in it.kafka.targets

        await until_true(one_done)
        it.store.forget_all(Path("another"))
        await plan.execute_update("cancel", {"rollback": True})
        first = (await plan.describe()).run_id
        result = await plan.result()
        assert (result["outcome"], result["outcomes"]) == ("rolled_back", {"moved": 1}) and it.kafka.placed == BEFORE
        await recorded("plan-cancelled-to-go-back", it.client, plan.id, first)
        last = (await it.client.get_workflow_handle(plan.id).describe()).run_id
        assert last != first
        await recorded("plan-rolled-back", it.client, plan.id, last)

    run(temporal_server, task_queue, scene)


def test_cancel_through_temporal_takes_the_moves_back(
    temporal_server: TemporalServer, task_queue: str, recorded: Recorder
) -> None:
    async def scene(it: Scene) -> None:
        it.kafka.held = True
        plan = await it.submit()
        await it.running(plan, 2)
        await plan.cancel()
        with pytest.raises(WorkflowFailureError) as caught:
            await plan.result()
        assert isinstance(caught.value.cause, CancelledError)
        assert it.kafka.placed == BEFORE and not it.kafka.targets and not it.kafka.futures
        await recorded("plan-cancelled", it.client, plan.id)
        await it.lane(1).result()
        await recorded("plan-lane-stopped", it.client, it.lane(1).id)

    run(temporal_server, task_queue, scene)


def test_cancelled_step_whose_attempt_fails_leaves_nothing_under_way(
    temporal_server: TemporalServer, task_queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancelled activity is not tried again: that of a dead worker fails, and so does one that lost its broker."""
    follow = LaneSteps.follow

    async def failing(self: LaneSteps, *given: Any) -> Any:
        try:
            return await follow(self, *given)
        except asyncio.CancelledError:
            raise ApplicationError("the broker closed the connection") from None

    monkeypatch.setattr(LaneSteps, "follow", failing)

    async def scene(it: Scene) -> None:
        it.kafka.held = True
        plan = await it.submit()
        await it.running(plan, 2)

        async def followed() -> bool:
            return all([(await it.lane(number).query("progress"))["phase"] == "following" for number in (0, 1)])

        await until_true(followed)
        await plan.execute_update("cancel")
        result = await plan.result()
        assert (result["outcome"], result["outcomes"]) == ("cancelled", {"cancelled": 2})
        assert it.kafka.placed == BEFORE and not it.kafka.targets and not it.kafka.futures

    run(temporal_server, task_queue, scene)


def test_plan_begins_nothing_while_the_cluster_rejects_its_throttle(
    temporal_server: TemporalServer, task_queue: str
) -> None:
    async def scene(it: Scene) -> None:
        it.kafka.guarded.add(("broker", "2"))
        plan = await it.submit()

        async def told() -> bool:
            return bool((await plan.query("progress"))["reasons"])

        await until_true(told)
        progress = await plan.query("progress")
        why = "cannot change the configs of broker 2: is this client authorized?"
        assert progress["reasons"] == [f"the throttle is not set: {why}"] and progress["lanes_running"] == []
        assert it.kafka.placed == BEFORE and not it.kafka.targets and not it.kafka.futures
        it.kafka.guarded.clear()
        await plan.execute_update("set_throttle", {"rate": "1MB"})
        assert (await plan.result())["outcomes"] == {"moved": 2}

    run(temporal_server, task_queue, scene)


def test_moves_fail_unrequested_if_the_cluster_rejects_to_list_their_replicas(
    temporal_server: TemporalServer, task_queue: str
) -> None:
    async def scene(it: Scene) -> None:
        it.kafka.guarded.add(("topic", "t"))
        plan = await it.submit()
        result = await plan.result()
        assert result["outcomes"] == {"moved": 1, "failed": 1}
        (row,) = result["failures"]
        why = "cannot change the configs of topic t: is this client authorized?"
        assert (row["key"], row["reason"]) == ("t-1", f"the throttle is not set: {why}")
        assert "reassign" not in it.kafka.requests

    run(temporal_server, task_queue, scene)


def test_terminated_lane_fails_its_moves_and_retry_adopts_them(
    temporal_server: TemporalServer, task_queue: str, recorded: Recorder
) -> None:
    async def scene(it: Scene) -> None:
        it.kafka.held = True
        plan = await it.submit()
        await it.running(plan, 2)
        await it.lane(1).terminate("by hand")

        async def noted() -> bool:
            return bool((await plan.query("progress"))["outcomes"] == {"failed": 1})

        await until_true(noted)
        (row,) = (await plan.query("progress"))["failures"]
        assert (row["key"], "terminated" in row["reason"].lower()) == ("t-1", True), row
        assert await plan.execute_update("retry") == {"format_version": 1, "lanes": 1}
        it.kafka.held = False
        result = await plan.result()
        assert (result["outcome"], result["failures"]) == ("done", [])
        assert it.kafka.placed == AFTER
        await recorded("plan-lane-terminated", it.client, plan.id)

    run(temporal_server, task_queue, scene)


def test_plan_waits_for_two_other_persons(temporal_server: TemporalServer, task_queue: str, recorded: Recorder) -> None:
    async def scene(it: Scene) -> None:
        plan = await it.submit({"approval": "two_persons"})
        await it.until_phase(plan, "awaiting_approval")
        for person in ("ada", "ada", "grace"):
            assert it.kafka.placed == BEFORE
            await plan.execute_update("approve", {"by": person})
        assert (await plan.result())["outcome"] == "done"
        await recorded("plan-approved", it.client, plan.id)

    run(temporal_server, task_queue, scene)


def test_plan_that_the_cluster_cannot_carry_out_is_refused(
    temporal_server: TemporalServer, task_queue: str, recorded: Recorder
) -> None:
    async def scene(it: Scene) -> None:
        partitions = [{"topic": "t", "partition": 0, "replicas": [9]}, {"topic": "u", "partition": 0, "replicas": [1]}]
        plan = await it.submit(partitions=partitions)
        with pytest.raises(WorkflowFailureError) as caught:
            await plan.result()
        cause = caught.value.cause
        assert isinstance(cause, ApplicationError) and cause.type == "PlanRefused" and len(cause.details) == 2
        assert it.kafka.placed == BEFORE and "reassign" not in it.kafka.requests
        await recorded("plan-refused", it.client, plan.id)

    run(temporal_server, task_queue, scene)


def test_failed_move_and_the_others_are_counted(
    temporal_server: TemporalServer, task_queue: str, recorded: Recorder
) -> None:
    async def scene(it: Scene) -> None:
        it.kafka.refused["reassign"] = ErrorCode.INVALID_REPLICA_ASSIGNMENT
        plan = await it.submit()
        result = await plan.result()
        assert (result["outcome"], result["outcomes"]) == ("failed", {"moved": 1, "failed": 1})
        assert result["failures"][0]["key"] == "t-1"
        assert "INVALID_REPLICA_ASSIGNMENT" in result["failures"][0]["reason"]
        verified = result["verified"]
        assert not verified["ok"] and all(each.startswith("t-1") for each in verified["differences"]), verified
        await recorded("plan-failed", it.client, plan.id)

    run(temporal_server, task_queue, scene)


def test_plan_waits_outside_its_window_and_takes_the_throttle_of_the_hour(
    temporal_server: TemporalServer, task_queue: str, recorded: Recorder
) -> None:
    opposite = (datetime.now(UTC).hour + 12) % 24
    closed = f"{opposite:02}:00-{(opposite + 1) % 24:02}:00 UTC"
    at_this_hour = [{"window": "00:00-24:00 UTC", "rate": 300_000}]

    async def scene(it: Scene) -> None:
        it.kafka.held = True
        plan = await it.submit({"window": closed, "calendar_between_brokers": at_this_hour})
        await it.until_phase(plan, "outside_window")
        assert it.kafka.placed == BEFORE and it.kafka.throttles == {}, "nothing is held while nothing moves"
        await plan.execute_update("set_options", {"window": "", "deadline": "2026-01-01T00:00:00+00:00"})
        await it.running(plan, 2)
        assert it.kafka.configs["broker", "2"] == dict.fromkeys(RATES, "300000")
        assert it.kafka.configs["topic", "t"] == dict(zip(LISTS, ("1:1", "1:2"), strict=True))

        async def warned() -> bool:
            return "the deadline 2026-01-01 00:00 UTC has passed" in (await plan.query("progress"))["warning"]

        await until_true(warned)
        it.kafka.held = False
        assert (await plan.result())["outcome"] == "done" and it.kafka.placed == AFTER
        await recorded("plan-window", it.client, plan.id)

    run(temporal_server, task_queue, scene)


def test_plan_of_directories_alone_is_refused_where_the_replicas_have_changed_meanwhile(
    temporal_server: TemporalServer, task_queue: str
) -> None:
    async def scene(it: Scene) -> None:
        plan = await it.submit({"directories_only": True})
        with pytest.raises(WorkflowFailureError) as caught:
            await plan.result()
        cause = caught.value.cause
        assert isinstance(cause, ApplicationError) and cause.type == "PlanRefused"
        assert [each.partition(":")[0] for each in cause.details] == ["t-1"] and it.kafka.placed == BEFORE

    run(temporal_server, task_queue, scene)


def test_time_zone_that_no_worker_knows_refuses_the_plan(
    temporal_server: TemporalServer, task_queue: str, recorded: Recorder
) -> None:
    async def scene(it: Scene) -> None:
        plan = await it.submit({"window": "22:00-06:00 Mars/Olympus"})
        with pytest.raises(WorkflowFailureError) as caught:
            await plan.result()
        cause = caught.value.cause
        assert isinstance(cause, ApplicationError) and cause.type == "PlanRefused"
        assert "'Mars/Olympus' is not a known time zone" in cause.message

    run(temporal_server, task_queue, scene)


def test_plan_of_which_much_more_is_left_than_was_approved_waits_for_approval_again(
    temporal_server: TemporalServer, task_queue: str, recorded: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "PLAN_RECHECK", timedelta(0))
    monkeypatch.setattr(recheck, "GROWN_LEAST", 1_000)
    monkeypatch.setattr(choosing, "RECHECK_AGE", 0.0)

    async def scene(it: Scene) -> None:
        it.kafka.held = True
        plan = await it.submit({"approval": "required", "slots_cluster": 1})
        await it.until_phase(plan, "awaiting_approval")
        await plan.execute_update("approve", {"by": "ada"})
        await it.running(plan, 1)
        it.kafka.size = 5_000
        await plan.execute_update("set_options", {"slots_per_disk": 2})
        await it.until_phase(plan, "awaiting_approval")
        progress = await plan.query("progress")
        assert progress["changes"] == [
            "4000 bytes more are left to copy than when the plan was checked, which had 1000"
        ], progress["changes"]
        assert progress["approvals"] == [] and len(progress["lanes_running"]) == 1, "what is under way goes on"
        it.kafka.held = False

        async def nothing_held() -> bool:
            return not (await plan.query("progress"))["lanes_running"] and not it.kafka.throttles

        await until_true(nothing_held)
        assert (await plan.query("progress"))["outcomes"] == {"moved": 1}, "and nothing else begins"
        assert (await plan.execute_update("approve", {"by": "grace"}))["approvals"] == ["grace"]
        result = await plan.result()
        assert (result["outcome"], result["outcomes"]) == ("done", {"moved": 2})
        await recorded("plan-approved-again", it.client, plan.id)

    run(temporal_server, task_queue, scene)


def test_adaptive_throttle_rises_by_steps_and_is_halved_on_trouble(
    temporal_server: TemporalServer, task_queue: str, recorded: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adaptive, "EVERY", 0.1)
    monkeypatch.setattr(choosing, "VIEW_AGE", 0.0)
    follower = TopicPartition("t", 2)

    async def scene(it: Scene) -> None:
        it.kafka.placed[follower] = {1: "/disk/a", 3: "/disk/a"}
        it.kafka.held = True
        bounds = {"low": 1_000, "high": 5_000}
        plan = await it.submit({"throttle_between_brokers": None, "adaptive_between_brokers": bounds})
        await it.running(plan, 2)
        assert it.kafka.configs["topic", "t"] == dict(zip(LISTS, ("1:1", "1:2"), strict=True)), "it lists the replicas"

        async def until_rate(holds: Callable[[int], bool]) -> str:
            """Until the brokers have such a rate; return why."""

            async def there() -> bool:
                await plan.execute_update("set_options", {"slots_per_disk": 2})
                return holds(int(it.kafka.configs["broker", "2"].get(RATES[0], 0)))

            await until_true(there)
            progress = await plan.query("progress")
            return str(progress["adaptive"]["why"])

        assert "healthy" in await until_rate(lambda rate: rate >= 1_800)
        it.kafka.behind = {(3, follower)}
        assert "under-replicated partitions: 1" in await until_rate(lambda rate: rate == 1_000)
        it.kafka.behind = set()
        await until_rate(lambda rate: rate > 1_000)
        it.kafka.held = False
        assert (await plan.result())["outcome"] == "done"
        await until_true(lambda: _gone(it))
        await recorded("plan-adaptive", it.client, plan.id)

    run(temporal_server, task_queue, scene)


async def _gone(it: Scene) -> bool:
    return not it.kafka.throttles
