"""Decisions about a plan of many lanes: bounded results, and the same ones as from the beginning."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

import pytest

from activities.kafka_admin.client_config import ClientConfig
from activities.kafka_admin.pool import AdminPool
from activities.kafka_admin.reader import ClusterReader
from activities.plans import choosing
from activities.plans.lane_steps import LaneSteps
from activities.plans.plan_steps import PlanSteps
from activities.plans.store import PlanStore
from ops.bench.plans.simulated import Shape, SimulatedAdmin, SimulatedCluster
from workflows.model.plans import document
from workflows.model.plans.running import packing
from workflows.model.plans.running.calls import CheckCall, CheckResult, ChooseCall, MovesCall
from workflows.model.plans.running.packing import LaneState

T = TypeVar("T")
SHAPE = Shape(1_000, brokers=3, disks=4, replicas=1, size=1_000)


async def _none_closed(_: list[str]) -> list[str]:
    return []


def with_plan(folder: Path, do: Callable[[PlanSteps, LaneSteps, CheckResult], Awaitable[T]]) -> T:
    """Check a plan that moves one replica of each partition, and do something with it."""

    async def work() -> T:
        cluster = SimulatedCluster(SHAPE)
        pool = AdminPool(ClientConfig("simulated:9092"), admin=lambda config, timeout: SimulatedAdmin(cluster))
        store, reader = PlanStore(folder), ClusterReader(pool)
        steps = PlanSteps(reader, store, _none_closed)
        plan = store.put(document.to_text(document.read(SHAPE.plan())))
        try:
            return await do(steps, LaneSteps(pool, reader), await steps.check(CheckCall("", plan, {})))
        finally:
            await pool.close()

    return asyncio.run(work())


def call_of(check: CheckResult, states: dict[int, LaneState], **options: int) -> ChooseCall:
    """The question which lanes begin now."""
    of_all = [states.get(number, LaneState.PENDING) for number in range(check.lanes)]
    running = [number for number, state in states.items() if state == LaneState.RUNNING]
    return ChooseCall("", "plan", check.lanes_ref, dict(options), packing.pack_states(of_all), running)


def test_plan_is_chosen_lane_by_lane_as_a_new_worker_would(tmp_path: Path) -> None:
    async def do(steps: PlanSteps, lanes: LaneSteps, check: CheckResult) -> None:
        states: dict[int, LaneState] = {}
        while True:
            found = await steps.choose(call_of(check, states))
            afresh = await PlanSteps(steps._reader, steps._store, _none_closed).choose(call_of(check, states))
            assert {each.number for each in found.lanes} == {each.number for each in afresh.lanes}
            states |= {each.number: LaneState.RUNNING for each in found.lanes}
            running = [number for number, state in states.items() if state == LaneState.RUNNING]
            if not running:
                break
            states |= dict.fromkeys(running[:2], LaneState.DONE)
        assert len(states) == check.lanes

    with_plan(tmp_path, do)


def test_lane_that_is_not_begun_after_all_is_chosen_again(tmp_path: Path) -> None:
    async def do(steps: PlanSteps, lanes: LaneSteps, check: CheckResult) -> None:
        first = await steps.choose(call_of(check, {}))
        again = await steps.choose(call_of(check, {}))
        assert [each.number for each in first.lanes] == [each.number for each in again.lanes] != []
        ended = {each.number: LaneState.FAILED for each in first.lanes}
        assert not {*ended} & {each.number for each in (await steps.choose(call_of(check, ended))).lanes}
        retried = await steps.choose(call_of(check, {}))
        assert [each.number for each in retried.lanes] == [each.number for each in first.lanes]

    with_plan(tmp_path, do)


def test_choice_fits_into_a_payload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "LARGEST_CHOICE", 20_000)

    async def do(steps: PlanSteps, lanes: LaneSteps, check: CheckResult) -> None:
        found = await steps.choose(call_of(check, {}, slots_per_disk=1_000))
        assert 1 < len(found.lanes) < 20
        assert len(json.dumps(asdict(found))) < 20_000 * 1.2

    with_plan(tmp_path, do)


def test_small_moves_end_within_the_step_that_requests_them(tmp_path: Path) -> None:
    async def do(steps: PlanSteps, lanes: LaneSteps, check: CheckResult) -> None:
        found = await steps.choose(call_of(check, {}))
        lane = found.lanes[0]
        result = await lanes.request(MovesCall("", "lane", lane.moves))
        assert [row.outcome for row in result.rows] == ["moved"] * len(lane.moves)
        assert [row.outcome for row in (await lanes.request(MovesCall("", "lane", lane.moves))).rows] == [
            "in_place"
        ] * len(lane.moves)

    with_plan(tmp_path, do)
