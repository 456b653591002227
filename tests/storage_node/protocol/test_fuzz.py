"""Valid requests with bytes changed, removed and inserted: the node responds or closes the connection."""

from __future__ import annotations

import errno
import random
import resource
import socket
import struct
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

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
from storage_node.wire.codec import MAX_ELEMENTS, MalformedRequest, read_request
from storage_node.wire.table import APIS
from tests.support.nodes.node_harness import Harness, raw_connection, running
from tests.support.wire import Client, encode_request, receive_frame

SECONDS = 5.0
GROWTH = 300_000_000
"""Bytes by which the node may grow: buffers of a valid request's size, not of a false length's."""


def samples(harness: Harness) -> dict[int, dict[str, Any]]:
    """Return a plausible request of every API, by kio's names for all its versions."""
    batch = build_batch([b"x" * 50] * 3)
    assignment = {"partition_index": 0, "broker_ids": [1]}
    return {
        0: {
            "acks": -1,
            "timeout": timedelta(seconds=1),
            "topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": batch}]}],
        },
        1: {
            "max_wait": timedelta(0),
            "max_bytes": 1 << 20,
            "topics": [{"topic": "t", "partitions": [{"partition": 0, "partition_max_bytes": 1 << 20}]}],
        },
        2: {"topics": [{"name": "t", "partitions": [{"partition_index": 0, "timestamp": 5}]}]},
        3: {"topics": [{"name": "t"}]},
        10: {"key": "g", "coordinator_keys": ["g"]},
        19: {"topics": [{"name": "made", "num_partitions": -1, "replication_factor": -1, "assignments": [assignment]}]},
        20: {"topics": [{"name": "made"}], "topic_names": ["made"]},
        21: {"topics": [{"name": "t", "partitions": [{"partition_index": 0, "offset": 1}]}]},
        22: {"transactional_id": None},
        32: {"resources": [{"resource_type": 2, "resource_name": "t", "configuration_keys": ["retention.ms"]}]},
        34: {"dirs": [{"path": harness.other_directory("t"), "topics": [{"name": "t", "partitions": [0]}]}]},
        35: {"topics": [{"topic": "t", "partitions": [0]}]},
        37: {"topics": [{"name": "t", "count": 3}]},
        44: {"resources": [{"resource_type": 2, "resource_name": "t", "configs": [{"name": "retention.ms"}]}]},
        45: {"topics": [{"name": "t", "partitions": [{"partition_index": 0, "replicas": [1]}]}]},
        46: {"topics": [{"name": "t", "partition_indexes": [0]}]},
    }


def changed(rng: random.Random, frame: bytes) -> bytes:
    """Return a frame with a few bytes changed, removed or added; in nine of ten cases its length is right."""
    body = bytearray(frame[4:])
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(4 if rng.random() < 0.9 else 0, len(body))
        match rng.randrange(5):
            case 0:
                body[at] ^= 1 << rng.randrange(8)
            case 1:
                body[at : at + 4] = rng.choice([b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0", b"\0\0\0\0"])
            case 2:
                del body[at : at + rng.randrange(1, 6)]
            case 3:
                body[at:at] = rng.randbytes(rng.randrange(1, 6))
            case _:
                body[at] = rng.randrange(256)
        if len(body) < 8:
            break
    length = len(body) if rng.random() < 0.9 else rng.choice([0, -1, 2**31 - 1, len(body) - 3, len(body) + 500])
    return struct.pack(">i", length) + bytes(body)


def reads_or_ends(connection: socket.socket) -> None:
    """Receive bytes until the node closes the connection or is silent for a moment."""
    connection.settimeout(0.02)
    try:
        while connection.recv(1 << 16):
            pass
    except (TimeoutError, ConnectionError):
        pass
    finally:
        connection.close()


def test_changed_requests_of_every_api(harness: Harness) -> None:
    harness.create_topic("t")
    harness.create_topic("sentinel")
    harness.produce("sentinel", [b"before"])
    frames = [
        encode_request(key, version, samples(harness).get(key, {}))
        for key, api in APIS.items()
        for version in range(api.min_version, api.max_version + 1)
    ]
    before = psutil.Process().memory_info().rss
    rng = random.Random(11)
    until = time.monotonic() + SECONDS
    sent = 0
    while time.monotonic() < until or sent <= 100:
        connection = raw_connection(harness)
        try:
            for _ in range(rng.randrange(1, 8)):
                connection.sendall(changed(rng, rng.choice(frames)))
                sent += 1
        except ConnectionError:
            pass
        reads_or_ends(connection)
    assert psutil.Process().memory_info().rss - before < GROWTH
    assert all(directory.online for directory in harness.node.dirs.directories)
    assert len(Client(harness).ask(18, 3).api_keys) == len(APIS)
    harness.produce("sentinel", [b"after"])
    assert [message.value() for message in harness.consume("sentinel", 2)] == [b"before", b"after"]
    harness.restart()
    assert [message.value() for message in harness.consume("sentinel", 2)] == [b"before", b"after"]


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


def test_flood_of_tagged_fields_is_rejected_before_it_is_decoded() -> None:
    count = MAX_ELEMENTS + 1
    varint = bytes((count & 0x7F | 0x80, count >> 7 & 0x7F | 0x80, count >> 14))
    with pytest.raises(MalformedRequest, match="elements"):
        read_request(18, 3, b"\x01\x01" + varint + b"\0\0" * count, 0)


def test_request_with_very_many_topics_delays_no_other_client(harness: Harness) -> None:
    client = Client(harness)
    topics = [{"name": f"no topic {number % 20_000}", "num_partitions": 1} for number in range(40_000)]
    answer = client.ask(19, 5, {"topics": topics, "timeout": timedelta(seconds=5)})
    assert len(answer.topics) == 20_000 and all(topic.error_code for topic in answer.topics)
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
