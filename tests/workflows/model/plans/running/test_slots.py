"""Plans share slots by priority: no slot is given twice, a higher rank goes first, and none waits for ever."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_node.model.fields import BadField
from tests.support.scale import scaled
from workflows.model.plans.running import slots
from workflows.model.plans.running.keeper_results import SlotGrant
from workflows.model.plans.running.slots import AGE, TURN, WAITS_FOR, Shares, SlotRequest

NOW = 1e9
ONE = {"a": 1, "b": 1}


def ask(
    shares: Shares,
    holder: str,
    wanted: dict[int, tuple[str, ...]] | None = None,
    now: float = 0.0,
    running: dict[int, tuple[str, ...]] | None = None,
    **more: Any,
) -> tuple[int, ...]:
    more.setdefault("limits", ONE)
    request = SlotRequest(holder, running=running or {}, wanted=wanted or {}, **more)
    return tuple(shares.share(request, NOW + now).lanes)


def test_slot_is_given_once_and_again_after_its_lane_has_ended() -> None:
    shares = Shares()
    assert ask(shares, "p", {0: ("a",), 1: ("a",), 2: ("b",)}) == (0, 2)
    assert ask(shares, "q", {0: ("a",), 1: ("c",)}) == (1,), "what has no limit is free"
    assert ask(shares, "p", {}, 1, running={2: ("b",)}) == ()
    assert ask(shares, "q", {0: ("a",)}, 2, running={1: ("c",)}) == (0,)
    shares.release("q", NOW)
    shares.release("p", NOW)
    assert shares.plans == {}


def test_request_of_an_attempt_that_is_repeated_counts_once() -> None:
    shares = Shares()
    for _ in range(3):
        assert ask(shares, "p", {0: ("a",)}) == (0,)
    assert shares.plans["p"].uses("a") == 1


def test_free_slot_is_left_for_the_plan_of_higher_priority_that_waits_for_it() -> None:
    shares = Shares()
    ask(shares, "low", {0: ("a",)}, priority=10)
    assert ask(shares, "high", {0: ("a",)}, 1, priority=90) == ()
    assert ask(shares, "low", {1: ("a",)}, 2, priority=10) == (), "its lane 0 has ended"
    assert list(shares.woken) == ["high"]
    assert ask(shares, "high", {0: ("a",)}, 3, priority=90) == (0,) and not shares.woken


def test_slot_for_a_waiting_plan_is_left_only_as_long_as_it_asks_and_if_none_is_over() -> None:
    def scene(limit: int) -> Shares:
        shares = Shares()
        ask(shares, "other", {0: ("b",)}, limits={"b": 1})
        ask(shares, "high", {0: ("a", "b")}, priority=90, limits={"a": limit, "b": 1})
        return shares

    assert ask(scene(1), "low", {0: ("a",)}, 1, priority=10) == ()
    assert ask(scene(1), "low", {0: ("a",)}, WAITS_FOR + 1, priority=10) == (0,), "it is paused, or has no window"
    assert ask(scene(2), "low", {0: ("a",)}, 1, priority=10) == (0,), "another slot of two is left"


def test_equal_plans_take_turns() -> None:
    shares = Shares()
    ask(shares, "p", {0: ("a",)})
    ask(shares, "q", {0: ("a",)}, 1)
    assert ask(shares, "p", {1: ("a",)}, 2) == ()
    assert ask(shares, "q", {0: ("a",)}, 3) == (0,)
    assert ask(shares, "q", {1: ("a",)}, 4) == ()
    assert ask(shares, "p", {1: ("a",)}, 5) == (1,)


def test_cluster_limit_of_one_plan_counts_the_lanes_of_all() -> None:
    shares = Shares()
    ask(shares, "p", {0: ("a", ""), 1: ("b", "")})
    assert ask(shares, "q", {0: ("c", "")}, limits={"": 2}) == ()
    assert ask(shares, "q", {0: ("c", "")}, limits={"": 3}) == (0,)


def test_second_question_adds_to_the_first() -> None:
    shares = Shares()
    ask(shares, "other", {0: ("a",)})
    assert ask(shares, "p", {0: ("a",), 1: ("b",)}, 1) == (1,)
    assert ask(shares, "p", {2: ("c",)}, 1, more=True, running={1: ("b",)}) == (2,)
    assert set(shares.plans["p"].held) == {1, 2} and "a" in shares.plans["p"].waits


def test_plan_that_ended_without_a_release_loses_its_slots() -> None:
    shares = Shares()
    ask(shares, "gone", {0: ("a",)})
    grant = shares.share(SlotRequest("p", wanted={0: ("a",)}, limits=ONE), NOW)
    assert grant == SlotGrant([], {"a": 1}, ["gone"])
    assert ask(shares, "p", {0: ("a",)}, ended=("gone", "p")) == (0,)


@dataclass
class Player:
    """A plan that always wants another lane of its keys; each lasts `lasts` seconds."""

    name: str
    priority: int
    keys: tuple[str, ...]
    lasts: float
    running: dict[int, tuple[float, tuple[str, ...]]] = field(default_factory=dict)
    began: list[float] = field(default_factory=list)

    def step(self, shares: Shares, now: float) -> None:
        self.running = {number: lane for number, lane in self.running.items() if lane[0] > now}
        held = {number: keys for number, (_, keys) in self.running.items()}
        number = len(self.began)
        if number in ask(shares, self.name, {number: self.keys}, now, held, priority=self.priority):
            self.running[number] = now + self.lasts, self.keys
            self.began.append(now)


def test_plan_of_the_lowest_priority_waits_at_most_hours_beside_floods_of_the_highest() -> None:
    shares = Shares()
    floods = [Player(f"flood {n}", 100, (n,), 60) for n in ("a", "b")]
    low = Player("low", 0, ("a", "b"), 60)
    for now in range(0, 40_000, 30):
        for each in (*floods, low):
            each.step(shares, now)
    gaps = [later - earlier for earlier, later in zip([0, *low.began], low.began, strict=False)]
    assert len(low.began) >= 4 and max(gaps) <= 5 * AGE + 600, gaps
    assert all(len(each.began) > 20 * len(low.began) for each in floods)


@dataclass
class Ready:
    """A plan whose lanes all are ready; one that has begun is stuck for ever."""

    name: str
    priority: int
    lanes: dict[int, tuple[str, ...]]
    limits: dict[str, int]
    running: dict[int, tuple[str, ...]] = field(default_factory=dict)

    def step(self, shares: Shares, now: float) -> bool:
        keys = {key for lane in self.lanes.values() for key in lane}
        limits = {key: limit for key, limit in self.limits.items() if key in keys}
        begun = ask(shares, self.name, self.lanes, now, self.running, priority=self.priority, limits=limits)
        self.running |= {number: self.lanes.pop(number) for number in begun}
        return bool(begun)


def may_begin(players: list[Ready]) -> list[tuple[str, int]]:
    used = Counter(key for player in players for keys in player.running.values() for key in keys)
    return [
        (player.name, number)
        for player in players
        for number, keys in player.lanes.items()
        if all(used[key] < player.limits.get(key, 100) for key in keys)
    ]


def until_none_may_begin(players: list[Ready], shares: Shares) -> None:
    """Play on until no lane may begin; whenever one may, one begins in time."""
    began, now = 0.0, 0.0
    while may_begin(players):
        for player in players:
            if player.step(shares, now):
                began = now
        now += EVERY
        assert now <= began + IN_TIME, may_begin(players)


EVERY = 30.0
#: Seconds within which a lane begins that may: a turn, and a question more.
IN_TIME = TURN + 3 * EVERY


def test_plan_that_waits_for_a_stuck_lane_does_not_hold_up_the_plan_that_has_it() -> None:
    """The one that waits limits the lanes of all plans, the other one does not."""
    shares = Shares()
    stuck = Ready("stuck", 10, {number: (f"{number}", "") for number in range(1, 5)}, {}, {0: ("0", "")})
    stuck.step(shares, 0.0)
    stuck.lanes = {number: (f"{number}", "") for number in range(5, 9)}
    until_none_may_begin([Ready("waits", 90, {0: ("9", "")}, {"": 1}), stuck], shares)
    assert len(stuck.running) == 9


def test_two_plans_do_not_leave_slots_for_each_other() -> None:
    shares = Shares()
    ask(shares, "other", {0: ("a",), 1: ("b",)})
    for at, (holder, key) in enumerate((("p", "a"), ("q", "b"))):
        ask(shares, holder, {0: (key,)}, -9.0 + at)
        ask(shares, holder, {0: ("a", "b")}, -5.0 + at)
    # p waits for a for longer, q for b.
    shares.release("other", NOW)
    until_none_may_begin([Ready(name, 50, {0: ("a", "b")}, ONE) for name in ("p", "q")], shares)


LANES = st.lists(st.sets(st.sampled_from(["a", "b", "c", ""]), min_size=1).map(lambda keys: tuple(sorted(keys))))
READY = st.builds(
    lambda priority, lanes, limits, stuck: (priority, dict(enumerate(lanes[:4])), limits, stuck),
    st.sampled_from([0, 50, 50, 90]),
    LANES,
    st.dictionaries(st.sampled_from(["a", "b", "c", ""]), st.integers(1, 3)),
    st.integers(0, 2),
)


@settings(max_examples=scaled(60, 1_000), deadline=None)
@given(st.lists(READY, min_size=2, max_size=4))
def test_lane_that_may_begin_within_its_plans_limits_is_not_held_up_for_long(given_: list[Any]) -> None:
    shares, players = Shares(), []
    for at, (priority, lanes, limits, stuck) in enumerate(given_):
        running = {number: lanes.pop(number) for number in list(lanes)[:stuck]}
        players.append(Ready(f"p{at}", priority, lanes, limits, running))
    until_none_may_begin(players, shares)


@settings(max_examples=scaled(40, 500), deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["a", "b", "ab"]), st.integers(1, 5)), min_size=1))
def test_no_slot_is_given_beyond_the_limit_of_the_one_that_gets_it(plays: list[tuple[str, str, int]]) -> None:
    shares = Shares()
    players = {name: Player(name, 30 * at, tuple("ab"), 3) for at, name in enumerate("abc")}
    for now, (name, keys, lasts) in enumerate(plays):
        player = players[name]
        player.keys, player.lasts = tuple(keys), lasts
        player.step(shares, float(now))
        for key in "ab":
            assert sum(share.uses(key) for share in shares.plans.values()) <= 1
    assert slots.unpacked(slots.packed(shares), "$").plans == shares.plans
    held = slots.held_in(slots.progress_of(shares, "c/slots"))
    assert held == {holder: list(share.held) for holder, share in shares.plans.items()}


def test_requests_are_read_strictly() -> None:
    request = SlotRequest("p", 7, {0: ("a",)}, {1: ("a", "b")}, {"a": 2}, True, ("gone",))
    assert slots.request_of(request.as_json()) == request
    for row in ({"priority": 101}, {"wanted": [[1]]}, {"limits": {"a": 0}}, {"holder": ""}, {"running": [[0, [5]]]}):
        with pytest.raises(BadField):
            slots.request_of(request.as_json() | row)
