"""Apache Kafka's weaknesses with throttles that are cleared or left behind, wishes that are forgotten, space not
told."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path

from storage_node import failpoints
from storage_node.alter_log_dirs import DirectoryInfo
from storage_node.model.error_codes import ErrorCode
from storage_node.model.ids import TopicPartition
from storage_node.move.status import MoveState
from tests.storage_node.move.harness import TP, SmallNode, batch, eventually
from tests.support.nodes.node_harness import Harness, until

Make = Callable[..., SmallNode]


def test_clearing_the_rate_of_the_node_leaves_every_move_its_own(make: Make) -> None:
    # `kafka-reassign-partitions --verify` and `--cancel` clear the rate of all brokers, others needing it or not.
    other = TopicPartition("u", 0)
    node = make(slots=2, rate=40_000)
    for tp in (TP, other):
        node.add(tp)
        node.fill(100, 1000, tp)
    slow = node.engine.create(TP, node.path("b"), owner="run", throttle=10_000)
    quick = node.engine.create(other, node.path("b"), owner="another", throttle=20_000_000)
    node.engine.start_copy(TP, slow.claim, 10_000)
    node.engine.set_node_rate(None)
    node.engine.start_copy(other, quick.claim, 20_000_000)
    assert node.engine.wait(other, quick.claim, 10).state is MoveState.CAUGHT_UP
    status = node.engine.status(TP)
    assert status is not None and status.state.under_way and status.bytes_copied < 80_000 and status.throttle == 10_000
    node.engine.set_throttle(TP, slow.claim, None)
    node.finish(slow.claim)


def test_moves_own_rate_ends_with_it_and_the_nodes_stays(harness: Harness) -> None:
    # Cruise Control 2370: whoever sets a broker's rate for a move has to put the old one back, also when it dies.
    harness.create_topic("t")
    harness.controller.hold_moves = True
    rate = {"replica.alter.log.dirs.io.max.bytes.per.second": "5000000"}
    harness.controller.change(configs={("broker", "1"): rate})
    tp = TopicPartition("t", 0)
    for ending in ("cancelled", "swapped"):
        claim = harness.node.engine.create(tp, harness.other_directory("t"), owner="run", throttle=1_000_000).claim
        harness.node.engine.start_copy(tp, claim, 1_000_000)
        if ending == "cancelled":
            harness.node.engine.cancel(tp, claim)
        else:
            until(lambda claim=claim: not harness.node.engine.wait(tp, claim, 1).state.under_way)  # type: ignore[misc]
            until(lambda claim=claim: harness.node.engine.swap(tp, claim).outcome == "swapped")  # type: ignore[misc]
        assert harness.controller.image.configs[("broker", "1")] == rate
        assert harness.node.engine._limiter.rate == 5_000_000
    claim = harness.node.engine.create(tp, harness.other_directory("t"), owner="run").claim
    status = harness.node.engine.status(tp)
    assert status is not None and status.claim == claim and status.throttle is None


def test_preferred_log_dir_survives_a_restart(harness: Harness) -> None:
    # In Apache Kafka it is in memory only, and lost without a word.
    directory = harness.node.dirs.directories[2]
    harness.node.preferred_log_dirs.remember([(TopicPartition("t", part), directory) for part in range(4)])
    harness.restart(clean=False)
    harness.create_topic("t", 4)
    assert {harness.directory_of("t", part) for part in range(4)} == {harness.paths[2]}


def test_copy_that_the_producer_outruns_says_how_far_behind_it_is(make: Make) -> None:
    # A move that is slower than the producer never ends, and nothing says so.
    node = make()
    partition = node.add()
    node.fill(50)
    claim = node.engine.create(TP, node.path("b"), owner="run", throttle=20_000).claim
    node.engine.start_copy(TP, claim, 20_000)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            partition.append(batch(b"x" * 1000))
            stop.wait(0.002)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        lags: list[int] = []
        for _ in range(3):
            before = len(lags)
            eventually(lambda: node.engine.statuses()[0].lag > (max(lags) + 50 if lags else 0))
            lags.append(node.engine.statuses()[0].lag)
            assert len(lags) == before + 1
        status = node.engine.statuses()[0]
        assert lags == sorted(lags) and status.state.under_way
        assert status.bytes_total > status.bytes_copied and status.throttle == 20_000 and status.rate < 100_000
    finally:
        stop.set()
        thread.join()
    node.engine.set_throttle(TP, claim, None)
    node.finish(claim)


def test_what_a_deleted_copy_still_takes_is_in_the_usable_bytes(tmp_path: Path, harness: Harness) -> None:
    # `-delete` data is listed by nobody; the bytes that can be used tell of it all the same, and it goes when due.
    harness.create_topic("t")
    harness.produce("t", [b"x" * 1000] * 50)
    harness.settle()
    source, tp = harness.directory_of("t"), TopicPartition("t", 0)
    claim = harness.node.engine.create(tp, harness.other_directory("t"), owner="run").claim
    harness.node.engine.start_copy(tp, claim)
    assert harness.node.engine.wait(tp, claim, 10).state is MoveState.CAUGHT_UP
    go_on = threading.Event()
    with failpoints.active({"delete.before_remove": lambda: go_on.wait(60)}):
        until(lambda: harness.node.engine.swap(tp, claim).outcome == "swapped")
        row = described(harness)[source]
        assert row.error is ErrorCode.NONE and row.replicas == ()
        disk = os.statvfs(source)
        assert row.total_bytes == disk.f_blocks * disk.f_frsize
        assert 0 < row.usable_bytes <= row.total_bytes
        assert list(Path(source).glob("t-0.*.delete"))
        go_on.set()
    until(lambda: not list(Path(source).glob("t-0*")), what="it is removed when it is due")


def described(harness: Harness) -> dict[str, DirectoryInfo]:
    """DescribeLogDirs by path."""
    loop = harness.node.listener.loop
    assert loop is not None
    rows = asyncio.run_coroutine_threadsafe(harness.node.log_dirs.describe(None), loop).result(10)
    return {row.path: row for row in rows}
