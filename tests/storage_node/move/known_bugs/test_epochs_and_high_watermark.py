"""Apache Kafka's bugs with leader epochs, offsets and checkpoints that a swap loses or leaves behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from storage_node import failpoints
from storage_node.directories.checkpoints import HIGH_WATERMARKS, LOG_START_OFFSETS, RECOVERY_POINTS
from storage_node.log.config import LogConfig
from storage_node.model.ids import TopicPartition
from storage_node.move.status import MoveState
from tests.storage_node.move.harness import TP, SmallNode, batch, values
from tests.support.nodes.leading import lead
from tests.support.nodes.node_harness import Harness, until

Make = Callable[..., SmallNode]


@pytest.mark.conformance(74)
def test_epoch_without_records_goes_along(make: Make) -> None:
    # KAFKA-15608, KAFKA-20961: without it followers asked in a circle, and never got into the ISR again.
    node = make()
    partition = node.add()
    node.fill(10)
    lead(partition, 5, True)
    partition.log.assign_leader_epoch(5)
    node.fill(1)
    lead(partition, 9, True)
    partition.log.assign_leader_epoch(9)
    before = partition.log.leader_epochs.entries
    assert before[-1] == (9, 11)
    node.move("b")
    assert partition.log.leader_epochs.entries == before
    assert partition.log.leader_epochs.epoch_for(11) == 9
    node.close()
    again = make()
    assert again.partitions[TP].log.leader_epochs.entries == before


@pytest.mark.conformance(56)
def test_offsets_read_during_swaps_never_go_back(make: Make) -> None:
    # KAFKA-9263: the high watermark was taken over by the wrong one of the two logs.
    node = make(config=LogConfig(segment_bytes=5_000, file_delete_delay_ms=0))
    partition = node.add()
    node.fill(50)
    stop = threading.Event()
    seen: list[tuple[int, int]] = []

    def look() -> None:
        while not stop.is_set():
            log = partition.log
            seen.append((log.log_start_offset, partition.high_watermark))
            stop.wait(0.0002)

    def write() -> None:
        while not stop.is_set():
            partition.append(batch(b"x" * 200))
            stop.wait(0.002)

    threads = [threading.Thread(target=look), threading.Thread(target=write)]
    for thread in threads:
        thread.start()
    try:
        for number in range(6):
            partition.delete_records(partition.log.log_start_offset + 5)
            node.move("ba"[number % 2])
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    for before, after in pairwise(seen):
        assert before[0] <= after[0] and before[1] <= after[1], (before, after)
    assert seen[-1][0] == 30


@pytest.mark.conformance(84)
def test_after_a_move_one_directory_has_the_partition_in_its_checkpoints(harness: Harness) -> None:
    # KAFKA-8362: the old directory kept its entry.
    tp = TopicPartition("t", 0)
    harness.create_topic("t")
    harness.produce("t", [b"x" * 100] * 50)
    partition = harness.node.partition(tp)
    assert partition is not None
    partition.delete_records(10)
    for _ in range(3):
        target = harness.other_directory("t")
        claim = harness.node.engine.create(tp, target, owner="run").claim
        harness.node.engine.start_copy(tp, claim)
        assert harness.node.engine.wait(tp, claim, 10).state is MoveState.CAUGHT_UP
        until(lambda claim=claim: harness.node.engine.swap(tp, claim).outcome == "swapped")  # type: ignore[misc]
        harness.node.engine.settle()
        for name in (RECOVERY_POINTS, HIGH_WATERMARKS, LOG_START_OFFSETS):
            having = [path for path in harness.paths if (Path(path) / name).exists() and _names(Path(path) / name)]
            assert having == [target], name


def _names(path: Path) -> bool:
    return any(line.startswith("t 0 ") for line in path.read_text().splitlines())


def test_what_is_under_way_to_the_old_target_does_not_reach_the_new_one(make: Make) -> None:
    # KAFKA-9087: data of a fetch from before the copy was made again; the move was parked for ever.
    node = make(names="abc", rate=1_000_000)
    partition = node.add()
    node.fill(100)
    claim = node.engine.create(TP, node.path("b"), owner="run").claim
    first = partition.future
    assert first is not None
    copying, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        copying.set()
        go_on.wait(60)

    newer: list[int] = []
    with failpoints.active({"copy.after_chunk": hold}):
        node.engine.start_copy(TP, claim)
        assert copying.wait(10)
        written = first.log_end_offset
        (move,) = node.engine._registry.all()
        other = threading.Thread(
            target=lambda: newer.append(node.engine.create(TP, node.path("c"), owner="run", claim=claim + 1).claim)
        )
        other.start()
        until(lambda: move.stop, what="the copier is told to leave")
        go_on.set()
        other.join(30)
    assert first.log_end_offset == written < 100, "nothing more goes to the old copy"
    node.engine.set_node_rate(None)
    node.finish(newer[0])
    assert partition.directory is node.dir("c")
    assert len(values(partition.log)) == 100 and all(directory.online for directory in node.dirs)
