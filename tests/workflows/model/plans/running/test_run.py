"""The state of a plan's run: lanes that end, fail, are stopped, retried and carried to the next run."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_node.model.fields import BadField
from tests.support.scale import scaled
from workflows.model.plans.running import packing, run
from workflows.model.plans.running.calls import PlanMoveRow
from workflows.model.plans.running.packing import LaneState
from workflows.model.plans.running.run import MOST_FAILURES, NO_ROW, PlanRun


def begun(*lanes: list[str]) -> PlanRun:
    made = PlanRun()
    made.planned(len(lanes))
    for number, keys in enumerate(lanes):
        made.begun(number, keys)
    return made


def row(key: str, outcome: str, copied: int = 1) -> PlanMoveRow:
    return PlanMoveRow(key, outcome, copied=copied, seconds=1.0, reason="" if outcome == "moved" else "why")


@pytest.mark.parametrize(
    ("rows", "outcomes", "state", "copied"),
    [
        ([row("a", "moved"), row("b", "moved")], {"moved": 2}, LaneState.DONE, 2),
        ([row("a", "moved"), row("b", "in_place")], {"moved": 1, "in_place": 1}, LaneState.DONE, 1),
        ([row("a", "moved"), row("b", "superseded")], {"moved": 1, "superseded": 1}, LaneState.FAILED, 1),
        ([row("a", "moved"), row("b", "")], {"moved": 1, "failed": 1}, LaneState.FAILED, 1),
        ([row("a", "moved")], {"moved": 1, "failed": 1}, LaneState.FAILED, 1),
        ([row("a", "moved"), row("a", "moved"), row("b", "moved")], {"moved": 2}, LaneState.DONE, 2),
        ([row("a", "moved"), row("b", "moved"), row("other", "failed")], {"moved": 2}, LaneState.DONE, 2),
        ([], {"failed": 2}, LaneState.FAILED, 0),
    ],
)
def test_every_move_of_a_lane_is_counted_once(
    rows: list[PlanMoveRow], outcomes: dict[str, int], state: LaneState, copied: int
) -> None:
    it = begun(["a", "b"])
    assert it.ended(0, rows)
    assert (it.outcomes, it.states, it.copied, it.open_lanes) == (outcomes, [state], copied, {})
    assert not it.ended(0, rows), "a repeated message"
    assert sum(it.outcomes.values()) == 2


def test_move_without_a_row_says_so() -> None:
    it = begun(["a"])
    it.ended(0, [])
    assert (it.failures[0].key, it.failures[0].reason) == ("a", NO_ROW)


def test_retry_begins_what_failed_and_nothing_else() -> None:
    it = begun(["a", "b"], ["c"], ["d"])
    it.ended(0, [row("a", "moved"), row("b", "failed")])
    it.ended(1, [row("c", "cancelled")])
    it.ended(2, [row("d", "moved")])
    assert it.failed and it.retry() == 2 and not it.failed
    assert (it.outcomes, it.failures, it.left) == ({"moved": 2}, [], 2)
    assert [it.due(0, ["a", "b"]), it.due(1, ["c"])] == [["b"], ["c"]]
    it.begun(0, ["b"])
    it.ended(0, [row("b", "moved")])
    assert it.outcomes == {"moved": 3} and not it.failed and it.retry() == 0


def test_retry_uncounts_failures_that_are_kept_no_more() -> None:
    count = MOST_FAILURES + 50
    it = begun(*([f"t-{number}"] for number in range(count)))
    for number in range(count):
        it.ended(number, [row(f"t-{number}", "failed")])
    assert len(it.failures) == MOST_FAILURES and it.outcomes == {"failed": count}
    assert it.retry() == count and it.outcomes == {}


def test_lane_that_fails_again_begins_with_what_is_left_of_it() -> None:
    it = begun(["a", "b", "c"])
    it.ended(0, [row("a", "moved"), row("b", "failed"), row("c", "failed")])
    it.retry()
    it.begun(0, ["b", "c"])
    it.ended(0, [row("b", "failed"), row("c", "failed")])
    it.retry()
    assert it.due(0, ["a", "b", "c"]) == ["b", "c"]


def test_stopped_lane_begins_again_with_what_was_cancelled() -> None:
    it = begun(["a", "b", "c"])
    it.stop_for_pause()
    it.ended(0, [row("a", "moved"), row("b", "cancelled"), row("c", "failed")])
    assert (it.outcomes, it.failures, it.states, it.stopped) == ({"moved": 1}, [], [LaneState.PENDING], [])
    assert it.due(0, ["a", "b", "c"]) == ["b", "c"]


def test_lane_with_few_moves_left_leaves_its_slots_until_it_ends_or_stalls() -> None:
    it = begun(["a"], ["b"], ["c"])
    it.finishes(0)
    it.finishes(1)
    assert it.finishing == {0, 1}
    it.ended(0, [row("a", "moved")])
    it.finishes(0)
    assert it.finishing == {1}, "a lane that has ended has no slots to leave"
    stalled = PlanMoveRow("b", stalled="not_advancing", reason="why")
    it.stalls(1, [stalled])
    it.finishes(1)
    assert it.finishing == set()
    it.finishes(2)
    it.back_to_pending(2)
    assert it.finishing == set()


def test_stopped_lane_that_was_done_is_done() -> None:
    it = begun(["a"])
    it.stop_for_pause()
    it.ended(0, [row("a", "moved")])
    assert it.states == [LaneState.DONE]


def test_keys_of_missed_moves_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "MOST_MISSED", 1)
    it = begun(["a", "b"], ["c", "d"])
    for number, (first, second) in enumerate((("a", "b"), ("c", "d"))):
        it.ended(number, [row(first, "moved"), row(second, "failed")])
    it.retry()
    assert [it.due(0, ["a", "b"]), it.due(1, ["c", "d"])] == [["b"], ["c", "d"]]


outcomes = st.sampled_from(["moved", "in_place", "failed", "cancelled", "superseded", ""])


@settings(max_examples=scaled(40, 500), deadline=None)
@given(st.lists(st.lists(outcomes, min_size=1, max_size=3), max_size=5), st.data())
def test_run_that_continues_has_the_same_state(lanes: list[list[str]], data: st.DataObject) -> None:
    keys = [[f"t-{number}{place}" for place in range(len(lane))] for number, lane in enumerate(lanes)]
    it = begun(*keys)
    for number, lane in enumerate(lanes):
        if data.draw(st.booleans()):
            it.ended(number, [row(key, one) for key, one in zip(keys[number], lane, strict=True)])
    if data.draw(st.booleans()):
        it.stop_for_pause()
    if data.draw(st.booleans()):
        it.retry()
    it.skipped = ["t-9"]
    after = PlanRun.of(json.loads(json.dumps(it.carried())))
    it.copied_now, it.left_total = after.copied_now, after.left_total  # Read again by the next look.
    assert after == it


@pytest.mark.parametrize(
    ("rest", "why"),
    [
        ({"open_lanes": [[7, ["a"]]]}, "open_lanes is 7, but must be at most 0"),
        ({"open_lanes": [[0]]}, "must be a lane's number and a value"),
        ({"outcomes": {"moved": "many"}}, "outcomes.moved must be a whole number"),
        ({"failures": [{"outcome": "moved"}]}, r"failures\[0\].key is missing"),
        ({"skipped": [1]}, r"skipped\[0\] must be a string"),
        ([], "must be an object"),
    ],
)
def test_unreadable_state_names_the_bad_field(rest: Any, why: str) -> None:
    with pytest.raises(BadField, match=why):
        PlanRun.of({"states": packing.pack("."), "rest": packing.pack(json.dumps(rest))})


def test_lanes_that_have_yet_to_list_their_replicas_are_carried_until_they_end() -> None:
    made = begun(["a"], ["b"], ["c"])
    made.list_open()
    made.ended(1, [row("b", "moved")])
    after = PlanRun.of(json.loads(json.dumps(made.carried())))
    assert after.unlisted == [0, 2]
    after.back_to_pending(0)
    assert after.unlisted == [2]
