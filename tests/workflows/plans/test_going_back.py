"""How plans end on a cluster that is not as they left it: what goes back, what was skipped, throttles that are left."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from activities.plans import throttles
from storage_node.model.ids import TopicPartition
from tests.support.kafka_in_memory import KafkaInMemory
from tests.support.programs.temporal import TemporalServer
from tests.workflows.fakes import until_true
from tests.workflows.plans.scene import BEFORE, PLAN, SLOW, Handle, Scene, run
from workflows.model import names
from workflows.model.throttles import RATES

pytestmark = pytest.mark.temporal

FIRST, SECOND = (TopicPartition("t", number) for number in range(2))
OTHER = TopicPartition("u", 0)
MOVED = [*PLAN, {"topic": "u", "partition": 0, "replicas": [1]}]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def deleted(kafka: KafkaInMemory) -> None:
    del kafka.placed[OTHER]


def reassigned(kafka: KafkaInMemory) -> None:
    kafka.placed[OTHER] = {2: "/disk/a"}


def being_reassigned(kafka: KafkaInMemory) -> None:
    kafka.holding.add(OTHER)
    kafka.targets[OTHER] = (2,)


def dead(kafka: KafkaInMemory) -> None:
    kafka.silent = {3}


async def moved(it: Scene) -> Handle:
    """Move all but `SECOND`, which does not end."""
    it.kafka.placed[OTHER] = {3: "/disk/a"}
    it.kafka.holding = {SECOND}
    plan = await it.submit(partitions=MOVED, options={**SLOW, "health_gate": False})

    async def two_done() -> bool:
        return bool((await plan.query("progress"))["outcomes"] == {"moved": 2} and SECOND in it.kafka.targets)

    await until_true(two_done)
    return plan


def check(result: Any, outcome: str, of_other: str, why: str) -> None:
    assert (result["outcome"], result["outcomes"]) == (outcome, {"moved": 1, of_other: 1}), result
    (row,) = result["failures"]
    assert (row["key"], row["outcome"]) == ("u-0", of_other) and why in row["reason"]
    assert result["verified"]["ok"], result["verified"]


CASES = [
    (deleted, "rolled_back", "topic_deleted", "u-0 does not exist any more", None),
    (reassigned, "failed", "superseded", "u-0 is on 2 now: another client", {2: "/disk/a"}),
    (being_reassigned, "failed", "superseded", "u-0 is being reassigned to 2: another client", {1: "/disk/a"}),
    (dead, "failed", "failed", "broker 3 did not return its log directories", {1: "/disk/a"}),
]


@pytest.mark.parametrize(("change", "outcome", "of_other", "why", "stays"), CASES)
def test_partition_that_cannot_go_back_stays_with_the_reason_and_the_others_go_back(
    temporal_server: TemporalServer,
    task_queue: str,
    change: Callable[[KafkaInMemory], None],
    outcome: str,
    of_other: str,
    why: str,
    stays: dict[int, str] | None,
) -> None:
    async def scene(it: Scene) -> None:
        plan = await moved(it)
        change(it.kafka)
        await plan.execute_update("cancel", {"rollback": True})
        check(await plan.result(), outcome, of_other, why)
        assert it.kafka.placed == BEFORE | ({} if stays is None else {OTHER: stays})
        assert it.kafka.targets == ({OTHER: (2,)} if change is being_reassigned else {})

    run(temporal_server, task_queue, scene)


def test_plan_that_has_ended_goes_back_where_nobody_has_changed_it_since(
    temporal_server: TemporalServer, task_queue: str
) -> None:
    async def scene(it: Scene) -> None:
        plan = await moved(it)
        await plan.execute_update("cancel", {"rollback": False})
        ended = await plan.result()
        reassigned(it.kafka)
        back = await it.client.start_workflow(
            names.REASSIGNMENT_PLAN,
            {"version": 1, "plan": ended["rollback_ref"], "undoes": ended["plan"]},
            id=names.plan_id(it.name, "p-rollback"),
            task_queue=names.plans_queue(it.name),
        )
        check(await back.result(), "failed", "superseded", "u-0 is on 2 now: another client")
        assert it.kafka.placed == BEFORE | {OTHER: {2: "/disk/a"}}

    run(temporal_server, task_queue, scene)


def test_plan_ends_as_done_though_moves_were_skipped(temporal_server: TemporalServer, task_queue: str) -> None:
    async def scene(it: Scene) -> None:
        plan = await it.submit({"approval": "required"})
        await it.until_phase(plan, "awaiting_approval")
        await plan.execute_update("skip", {"moves": ["t-1"]})
        await plan.execute_update("approve", {"by": "ada"})
        result = await plan.result()
        assert (result["outcome"], result["skipped"]) == ("done", ["t-1"]) and result["verified"]["ok"]
        assert it.kafka.placed == BEFORE | {FIRST: {1: "/disk/b"}}

    run(temporal_server, task_queue, scene)


@pytest.mark.parametrize("restored", [True, False])
def test_certificate_says_which_throttles_are_left(
    temporal_server: TemporalServer, task_queue: str, monkeypatch: pytest.MonkeyPatch, restored: bool
) -> None:
    monkeypatch.setattr(throttles, "LEFT_PATIENCE", 0.03)
    monkeypatch.setattr(throttles, "LEFT_PAUSE", 0.01)

    async def scene(it: Scene) -> None:
        it.kafka.held = True
        it.kafka.configs["broker", "3"] = {RATES[0]: "5"}  # somebody else's
        it.kafka.configs["broker", "2"] = {RATES[0]: "7"}
        plan = await it.submit()
        await it.running(plan, 2)
        written = it.kafka.change_configs

        def stuck(kind: str, changes: Any) -> None:
            if restored or "2" not in changes:
                written(kind, changes)

        monkeypatch.setattr(it.kafka, "change_configs", stuck)
        it.kafka.held = False
        result = await plan.result()
        proof = json.loads((it.store.folder / Path(result["verified"]["path"]).name).read_text())
        left = [] if restored else [f"broker 2: {key}=200000" for key in sorted(RATES)]
        assert proof["throttles_left"] == left and result["outcome"] == ("done" if restored else "failed")
        assert result["verified"]["differences"] == [
            f"the throttle is still set: {each}; see: rehome throttles" for each in left
        ]
        assert proof["throttles_set"] == (left or [f"broker 2: {RATES[0]}=7"])
        monkeypatch.setattr(it.kafka, "change_configs", written)
        await it.keeper.cancel()
        await it.keeper.result()

    run(temporal_server, task_queue, scene)
