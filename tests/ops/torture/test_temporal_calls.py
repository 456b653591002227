"""Blocking calls of Temporal: one client for all, and an error with the reason for each failed call."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from temporalio.client import Client

from ops.stack.errors import OpsError
from ops.torture.temporal_calls import TemporalCalls


@pytest.fixture
def connects(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses of the clients created."""
    found: list[str] = []

    async def connect(target_host: str, **_: Any) -> object:
        found.append(target_host)
        return object()

    monkeypatch.setattr(Client, "connect", connect)
    return found


async def done(client: Client) -> int:
    return id(client)


def test_calls_share_a_client_until_the_address_changes(connects: list[str]) -> None:
    address = "127.0.0.1:1"
    calls = TemporalCalls(lambda: address)
    assert calls.call(done, 5) == calls.call(done, 5)
    address = "127.0.0.1:2"
    calls.call(done, 5)
    assert connects == ["127.0.0.1:1", "127.0.0.1:2"]


def test_call_that_times_out_fails_alone(connects: list[str]) -> None:
    calls, ended = TemporalCalls(lambda: "127.0.0.1:1"), threading.Event()

    async def late(client: Client) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    with pytest.raises(OpsError, match="Temporal: TimeoutError"):
        calls.call(late, 0.01)
    assert ended.wait(10)
    assert calls.call(done, 5) > 0


@pytest.mark.parametrize("error", [RuntimeError("odd"), OSError("odd"), TimeoutError()])
def test_failed_call_raises_the_reason(connects: list[str], error: Exception) -> None:
    async def fails(client: Client) -> None:
        raise error

    with pytest.raises(OpsError, match=r"^Temporal: (odd|TimeoutError)$"):
        TemporalCalls(lambda: "127.0.0.1:1").call(fails, 5)


def test_failed_connection_raises_and_is_retried_by_the_next_call(
    connects: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, there = TemporalCalls(lambda: "127.0.0.1:1"), Client.connect

    async def refused(**_: Any) -> object:
        raise RuntimeError("connection refused")

    monkeypatch.setattr(Client, "connect", refused)
    with pytest.raises(OpsError, match="connection refused"):
        calls.call(done, 5)
    monkeypatch.setattr(Client, "connect", there)
    assert calls.call(done, 5) > 0
