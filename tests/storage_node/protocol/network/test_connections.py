"""The table of connections: its limits, idle connections, and the operator's view of it."""

from __future__ import annotations

import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest

from storage_node.config.node_config import ConfigError, NodeConfig
from storage_node.log.batches.batch import build_batch
from storage_node.log.log import Log
from storage_node.protocol import listener
from storage_node.protocol.network.connections import RESERVED, Connections, Limits
from storage_node.wire.client.private_client import call
from tests.support.needs import reason
from tests.support.nodes.node_harness import Harness, raw_connection, running, until
from tests.support.wire import Client, encode_request, receive_frame

HELLO = encode_request(18, 3, {"client_software_name": "a-client", "client_software_version": "1.2"})


def served(connection: socket.socket) -> bool:
    """Return whether the node responds on a connection, and does not close it."""
    try:
        connection.sendall(HELLO)
        return bool(receive_frame(connection))
    except OSError:
        return False


def closed(connection: socket.socket, seconds: float = 10.0) -> bool:
    """Return whether the node closes a silent connection within some seconds."""
    connection.settimeout(seconds)
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


def table(harness: Harness) -> Connections:
    found = harness.node.listener.connections
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("host", "elsewhere"), [("127.0.0.1", False), ("localhost", False), ("", True)], ids=["address", "name", "none"]
)
def test_listener_with_a_host_accepts_no_connection_at_another_address(
    tmp_path: Path, host: str, elsewhere: bool
) -> None:
    with running(tmp_path, dirs=1, extra={"listeners": f"PLAINTEXT://{host}:0"}) as harness:
        bound = harness.node.listener._socket
        assert bound is not None
        address, port = bound.getsockname()[:2]
        assert port == harness.node.port
        with raw_connection(harness) as connection:
            assert served(connection), "the node serves at the configured address"
        if elsewhere:
            assert address in ("::", "0.0.0.0"), "without a host it binds to every interface"
            with socket.create_connection(("127.0.0.2", port), 10) as connection:
                assert served(connection)
        else:
            assert address == "127.0.0.1"
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.2", port), 10)


def test_max_connections_reserves_some_for_the_loopback(tmp_path: Path) -> None:
    with running(tmp_path, dirs=1, extra={"max.connections": "3"}) as harness:
        before = len(table(harness))
        connections = [raw_connection(harness) for _ in range(20)]
        assert sum(served(connection) for connection in connections) == 3 + RESERVED - before
        for connection in connections:
            connection.close()
        until(lambda: len(table(harness)) <= 3, what="the connections are removed from the table")
        again = raw_connection(harness)
        assert served(again)
        again.close()
        assert table(harness).refused == 20 - (3 + RESERVED - before)


def test_remote_clients_never_get_the_connections_reserved_for_the_loopback(harness: Harness) -> None:
    class Stranger:
        peer = "10.1.2.3"

    class Neighbour:
        peer = "127.0.0.1"

    async def ask() -> list[bool]:
        found = Connections(Limits(connections=2, per_address=1000))
        answers = [found.admit(each()) for each in (Stranger, Stranger, Stranger, Neighbour)]  # type: ignore[arg-type]
        found.stop()
        return answers

    import asyncio

    assert asyncio.run(ask()) == [True, True, False, True]


def test_connections_per_address(tmp_path: Path) -> None:
    extra = {"max.connections.per.ip": "4", "max.connections.per.ip.overrides": "127.0.0.2:2,127.0.0.3:0"}
    with running(tmp_path, dirs=1, extra=extra) as harness:
        address = ("127.0.0.1", harness.node.port)
        for source, most in (("127.0.0.4", 4), ("127.0.0.2", 2), ("127.0.0.3", 0)):
            connections = [socket.create_connection(address, 10, (source, 0)) for _ in range(6)]
            assert sum(served(connection) for connection in connections) == most, source
            for connection in connections:
                connection.close()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"max.connections.per.ip.overrides": "127.0.0.1"}, "host:count"),
        ({"max.connections.per.ip.overrides": "a:b"}, "host:count"),
        ({"max.connections.per.ip": "-1"}, "max.connections.per.ip=-1"),
        ({"queued.max.request.bytes": "1000"}, "socket.request.max.bytes=104857600"),
    ],
)
def test_invalid_connection_limits_are_rejected(given: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        NodeConfig.parse({"node.id": "1", "log.dirs": "/a", **given})


def test_connection_limits_use_kafkas_configs() -> None:
    config = NodeConfig.parse({"node.id": "1", "log.dirs": "/a"})
    limits = Limits.of(config)
    assert limits.idle_seconds == 600 and limits.per_address == 2**31 - 1 and limits.frame == 100 * 2**20
    assert limits.request_bytes == 256 * 2**20, "Kafka has no limit by default; this is above the largest request"
    large = {"node.id": "1", "log.dirs": "/a", "socket.request.max.bytes": str(2**30)}
    assert Limits.of(NodeConfig.parse(large)).request_bytes == 2**30
    none = {**large, "queued.max.request.bytes": "-1", "connections.max.idle.ms": "-1"}
    assert Limits.of(NodeConfig.parse(none)).request_bytes is None
    assert Limits.of(NodeConfig.parse(none)).idle_seconds is None
    named = {**large, "max.connections.per.ip.overrides": "localhost:7, [::1]:8"}
    limits = Limits.of(NodeConfig.parse(named))
    assert limits.at("::1") in (7, 8) and limits.at("10.0.0.1") == 2**31 - 1


def test_idle_connections_are_closed_except_with_a_request_under_way(tmp_path: Path) -> None:
    with running(tmp_path, dirs=1, extra={"connections.max.idle.ms": "400"}) as harness:
        harness.create_topic("t")
        silent, half, busy, waiting = raw_connection(harness), raw_connection(harness), Client(harness), Client(harness)
        began = asked = time.monotonic()
        waiting.send_fetch("t", 0, 0, max_wait_ms=1500)
        half.sendall(HELLO[:7])
        while time.monotonic() < began + 1.4:
            before, asked = asked, time.monotonic()
            try:
                assert busy.ask(18, 3).error_code == 0
            except ConnectionError:
                # On a machine that pauses for a moment, this connection has been idle as well.
                assert time.monotonic() - before > 0.4
                busy = Client(harness)
        assert closed(silent) and closed(half)
        (row,) = waiting.receive_fetch()
        assert row.error == 0 and time.monotonic() - began > 1.4, "the fetch waited for its max_wait"
        assert closed(waiting.socket) and closed(busy.socket)
        assert table(harness).closed_idle >= 4
        silent.close()
        half.close()


def test_client_that_reads_no_responses_is_idle(tmp_path: Path) -> None:
    with running(tmp_path, dirs=1) as harness:
        frame, found = much(), table(harness)
        client = raw_connection(harness)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(frame)
        until(lambda: found.view(0)["unsent_bytes"] > 0)
        found.limits = replace(found.limits, idle_seconds=0.3)
        until(lambda: found.view(0)["unsent_bytes"] == 0 and not len(found), what="it is closed")
        client.close()


def much() -> bytes:
    """Send a request whose response of 16 MB exceeds the kernel's buffers for a client that does not read."""
    return encode_request(3, 9, {"topics": [{"name": f"{number:05d}" + "x" * 800} for number in range(20_000)]})


def test_view_of_the_connections_for_the_operator(harness: Harness) -> None:
    harness.create_topic("t")
    client, other = Client(harness), raw_connection(harness)
    assert served(other)
    client.send_fetch("t", 0, 0, max_wait_ms=6_000)
    local = client.socket.getsockname()[1]

    def row(port: int) -> dict[str, object]:
        found = call("127.0.0.1", harness.node.port, "connections")
        return next(each for each in found["connections"] if each["peer"] == f"127.0.0.1:{port}")

    until(lambda: row(local)["under_way"] == "fetch")
    seen = row(local)
    assert seen["client_id"] == "test" and seen["requests"] == 1 and seen["bytes_in"] > 50 and seen["idle"] == 0
    assert seen["bytes_out"] == 0 and 0 <= seen["under_way_seconds"] <= seen["age"] < 20  # type: ignore[operator]
    quiet = row(other.getsockname()[1])
    assert quiet["software"] == "a-client 1.2" and quiet["under_way"] == "" and quiet["bytes_in"] == len(HELLO)
    assert quiet["bytes_out"] > 50  # type: ignore[operator]
    found = call("127.0.0.1", harness.node.port, "connections")
    assert found["limits"]["connections.max.idle.ms"] == 600_000 and found["open"] == len(found["connections"])
    assert 0 < found["request_bytes"] < 1000, "the waiting fetch, and this call"
    client.close()
    other.close()
    until(lambda: table(harness).memory.held == 0, what="all memory is released")


def test_control_characters_in_client_names_are_escaped(harness: Harness) -> None:
    connection = raw_connection(harness)
    values = {"client_software_name": "\x1b[2Jé", "client_software_version": "x" * 5000}
    connection.sendall(encode_request(18, 3, values))
    receive_frame(connection)
    found = call("127.0.0.1", harness.node.port, "connections")["connections"]
    (shown,) = [row["software"] for row in found if "x1b" in row["software"]]
    assert shown.startswith("\\x1b[2J\\xe9 xxx") and len(shown) < 200
    connection.close()


def test_stopping_node_responds_to_requests_under_way(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    harness.create_topic("t")
    original, begun = Log.append_as_leader, []

    def slow(self: Log, *args: object, **kwargs: object) -> object:
        begun.append(self)
        until(lambda: harness.node.listener._stopped.is_set())  # type: ignore[union-attr]
        return original(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Log, "append_as_leader", slow)
    monkeypatch.setattr(listener, "LAST_ANSWERS", 20.0)  # the append's thread may not have its turn within a second
    client, waiting = Client(harness), Client(harness)
    client.send_produce("t", 0, build_batch([b"x"]))
    client.send(18, 3, {})
    waiting.send_fetch("t", 0, 0, max_wait_ms=60_000)
    until(lambda: begun)
    harness.node.listener.stop()  # which does not wait for a waiting fetch
    assert client.receive_produce()[1].error == 0
    assert closed(client.socket) and closed(waiting.socket)
    client.close()
    waiting.close()
    monkeypatch.undo()
    harness.stop()
    harness.node = harness._new(0)
    harness.start()
    assert [message.value() for message in harness.consume("t", 1)] == [b"x"]


def test_responses_are_in_the_order_of_the_requests(harness: Harness) -> None:
    harness.create_topic("t", 3)
    client = Client(harness)
    asked = []
    for number in range(120):
        match number % 5:
            case 0 | 1:
                asked.append(client.send_produce("t", number % 3, build_batch([b"x" * 100]), acks=number % 2))
                if number % 2 == 0:
                    asked.pop()
            case 2:
                asked.append(client.send_fetch("t", 0, 0, max_wait_ms=number % 7))
            case 3:
                asked.append(client.send(3, 12, {"topics": None}))
            case _:
                asked.append(client.send(35, 2, {"topics": None}))
    assert [client.receive()[0] for _ in asked] == asked
    client.close()


def test_ipv6(tmp_path: Path) -> None:
    if not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists():
        pytest.skip(reason("IPv6", "this machine has none"))
    for host, peers in (("[::1]", ["::1"]), ("", ["::1", "127.0.0.1"])):
        extra = {"listeners": f"PLAINTEXT://{host}:0"}
        with running(tmp_path, dirs=1, extra=extra) as harness:
            for peer in peers:
                connection = socket.create_connection((peer, harness.node.port), 10)
                assert served(connection)
                rows = call(peer, harness.node.port, "connections")["connections"]
                port = connection.getsockname()[1]
                assert (f"[{peer}]:{port}" if ":" in peer else f"{peer}:{port}") in [row["peer"] for row in rows]
                connection.close()


def test_connections_use_tcp_keepalive(harness: Harness) -> None:
    connection = raw_connection(harness)
    assert served(connection)
    (found,) = [each for each in table(harness).all() if each._port == connection.getsockname()[1]]
    assert found.transport is not None
    sock = found.transport.get_extra_info("socket")
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    connection.close()
