"""Two plans on one cluster share its slots by priority, on a real Temporal server."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from storage_node.model.ids import TopicPartition
from tests.support.programs.temporal import TemporalServer
from tests.workflows.conftest import Recorder
from tests.workflows.fakes import until_true
from tests.workflows.plans.scene import Handle, Scene, run
from workflows import options
from workflows.model import names
from workflows.model.plans.running import calls
from workflows.model.throttles import MOVE_RATE

pytestmark = pytest.mark.temporal


def moves(*partitions: int) -> list[dict[str, Any]]:
    """Moves from /disk/a of broker 1 to its other directory."""
    return [{"topic": "t", "partition": each, "replicas": [1], "log_dirs": ["/disk/b"]} for each in partitions]


def test_slot_of_a_disk_goes_to_the_plan_of_higher_priority_and_then_to_the_other(
    temporal_server: TemporalServer,
    task_queue: str,
    recorded: Recorder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)

    async def scene(it: Scene) -> None:
        for number in (2, 3):
            it.kafka.placed[TopicPartition("t", number)] = {1: "/disk/a"}

        async def submit(name: str, priority: int, *partitions: int) -> Handle:
            options = {"slots_per_disk": 1, "lane_moves": 1, "priority": priority}
            return await it.client.start_workflow(
                names.REASSIGNMENT_PLAN,
                {"version": 1, "partitions": moves(*partitions), "options": options},
                id=names.plan_id(it.name, name),
                task_queue=names.plans_queue(it.name),
            )

        it.kafka.held = True
        low = await submit("low", 10, 0, 1, 2)

        async def copies(*partitions: int) -> None:
            async def there() -> bool:
                return {tp.partition for _, tp in it.kafka.futures} == set(partitions)

            await until_true(there)

        await copies(0)
        high = await submit("high", 90, 3)

        async def waits() -> bool:
            return any(str(low.id) in each for each in (await high.query("progress"))["reasons"])

        await until_true(waits)
        assert len(it.kafka.futures) == 1, "no disk serves two copies"
        it.kafka.held, it.kafka.holding = False, {TopicPartition("t", each) for each in (1, 2, 3)}
        await copies(3)
        assert (await low.query("progress"))["outcomes"] == {"moved": 1}, "it has lanes left, and leaves the slot"
        it.kafka.holding = set()
        for plan in (high, low):
            assert (await plan.result())["outcome"] == "done"
        keeper = it.client.get_workflow_handle(names.slot_keeper_id(it.name))
        assert await keeper.result() == {"format_version": 1}, "it ends with the last plan"
        await recorded("slot-keeper", it.client, keeper.id)
        await recorded("plan-of-higher-priority", it.client, high.id)

    run(temporal_server, task_queue, scene)


def test_slots_of_a_terminated_plan_are_held_as_long_as_its_lanes_copy(
    temporal_server: TemporalServer, task_queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(options, "PLAN_READ_AGAIN", timedelta(seconds=0.3))

    async def scene(it: Scene) -> None:
        async def submit(name: str, partition: int) -> Handle:
            return await it.client.start_workflow(
                names.REASSIGNMENT_PLAN,
                {"version": 1, "partitions": moves(partition), "options": {"slots_per_disk": 1}},
                id=names.plan_id(it.name, name),
                task_queue=names.plans_queue(it.name),
            )

        async def asked() -> bool:
            """Whether the other plan was refused after the first one had been terminated."""
            plans = (await keeper.query("progress"))["plans"]
            return bool(other.id in plans and plans[other.id]["requested"] > terminated)

        it.kafka.held = True
        first = await submit("first", 0)
        await until_true(lambda: copies(it, 1))
        keeper = it.client.get_workflow_handle(names.slot_keeper_id(it.name))
        await first.terminate()
        terminated = time.time() + 0.5
        other = await submit("other", 1)
        await until_true(asked)
        assert len(it.kafka.futures) == 1, "the lane of the terminated plan copies still"
        it.kafka.held = False
        assert (await other.result())["outcome"] == "done"
        assert await keeper.result() == {"format_version": 1}

    run(temporal_server, task_queue, scene)


def test_throttles_of_a_terminated_plan_are_held_as_long_as_its_lanes_copy(
    temporal_server: TemporalServer, task_queue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(options, "KEEPER_READ_AGAIN", timedelta(seconds=0.2))

    async def scene(it: Scene) -> None:
        throttled = {"slots_per_disk": 1, "throttle_between_directories": 50_000_000}
        it.kafka.held = True
        plan = await it.client.start_workflow(
            names.REASSIGNMENT_PLAN,
            {"version": 1, "partitions": moves(0), "options": throttled},
            id=names.plan_id(it.name, "only"),
            task_queue=names.plans_queue(it.name),
        )
        await until_true(lambda: copies(it, 1))
        rate = {MOVE_RATE: "50000000"}
        assert it.kafka.throttles == {("broker", "1"): rate}
        await plan.terminate()
        keeper = it.client.get_workflow_handle(names.throttle_keeper_id(it.name))
        reads = await reads_of(keeper)
        await until_true(lambda: later(keeper, reads + 5))
        assert it.kafka.throttles == {("broker", "1"): rate}, "the lane of the terminated plan copies still"
        it.kafka.held = False
        await keeper.result()
        assert it.kafka.throttles == {}

    run(temporal_server, task_queue, scene)


async def reads_of(keeper: Handle) -> int:
    """How often the keeper has begun to read the cluster."""
    events = (await keeper.fetch_history()).events
    names_ = [each.activity_task_scheduled_event_attributes.activity_type.name for each in events]
    return names_.count(calls.READ_THROTTLES)


async def later(keeper: Handle, reads: int) -> bool:
    return await reads_of(keeper) >= reads


async def copies(it: Scene, count: int) -> bool:
    return len(it.kafka.futures) == count
