"""ISR membership and the high watermark: tables after Apache Kafka's rules, and properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_node.replication import isr
from storage_node.replication.isr import NEVER, Follower

LAG = 30.0


def follower(end: int, caught_up: float = NEVER, epoch: int | None = 5) -> Follower:
    return Follower(end=end, caught_up=caught_up, broker_epoch=epoch)


def test_fetch_at_log_end_marks_follower_caught_up() -> None:
    known = Follower().after_fetch(10, 0, 100.0, 10, 5)
    assert known.caught_up == 100.0 and known.is_caught_up(10, 500.0, LAG)
    # Records were appended since, and it did not fetch for longer than the lag.
    assert known.is_caught_up(11, 130.0, LAG) and not known.is_caught_up(11, 130.1, LAG)


def test_fetch_at_previous_log_end_marks_follower_caught_up_then() -> None:
    known = Follower().after_fetch(10, 0, 100.0, 20, 5)
    assert known.caught_up == NEVER
    # It now has what the leader had at 100, while the leader has appended more.
    known = known.after_fetch(20, 0, 120.0, 40, 5)
    assert known.caught_up == 100.0
    assert known.after_fetch(39, 0, 125.0, 60, 5).caught_up == 100.0
    assert known.after_fetch(40, 0, 125.0, 60, 5).caught_up == 120.0


def test_slow_but_steady_follower_falls_behind_all_the_same() -> None:
    known, end, now = Follower(end=0, caught_up=0.0), 0, 0.0
    for _ in range(40):
        now, end = now + 1.0, end + 100
        known = known.after_fetch(known.end + 50, 0, now, end, 5)
    assert isr.fallen_behind([2], {2: known}, end, now, LAG) == {2}


def test_member_that_never_fetched_has_the_lag_time_from_the_election() -> None:
    followers = {2: isr.unknown_follower(50.0, True), 3: isr.unknown_follower(50.0, False)}
    assert isr.fallen_behind([2], followers, 10, 80.0, LAG) == frozenset()
    assert isr.fallen_behind([2], followers, 10, 80.1, LAG) == {2}
    assert isr.fallen_behind([2, 3], followers, 10, 50.1, LAG) == {3}


@pytest.mark.parametrize(
    ("end", "epoch", "registered", "hw", "start", "joins"),
    [
        (10, 5, 5, 10, 0, True),
        (12, 5, 5, 10, 0, True),
        (9, 5, 5, 10, 0, False),  # below the high watermark
        (10, 5, 5, 8, 11, False),  # below the start of the leader's epoch
        (10, 4, 5, 10, 0, False),  # it fetched before its node restarted
        (10, 6, 5, 10, 0, False),  # this node's metadata does not have the restart yet
        (10, 5, None, 10, 0, False),  # fenced
        (10, -1, 5, 10, 0, True),  # an old version of Fetch has no broker epoch
        (10, None, 5, 10, 0, False),  # it never fetched
    ],
)
def test_follower_joins_at_high_watermark_and_registered_epoch(
    end: int, epoch: int | None, registered: int | None, hw: int, start: int, joins: bool
) -> None:
    assert isr.may_join(follower(end, epoch=epoch), registered, hw, start) is joins


def test_high_watermark_waits_for_joining_followers() -> None:
    followers = {2: follower(50, 100.0), 3: follower(40, 99.0), 4: follower(30, 10.0), 5: follower(20, 100.0, 4)}
    brokers = {2: 5, 3: 5, 4: 5, 5: 5}
    # 2 is in sync; 3 was caught up a moment ago, 4 was not for long, 5 was under an earlier broker epoch.
    assert isr.waited_for(followers, {1, 2}, brokers, 60, 100.0, LAG) == (2, 3)
    assert isr.waited_for(followers, {1, 2}, brokers, 60, 200.0, LAG) == (2,)
    assert isr.waited_for(followers, {1, 2, 4}, {}, 60, 200.0, LAG) == (2, 4)


@pytest.mark.parametrize(
    ("current", "end", "ends", "expected"),
    [
        (0, 10, [], 10),
        (0, 10, [7, 9], 7),
        (8, 10, [7, 9], 8),  # never decreases
        (3, 10, [isr.UNKNOWN, 10], 3),  # its log end is unknown
        (3, 10, [12], 10),  # at most the leader's own log end
    ],
)
def test_high_watermark(current: int, end: int, ends: list[int], expected: int) -> None:
    assert isr.high_watermark(current, end, ends) == expected


@pytest.mark.parametrize(
    ("members", "joining", "behind", "expected"),
    [
        ((1, 2), {3}, set(), (1, 2, 3)),
        ((3, 1, 2), set(), {3}, (1, 2)),
        ((3, 1), {2}, {3}, (1, 2)),
        ((1,), set(), {1}, (1,)),
        ((1, 2, 3), set(), set(), (1, 2, 3)),
    ],
)
def test_wanted_isr(members: tuple[int, ...], joining: set[int], behind: set[int], expected: tuple[int, ...]) -> None:
    assert isr.wanted((3, 2, 1), 1, members, joining, behind) == expected


@given(
    st.integers(0, 100),
    st.integers(0, 100),
    st.lists(st.tuples(st.integers(-1, 100), st.booleans(), st.booleans()), max_size=5),
)
def test_high_watermark_never_passes_the_maximal_isr(
    current: int, end: int, rows: list[tuple[int, bool, bool]]
) -> None:
    followers = {n: follower(at, 100.0 if near else NEVER) for n, (at, _, near) in enumerate(rows, 2)}
    maximal = {1} | {n for n, (_, member, _) in enumerate(rows, 2) if member}
    waited = isr.waited_for(followers, maximal, dict.fromkeys(followers, 5), end, 100.0, LAG)
    found = isr.high_watermark(current, end, [followers[n].end for n in waited])
    assert found >= current and found <= max(current, end)
    if found > current:
        assert all(followers[n].end >= found for n in maximal - {1})


@given(
    st.permutations([1, 2, 3, 4, 5]),
    st.sets(st.integers(1, 5)),
    st.sets(st.integers(2, 5)),
    st.sets(st.integers(2, 5)),
)
def test_wanted_isr_has_the_leader_and_no_lagging_replica(
    replicas: list[int], members: set[int], joining: set[int], behind: set[int]
) -> None:
    before = tuple(n for n in replicas if n in members | {1})
    found = isr.wanted(replicas, 1, before, joining, behind)
    assert len(set(found)) == len(found) and set(found) <= set(replicas)
    assert 1 in found and not set(found) & behind
    assert set(before) - behind <= set(found) <= set(before) | joining
    # The other members keep the controller's order.
    assert [n for n in found if n in before] == [n for n in before if n in found]


@given(st.lists(st.tuples(st.integers(0, 30), st.floats(0.1, 20)), min_size=1, max_size=30))
def test_follower_counts_as_caught_up_only_at_a_time_when_it_had_all(steps: list[tuple[int, float]]) -> None:
    """The recorded time is one at which the leader had no more than the follower has now."""
    known, now, end = Follower(end=0), 0.0, 0
    ends: list[tuple[float, int]] = [(0.0, 0)]
    for records, seconds in steps:
        now, end = now + seconds, end + records
        ends.append((now, end))
        offset = min(end, known.end + 10)
        known = known.after_fetch(offset, 0, now, end, 5)
        if known.caught_up > 0.0:
            had = max(at for when, at in ends if when <= known.caught_up)
            assert known.end >= had
