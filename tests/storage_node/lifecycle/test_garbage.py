"""When a node's process looks for cyclic garbage among all of its objects."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from storage_node.lifecycle import garbage
from storage_node.lifecycle.garbage import SHARE, SHORTEST, WORTH_IT, Collector


@pytest.fixture
def settled() -> Iterator[None]:
    thresholds = gc.get_threshold()
    garbage.settle()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


class Process:
    """A process whose full collections take `seconds`."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.now, self.pending, self.seconds, self.collections = 0.0, 0, seconds, 0
        self.collector = Collector(lambda: self.pending, self._collect, lambda: self.now)

    def _collect(self) -> None:
        self.collections += 1
        self.now += self.seconds
        self.pending = 0

    def run(self, seconds: int) -> None:
        """Make garbage all the time, and look once a second."""
        for _ in range(seconds):
            self.now += 1.0
            self.pending += WORTH_IT
            self.collector.look()


@pytest.mark.usefixtures("settled")
def test_no_thread_that_makes_many_objects_begins_a_full_collection() -> None:
    before = gc.get_stats()[2]["collections"]
    kept = [[number] for number in range(500_000)]
    assert len(kept) == 500_000
    assert gc.get_stats()[2]["collections"] == before


@pytest.mark.usefixtures("settled")
def test_what_a_thread_left_behind_is_collected() -> None:
    class Cycle:
        def __init__(self) -> None:
            self.itself = self

    kept: list[object] = [Cycle() for _ in range(1000)]
    for _ in range(2 * WORTH_IT):
        gc.collect(1)
    kept.clear()
    assert Collector().look()
    assert not any(isinstance(each, Cycle) for each in gc.get_objects())


def test_without_work_for_it_nothing_is_collected() -> None:
    process = Process()
    process.pending = WORTH_IT - 1
    assert not process.collector.look() and process.collections == 0


def test_quick_collection_is_made_every_few_seconds() -> None:
    process = Process()
    process.run(60)
    assert process.collections == 60 / SHORTEST


def test_slow_collection_takes_a_small_share_of_the_time() -> None:
    process = Process(seconds=0.2)
    process.run(600)
    assert 10 <= process.collections <= 600 / (SHARE * 0.2) + 1
