"""What is appended after a truncation is no more trusted by a start than what was appended before it."""

from __future__ import annotations

from pathlib import Path

from storage_node import failpoints
from storage_node.directories.directory import LogDirectory
from storage_node.model.ids import TopicPartition
from storage_node.partitions.partition import Partition
from tests.support.nodes.node_harness import Harness, running

TP = TopicPartition("t", 0)


def flushed(harness: Harness) -> Partition:
    """A partition whose ten records are on the disk, and known to be."""
    harness.create_topic("t")
    harness.produce("t", [b"%d" % number for number in range(10)], batch_num_messages=1)
    partition = harness.node.partition(TP)
    assert partition is not None
    partition.log.flush()
    harness.node.offset_files.recovery_points(partition.directory)
    assert point(partition.directory) == 10
    return partition


def point(directory: LogDirectory) -> int:
    """What the next start will take for flushed."""
    return directory.recovery_points.read().get(TP, 0)


def test_truncation_lowers_the_recovery_point_before_anything_is_appended(harness: Harness) -> None:
    partition = flushed(harness)
    harness.node.offset_files.truncate(partition, 0)
    assert partition.log.log_end_offset == 0 and point(partition.directory) == 0


def test_copy_that_is_cut_before_its_swap_is_not_taken_for_flushed_either(harness: Harness) -> None:
    harness.controller.hold_moves = True
    partition = flushed(harness)
    engine, files = harness.node.engine, harness.node.offset_files
    target = harness.other_directory("t")
    claim = engine.create(TP, target, owner="run").claim
    engine.start_copy(TP, claim)
    engine.wait(TP, claim, 10)
    with failpoints.active({"swap.before_lock": lambda: files.truncate(partition, 0)}):
        assert engine.swap(TP, claim).outcome == "behind"
    directory = harness.node.dirs.by_path(Path(target))
    assert directory is not None and point(directory) == 0
    engine.start_copy(TP, claim)
    engine.wait(TP, claim, 10)
    assert engine.swap(TP, claim).outcome == "swapped"
    assert partition.directory is directory and point(directory) == 0


def test_start_notes_that_a_log_ends_before_its_recovery_point(tmp_path: Path) -> None:
    """As after a crash in the middle of a truncation."""
    with running(tmp_path, dirs=1) as harness:
        partition = flushed(harness)
        partition.truncate_to(4)
        harness.restart(clean=False)
        again = harness.node.partition(TP)
        assert again is not None and again.log.log_end_offset == 4
        assert point(again.directory) == 4
