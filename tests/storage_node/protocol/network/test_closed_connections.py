"""The requests of a client that has closed its connection: handled, responded to, dropped, counted."""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from kio.index import load_response_schema
from kio.serial import entity_reader

from storage_node.log.batches.batch import build_batch
from storage_node.model.ids import TopicPartition
from storage_node.protocol import listener
from storage_node.protocol.network.framing import READ_AHEAD_FRAMES
from tests.support.nodes.node_harness import Harness, raw_connection, until
from tests.support.wire import Client, encode_request, receive_frame


@contextmanager
def held_up(harness: Harness) -> Iterator[None]:
    """Block the log directories' threads."""
    release = threading.Event()
    for directory in harness.node.dirs.directories:
        for _ in range(32):
            directory.submit(release.wait)
    try:
        yield
    finally:
        release.set()


def end_offset(harness: Harness, topic: str = "t") -> int:
    return harness.node.replicas.served[TopicPartition(topic, 0)].log.log_end_offset


def held(harness: Harness) -> int:
    table = harness.node.listener.connections
    assert table is not None
    return table.memory.held


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def produce_frame(rows: int, *, cut: int = 0) -> bytes:
    """Return a produce to t-0 with so many more rows of partitions that do not exist; `cut`: bytes cut off its end."""
    row = {"index": 0, "records": build_batch([b"record"])}
    others = [{"index": 7, "records": b""}] * rows
    values = {
        "acks": 1,
        "timeout": timedelta(seconds=10),
        "topic_data": [{"name": "t", "partition_data": [row, *others]}],
    }
    frame = encode_request(0, 9, values)[4:]
    frame = frame[: len(frame) - cut]
    return struct.pack(">i", len(frame)) + frame


def with_header(wrong: str) -> bytes:
    """Return a produce with a malformed header."""
    frame = bytearray(produce_frame(0))
    match wrong:
        case "version":
            struct.pack_into(">h", frame, 6, 99)
        case "length":
            struct.pack_into(">i", frame, 0, -1)
        case "client id":
            del frame[16:]
            struct.pack_into(">i", frame, 0, len(frame) - 4)
    return bytes(frame)


@pytest.mark.parametrize("wrong", ["body", "version", "client id", "length"])
@pytest.mark.parametrize("rows", [[0, 0, 0], [29_000], [0, 29_000, 0]], ids=str)
def test_produce_before_a_malformed_request_gets_its_response_before_the_close(
    harness: Harness, rows: list[int], wrong: str
) -> None:
    """Apache Kafka reads a request after it has responded to the previous one."""
    harness.create_topic("t")
    before = held(harness)
    with raw_connection(harness) as connection:
        wanted = b"".join(map(produce_frame, rows))
        malformed = produce_frame(0, cut=3) if wrong == "body" else with_header(wrong)
        connection.sendall(wanted + malformed + produce_frame(0))
        answers = [entity_reader(load_response_schema(0, 9))(receive_frame(connection), 5)[0] for _ in rows]
        assert [answer.responses[0].partition_responses[0].error_code for answer in answers] == [0] * len(rows)
        assert connection.recv(1) == b"", "it is closed"
    assert end_offset(harness) == len(rows)
    until(lambda: held(harness) == before, what="the memory is released")


@pytest.mark.parametrize(("acks", "count"), [(0, 60), (0, 150), (1, 60), (-1, 60)])
def test_produce_on_a_lost_connection_is_appended_and_stays_counted(harness: Harness, acks: int, count: int) -> None:
    """With acks=0 also the requests that are still in the kernel's buffer, as in Apache Kafka."""
    harness.create_topic("t")
    # All bytes fit into the kernel's buffer of a connection that the node does not read, with any overhead.
    size = 40_000 // count
    before, read = held(harness), min(count, READ_AHEAD_FRAMES) * size
    client = Client(harness)
    with held_up(harness):
        for number in range(count):
            client.send_produce("t", 0, build_batch([b"%03d" % number + bytes(size)]), acks=acks)
        until(lambda: fcntl.ioctl(client.socket, termios.TIOCOUTQ, bytes(4)) == bytes(4), what="all has arrived")
        until(lambda: held(harness) - before > read, what="requests are read ahead")
        reset(client.socket)
        assert Client(harness).ask(18, 0).error_code == 0
        assert held(harness) - before > read
    until(lambda: end_offset(harness) == count, 10, what="all records are appended")
    until(lambda: held(harness) == before, what="the memory is released")


def test_lost_connection_drops_reads_and_handles_changes(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    harness.create_topic("t")
    asked: list[str] = []
    metadata = listener.HANDLERS["metadata"]

    async def watched(node: object, request: object) -> object:
        asked.append("metadata")
        return await metadata(node, request)  # type: ignore[arg-type]

    monkeypatch.setitem(listener.HANDLERS, "metadata", watched)  # type: ignore[arg-type]
    client = Client(harness)
    before = held(harness)
    with held_up(harness):
        client.send_produce("t", 0, build_batch([b"first"]))
        for _ in range(3 * READ_AHEAD_FRAMES):
            client.send(3, 9, {"topics": [{"name": "t"}]})
        client.send_produce("t", 0, build_batch([b"last"]), acks=0)
        until(lambda: held(harness) > before, what="requests wait")
        reset(client.socket)
        # Sending the response to the first request fails, by which the node learns that the connection is lost.
    until(lambda: held(harness) == before, what="nothing is held any more")
    assert end_offset(harness) >= 1
    assert len(asked) < 3 * READ_AHEAD_FRAMES
    until(lambda: Client(harness).ask(18, 0).error_code == 0)


def test_many_small_requests_of_one_read_are_handled_in_turns(harness: Harness) -> None:
    harness.create_topic("t")
    frame = encode_request(18, 0, {})
    count = 60_000 // len(frame)
    with raw_connection(harness) as connection:
        connection.sendall(frame * count)
        connection.shutdown(socket.SHUT_WR)
        received = 0
        while data := connection.recv(1 << 20):
            received += len(data)
        assert received % count == 0 and received >= count * 100, "each request has its response"
    until(lambda: held(harness) == 0, what="nothing is held any more")


def test_waiting_fetch_gets_its_response_after_a_half_close(harness: Harness) -> None:
    harness.create_topic("t")
    client = Client(harness)
    client.send_fetch("t", 0, 0, max_wait_ms=20_000)
    client.socket.shutdown(socket.SHUT_WR)
    with pytest.raises(TimeoutError):
        client.socket.settimeout(0.2)
        client.socket.recv(1)
    client.socket.settimeout(20)
    harness.produce("t", [b"record"])
    (row,) = client.receive_fetch()
    assert b"record" in row.records and client.closed()


def test_failed_request_drops_the_requests_after_it(harness: Harness) -> None:
    """As in Apache Kafka, which closes the connection and discards the rest."""
    harness.create_topic("t")
    client = Client(harness)
    with held_up(harness):
        client.send_produce("t", 0, build_batch([b"first"]))
        client.send_produce("missing", 0, build_batch([b"refused"]), acks=0)
        client.send(3, 9, {"topics": []})
        client.send_produce("t", 0, build_batch([b"never"]), acks=0)
    assert client.receive_produce()[1].error == 0
    assert client.closed()
    assert end_offset(harness) == 1
