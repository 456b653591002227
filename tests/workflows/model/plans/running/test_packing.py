"""Packed texts and states: what comes back, what is rejected, and how large a plan's payloads become."""

from __future__ import annotations

import base64
import json
import random
import zlib
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_node.model.fields import BadField
from workflows.model.plans.options import PlanOptions
from workflows.model.plans.running import packing
from workflows.model.plans.running.calls import CheckResult, DiskRow, PlanMoveRow
from workflows.model.plans.running.packing import LaneState
from workflows.model.plans.running.request import PlanRequest, continued
from workflows.model.plans.running.run import MOST_FAILURES, MOST_SKIPPED, PlanRun


@given(st.text(st.characters(codec="utf-8"), max_size=50))
def test_text_comes_back(text: str) -> None:
    assert packing.unpack(packing.pack(text)) == text


@given(st.lists(st.sampled_from(LaneState)))
def test_states_come_back(states: list[LaneState]) -> None:
    assert packing.unpack_states(packing.pack_states(states)) == states


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("\u2603", "is not a packed text"),
        ("a", "is not complete"),
        (base64.b85encode(b"no zlib").decode(), "is not a packed text"),
        (base64.b85encode(zlib.compress(b"some text")[:-4]).decode(), "is not complete"),
        (base64.b85encode(zlib.compress(b"\xff")).decode(), "is not a packed text"),
    ],
)
def test_text_that_is_not_packed_is_rejected(text: str, why: str) -> None:
    with pytest.raises(BadField, match=why):
        packing.unpack(text)


def test_few_bytes_do_not_unpack_to_more_than_the_limit() -> None:
    packed = packing.pack("x" * 1_000_000)
    assert len(packed) < 2_000
    with pytest.raises(BadField, match="unpacks to more than 999999 bytes"):
        packing.unpack(packed, 999_999)


def test_state_that_no_lane_has_is_rejected() -> None:
    with pytest.raises(BadField, match="holds the state of no lane"):
        packing.unpack_states(packing.pack("..x"))


def test_only_a_small_text_travels_with_a_run() -> None:
    assert packing.unpack(packing.small("lanes")) == "lanes"
    assert packing.small(random.Random(1).randbytes(60_000).hex()) == ""


def test_payload_of_a_continued_plan_of_100_000_moves_is_below_200_kb() -> None:
    """At the worst moment: 200 lanes of 50 moves are open, and moves of every tenth lane have failed."""
    chance = random.Random(1)
    keys = [
        f"orders-of-customers-{chance.randrange(4_000)}-{number}@{chance.randrange(300)}" for number in range(100_000)
    ]
    run = PlanRun()
    run.planned(2_000)
    for number in range(1_800):
        lane = keys[number * 50 : number * 50 + 50]
        run.begun(number, lane)
        if number < 1_600:
            some = chance.random() < 0.1
            outcomes = ["failed" if some and chance.random() < 0.5 else "moved" for _ in lane]
            why = f"broker {number} rejected the request to move {lane[0]} to /data/disk-{number}: NO_SPACE"
            run.ended(number, [PlanMoveRow(key, one, reason=why) for key, one in zip(lane, outcomes, strict=True)])
    run.skipped = keys[-MOST_SKIPPED:]
    assert (len(run.open_lanes), len(run.failures), sum(map(len, run.missed.values())) > 1_000) == (
        200, MOST_FAILURES, True,
    )  # fmt: skip
    check = CheckResult(
        "k" * 22, 100_000, 2_000, 0, 10**15, 5, "1" * 64, "2" * 64, "/var/lib/rehome/plans/" + "2" * 64,
        disks=[DiskRow(number, f"/data/disk-{number}", 10**12, 10**12, 10**12, 10**12) for number in range(100)],
        brokers=list(range(300)),
    )  # fmt: skip
    carried: dict[str, Any] = {"check": asdict(check), "run": run.carried(), "approvals": ["a" * 200] * 2}
    parameter = continued(PlanRequest("x" * (packing.LARGEST_PACKED + 1), "3" * 64), PlanOptions(), carried)
    assert parameter["text"] == "", "a text of that size is only stored"
    assert len(json.dumps(parameter)) < 200_000
    assert PlanRun.of(run.carried()).carried() == run.carried()
