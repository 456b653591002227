"""A connection that sends a large frame without a pause leaves every other turn of the loop to the others."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest

from storage_node.protocol import receiving
from tests.support.node_harness import Harness, raw_connection
from tests.support.wire import receive_frame

FRAME = 8 << 20


def test_large_frame_arrives_in_turns_with_other_connections(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never more than one read of `LARGEST_READ` between two turns, and the frame gets its response all the same."""
    loop = harness.node.listener.loop
    assert loop is not None
    turns, reads = [0], list[tuple[int, int]]()
    updated = receiving.FrameReader.buffer_updated

    def count(connection: Any, size: int) -> None:
        if connection._large is not None and connection._room > 2 * receiving.LARGEST_READ:
            reads.append((turns[0], size))
        updated(connection, size)

    def turn() -> None:
        turns[0] += 1
        if turns[0] >= 0:
            asyncio.get_running_loop().call_soon(turn)

    monkeypatch.setattr(receiving.FrameReader, "buffer_updated", count)
    with raw_connection(harness) as connection:
        loop.call_soon_threadsafe(turn)
        connection.sendall(struct.pack(">ihhih", 10 + FRAME, 18, 0, 1, -1) + bytes(FRAME))
        receive_frame(connection)
    loop.call_soon_threadsafe(lambda: turns.__setitem__(0, -(1 << 30)))
    by_turn: dict[int, int] = {}
    for number, size in reads:
        by_turn[number] = by_turn.get(number, 0) + size
    assert sum(by_turn.values()) > FRAME // 2
    assert max(by_turn.values()) < 2 * receiving.LARGEST_READ
