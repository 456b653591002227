"""Who may change a log while a swap holds it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_node.directories.directory import LogDirectory
from storage_node.errors import LogDirectoryOffline
from storage_node.log.batches.batch import build_batch
from storage_node.log.config import LogConfig
from storage_node.log.log import Log
from storage_node.log_hold import Hold, LogHeld
from storage_node.model.ids import TopicPartition
from storage_node.partitions.partition import Partition
from tests.support.nodes.leading import lead

TP = TopicPartition("t", 0)


@pytest.fixture
def partition(tmp_path: Path) -> Iterator[Partition]:
    directory = LogDirectory(tmp_path, "A")
    made = Partition(TP, "", Log.open(tmp_path / "t-0", TP, LogConfig(), directory=str(tmp_path)), directory)
    yield made
    made.log.close()
    directory.pool.shutdown()


def test_threads_of_a_disk_are_refused_and_others_wait(partition: Partition) -> None:
    hold = partition.hold(1)
    assert hold is not None and partition.hold(0.1) is None
    records = build_batch([b"x"])
    for append in (partition.append, partition.append_for_all):
        with pytest.raises(LogHeld) as held:
            append(records, within=partition.directory)
        assert held.value.hold is hold
    with pytest.raises(LogHeld):
        partition.delete_records(0, within=partition.directory)
    with pytest.raises(LogHeld):
        partition.delete_old_segments(0)
    waiting = threading.Thread(target=partition.append, args=(records,))
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive() and partition.log.log_end_offset == 0
    partition.release(hold)
    waiting.join(30)
    assert partition.log.log_end_offset == 1


def test_roles_and_configs_change_during_a_hold(partition: Partition) -> None:
    hold = partition.hold(1)
    assert hold is not None
    changing = threading.Thread(target=lambda: (lead(partition, 5, True), partition.configure(LogConfig(1234))))
    changing.start()
    changing.join(30)
    assert not changing.is_alive() and partition.leader_epoch == 5 and partition.log.config.segment_bytes == 1234
    partition.release(hold)


def test_partition_that_was_moved_is_not_appended_to_by_the_threads_of_its_old_disk(
    partition: Partition, tmp_path: Path
) -> None:
    (tmp_path / "b").mkdir()
    other = LogDirectory(tmp_path / "b", "B")
    with pytest.raises(LogHeld) as held:
        partition.append(build_batch([b"x"]), within=other)
    assert held.value.hold is None
    other.pool.shutdown()


@pytest.mark.parametrize("how", ["offline", "deleted"])
def test_waiting_requests_are_woken_when_the_replica_goes_offline(partition: Partition, how: str) -> None:
    hold = partition.hold(1)
    assert hold is not None
    told = threading.Event()
    hold.when_released(told.set)
    if how == "offline":
        partition.take_offline("its disk has failed")
        with pytest.raises(LogDirectoryOffline):
            partition.append(build_batch([b"x"]))
    else:
        partition.delete()
    assert told.is_set()


def test_callbacks_are_called_once_or_forgotten() -> None:
    hold, called = Hold(), list[int]()

    def first() -> None:
        called.append(1)

    def forgotten() -> None:
        called.append(2)

    hold.when_released(first)
    hold.when_released(forgotten)
    hold.forget(forgotten)
    assert not hold.wait(0)
    hold.release()
    hold.release()
    assert called == [1] and hold.wait(0)
    hold.when_released(first)
    assert called == [1, 1]
