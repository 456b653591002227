"""One blocking request to a node: its response, and the errors for anything that is not a response to it."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from storage_node.wire.client import kafka_client, private_client
from storage_node.wire.client.exchange import LARGEST_ANSWER, receive_frame
from storage_node.wire.codec import write_response
from storage_node.wire.table import API_VERSIONS, DESCRIBE_LOG_DIRS, METADATA
from tests.support.nodes.node_harness import Harness


@contextmanager
def peer(*pieces: bytes, ends: bool = True) -> Iterator[int]:
    """Yield a port that responds to one request with these bytes, and then closes the connection or stays silent."""
    over = threading.Event()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            receive_frame(connection)
            for piece in pieces:
                connection.sendall(piece)
            if not ends:
                over.wait(20)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            over.set()
            thread.join(20)


def framed(body: bytes, correlation: int = 1) -> bytes:
    return struct.pack(">ii", len(body) + 4, correlation) + body


def ask_privately(port: int) -> object:
    return private_client.call("127.0.0.1", port, "status", timeout=30)


def ask_metadata(port: int) -> object:
    return kafka_client.ask("127.0.0.1", port, METADATA, 12, timeout=30, client="test", topics=None)


BAD = {
    "closed at once": b"",
    "closed in the size": b"\0\0",
    "closed in the response": struct.pack(">ii", 100, 1) + b"{",
    "another protocol": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "a negative size": struct.pack(">i", -5),
    "no room for a correlation id": struct.pack(">i", 3) + b"abc",
    "larger than any response": struct.pack(">i", LARGEST_ANSWER + 1),
    "the response to another request": framed(b"{}", correlation=2),
}


@pytest.mark.parametrize("ask", [ask_privately, ask_metadata])
@pytest.mark.parametrize("what", BAD)
def test_invalid_response_raises_connection_error(what: str, ask: Callable[[int], object]) -> None:
    with peer(BAD[what], ends=what.startswith("closed")) as port, pytest.raises(ConnectionError) as caught:
        ask(port)
    assert str(caught.value)


@pytest.mark.parametrize("ask", [ask_privately, ask_metadata])
def test_unreachable_node_raises_connection_refused_error(ask: Callable[[int], object]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionRefusedError):
            ask(unused.getsockname()[1])


def test_silent_node_raises_timeout_error() -> None:
    with peer(b"\0\0", ends=False) as port, pytest.raises(TimeoutError):
        private_client.call("127.0.0.1", port, "status", timeout=0.2)
    with peer(ends=False) as port, pytest.raises(TimeoutError):
        kafka_client.ask("127.0.0.1", port, METADATA, 12, timeout=0.2, client="test")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x05\x00",  # more tagged fields than there are bytes
        struct.pack(">bii", 0, 0, 2**31 - 1),
        b"\0" + write_response(METADATA.key, 12, {"brokers": [{"node_id": 1, "host": "h", "port": 1}]})[:-8],
    ],
)
def test_error_of_a_malformed_response_names_the_node(body: bytes) -> None:
    with (
        peer(framed(body)) as port,
        pytest.raises(ConnectionError, match=f"127.0.0.1:{port} sent a malformed response"),
    ):
        ask_metadata(port)


def test_response_in_pieces_and_with_tagged_fields_in_its_header() -> None:
    data = framed(json.dumps({"node": 7}).encode())
    with peer(*(data[at : at + 3] for at in range(0, len(data), 3))) as port:
        assert ask_privately(port) == {"node": 7}
    answer = write_response(METADATA.key, 12, {"cluster_id": "c"})
    with peer(framed(b"\x01\x09\x02ab" + answer)) as port:
        assert ask_metadata(port).cluster_id == "c"  # type: ignore[attr-defined]


def test_exchange_with_a_node_returns_its_response(harness: Harness) -> None:
    port = harness.node.port
    harness.create_topic("t", 2)
    topics = [{"topic": "t", "partitions": [1]}]
    for version in (1, DESCRIBE_LOG_DIRS.max_version):
        asked = {"timeout": 30, "client": "test", "topics": topics}
        found = kafka_client.ask("127.0.0.1", port, DESCRIBE_LOG_DIRS, version, **asked)
        assert [row.partition_index for each in found.results for of in each.topics for row in of.partitions] == [1]
    for version in (0, API_VERSIONS.max_version):
        values = {"client_software_name": "a", "client_software_version": "1"} if version else {}
        answer = kafka_client.ask("127.0.0.1", port, API_VERSIONS, version, timeout=30, client="test", **values)
        assert any(row.api_key == METADATA.key for row in answer.api_keys)
