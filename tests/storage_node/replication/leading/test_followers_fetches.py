"""A leader's responses to followers: divergence and rejections."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import timedelta

import pytest

from storage_node.log.batches.batch import build_batch
from storage_node.log.files import Region
from storage_node.log.log import Log
from storage_node.model.error_codes import ErrorCode
from storage_node.partitions.partition import Partition
from storage_node.protocol.fetch import reading
from tests.storage_node.replication.conftest import Led, record
from tests.support.nodes.node_harness import until
from tests.support.nodes.replicated import content
from tests.support.nodes.static_image import row

pytestmark = pytest.mark.parametrize("led", [30_000], indirect=True)


def history(led: Led, epochs: Sequence[tuple[int, int]]) -> Partition:
    """Make node 1 lead in each of these epochs and append so many records; return the partition."""
    led.create()
    partition = led.partition()
    brokers = {number: led.cluster.controller.state.nodes[number].broker_epoch for number in (1, 2, 3)}
    for epoch, count in epochs:
        partition.assign(row(epoch=epoch), partition.topic_id, 1, brokers)
        for _ in range(count):
            partition.append(record())
    return partition


@pytest.mark.parametrize(
    ("last_epoch", "offset", "diverging"),
    [
        (7, 9, None),  # the same log, up to its end
        (7, 7, None),
        (5, 6, None),
        (5, 7, (5, 6)),  # epoch 5 ended at 6 here
        (6, 8, (5, 6)),  # the leader does not have epoch 6, only the one before it
        (8, 9, (7, 9)),  # an epoch without a record
        (8, 10, (7, 9)),
        (3, 4, (3, 0)),  # before the first known epoch
        (7, 10, (7, 9)),  # beyond the end
    ],
)
def test_fetch_of_a_diverging_log_returns_the_divergence(
    led: Led, last_epoch: int, offset: int, diverging: tuple[int, int] | None
) -> None:
    partition = history(led, [(4, 4), (5, 2), (7, 3), (9, 0)])
    found = led.followers[0].fetch("t", offset, leader_epoch=9, last_epoch=last_epoch)
    assert not found.error_code
    told = found.diverging_epoch
    state = partition.leading
    assert state is not None
    if diverging is None:
        assert (told.epoch, told.end_offset) == (-1, -1)
        assert state.followers[2].end == offset
    else:
        assert (told.epoch, told.end_offset) == diverging and not found.records
        # The leader does not count the diverging fetch.
        assert state.followers[2].end == -1


def test_fetch_of_a_diverging_log_responds_at_once(led: Led) -> None:
    history(led, [(4, 4), (5, 2)])
    found = led.followers[0].fetch("t", 5, leader_epoch=5, last_epoch=4, max_wait_ms=20_000)
    assert (found.diverging_epoch.epoch, found.diverging_epoch.end_offset) == (4, 4)


def test_below_the_log_start_and_beyond_the_end(led: Led) -> None:
    partition = history(led, [(4, 6)])
    state = partition.leading
    assert state is not None
    for number in (2, 3):
        led.followers[number - 2].fetch("t", 6)
    partition.delete_records(3)
    for offset, last in ((2, -1), (2, 4), (7, -1)):
        found = led.followers[0].fetch("t", offset, last_epoch=last)
        assert found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert state.followers[2].end == 6


def test_fetch_with_fenced_or_unknown_epoch_is_rejected(led: Led) -> None:
    partition = history(led, [(4, 2)])
    old = led.followers[0].fetch("t", 2, leader_epoch=3)
    new = led.followers[0].fetch("t", 2, leader_epoch=5)
    assert (old.error_code, new.error_code) == (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH)
    state = partition.leading
    assert state is not None and state.followers[2].end == -1


def test_fetch_by_a_node_without_the_replica_is_rejected(led: Led) -> None:
    led.cluster.create_topic("two", [[1, 2]])
    led.cluster.create_topic("one", [[1]])
    follower = led.followers[1]
    for topic in ("two", "one"):
        # A replica that knows the epoch may be newer than this node's metadata, and retries.
        epoch = led.partition(topic).leader_epoch
        assert follower.fetch(topic, 0, leader_epoch=epoch).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert follower.fetch(topic, 0).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_follower_fetch_at_a_node_that_does_not_lead_is_rejected(led: Led) -> None:
    led.create()
    partition = led.partition()
    partition.assign(row(epoch=5, leader=2), partition.topic_id, 1, {})
    assert led.followers[1].fetch("t", 0).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("version", [4, 8, 11, 12, 13, 14])
def test_followers_of_older_versions_name_themselves_in_the_envelope(led: Led, version: int) -> None:
    led.create()
    led.append(3)
    client = led.followers[0].client
    wanted = {"partition": 0, "fetch_offset": 1, "partition_max_bytes": 1_000_000}
    topic = {"topic_id": client.topic_id("t")} if version >= 13 else {"topic": "t"}
    values = {
        "replica_id": 2,
        "max_wait": timedelta(0),
        "min_bytes": 1,
        "max_bytes": 1_000_000,
        "session_epoch": -1,
        "topics": [topic | {"partitions": [wanted]}],
    }
    (found,) = client.ask(1, version, values).responses[0].partitions
    assert not found.error_code and bytes(found.records).count(b"value") == 2
    state = led.partition().leading
    assert state is not None and state.followers[2].end == 1 and state.followers[2].broker_epoch == -1


def test_consumer_fetch_of_a_diverging_log_returns_the_divergence(led: Led) -> None:
    history(led, [(4, 4), (5, 2)])
    for follower in led.followers:
        follower.fetch("t", 6)
    client = led.client
    rows = [{"partition": 0, "fetch_offset": 5, "last_fetched_epoch": 4, "partition_max_bytes": 1000}]
    values = {
        "max_wait": timedelta(0),
        "session_epoch": -1,
        "topics": [{"topic_id": client.topic_id("t"), "partitions": rows}],
    }
    (found,) = client.ask(1, 16, values).responses[0].partitions
    assert (found.diverging_epoch.epoch, found.diverging_epoch.end_offset) == (4, 4)


@pytest.mark.parametrize(("replica", "offset"), [(-1, 2), (2, 5), (-2, 5)])
def test_latest_offset_is_the_high_watermark_for_consumers_alone(led: Led, replica: int, offset: int) -> None:
    led.create()
    led.append(5)
    for follower in led.followers:
        follower.fetch("t", 2)
    rows = [{"partition_index": 0, "timestamp": -1}]
    answer = led.client.ask(2, 6, {"replica_id": replica, "topics": [{"name": "t", "partitions": rows}]})
    assert answer.topics[0].partitions[0].offset == offset
    # A record above the high watermark is not found by its timestamp either.
    rows = [{"partition_index": 0, "timestamp": 1}]
    led.append()
    for follower in led.followers:
        follower.fetch("t", 6)
    answer = led.client.ask(2, 6, {"replica_id": replica, "topics": [{"name": "t", "partitions": rows}]})
    assert answer.topics[0].partitions[0].offset == 0


def test_offset_for_leader_epoch_returns_up_to_the_log_end(led: Led) -> None:
    history(led, [(4, 4), (5, 2)])
    asked = [{"partition": 0, "current_leader_epoch": 5, "leader_epoch": epoch} for epoch in (4, 5)]
    for row_, (epoch, end) in zip(asked, [(4, 4), (5, 6)], strict=True):
        answer = led.client.ask(23, 4, {"replica_id": 2, "topics": [{"topic": "t", "partitions": [row_]}]})
        (found,) = answer.topics[0].partitions
        assert (int(found.error_code), found.leader_epoch, found.end_offset) == (0, epoch, end)


def test_fetch_response_never_continues_with_the_records_of_another_leader(
    led: Led, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of both leaders have equal sizes and offsets, so that the response would look valid."""
    partition = history(led, [(5, 0)])
    old, new = ([build_batch([letter * 30_000], timestamp=1000) for _ in range(10)] for letter in (b"a", b"b"))
    for batch in old:
        partition.append(batch)
    reads, deposed, read = threading.Event(), threading.Event(), Region.read

    def late(region: Region, start: int, count: int) -> bytes:
        reads.set()
        assert deposed.wait(20)
        return read(region, start, count)

    monkeypatch.setattr(reading, "AT_ONCE", 0)
    monkeypatch.setattr(Region, "read", late)
    follower = led.followers[0]
    follower.send("t", 0, 0, leader_epoch=5)
    assert reads.wait(20), "a part of the response is read after the rest was sent"
    partition.assign(row(leader=2, epoch=6), partition.topic_id, 1, {})
    partition.truncate_to(0)
    log = Log.open(partition.log.path.parent / "other-0", partition.tp, partition.log.config, directory="")
    for batch in new:
        log.append_as_leader(batch, 6)
    partition.append_as_follower(content(log), 6, 0, 0)
    log.close()
    deposed.set()
    with pytest.raises((ConnectionError, AssertionError)):
        follower.receive()


def test_many_partitions_in_one_fetch(led: Led) -> None:
    led.create(partitions=60)
    for index in range(0, 60, 7):
        led.append(partition=index)
    follower = led.followers[0]
    follower.send_many("t", dict.fromkeys(range(60), 0), max_wait_ms=10_000)
    found = {row.partition_index: bytes(row.records or b"") for row in follower.receive()}
    assert len(found) == 60 and {index for index, data in found.items() if data} == set(range(0, 60, 7))
    offsets = {index: int(bool(data)) for index, data in found.items()}
    follower.send_many("t", offsets, max_wait_ms=10_000)
    led.append(partition=3)
    assert [row.partition_index for row in follower.receive() if row.records] == [3]
    until(lambda: all(led.partition(index=i).leading.followers[2].end == offsets[i] for i in range(60)))  # type: ignore[union-attr]
