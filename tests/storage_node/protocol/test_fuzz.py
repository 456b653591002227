"""Damaged records, silent connections, no descriptor left: the node rejects them or does without, and serves on."""

from __future__ import annotations

import errno
import random
import resource
import struct
from pathlib import Path

import psutil
import pytest

from storage_node import descriptors
from storage_node.directories.directory import LogDirectory
from storage_node.errors import LogAppendError, LogDirectoryOffline
from storage_node.log.batches.batch import build_batch
from storage_node.log.config import LogConfig
from storage_node.log.files import Home
from storage_node.log.log import Log
from storage_node.model.ids import TopicPartition
from storage_node.model.image import ClusterImage
from storage_node.protocol.apis import metadata_responses
from storage_node.protocol.network.connections import RESERVED
from storage_node.wire.table import APIS
from tests.support.nodes.node_harness import Harness, raw_connection, running
from tests.support.wire import Client, encode_request, receive_frame

GROWTH = 300_000_000
"""Bytes by which the node may grow for thousands of connections."""


def test_damaged_records_are_never_appended(harness: Harness) -> None:
    harness.create_topic("t")
    client = Client(harness)
    rng = random.Random(7)
    good = build_batch([b"abc", b"def"], timestamp=5)
    expected = 0
    for _ in range(300):
        records = bytearray(good)
        at = rng.randrange(len(records))
        records[at] ^= 1 << rng.randrange(8)
        row = client.produce("t", 0, bytes(records))
        # The node sets the leader epoch; the base offset must be 0, and a check covers every other field.
        assert (row.error == 0) == (12 <= at < 16), at
        if row.error == 0:
            assert row.base_offset == expected
            expected += 2
    partition = harness.node.partition(TopicPartition("t", 0))
    assert partition is not None and partition.log.log_end_offset == expected
    client.close()


def test_cached_metadata_responses_are_bounded() -> None:
    kept = metadata_responses.Answers()
    image = ClusterImage("c")
    for number in range(100):
        body = b"%d" % number + b"x" * 1_000_000
        assert kept.find(image, 12, body) is None
        kept.keep(12, body, b"y" * 1_000_000)
    found = sum(kept.find(image, 12, b"%d" % number + b"x" * 1_000_000) is not None for number in range(100))
    assert 0 < found * 2_000_000 <= metadata_responses.MOST_BYTES
    assert kept.find(ClusterImage("c", version=2), 12, b"0" + b"x" * 1_000_000) is None


def test_thousands_of_silent_connections(harness: Harness) -> None:
    before = psutil.Process().memory_info().rss
    count = min(2000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
    silent = [raw_connection(harness) for _ in range(count)]
    for connection in silent[::2]:
        connection.sendall(struct.pack(">i", 50)[:3])
    assert len(Client(harness).ask(18, 3).api_keys) == len(APIS)
    assert psutil.Process().memory_info().rss - before < GROWTH
    for connection in silent:
        connection.close()


def test_connections_leave_descriptors_to_the_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "open_files", lambda: 40)
    with running(tmp_path, dirs=1) as harness:
        connections = [raw_connection(harness) for _ in range(40)]
        frame = encode_request(18, 3, {"client_software_name": "x", "client_software_version": "1"})
        served = 0
        for connection in connections:
            try:
                connection.sendall(frame)
                receive_frame(connection)
                served += 1
            except (ConnectionError, AssertionError, OSError):
                pass
        # Closed only now: closing one earlier would make room for another that still waits to be accepted.
        for connection in connections:
            connection.close()
        assert served == 20 + RESERVED, "and the reserved ones of the loopback"


def test_limit_of_open_files_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = (1024, 50_000)
    set_to: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda what: set_to[-1] if set_to else limits)
    monkeypatch.setattr(resource, "setrlimit", lambda what, wanted: set_to.append(wanted))
    assert descriptors.raise_limit() == 50_000 and set_to == [(50_000, 50_000)]
    assert descriptors.most_connections(2**31 - 1) == 25_000 and descriptors.most_connections(10) == 10


def test_no_descriptor_left_is_no_failed_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = LogDirectory(tmp_path, "id")
    tp = TopicPartition("t", 0)
    log = Log.open(tmp_path / "t-0", tp, LogConfig(segment_bytes=500), directory=directory.name)
    log.append_as_leader(build_batch([b"x" * 300]), 0)

    def none_left(self: Home, name: str, flags: int = 0) -> object:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Home, "open", none_left)
    log.flush()
    assert log.recovery_point == 0, "the indexes are not written yet"
    with pytest.raises(LogAppendError) as caught:
        log.append_as_leader(build_batch([b"x" * 300]), 0)
    assert not directory.fail_on(caught.value) and directory.online
    monkeypatch.undo()
    assert log.append_as_leader(build_batch([b"x" * 300]), 0).base_offset == 1
    log.close()
    directory.close()


def test_directory_that_fails_between_look_up_and_read(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    harness.create_topic("t")
    client = Client(harness)
    assert client.produce("t", 0, build_batch([b"x"])).error == 0

    def failed(self: LogDirectory, *args: object, **kwargs: object) -> object:
        raise LogDirectoryOffline(self.name, "reading")

    monkeypatch.setattr(LogDirectory, "submit", failed)
    assert client.fetch("t", 0, 0)[0].error == 56
    monkeypatch.undo()
    assert client.fetch("t", 0, 0)[0].records, "the connection is still there"
    client.close()
