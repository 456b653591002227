"""Large requests leave room for small produces, and none where there is nothing to leave it for."""

from __future__ import annotations

import asyncio
import time

import pytest

from storage_node import small_first
from storage_node.small_first import (
    AT_REST,
    LET_GO,
    LET_GO_EVERY,
    PAUSE,
    RECENT,
    SLICE,
    UNPAUSED,
    SmallFirst,
    give_way,
    pace,
)

TURN = SLICE + PAUSE


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds; sleeping passes it on."""
    found = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: found[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: found.__setitem__(0, found[0] + seconds))
    return found


@pytest.fixture
def first(now: list[float], monkeypatch: pytest.MonkeyPatch) -> SmallFirst:
    found = SmallFirst(lambda: now[0])
    monkeypatch.setattr(small_first, "SMALL_FIRST", found)
    monkeypatch.setattr(small_first, "_THREAD", type("Local", (), {})())
    return found


def test_large_work_alone_does_not_wait(first: SmallFirst) -> None:
    assert [first.reserve(), first.reserve(), first.reserve_long()] == [0, 0, 0]


def test_slices_of_all_large_work_follow_each_other_while_a_small_produce_is_under_way(
    first: SmallFirst, now: list[float]
) -> None:
    first.under_way = 1
    assert [first.reserve(), first.reserve(), first.reserve_long()] == pytest.approx([0, TURN, 2 * TURN])
    now[0] += 10 * TURN
    assert first.reserve() == 0
    first.under_way = 0
    assert first.reserve() == 0, "what was reserved does not bind once nothing small is under way"


def test_produce_of_a_few_partitions_reserves_a_part_of_a_slice(first: SmallFirst) -> None:
    first.under_way = 1
    assert [first.reserve(0.1) for _ in range(3)] == pytest.approx([0, 0.1 * TURN, 0.2 * TURN])


def test_long_computations_also_pause_while_the_listener_receives(first: SmallFirst, now: list[float]) -> None:
    first.heard = now[0]
    assert [first.reserve(), first.reserve_long(), first.reserve_long()] == pytest.approx([0, 0, TURN])
    now[0] += 2 * RECENT
    assert [first.reserve_long(), first.reserve_long()] == [0, 0]


def test_thread_pauses_behind_each_slice(first: SmallFirst, now: list[float]) -> None:
    first.under_way = 1
    began = now[0]
    for _ in range(100):  # 10 ms of work
        pace()
        now[0] += SLICE / 20
    assert now[0] - began == pytest.approx(5 * SLICE + 4 * PAUSE, rel=0.3)
    first.under_way, began = 0, now[0]
    for _ in range(100):
        pace()
        now[0] += SLICE / 20
    assert now[0] - began == pytest.approx(5 * SLICE)


@pytest.mark.parametrize(("done", "waits"), [(UNPAUSED, False), (UNPAUSED + 100, True)])
def test_requests_in_regular_use_do_not_pause(monkeypatch: pytest.MonkeyPatch, done: int, waits: bool) -> None:
    found = SmallFirst(lambda: 0.0)
    found.under_way = 1
    found.reserve()
    monkeypatch.setattr(small_first, "SMALL_FIRST", found)

    async def taken() -> float:
        began = time.perf_counter()
        await give_way(done)
        return time.perf_counter() - began

    assert (asyncio.run(taken()) >= TURN) == waits


def sleeps(first: SmallFirst, now: list[float], pause: float, seconds: float) -> float:
    """The seconds that a loop lets go of, at work every `pause` seconds."""
    began, worked = now[0], 0.0
    while worked < seconds:
        first.let_go()
        now[0] += pause
        worked += pause
    return now[0] - began - worked


@pytest.mark.parametrize("awaited", ["under_way", "reads"])
def test_busy_loop_lets_the_interpreter_go_while_threads_work_for_it(
    first: SmallFirst, now: list[float], awaited: str
) -> None:
    assert sleeps(first, now, AT_REST / 4, 0.1) == pytest.approx(0, abs=1e-9), "nothing is awaited"
    setattr(first, awaited, 1)
    assert sleeps(first, now, AT_REST / 4, 0.1) == pytest.approx(0.1 * LET_GO / LET_GO_EVERY, rel=0.3)
    assert sleeps(first, now, AT_REST * 2, 0.1) == pytest.approx(0, abs=1e-9), "it rests by itself"
