"""A fetcher thread against a leader that sends invalid responses, is slow or stops: the leader is a script."""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kio.index import load_request_schema
from kio.serial import entity_reader

from storage_node.log.batches.batch import build_batch
from storage_node.model.ids import TopicPartition
from storage_node.node import Node
from tests.storage_node.replication.test_fetch_request import answer
from tests.support.nodes.node_harness import make_config, make_dirs, until
from tests.support.nodes.replicated import content
from tests.support.nodes.static_image import image, row

ID = "AAECAwQFBgcICQoLDA0ODw"
TP = TopicPartition("t", 0)
NOW = int(time.time() * 1000)


class Script(threading.Thread):
    """A leader that responds to each request by `reply(requested rows)`: rows, bytes, or None for no response."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        self.requested: list[dict[int, tuple[int, int]]] = []
        """Per request: partition -> (offset, last fetched epoch)."""
        self.reply: Callable[[dict[int, tuple[int, int]]], Any] = lambda requested: [
            {"partition_index": each} for each in requested
        ]
        self.start()

    def run(self) -> None:
        while True:
            try:
                connection, _ = self.server.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            while size := connection.recv(4, socket.MSG_WAITALL):
                frame = connection.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL)
                key, _version, correlation, named = struct.unpack_from(">hhih", frame)
                if key != 1:
                    return  # nodes send each other other requests as well
                call, _ = entity_reader(load_request_schema(1, 17))(frame, 8 + 2 + named + 1)
                rows = {r.partition: (r.fetch_offset, r.last_fetched_epoch) for t in call.topics for r in t.partitions}
                self.requested.append(rows)
                found = self.reply(rows)
                if found is None:
                    continue
                if not isinstance(found, bytes):
                    if not any(each.get("records") or each.get("error_code") for each in found):
                        time.sleep(0.02)
                    found = answer(found, correlation=correlation)
                connection.sendall(len(found).to_bytes(4, "big") + found)

    def close(self) -> None:
        # `close` alone leaves the thread in `accept`, which may return for a later socket with the same descriptor.
        self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()
        self.join(30)


@pytest.fixture
def script() -> Iterator[Script]:
    made = Script()
    yield made
    made.close()


@pytest.fixture
def node(tmp_path: Path, script: Script) -> Iterator[Node]:
    extra = {"replica.fetch.backoff.ms": "100", "replica.socket.timeout.ms": "400", "replica.fetch.wait.max.ms": "100"}
    made = Node(make_config(make_dirs(tmp_path, 1), 1, 0, extra))
    made.start()
    yield made
    made.stop()


def follow(node: Node, script: Script, partitions: int = 1) -> None:
    rows = [row([2, 1], leader=2, isr=[2], partition=each) for each in range(partitions)]
    node.apply_images([image(1, rows, {1: 9, 2: script.port}, topic_id=ID).encode()])


def end(node: Node, partition: int = 0) -> int:
    return node.replicas.served[TopicPartition("t", partition)].log.log_end_offset


def batch(offset: int) -> bytes:
    return build_batch([b"x"] * 10, base_offset=offset, leader_epoch=1, timestamp=NOW)


def ten_at_a_time(limit: int) -> Callable[[dict[int, tuple[int, int]]], Any]:
    def reply(requested: dict[int, tuple[int, int]]) -> Any:
        return [
            {"partition_index": each, "high_watermark": limit, "records": batch(offset) if offset < limit else None,
             "log_start_offset": 0}
            for each, (offset, _) in requested.items()
        ]  # fmt: skip

    return reply


def test_corrupt_batch_is_not_appended_and_fetched_again(
    node: Node, script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    good = ten_at_a_time(40)

    def corrupt(requested: dict[int, tuple[int, int]]) -> Any:
        rows = good(requested)
        for each in rows:
            if each["partition_index"] == 0 and requested[0][0] == 20:
                each["records"] = each["records"][:-1] + b"?"
        return rows

    script.reply = corrupt
    with caplog.at_level(logging.ERROR):
        follow(node, script, 2)
        # The other partition of the same thread continues.
        until(lambda: end(node, 1) == 40, what="the other one has everything")
        seen = len(script.requested)
        until(
            lambda: sum(requested[0][0] == 20 for requested in script.requested[seen:] if 0 in requested) > 2,
            what="it is retried",
        )
        assert end(node) == 20
    told = [record.getMessage() for record in caplog.records]
    assert sum("t-0" in each and "from offset 20 are corrupt" in each for each in told) == 1, told
    script.reply = good
    until(lambda: end(node) == 40, what="it continues once the leader's disk works again")


@pytest.mark.parametrize(
    "wrong", [b"", b"\0\0\0\0", b"\xff" * 50, struct.pack(">i", 7) + b"\0" * 40], ids=["none", "short", "long", "other"]
)
def test_invalid_response_only_closes_the_connection(node: Node, script: Script, wrong: bytes) -> None:
    count = 0

    def reply(requested: dict[int, tuple[int, int]]) -> Any:
        nonlocal count
        count += 1
        return wrong if count < 4 else ten_at_a_time(20)(requested)

    script.reply = reply
    follow(node, script)
    until(lambda: end(node) == 20, what="it was fetched again")


def test_fetch_without_response_is_retried(node: Node, script: Script) -> None:
    silent = True
    script.reply = lambda requested: None if silent else ten_at_a_time(20)(requested)
    follow(node, script)
    until(lambda: len(script.requested) >= 2, what="a second connection was made")
    silent = False
    until(lambda: end(node) == 20, what="it has the records")


def test_error_of_one_partition_does_not_affect_others(node: Node, script: Script) -> None:
    def reply(requested: dict[int, tuple[int, int]]) -> Any:
        rows = ten_at_a_time(20)(requested)
        return [each | ({"error_code": 6, "records": None} if each["partition_index"] == 0 else {}) for each in rows]

    script.reply = reply
    follow(node, script, 2)
    until(lambda: end(node, 1) == 20, what="the other one has everything")
    assert end(node) == 0
    # Failing partitions are fetched less and less often.
    began, first = time.monotonic(), len(script.requested)
    time.sleep(1.0)
    requested = sum(0 in each for each in script.requested[first:])
    assert requested <= 25 * (time.monotonic() - began)
    until(lambda: sum(0 in each for each in script.requested[first:]) >= 3, what="it is fetched again and again")
    script.reply = ten_at_a_time(20)
    until(lambda: end(node) == 20, what="it continues")


def test_diverging_log_is_truncated_until_it_agrees(node: Node, script: Script) -> None:
    script.reply = ten_at_a_time(30)
    follow(node, script)
    until(lambda: end(node) == 30)

    def reply(requested: dict[int, tuple[int, int]]) -> Any:
        offset, epoch = requested[0]
        if offset > 10:
            assert epoch == 1
            return [{"partition_index": 0, "diverging_epoch": {"epoch": 1, "end_offset": 10}}]
        return [{"partition_index": 0, "high_watermark": 10, "log_start_offset": 0}]

    script.reply = reply
    until(lambda: end(node) == 10, what="it is cut off")
    assert node.replicas.served[TP].high_watermark == 10


def test_stop_does_not_wait_for_a_leader(node: Node, script: Script) -> None:
    script.reply = lambda requested: None
    follow(node, script)
    until(lambda: script.requested)
    began = time.monotonic()
    node.stop()
    assert time.monotonic() - began < 12
    assert not [each for each in threading.enumerate() if each.name.startswith("fetch-2-d0")]


def a_hundred(offset: int) -> bytes:
    return b"".join(
        build_batch([bytes(2000)] * 10, base_offset=at, leader_epoch=1, timestamp=NOW)
        for at in range(offset, offset + 100, 10)
    )


def hundreds(limit: int) -> Callable[[dict[int, tuple[int, int]]], Any]:
    def reply(requested: dict[int, tuple[int, int]]) -> Any:
        offset = requested[0][0]
        found: dict[str, Any] = {"partition_index": 0, "high_watermark": limit, "log_start_offset": 0}
        return [found | ({"records": a_hundred(offset)} if offset < limit else {})]

    return reply


@pytest.mark.parametrize("limit", [100, 400])
def test_next_request_is_sent_early_only_below_the_high_watermark(node: Node, script: Script, limit: int) -> None:
    """Otherwise its offset would confirm records to the leader that are not in the log yet."""
    follow(node, script)
    until(lambda: len(script.requested) > 2, what="the first responses are applied")
    with node.replicas.served[TP].lock:
        # The lock prevents any append.
        script.reply = hundreds(limit)
        if limit > 100:
            until(lambda: script.requested[-1] == {0: (100, 1)}, what="the next request came early")
        time.sleep(0.3)
        assert script.requested[-1][0][0] == (100 if limit > 100 else 0)
    until(lambda: end(node) == limit)


def test_response_to_an_early_request_is_dropped_after_a_failed_append(node: Node, script: Script) -> None:
    """Otherwise the log would have a gap."""
    good, wrong = hundreds(400), True

    def reply(requested: dict[int, tuple[int, int]]) -> Any:
        rows = good(requested)
        if wrong and requested[0][0] == 0:
            rows[0]["records"] = rows[0]["records"][:-1] + b"?"
        return rows

    script.reply = reply
    follow(node, script)
    until(
        lambda: sum(requested[0][0] == 100 for requested in script.requested if 0 in requested) > 1,
        what="early requests",
    )
    assert end(node) == 0
    wrong = False
    until(lambda: end(node) == 400)
    assert content(node.replicas.served[TP].log) == b"".join(map(a_hundred, range(0, 400, 100)))
