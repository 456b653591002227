"""Busy ports are found before a start."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from ops.stack import ports


@pytest.fixture
def busy() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        yield listener.getsockname()[1]


def test_listener_is_seen(busy: int) -> None:
    assert not ports.is_free(busy)
    assert ports.accepts(busy)


def test_error_names_port_purpose_and_remedy(busy: int) -> None:
    with pytest.raises(ports.PortBusy) as raised:
        ports.require_free({busy: "node-1"}, "/data/stack")
    message = str(raised.value)
    assert f"port {busy} for node-1 is in use" in message
    assert "/data/stack" in message
    assert "--port" in message


def test_temporals_port_has_its_own_option(busy: int) -> None:
    with pytest.raises(ports.PortBusy, match="--temporal-port"):
        ports.require_free({busy: "the Temporal server"}, "/data/stack")


def test_free_block_is_free_and_avoids_what_is_taken(busy: int) -> None:
    first = ports.free_block(4, start=21000)
    assert all(ports.is_free(port) for port in range(first, first + 4))
    second = ports.free_block(4, start=21000, taken=range(first, first + 4))
    assert set(range(first, first + 4)).isdisjoint(range(second, second + 4))


def test_blocks_of_two_that_begin_at_once_differ() -> None:
    assert len({ports.some_block(3) for _ in range(20)}) > 1
