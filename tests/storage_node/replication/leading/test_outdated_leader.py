"""Responses of a leader under an outdated epoch do not truncate a replica."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from storage_node.directories.directory import LogDirectory
from storage_node.log.batches.batch import build_batch
from storage_node.log.config import LogConfig
from storage_node.log.log import Log
from storage_node.model.ids import TopicPartition
from storage_node.partitions.offset_files import OffsetFiles
from storage_node.partitions.partition import Partition
from storage_node.partitions.registry import Replicas
from storage_node.replication.fetch_request import FetchRow
from storage_node.replication.following import Followed, Kind, Place
from tests.support.nodes.static_image import row

TP = TopicPartition("t", 0)
ID = "A" * 22
RAW = bytes(16)
EPOCH = 2


@pytest.fixture
def followed(tmp_path: Path) -> Iterator[Followed]:
    """Return a replica of ten records that follows node 2 under EPOCH."""
    directory = LogDirectory(tmp_path, "A")
    replica = Partition(TP, ID, Log.open(tmp_path / "t-0", TP, LogConfig(), directory=str(tmp_path)), directory)
    replicas = Replicas()
    replicas.add(replica)
    node: Any = SimpleNamespace(
        offset_files=OffsetFiles(replicas), config=SimpleNamespace(fetch=SimpleNamespace(backoff_ms=1000))
    )
    replica.assign(row(epoch=EPOCH, leader=2), ID, 1, {})
    records = [build_batch([b"%d" % at], base_offset=at, leader_epoch=1, timestamp=1000) for at in range(10)]
    replica.append_as_follower(b"".join(records), EPOCH, 7, 0)
    yield Followed(node, replica, RAW, EPOCH, Place(2, "localhost", 9, directory.name, Kind.IN_SYNC, 0))
    replica.log.close()
    directory.pool.shutdown()


def another_leader(followed: Followed) -> None:
    followed.partition.assign(row(epoch=EPOCH + 1, leader=3), ID, 1, {})


def its_own_leadership(followed: Followed) -> None:
    followed.partition.assign(row(epoch=EPOCH + 1, leader=1), ID, 1, {})


def the_end_of_its_following(followed: Followed) -> None:
    followed.place = None


def diverging(followed: Followed) -> None:
    assert followed.apply(FetchRow(RAW, 0, 0, 3, 0, memoryview(b""), diverging=(1, 4)), 10)


def shorter(followed: Followed) -> None:
    followed.out_of_range(4, 0)


def later_start(followed: Followed) -> None:
    followed.out_of_range(60, 50)


RESPONSES = pytest.mark.parametrize(
    ("respond", "left"), [(diverging, (0, 4)), (shorter, (0, 4)), (later_start, (50, 50))]
)


@RESPONSES
@pytest.mark.parametrize("since", [another_leader, its_own_leadership, the_end_of_its_following])
def test_response_of_an_outdated_leader_does_not_truncate(
    followed: Followed, since: Callable[[Followed], None], respond: Callable[[Followed], None], left: tuple[int, int]
) -> None:
    since(followed)
    mark = followed.partition.high_watermark
    respond(followed)
    log = followed.partition.log
    assert (log.log_start_offset, log.log_end_offset) == (0, 10) != left and followed.partition.high_watermark == mark


@RESPONSES
def test_response_of_the_current_leader_truncates(
    followed: Followed, respond: Callable[[Followed], None], left: tuple[int, int]
) -> None:
    respond(followed)
    log = followed.partition.log
    assert (log.log_start_offset, log.log_end_offset) == left


@pytest.mark.parametrize("start", [6, 10])
def test_log_beyond_the_leaders_end_restarts_where_the_leaders_log_starts(
    followed: Followed, caplog: pytest.LogCaptureFixture, start: int
) -> None:
    """At the leader's end, it would count as in sync without any of the leader's records."""
    log = followed.partition.log
    log.advance_log_start(start)
    caplog.set_level(logging.WARNING)
    size = log.size
    followed.out_of_range(6, 2)
    assert (log.log_start_offset, log.log_end_offset) == (2, 2)
    assert f"removing all {size} bytes of t-0, offsets {start} to 10, and restarting it at 2" in caplog.text
