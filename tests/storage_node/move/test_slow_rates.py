"""Rates so low that a batch takes minutes or days: nothing passes free, and nothing but the copy waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_node.log.batches.batch import build_batch
from storage_node.model.moves import MoveState
from storage_node.move.status import SwapOutcome
from storage_node.move.throttle import RateLimiter
from tests.storage_node.move.harness import TP, SmallNode, batch, eventually, values


@pytest.fixture
def node(tmp_path: Path) -> Iterator[SmallNode]:
    made = SmallNode(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("whose", ["run", "node"])
def test_one_byte_a_second_holds_a_move_still_and_lets_go_at_once(node: SmallNode, whose: str) -> None:
    node.add()
    node.fill(200)
    if whose == "node":
        node.engine.set_node_rate(1)
    rate = 1 if whose == "run" else None
    claim = node.engine.create(TP, node.path("b"), throttle=rate).claim
    node.engine.start_copy(TP, claim, rate)
    eventually(lambda: node.engine.statuses()[0].state is MoveState.COPYING)
    time.sleep(0.3)  # nothing happens, which cannot be waited for
    assert node.engine.statuses()[0].bytes_copied == 0
    node.engine.pause_copy(TP, claim)
    assert node.engine.statuses()[0].bytes_copied == 0, "nor when it is told to leave"
    node.engine.start_copy(TP, claim, rate)
    node.engine.set_throttle(TP, claim, None)
    node.engine.set_node_rate(None)
    node.finish(claim)
    assert len(values(node.partitions[TP].log)) == 200


@pytest.mark.parametrize("rate", [1, 1000])
def test_swap_does_not_wait_for_what_the_rate_holds_back(node: SmallNode, rate: int) -> None:
    partition = node.add()
    node.fill(20)
    claim = node.engine.create(TP, node.path("b")).claim
    node.engine.start_copy(TP, claim)
    assert node.engine.wait(TP, claim, 10).state is MoveState.CAUGHT_UP
    node.engine.set_throttle(TP, claim, rate)
    partition.append(batch(b"x" * 500_000))
    outcomes: list[SwapOutcome] = []
    swapping = threading.Thread(target=lambda: outcomes.append(node.engine.swap(TP, claim)))
    swapping.start()
    swapping.join(15)
    assert [outcome.outcome for outcome in outcomes] == ["behind"]
    assert partition.future is not None and partition.future.log_end_offset == 20
    assert partition.append(batch(b"y")).base_offset == 21
    node.engine.start_copy(TP, claim, None)
    node.finish(claim)
    assert len(values(partition.log)) == 22


class FakeClock:
    """Sleeping takes no time."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(("rate", "size"), [(1, 300), (1000, 64 << 10), (1000, 1 << 20)])
def test_first_batch_is_paid_for_however_large(rate: int, size: int) -> None:
    clock = FakeClock()
    limiter = RateLimiter(rate, clock)
    began = clock.now
    for number in range(1, 4):
        limiter.acquire(size)
        assert clock.now - began == pytest.approx(number * size / rate, rel=0.01, abs=0.1)


def test_batch_larger_than_a_chunk_and_than_the_rate_is_copied_whole(node: SmallNode) -> None:
    partition = node.add()
    for _ in range(3):
        partition.append(build_batch([b"x" * 900_000]))
    claim = node.engine.create(TP, node.path("b"), throttle=1_500_000).claim
    node.finish(claim)
    assert partition.directory is node.dir("b") and len(values(partition.log)) == 3
