"""Large responses: whole, in order, and without memory while a slow client reads them."""

from __future__ import annotations

import errno
import os
import socket
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from kafka.admin import KafkaAdminClient

from storage_node.log.batches.batch import build_batch
from storage_node.log.files import Region
from storage_node.model.ids import TopicPartition
from storage_node.protocol.fetch import reading
from storage_node.protocol.network import sending
from tests.support.nodes.node_harness import Harness, until
from tests.support.wire import Client

MIB = 2**20
LARGE = 12 * MIB
BATCHES = 12
ROUNDS = 5


@pytest.fixture
def filled(harness: Harness) -> Iterator[tuple[Harness, bytes]]:
    """Yield a node with a partition of some large batches, and its bytes."""
    harness.create_topic("t")
    client = Client(harness)
    for number in range(BATCHES):
        row = client.produce("t", 0, build_batch([bytes([number]) * 1000] * 1000), acks=1)
        assert row.error == 0
    client.close()
    replica = harness.node.partition(TopicPartition("t", 0))
    assert replica is not None
    yield harness, b"".join(path.read_bytes() for path in sorted(replica.log.path.glob("*.log")))


def reader(harness: Harness) -> Client:
    """Return a client with a small receive buffer."""
    client = Client(harness)
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
    return client


def watched(monkeypatch: pytest.MonkeyPatch, hold: float) -> list[sending.FilePart]:
    """Drop the bytes of unread responses after `hold` seconds; returns the parts that were dropped."""
    given_up, original = list[sending.FilePart](), sending.FilePart.give_up

    def give_up(part: sending.FilePart) -> None:
        original(part)
        given_up.append(part)

    monkeypatch.setattr(sending, "HOLD_SECONDS", hold)
    monkeypatch.setattr(sending.FilePart, "give_up", give_up)
    return given_up


def test_responses_larger_than_any_buffer_arrive_whole_and_in_order(filled: tuple[Harness, bytes]) -> None:
    harness, content = filled
    client = reader(harness)
    for _ in range(3):
        client.send_fetch("t", 0, 0, partition_max_bytes=LARGE)
        client.send_fetch("t", 0, 3000, partition_max_bytes=2 * MIB)
        client.send_produce("t", 0, b"none")
    for _ in range(3):
        (large,) = client.receive_fetch()
        assert large.records == content[: len(large.records)] and len(large.records) > LARGE - 2 * MIB
        (small,) = client.receive_fetch()
        assert small.records and small.records in content
        assert client.receive_produce()[1].error != 0
    client.close()


def test_clients_that_do_not_read_hold_no_memory(
    filled: tuple[Harness, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    harness, content = filled
    given_up = watched(monkeypatch, 0.3)
    process = psutil.Process()
    before = process.memory_info().rss
    waiting: list[Client] = []

    def all_given_up() -> bool:
        return len(set(given_up)) == len(waiting)

    for _ in range(ROUNDS):
        clients = [reader(harness) for _ in range(25)]
        for client in clients:
            client.send_fetch("t", 0, 0, partition_max_bytes=LARGE)
        waiting += clients
        until(all_given_up, what="all responses are read, and dropped")
    assert sum(len(part.ready) for part in set(given_up)) <= len(waiting) * sending.SMALL_PIECE
    # (The allocator may keep the memory of one round for the next; it does not add up.)
    until(lambda: process.memory_info().rss < before + len(waiting) * LARGE // 2, what="their memory is free")
    # The node reads the dropped bytes again, from the partition's current directory.
    target = harness.other_directory("t")
    admin = KafkaAdminClient(bootstrap_servers=harness.bootstrap)
    admin.alter_replica_log_dirs({("t", 0, 1): target})
    admin.close()
    until(lambda: harness.directory_of("t") == target)
    for client in waiting[::ROUNDS]:
        (row,) = client.receive_fetch()
        assert row.records == content[: len(row.records)] and len(row.records) > LARGE - 2 * MIB
    for client in waiting:
        client.close()


def test_hung_disk_during_a_response_ends_the_connection(
    filled: tuple[Harness, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The response to the client's next fetch has the records of the other directories."""
    harness, content = filled
    harness.create_topic("other", 4)
    directory = harness.directory_of("t")
    number = next(number for number in range(4) if harness.directory_of("other", number) != directory)
    hangs, goes_on, read = threading.Event(), threading.Event(), Region.read
    sent = list[weakref.ref[sending.Sending]]()

    def hung(region: Region, start: int, count: int) -> bytes:
        if hangs.is_set():
            goes_on.wait(20)
        return read(region, start, count)

    def begins(self: sending.Sending) -> None:
        sent.append(weakref.ref(self))
        start(self)

    start = sending.Sending.start
    monkeypatch.setattr(sending.Sending, "start", begins)
    monkeypatch.setattr(Region, "read", hung)
    monkeypatch.setattr(sending, "PATIENCE", 0.3)
    monkeypatch.setattr(reading, "PATIENCE", 0.3)
    client = Client(harness)
    assert client.produce("other", number, build_batch([b"x"]), acks=1).error == 0
    try:
        # More clients than the directory has threads.
        clients = [reader(harness) for _ in range(6)]
        for each in clients:
            each.socket.settimeout(10)
            each.send_fetch("t", 0, 0, partition_max_bytes=LARGE)
        until(lambda: len(sent) == len(clients), what="all responses are begun")
        hangs.set()
        for each in clients:
            with pytest.raises((ConnectionError, AssertionError)):
                each.receive_fetch()
            each.close()
        rows = client.fetch_many([("t", 0, 0), ("other", number, 0)], max_wait_ms=20_000)
        assert [(row.error, bool(row.records)) for row in rows] == [(0, False), (0, True)]
    finally:
        goes_on.set()
    until(lambda: not any(each() for each in sent), what="no response is kept in memory")
    (row,) = client.fetch("t", 0, 0, partition_max_bytes=LARGE)
    assert row.records == content[: len(row.records)] and len(row.records) > LARGE - 2 * MIB
    client.close()


@pytest.mark.feature("18-18")
@pytest.mark.parametrize("what", ["a disk error", "a segment cut off"])
def test_response_that_cannot_be_finished_ends_the_connection(
    filled: tuple[Harness, bytes], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    harness, _ = filled
    given_up = watched(monkeypatch, 0.1)
    client = reader(harness)
    client.send_fetch("t", 0, 0, partition_max_bytes=LARGE)
    until(lambda: given_up)
    directory = harness.node.dirs.by_path(harness.directory_of("t"))

    def failing(region: Region, start: int, count: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as broken:
        if what == "a disk error":
            broken.setattr(Region, "read", failing)
        else:
            (path,) = Path(directory.path).glob("t-0/*.log")
            os.truncate(path, 1000)
        with pytest.raises((ConnectionError, AssertionError)):
            client.receive_fetch()
    assert directory.online == (what != "a disk error")
    if what == "a disk error":
        assert "the log of t-0" in str(directory.failure) and "Input/output error" in str(directory.failure)
    client.close()
    other = Client(harness)
    assert len(other.ask(18, 3).api_keys) > 10, "the node serves on"
    other.close()
