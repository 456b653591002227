"""The log start offset that a seal keeps, once a replica is truncated below it: what follows there must stay."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_node.model.ids import TopicPartition
from storage_node.partitions.partition import Partition
from storage_node.replicas import marker as markers
from storage_node.replicas.marker import State
from tests.support.nodes.node_harness import Harness, running, until

TP = TopicPartition("t", 0)


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    with running(tmp_path) as made:
        yield made


def ends(partition: Partition) -> tuple[int, int]:
    return partition.log.log_start_offset, partition.log.log_end_offset


def moved(harness: Harness) -> Partition:
    """A replica of the records 55 to 99 that was just swapped into another directory."""
    harness.create_topic("t")
    harness.produce("t", [b"%d" % number for number in range(100)], batch_num_messages=1)
    harness.settle()
    harness.node.partition(TP).delete_records(55)
    harness.controller.hold_moves = True
    engine = harness.node.engine
    claim = engine.create(TP, harness.other_directory("t"), owner="run").claim
    engine.start_copy(TP, claim)
    until(lambda: engine.statuses()[0].state == "caught_up")
    assert engine.swap(TP, claim).outcome == "swapped"
    engine.settle()
    return harness.node.partition(TP)


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("count", [10, 60])
def test_records_after_a_truncation_below_the_sealed_start_stay(harness: Harness, clean: bool, count: int) -> None:
    partition = moved(harness)
    # A leader was elected uncleanly whose log ends at 30.
    harness.node.offset_files.truncate(partition, 30)
    harness.produce("t", [b"new" for _ in range(count)], batch_num_messages=1)
    assert ends(partition) == (30, 30 + count)
    harness.restart(clean=clean)
    assert ends(harness.node.partition(TP)) == (30, 30 + count)


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_deleted_records_stay_deleted_once_the_seal_is_lifted(harness: Harness, clean: bool) -> None:
    partition = moved(harness)
    marker = markers.read(partition.log.path)
    assert marker is not None and (marker.state, marker.log_start) == (State.CURRENT, -1)
    harness.restart(clean=clean)
    assert ends(harness.node.partition(TP)) == (55, 100)
