"""A log start offset beyond the log's end at a start: no record is lost that no other replica in sync has."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_node.directories.checkpoints import LOG_START_OFFSETS, OffsetCheckpoint
from storage_node.errors import RequestRefused
from storage_node.model.ids import TopicPartition
from tests.support.nodes.memory_cluster import MemoryCluster, running_cluster
from tests.support.nodes.node_harness import Harness, running, until
from tests.support.nodes.replicated import assert_equal, in_sync

TP = TopicPartition("lnk", 0)
WRONG = 999_999
SMALL = {"segment.bytes": "4000", "file.delete.delay.ms": "0"}
VALUES = [b"%04d" % number for number in range(800)]


def poison(folder: Path) -> None:
    (folder.parent / LOG_START_OFFSETS).write_text(f"0\n1\nlnk 0 {WRONG}\n")


def segments(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.glob("*.log"))}


def values(harness: Harness) -> list[bytes]:
    return [message.value() for message in harness.consume("lnk", len(VALUES))]


def test_only_replica_stays_offline_with_all_bytes_until_the_operator_decides(tmp_path: Path) -> None:
    with running(tmp_path, dirs=2) as harness:
        harness.create_topic("lnk", configs=SMALL)
        for at in range(0, 800, 100):
            harness.produce("lnk", VALUES[at : at + 100])
        harness.settle()
        served = harness.node.partition(TP)
        assert served is not None
        folder = served.log.path
        harness.stop()
        before = segments(folder)
        assert len(before) > 1
        poison(folder)
        harness.node = harness._new(0)
        harness.start()
        reason = harness.node.replicas.offline[TP]
        checkpoint, size = folder.parent / LOG_START_OFFSETS, sum(map(len, before.values()))
        for part in (
            "offset 800",
            str(WRONG),
            f"{size} bytes",
            str(folder),
            str(checkpoint),
            "rehome replicas online 1",
        ):
            assert part in reason, reason
        with pytest.raises(RequestRefused, match=str(WRONG)):
            harness.node.metadata_publisher.reopen(TP)
        harness.restart()
        assert harness.node.replicas.offline[TP] == reason and segments(folder) == before
        checkpoint.write_text("0\n0\n")
        assert harness.node.metadata_publisher.reopen(TP)
        assert values(harness) == VALUES


def test_deleted_records_are_flushed_before_their_checkpoint_says_so(tmp_path: Path) -> None:
    """Otherwise a power loss could leave a log that ends before its log start offset, as a wrong file does."""
    with running(tmp_path, dirs=1) as harness:
        harness.create_topic("lnk")
        harness.produce("lnk", VALUES)
        partition = harness.node.partition(TP)
        assert partition is not None and partition.log.recovery_point == 0
        partition.delete_records(500)
        harness.node.offset_files.log_starts(partition.directory)
        assert partition.directory.log_start_offsets.read() == {TP: 500}
        assert partition.log.recovery_point == 800


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MemoryCluster]:
    with running_cluster(tmp_path, 2, 1, {"replica.lag.time.max.ms": "15000"}) as made:
        yield made


def filled(cluster: MemoryCluster) -> None:
    cluster.create_topic("lnk", [[1, 2]], {"segment.bytes": "4000"})
    for at in range(0, 800, 100):
        cluster.produce("lnk", VALUES[at : at + 100])
    in_sync(cluster, "lnk", [1, 2])
    until(lambda: all(cluster.controller.partition("lnk").directories), 30, "the directories are known")


@pytest.mark.parametrize("fenced", [True, False], ids=["out of the ISR", "in the ISR"])
@pytest.mark.parametrize("node", [1, 2], ids=["led", "followed"])
def test_replica_that_another_node_has_is_fetched_again(
    cluster: MemoryCluster, caplog: pytest.LogCaptureFixture, node: int, fenced: bool
) -> None:
    filled(cluster)
    folder = cluster.replica(node, "lnk").log.path
    cluster.stop(node, fenced=fenced)
    poison(folder)
    caplog.set_level(logging.WARNING)
    cluster.start(node)
    in_sync(cluster, "lnk", [1, 2])
    until(lambda: cluster.replica(node, "lnk") is not None, 30, "it is served again")
    until(lambda: cluster.replica(node, "lnk").log.log_end_offset == 800, 30, "it has all records")
    in_sync(cluster, "lnk", [1, 2])
    for number in (1, 2):
        assert cluster.replica(number, "lnk").log.log_start_offset == 0
    assert_equal(cluster, "lnk")
    assert OffsetCheckpoint(folder.parent, LOG_START_OFFSETS).read() == {}
    (line,) = [each.getMessage() for each in caplog.records if "are removed from" in each.getMessage()]
    assert "lnk-0" in line and "offset 800" in line and str(WRONG) in line and " bytes" in line


def test_last_replica_in_sync_is_not_emptied_for_one_that_is_behind(cluster: MemoryCluster) -> None:
    filled(cluster)
    folder = cluster.replica(1, "lnk").log.path
    cluster.stop(2)
    in_sync(cluster, "lnk", [1])
    cluster.produce("lnk", [b"last"])
    cluster.stop(1)
    before = segments(folder)
    poison(folder)
    cluster.start(1)
    cluster.start(2)
    cluster.controller.spread()
    assert "no other replica in sync has the records" in cluster.nodes[1].replicas.offline[TP]
    assert segments(folder) == before
    (folder.parent / LOG_START_OFFSETS).write_text("0\n0\n")
    cluster.nodes[1].metadata_publisher.reopen(TP)
    in_sync(cluster, "lnk", [1, 2])
    assert cluster.consume("lnk", 801) == [*VALUES, b"last"]
