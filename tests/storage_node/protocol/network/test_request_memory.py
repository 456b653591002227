"""queued.max.request.bytes: reading pauses at the limit, and stalled connections are closed."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from storage_node.log.batches.batch import build_batch
from storage_node.log.log import Log
from storage_node.model.ids import TopicPartition
from storage_node.protocol.network import connections, request_memory
from storage_node.protocol.network.request_memory import RequestMemory
from tests.support.nodes.node_harness import Harness, raw_connection, running, until
from tests.support.wire import Client, encode_request, receive_frame

MIB = 2**20
LIMIT = 2 * MIB
LARGE = 900_000


@pytest.fixture
def tight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Harness]:
    """Yield a node with 2 MiB for requests."""
    monkeypatch.setattr(request_memory, "RESERVE", 64 * 1024)
    extra = {
        "socket.request.max.bytes": str(MIB),
        "queued.max.request.bytes": str(LIMIT),
        "message.max.bytes": str(MIB),
    }
    with running(tmp_path, dirs=2, extra=extra) as harness:
        harness.create_topic("t", 2)
        yield harness


def memory(harness: Harness) -> RequestMemory:
    table = harness.node.listener.connections
    assert table is not None
    return table.memory


def produce_frame(partition: int, size: int) -> bytes:
    data = {"index": partition, "records": build_batch([b"x" * size])}
    values: dict[str, Any] = {
        "acks": 1,
        "timeout": timedelta(seconds=30),
        "topic_data": [{"name": "t", "partition_data": [data]}],
    }
    return encode_request(0, 10, values)


@pytest.fixture
def hang(monkeypatch: pytest.MonkeyPatch, tight: Harness) -> Iterator[threading.Event]:
    """Yield an event for which appends to the directory of t-0 wait."""
    slow, release, original = tight.directory_of("t", 0), threading.Event(), Log.append_as_leader

    def hanging(self: Log, *args: object, **kwargs: object) -> object:
        if self.directory == slow:
            release.wait(30)
        return original(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Log, "append_as_leader", hanging)
    yield release
    release.set()  # a failed test must not wait for its disk


def test_reading_pauses_at_the_limit_and_every_client_gets_its_response(tight: Harness, hang: threading.Event) -> None:
    frame = produce_frame(0, LARGE)
    held, found = memory(tight), [raw_connection(tight, 30) for _ in range(12)]
    senders = [threading.Thread(target=each.sendall, args=(frame,)) for each in found]
    for sender in senders:
        sender.start()
    until(lambda: held.waiting >= 8, what="the others are queued")
    until(lambda: held.first is not None and held.first.held == len(frame) - 4, what="one is admitted beyond the limit")
    assert LIMIT <= held.held <= LIMIT + 2 * MIB
    other = Client(tight)
    assert other.ask(18, 3).error_code == 0, "small requests are still handled"
    assert other.produce("t", 1, build_batch([b"small"])).error == 0
    other.close()
    hang.set()
    assert all(receive_frame(each) for each in found)
    for sender, each in zip(senders, found, strict=True):
        sender.join(10)
        each.close()
    assert held.highest <= LIMIT + 2 * MIB
    until(lambda: held.held == 0 and held.waiting == 0)
    assert len(tight.consume("t", 12)) == 12


class Waiting:
    """A connection that is only queued."""

    peer, held, ends_by_itself = "peer", 0, True

    def read_again(self) -> None:
        """Do nothing."""

    def cut(self, why: str) -> None:
        raise AssertionError(why)


def test_large_requests_leave_small_ones_their_reserve() -> None:
    async def lives() -> None:
        held, largest = RequestMemory(LIMIT, MIB), Waiting()
        held.take(LIMIT - 1)
        assert held.may_begin(largest, MIB)
        held.take(MIB)  # ends beyond the limit
        assert not held.may_begin(largest, MIB)
        held.give(0)
        assert held.first is largest
        held.take(MIB)  # the first of the queue
        for size in (64 * 1024 for _ in range(request_memory.RESERVE // 65536)):
            assert held.may_begin(Waiting(), size)
            held.take(size)
        held.take(1)
        assert not held.may_begin(Waiting(), 1), "not for ever"

    asyncio.run(lives())


def test_half_received_requests_do_not_wait_for_each_other(tight: Harness) -> None:
    frame = produce_frame(0, LARGE)
    held, found = memory(tight), [raw_connection(tight, 30) for _ in range(10)]
    for each in found:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MIB)
        each.sendall(frame[:500_000])
    until(lambda: held.waiting >= 5)
    senders = [threading.Thread(target=each.sendall, args=(frame[500_000:],)) for each in found]
    for sender in senders:
        sender.start()
    assert all(receive_frame(each) for each in found)
    for sender, each in zip(senders, found, strict=True):
        sender.join(10)
        each.close()
    until(lambda: held.held == 0 and held.waiting == 0)
    assert held.highest <= LIMIT + 2 * MIB


def test_connection_stalled_in_a_request_is_closed_when_others_need_the_room(
    tight: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(request_memory, "STALLED", 0.3)
    frame = produce_frame(0, LARGE)
    held, stalled = memory(tight), [raw_connection(tight, 30) for _ in range(6)]
    for each in stalled:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MIB)
        each.sendall(frame[:-1000])
    until(lambda: held.full)
    good = raw_connection(tight, 30)
    good.sendall(frame)
    assert receive_frame(good)
    assert "connections waited for room" in caplog.text and "127.0.0.1" in caplog.text
    for each in (good, *stalled):
        each.close()
    until(lambda: held.held == 0)


def test_client_that_reads_no_responses_holds_no_memory_for_long(
    tight: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_memory, "STALLED", 0.3)
    question = encode_request(3, 9, {"topics": [{"name": f"{n:04d}" + "x" * 990} for n in range(900)]})
    deaf = [raw_connection(tight, 30) for _ in range(6)]
    for each in deaf:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        each.settimeout(0.2)
        try:
            for _ in range(20):
                each.sendall(question)
        except (TimeoutError, ConnectionError):
            pass
    held = memory(tight)
    until(lambda: held.highest >= LIMIT)
    good = raw_connection(tight, 30)
    for _ in range(3):
        good.sendall(produce_frame(0, LARGE))
        assert receive_frame(good)
    for each in (good, *deaf):
        each.close()
    until(lambda: held.held == 0)


def test_responses_that_clients_do_not_read_are_bounded(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MOST_UNSENT", 20 * MIB)
    monkeypatch.setattr(connections, "PATIENCE", 0.2)
    table = harness.node.listener.connections
    assert table is not None
    deaf, most = [Client(harness) for _ in range(12)], 0
    for client in deaf:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.send(3, 9, {"topics": [{"name": f"{n:05d}" + "x" * 800} for n in range(10_000)]})
        most = max(most, table.view(0)["unsent_bytes"])
    reader = Client(harness)
    answer = reader.ask(3, 9, {"topics": [{"name": f"{n:05d}" + "y" * 800} for n in range(10_000)]})
    assert len(answer.topics) == 10_000, "a client that reads gets its response"
    until(lambda: 0 < table.view(0)["unsent_bytes"] <= 20 * MIB, what="only some of the responses are kept")
    until(lambda: len(table) < 12, what="the other connections are closed")
    for client in (*deaf, reader):
        client.close()


def test_late_disk_keeps_no_records_that_it_has_not_begun_to_append(tight: Harness, hang: threading.Event) -> None:
    clients = [Client(tight) for _ in range(8)]
    for client in clients:
        client.send(0, 10, produce_values(timedelta(milliseconds=200), b"x" * 1000))
    rows = [client.receive()[1].responses[0].partition_responses[0] for client in clients]
    assert {int(row.error_code) for row in rows} == {7}
    hang.set()
    replica, threads = tight.node.partition(TopicPartition("t", 0)), tight.node.config.io_threads_per_dir
    assert replica is not None
    all_at_once = threading.Barrier(threads)  # no other work is under way in the directory
    for job in [replica.directory.submit(all_at_once.wait, 20) for _ in range(threads)]:
        job.result(30)
    begun = len(tight.consume("t", replica.log.log_end_offset))
    assert begun <= threads
    partition_end = Client(tight)
    assert partition_end.produce("t", 0, build_batch([b"last"])).base_offset == begun, "the others were not appended"
    for client in (*clients, partition_end):
        client.close()


def produce_values(timeout: timedelta, value: bytes) -> dict[str, Any]:
    data = {"index": 0, "records": build_batch([value])}
    return {"acks": 1, "timeout": timeout, "topic_data": [{"name": "t", "partition_data": [data]}]}
