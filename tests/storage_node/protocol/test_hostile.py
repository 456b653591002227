"""Any bytes on a socket: at worst the node logs a line, closes that connection and serves on."""

from __future__ import annotations

import contextlib
import io
import logging
import random
import socket
import struct
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema
from kio.serial import entity_writer

from storage_node.wire.codec import MalformedRequest, _build, read_request
from storage_node.wire.table import APIS
from tests.support.nodes.node_harness import Harness, raw_connection
from tests.support.wire import Client, encode_request, receive_frame


def serves(harness: Harness) -> bool:
    client = Client(harness)
    answer = client.ask(18, 3)
    client.close()
    return len(answer.api_keys) == len(APIS)


def ends(connection: socket.socket) -> bool:
    """Return whether the node closes the connection without a response."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


GARBAGE = {
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
    "negative length": struct.pack(">i", -5),
    "a length of 2 GiB": struct.pack(">i", 2**31 - 1),
    "too short": struct.pack(">i", 3) + b"abc",
    "unknown key": struct.pack(">ihhih", 10, 999, 0, 1, -1),
    "unknown version": struct.pack(">ihhih", 10, 3, 99, 1, -1),
    "client id beyond the frame": struct.pack(">ihhih", 10, 3, 1, 1, 30000),
    "a count of 2^31-1": struct.pack(">ihhihi", 14, 3, 1, 1, -1, 2**31 - 1),
    "a name beyond the frame": struct.pack(">ihhihih", 16, 3, 1, 1, -1, 1, 500),
    "produce with a count of 2^30": struct.pack(">ihhihhhii", 22, 0, 3, 1, -1, -1, 1, 1000, 2**30),
    "records beyond the frame": struct.pack(">ihhihhhiih1sii", 41 - 4, 0, 3, 1, -1, -1, 1, 1000, 1, 1, b"t", 1, 0)
    + struct.pack(">i", 2**30)[:0]
    + struct.pack(">i", 2**30),
}


@pytest.mark.parametrize("what", GARBAGE)
def test_garbage_ends_the_connection_with_one_line(
    harness: Harness, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    with caplog.at_level(logging.WARNING, "storage_node.protocol"):
        connection = raw_connection(harness)
        data = GARBAGE[what]
        if what == "records beyond the frame":
            data = struct.pack(">i", len(data) - 4) + data[4:]
        connection.sendall(data)
        assert ends(connection)
        connection.close()
    lines = [record for record in caplog.records if record.name.startswith("storage_node.protocol")]
    assert len(lines) == 1 and lines[0].exc_info is None and "127.0.0.1" in lines[0].getMessage()
    assert serves(harness)


def test_partial_frame_and_slow_sender_delay_no_other_client(harness: Harness) -> None:
    half = raw_connection(harness)
    half.sendall(struct.pack(">i", 50_000_000) + b"x" * 100_000)
    frame = encode_request(18, 3, {"client_software_name": "x", "client_software_version": "1"})
    slow = raw_connection(harness)
    for byte in frame:
        slow.sendall(bytes((byte,)))
    assert receive_frame(slow)[:4] == struct.pack(">i", 1)
    assert serves(harness)
    half.close()
    slow.close()


def test_frame_takes_memory_only_for_the_received_bytes(harness: Harness) -> None:
    import psutil

    before = psutil.Process().memory_info().rss
    connections = [raw_connection(harness) for _ in range(20)]
    for connection in connections:
        connection.sendall(struct.pack(">i", 100_000_000) + b"x" * 1000)
    assert serves(harness)
    assert psutil.Process().memory_info().rss - before < 200_000_000
    for connection in connections:
        connection.close()


def test_response_to_an_unknown_version_of_api_versions_is_version_0(harness: Harness) -> None:
    connection = raw_connection(harness)
    connection.sendall(struct.pack(">ihhih", 10, 18, 77, 9, -1))
    frame = receive_frame(connection)
    correlation, error, count = struct.unpack_from(">ihi", frame)
    assert (correlation, error, count) == (9, 35, 1)
    keys = {key: (low, high) for key, low, high in struct.iter_unpack(">hhh", frame[10:])}
    assert keys == {18: (0, 4)}
    connection.close()


def test_600_connections_at_once(harness: Harness) -> None:
    connections = [raw_connection(harness, 20) for _ in range(600)]
    frame = encode_request(18, 3, {"client_software_name": "x", "client_software_version": "1"})
    for connection in connections:
        connection.sendall(frame)
    assert all(receive_frame(connection)[:4] == struct.pack(">i", 1) for connection in connections)
    for connection in connections:
        connection.close()


KEYS = [(key, version) for key, api in APIS.items() for version in range(api.min_version, api.max_version + 1)]


@pytest.mark.parametrize(("key", "version"), KEYS)
def test_every_request_is_decoded_and_every_prefix_of_it_rejected(key: int, version: int) -> None:
    schema = load_request_schema(key, version)
    buffer = io.BytesIO()
    entity_writer(schema)(buffer, _build(schema)(SAMPLES.get(key, {})))
    whole = buffer.getvalue()
    read_request(key, version, whole, 0)
    for end in range(len(whole)):
        with pytest.raises(MalformedRequest):
            read_request(key, version, whole[:end], 0)


SAMPLES: dict[int, dict[str, Any]] = {
    3: {"topics": [{"name": "t"}]},
    19: {"topics": [{"name": "t", "configs": [{"name": "a", "value": "b"}], "assignments": [{"broker_ids": [1]}]}]},
    20: {"topics": [{"name": "t"}], "topic_names": ["t"]},
    34: {"dirs": [{"path": "/d", "topics": [{"name": "t", "partitions": [1, 2]}]}]},
    35: {"topics": [{"topic": "t", "partitions": [1]}]},
    44: {"resources": [{"resource_type": 2, "resource_name": "t", "configs": [{"name": "x", "value": None}]}]},
}


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(KEYS), st.binary(max_size=200))
def test_random_bytes_are_decoded_or_rejected(which: tuple[int, int], body: bytes) -> None:
    with contextlib.suppress(MalformedRequest):
        read_request(*which, body, 0)


def test_random_frames_never_stop_the_node(harness: Harness) -> None:
    harness.create_topic("t")
    rng = random.Random(5)
    for _ in range(150):
        key, version = rng.choice([pair for pair in KEYS if pair[0] not in (19, 20)])
        body = struct.pack(">hhih", key, version, 1, -1) + rng.randbytes(rng.randrange(60))
        connection = raw_connection(harness)
        connection.sendall(struct.pack(">i", len(body)) + body)
        connection.shutdown(socket.SHUT_WR)
        connection.close()
    assert serves(harness)
    harness.produce("t", [b"still here"])
