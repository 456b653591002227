"""What a choice decides beside the lanes that begin: throttles of lanes that run on, and what the keeper hears."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from activities.kafka_admin.pool import AdminPool
from activities.kafka_admin.reader import ClusterReader
from activities.plans import choosing
from activities.plans.choosing import LaneChooser, Share
from activities.plans.store import PlanStore
from storage_node.model.ids import TopicPartition
from tests.support.kafka_in_memory import KafkaInMemory
from tests.workflows.driven import SPECS
from workflows.model.plans import options
from workflows.model.plans.running import book, packing
from workflows.model.plans.running.calls import ChooseCall, ChooseResult, MoveSpec
from workflows.model.plans.running.keeper_results import SlotGrant
from workflows.model.plans.running.packing import LaneState
from workflows.model.plans.running.slots import SlotRequest
from workflows.model.plans.values import Lane

PLAN = "c/plan/p"
#: A window that does not open today.
CLOSED = {"window": f"{(datetime.now(UTC) + timedelta(days=3)):%a} 01:00-02:00 UTC"}


async def none_closed(_: list[str]) -> list[str]:
    return []


class Choices:
    """The decisions for a plan of two lanes on a cluster in memory."""

    def __init__(self, folder: Path, share: Share | None = None, specs: Sequence[Any] = SPECS) -> None:
        self.kafka = KafkaInMemory({TopicPartition("t", number): {1: "/disk/a"} for number in range(2)})
        reader = ClusterReader(cast(AdminPool, self.kafka))
        store = PlanStore(folder)
        self.count = len(specs)
        self.lanes = store.put(book.to_text([Lane(at, (MoveSpec(**row).move(),)) for at, row in enumerate(specs)]))
        self.chooser = LaneChooser(reader, store, none_closed, share)

    async def choose(self, running: list[int], given: dict[str, Any], **more: Any) -> ChooseResult:
        states = [LaneState.RUNNING if at in running else LaneState.PENDING for at in range(self.count)]
        chosen = options.read(given).as_json()
        return await self.chooser.choose(
            ChooseCall("c", PLAN, self.lanes, chosen, packing.pack_states(states), running, **more)
        )


@pytest.mark.parametrize(("running", "rate"), [([0], 1_000_000), ([], None)])
def test_lanes_that_run_on_when_the_window_has_closed_keep_their_adaptive_throttle(
    tmp_path: Path, running: list[int], rate: int | None
) -> None:
    given = {**CLOSED, "adaptive_between_brokers": {"low": "1MB", "high": "20MB"}}
    found = asyncio.run(Choices(tmp_path).choose(running, given))
    assert found.opens_in is not None and found.lanes == []
    assert found.between_brokers == rate


def test_running_lanes_are_reported_to_the_keeper_of_slots_again_after_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[SlotRequest] = []

    async def share(_: str, request: SlotRequest) -> SlotGrant:
        reported.append(request)
        return SlotGrant()

    async def scene() -> None:
        choices = Choices(tmp_path, share)
        for _ in range(2):
            await choices.choose([0], CLOSED, shares=True)
        assert [list(each.running) for each in reported] == [[0]]
        monkeypatch.setattr(choosing, "REPORTED_AGE", 0.0)
        await choices.choose([0], CLOSED, shares=True)
        assert [list(each.running) for each in reported] == [[0], [0]], "a new keeper knows of no lane"

    asyncio.run(scene())


def test_plan_that_only_looks_on_begins_no_lane_and_reports_which_run(tmp_path: Path) -> None:
    reported: list[SlotRequest] = []

    async def share(_: str, request: SlotRequest) -> SlotGrant:
        reported.append(request)
        return SlotGrant(list(request.wanted))

    given = {"adaptive_between_brokers": {"low": "1MB", "high": "20MB"}}
    found = asyncio.run(Choices(tmp_path, share).choose([0], given, shares=True, most=0))
    assert found.lanes == [] and found.between_brokers == 1_000_000
    assert [(list(each.running), list(each.wanted)) for each in reported] == [([0], [])]


#: Two copies to broker 2, which chooses the directory; each of its directories has room for one of them. One to 3.
ANYWHERE = [
    {**SPECS[1], "partition": number, "size": size, "after": [node], "writes": [[node, "any"]], "directories": {}}
    for number, (size, node) in enumerate([(6_000_000, 2), (6_000_000, 2), (1_000, 3)])
]


@pytest.mark.parametrize(("arrived", "begins"), [({}, []), ({2: "/disk/a"}, [1])])
def test_copy_whose_directory_the_broker_chooses_keeps_its_space_in_each_until_it_is_known(
    tmp_path: Path, arrived: dict[int, str], begins: list[int]
) -> None:
    choices = Choices(tmp_path, specs=ANYWHERE[:2])
    kafka = choices.kafka
    kafka.size, kafka.held = 6_000_000, True
    kafka.placed[TopicPartition("t", 0)] |= arrived
    kafka.targets[TopicPartition("t", 0)] = (2,)
    found = asyncio.run(choices.choose([0], {"slots_per_disk": 2}))
    assert [lane.number for lane in found.lanes] == begins
    assert begins or "waiting for space on broker 2" in found.reasons[0], found


def test_second_choice_of_a_decision_knows_the_space_of_the_first(tmp_path: Path) -> None:
    requested: list[list[int]] = []

    async def share(_: str, request: SlotRequest) -> SlotGrant:
        requested.append(sorted(request.wanted))
        return SlotGrant([0])

    found = asyncio.run(Choices(tmp_path, share, specs=ANYWHERE).choose([], {"slots_per_disk": 3}))
    assert requested == [[0, 2]] and [lane.number for lane in found.lanes] == [0]


def test_lane_with_few_moves_left_leaves_its_slot_to_one_other(tmp_path: Path) -> None:
    reported: list[SlotRequest] = []

    async def share(_: str, request: SlotRequest) -> SlotGrant:
        reported.append(request)
        return SlotGrant(list(request.wanted))

    async def scene() -> None:
        on_one_disk = [{**SPECS[0], "partition": number % 2} for number in range(3)]
        choices = Choices(tmp_path, share, specs=on_one_disk)
        assert (await choices.choose([0], {})).lanes == []
        found = await choices.choose([0], {}, finishing=[0])
        assert [lane.number for lane in found.lanes] == [1]
        assert [(list(each.running), list(each.wanted)) for each in reported[-1:]] == [([], [1])], "for other plans too"
        assert (await choices.choose([0, 1], {}, finishing=[0, 1])).lanes == [], "a third one waits for the first"
        found = await choices.choose([1], {}, finishing=[1])
        assert [lane.number for lane in found.lanes] == [0], "it has ended, and is pending again in this test"

    asyncio.run(scene())
