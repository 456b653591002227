"""A replica as leader and as follower: what it takes over from the metadata and from its leader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage_node.directories.directory import LogDirectory
from storage_node.errors import NotLeaderOrFollower, RequestRefused
from storage_node.log.batches.batch import build_batch
from storage_node.log.config import LogConfig
from storage_node.log.log import FetchedData, Log
from storage_node.model.error_codes import ErrorCode
from storage_node.model.ids import TopicPartition
from storage_node.partitions.offset_files import OffsetFiles
from storage_node.partitions.partition import Partition
from storage_node.partitions.registry import Replicas
from tests.support.nodes.static_image import row

TP = TopicPartition("t", 0)
ID = "A" * 22


@pytest.fixture
def partition(tmp_path: Path) -> Iterator[Partition]:
    directory = LogDirectory(tmp_path, "A")
    made = Partition(TP, ID, Log.open(tmp_path / "t-0", TP, LogConfig(), directory=str(tmp_path)), directory)
    yield made
    made.log.close()
    directory.pool.shutdown()


def batches(first: int, count: int, epoch: int = 1) -> bytes:
    """Return batches of one record each, as a leader of that epoch would have appended them."""
    return b"".join(
        build_batch([b"%d" % number], base_offset=number, leader_epoch=epoch, timestamp=1000)
        for number in range(first, first + count)
    )


def follow(partition: Partition, epoch: int = 1) -> None:
    partition.assign(row(epoch=epoch, leader=2), ID, 1, {1: 1, 2: 1, 3: 1})


def test_follower_takes_over_records_the_high_watermark_and_the_log_start(partition: Partition) -> None:
    follow(partition)
    assert not partition.is_leader and partition.leader == 2 and partition.leader_epoch == 1
    appended = partition.append_as_follower(batches(0, 10), 1, 4, 0)
    assert (appended.base_offset, appended.last_offset) == (0, 9)
    assert partition.high_watermark == 4
    # A follower's high watermark is at most its own log end.
    partition.append_as_follower(b"", 1, 99, 3)
    assert (partition.high_watermark, partition.log.log_start_offset, partition.log.log_end_offset) == (10, 3, 10)
    # A new leader may not know the high watermark yet.
    partition.append_as_follower(b"", 1, 2, 0)
    assert (partition.high_watermark, partition.log.log_start_offset) == (10, 3)


@pytest.mark.feature("113-33")
def test_followers_lag_counts_from_its_leaders_high_watermark(partition: Partition) -> None:
    follow(partition)
    assert partition.offset_lag == 0, "nothing is known yet"
    partition.append_as_follower(batches(0, 10), 1, 25, 0)
    assert (partition.offset_lag, partition.high_watermark) == (15, 10)
    partition.append_as_follower(batches(10, 10), 1, 25, 0)
    assert partition.offset_lag == 5
    partition.append_as_follower(batches(20, 10), 1, 25, 0)
    assert partition.offset_lag == 0, "never below 0"
    partition.append_as_follower(b"", 1, 40, 0)
    assert partition.offset_lag == 10
    follow(partition, 2)
    assert partition.offset_lag == 0, "another leader may know less"
    partition.append_as_follower(b"", 2, 32, 0)
    assert partition.offset_lag == 2
    partition.assign(row(epoch=3), ID, 1, {1: 1, 2: 1, 3: 1})
    assert partition.is_leader and partition.offset_lag == 0


def test_follower_rejects_other_epochs_and_leader_appends(partition: Partition) -> None:
    follow(partition, 2)
    for epoch in (1, 3):
        with pytest.raises(RequestRefused) as caught:
            partition.append_as_follower(batches(0, 1), epoch, 1, 0)
        assert caught.value.code == ErrorCode.FENCED_LEADER_EPOCH
    partition.assign(row(epoch=3), ID, 1, {})
    with pytest.raises(NotLeaderOrFollower):
        partition.append_as_follower(batches(0, 1), 3, 1, 0)
    assert partition.log.log_end_offset == 0


def test_batches_of_a_later_leader_epoch_than_the_one_followed_are_not_appended(partition: Partition) -> None:
    """As in Apache Kafka since KAFKA-18723: a leader deposed during its response may add the next leader's records.

    The next leader finds the divergence by the latest epoch that a follower names.
    """
    follow(partition, 5)
    partition.append_as_follower(batches(0, 2, 4) + batches(2, 2, 5), 5, 0, 0)
    with pytest.raises(RequestRefused) as caught:
        partition.append_as_follower(batches(4, 2, 5) + batches(6, 2, 6), 5, 8, 1)
    assert caught.value.code == ErrorCode.FENCED_LEADER_EPOCH and "leader epoch 6" in caught.value.message
    log = partition.log
    assert (log.log_end_offset, log.latest_epoch, partition.high_watermark, log.log_start_offset) == (4, 5, 0, 0)
    follow(partition, 6)
    partition.append_as_follower(batches(4, 2, 5) + batches(6, 2, 6), 6, 0, 0)
    assert (log.log_end_offset, log.latest_epoch) == (8, 6)


@pytest.mark.parametrize("leads", [False, True])
def test_follower_read_that_outlasts_the_leader_epoch_is_rejected(
    partition: Partition, monkeypatch: pytest.MonkeyPatch, leads: bool
) -> None:
    """Records above the high watermark may be truncated and replaced by another leader's during the read."""
    partition.assign(row(epoch=5), ID, 1, {})
    partition.append(build_batch([b"x"], timestamp=1000))
    read = Log.read

    def slow(log: Log, *args: Any, **more: Any) -> FetchedData:
        found = read(log, *args, **more)
        partition.assign(row(epoch=6, leader=1 if leads else 2), ID, 1, {})
        return found

    monkeypatch.setattr(Log, "read", slow)
    with pytest.raises(RequestRefused) as caught:
        partition.fetch(0, 1000, to_end=True)
    assert caught.value.code == (ErrorCode.FENCED_LEADER_EPOCH if leads else ErrorCode.NOT_LEADER_OR_FOLLOWER)


def test_older_row_is_ignored(partition: Partition) -> None:
    partition.assign(row(epoch=4, leader=2, partition_epoch=7), ID, 1, {})
    for older in (row(epoch=3, partition_epoch=9), row(epoch=4, leader=1, partition_epoch=6)):
        partition.assign(older, ID, 1, {})
        assert partition.leader == 2 and not partition.is_leader and partition.leader_epoch == 4
    partition.assign(row(epoch=4, leader=-1, partition_epoch=8), ID, 1, {})
    assert partition.leader == -1


def test_truncation_takes_the_high_watermark_along(partition: Partition) -> None:
    follow(partition)
    partition.append_as_follower(batches(0, 10), 1, 10, 0)
    partition.truncate_to(6)
    assert partition.high_watermark == 6
    partition.append_as_follower(batches(6, 2), 1, 7, 0)
    assert partition.high_watermark == 7


@pytest.mark.parametrize("offset", [100, 2])
def test_restart_at_the_leaders_log_start_survives_a_crash(partition: Partition, tmp_path: Path, offset: int) -> None:
    directory = partition.directory
    replicas = Replicas()
    replicas.add(partition)
    files = OffsetFiles(replicas)
    follow(partition)
    partition.append_as_follower(batches(0, 20), 1, 20, 10)
    partition.log.flush()
    files.write_all(directory)
    assert directory.log_start_offsets.read() == {TP: 10} and directory.recovery_points.read() == {TP: 20}

    files.restart_at(partition, offset)
    assert (partition.log.log_start_offset, partition.log.log_end_offset) == (offset, offset)
    assert partition.high_watermark == offset
    partition.append_as_follower(batches(offset, 3), 1, 0, 0)
    partition.log.flush()
    # Nothing was closed: the start relies on the checkpoints.
    again = Log.open(
        tmp_path / "t-0",
        TP,
        LogConfig(),
        directory=str(tmp_path),
        recovery_point=directory.recovery_points.read().get(TP, 0),
        log_start_offset=directory.log_start_offsets.read().get(TP, 0),
    )
    assert (again.log_start_offset, again.log_end_offset) == (offset, offset + 3)
    again.close()


def test_truncation_below_the_log_start_survives_a_crash(partition: Partition, tmp_path: Path) -> None:
    directory = partition.directory
    replicas = Replicas()
    replicas.add(partition)
    files = OffsetFiles(replicas)
    follow(partition)
    partition.append_as_follower(batches(0, 20), 1, 20, 15)
    files.write_all(directory)
    files.truncate(partition, 12)
    partition.append_as_follower(batches(12, 1), 1, 0, 0)
    partition.log.flush()
    starts = directory.log_start_offsets.read()
    again = Log.open(tmp_path / "t-0", TP, LogConfig(), directory=str(tmp_path), log_start_offset=starts.get(TP, 0))
    assert (again.log_start_offset, again.log_end_offset) == (12, 13)
    again.close()


def test_high_watermark_is_checkpointed(partition: Partition) -> None:
    replicas = Replicas()
    replicas.add(partition)
    follow(partition)
    partition.append_as_follower(batches(0, 10), 1, 4, 0)
    OffsetFiles(replicas).high_watermarks(partition.directory)
    assert partition.directory.high_watermarks.read() == {TP: 4}
