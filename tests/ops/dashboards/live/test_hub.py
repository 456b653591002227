"""One poller for all viewers: who is read when, what a failing source leaves, and what a viewer gets."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Mapping

import pytest

from ops.dashboards.live import hub as hubs
from ops.dashboards.live.board import STALE_SECONDS, Board, Freshness
from ops.dashboards.live.hub import Hub, Reading, SourceFailed
from tests.ops.dashboards.live.sample import board
from tests.support.nodes.node_harness import until


class Scripted:
    """A source that returns the number of its reads, until it fails with this text, or hangs."""

    def __init__(self) -> None:
        self.reads, self.fails, self.closed = 0, "", False
        self.hold = threading.Event()
        self.hold.set()

    def read(self) -> int:
        self.reads += 1
        self.hold.wait()
        if self.fails:
            raise SourceFailed(self.fails) if self.fails != "defect" else KeyError(self.fails)
        return self.reads

    def close(self) -> None:
        self.closed = True


def compose(readings: Mapping[str, Reading], now: float) -> Board:
    return board(at=now, notes=tuple(str(reading) for reading in readings.values()))


@pytest.mark.parametrize(
    ("reading", "state"),
    [
        (Reading(), Freshness.READING),
        (Reading(1, 100.0), Freshness.FRESH),
        (Reading(1, 100.0 - STALE_SECONDS - 0.1), Freshness.STALE),  # its read hangs
        (Reading(1, 99.9, "it is down"), Freshness.STALE),
        (Reading(None, None, "it is down"), Freshness.STALE),
    ],
)
def test_source_is_fresh_only_while_it_responds(reading: Reading, state: Freshness) -> None:
    source = reading.source("node 1", 100.0)
    assert (source.state, source.as_of) == (state, reading.as_of)
    assert bool(source.message) == (state is Freshness.STALE)


@pytest.mark.parametrize("fails", ["it is down", "defect"])
def test_failing_source_keeps_its_last_value_and_is_read_again(monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    monkeypatch.setattr(hubs, "SECONDS", 0.01)
    source = Scripted()
    hub = Hub({"node": source}, compose)
    hub.start()
    try:
        hub.watch()
        until(lambda: hub.last("node"), what="the first value")
        source.fails = fails
        until(lambda: "problem=''" not in hub.board()["notes"][0], what="the failure shows")
        assert hub.last("node")
        assert fails in hub.board()["notes"][0]
        source.fails = ""
        until(lambda: "problem=''" in hub.board()["notes"][0], what="the source is fresh again")
    finally:
        hub.stop()
    until(lambda: source.closed, what="the source is closed")


def test_sources_rest_while_the_dashboard_is_not_viewed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hubs, "SECONDS", 0.01)
    monkeypatch.setattr(hubs, "WATCHED_SECONDS", 0.05)
    source = Scripted()
    hub = Hub({"node": source}, compose)

    async def viewed() -> int:
        publishing = asyncio.create_task(hub.publish())
        boards = hub.boards()
        for _ in range(5):
            assert json.loads(await anext(boards))["cluster"] == "prod"
        await boards.aclose()  # type: ignore[attr-defined]
        assert hub.viewers == 0
        await asyncio.sleep(0.3)
        reads = source.reads
        await asyncio.sleep(0.2)
        publishing.cancel()
        return source.reads - reads

    hub.start()
    time.sleep(0.05)
    assert source.reads == 0
    try:
        assert asyncio.run(viewed()) == 0
        assert source.reads > 0
    finally:
        hub.stop()


def test_slow_viewer_gets_the_newest_board_and_a_hanging_source_delays_no_board(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hubs, "SECONDS", 0.01)
    source, hanging = Scripted(), Scripted()
    hanging.hold.clear()
    hub = Hub({"node": source, "slow": hanging}, compose)

    async def viewed() -> None:
        publishing = asyncio.create_task(hub.publish())
        slow = hub.boards()
        first = json.loads(await anext(slow))["at"]
        async for text in hub.boards():
            if json.loads(text)["at"] > first + 0.2:
                break
        assert json.loads(await anext(slow))["at"] > first + 0.15
        publishing.cancel()

    hub.start()
    try:
        asyncio.run(viewed())
    finally:
        hanging.hold.set()
        hub.stop()
