"""A follower's connection: which thread may use and close its descriptor."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from storage_node.replication.connection import Disconnected, LeaderConnection
from tests.support.nodes.node_harness import until


@pytest.fixture
def server() -> Iterator[socket.socket]:
    made = socket.create_server(("127.0.0.1", 0))
    yield made
    made.close()


def connect(server: socket.socket) -> tuple[LeaderConnection, socket.socket]:
    made = LeaderConnection(*server.getsockname(), connect_timeout=5, timeout=60)
    other, _ = server.accept()
    return made, other


def test_shut_down_by_another_thread_leaves_the_descriptor_open_until_the_owner_closes_it(
    server: socket.socket,
) -> None:
    """A file opened meanwhile must not get the descriptor that the owner is about to read from."""
    connection, other = connect(server)
    number = connection.fileno()
    threading.Thread(target=connection.shut_down).start()
    assert other.recv(1) == b""
    with open(os.devnull) as opened:  # noqa: PTH123
        assert opened.fileno() != number
        with pytest.raises(Disconnected):
            connection.receive()
        with pytest.raises(Disconnected):
            connection.send(b"x")
    os.fstat(number)
    connection.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)
    connection.shut_down()
    connection.close()
    other.close()


def test_shut_down_ends_a_wait_for_a_response(server: socket.socket) -> None:
    connection, other = connect(server)
    ended = threading.Event()

    def wait() -> None:
        with pytest.raises(Disconnected):
            connection.receive()
        ended.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    other.sendall(b"\0\0")
    until(lambda: connection.shut_down() or ended.wait(0.01), what="the wait has ended")
    waiting.join(10)
    connection.close()
    other.close()
