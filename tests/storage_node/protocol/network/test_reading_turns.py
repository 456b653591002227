"""Connections that send large frames without a pause leave every second iteration of the loop to the others."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
from typing import Any

import pytest

from storage_node.protocol.network import reading_turns, receiving
from tests.support.nodes.node_harness import Harness, raw_connection
from tests.support.wire import receive_frame

FRAME = 8 << 20


@pytest.mark.parametrize("senders", [1, 8])
def test_large_frames_arrive_in_turns_with_other_connections(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, senders: int
) -> None:
    """All connections share `LARGEST_READ` in one iteration, and each frame still gets its response."""
    loop = harness.node.listener.loop
    assert loop is not None
    turns, reads = [0], list[tuple[int, int]]()
    updated = receiving.FrameReader.buffer_updated

    def count(connection: Any, size: int) -> None:
        if connection._large is not None and connection._room > 2 * reading_turns.LARGEST_READ:
            reads.append((turns[0], size))
        updated(connection, size)

    def turn() -> None:
        turns[0] += 1
        if turns[0] >= 0:
            asyncio.get_running_loop().call_soon(turn)

    monkeypatch.setattr(receiving.FrameReader, "buffer_updated", count)
    frame = struct.pack(">ihhih", 10 + FRAME, 18, 0, 1, -1) + bytes(FRAME)
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(raw_connection(harness)) for _ in range(senders)]
        loop.call_soon_threadsafe(turn)
        threads = [threading.Thread(target=connection.sendall, args=(frame,)) for connection in connections]
        for thread in threads:
            thread.start()
        for connection in connections:
            receive_frame(connection)
        for thread in threads:
            thread.join()
    loop.call_soon_threadsafe(lambda: turns.__setitem__(0, -(1 << 30)))
    by_turn: dict[int, int] = {}
    for number, size in reads:
        by_turn[number] = by_turn.get(number, 0) + size
    assert sum(by_turn.values()) > senders * FRAME // 2
    # If more connections send than in the previous iteration, those that come last take the least.
    assert max(by_turn.values()) <= reading_turns.LARGEST_READ + senders * reading_turns.LEAST_READ
