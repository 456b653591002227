"""Calls of Temporal from threads: one client for all, and an error that names the reason for each that fails."""

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
    """The addresses that clients were made for."""
    found: list[str] = []

    async def connect(target_host: str, **_: Any) -> object:
        found.append(target_host)
        return object()

    monkeypatch.setattr(Client, "connect", connect)
    return found


async def done(client: Client) -> int:
    return id(client)


def test_calls_share_a_client_until_the_server_is_elsewhere(connects: list[str]) -> None:
    address = "127.0.0.1:1"
    calls = TemporalCalls(lambda: address)
    assert calls.call(done, 5) == calls.call(done, 5)
    address = "127.0.0.1:2"
    calls.call(done, 5)
    assert connects == ["127.0.0.1:1", "127.0.0.1:2"]


def test_one_that_takes_too_long_fails_alone(connects: list[str]) -> None:
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
def test_what_fails_says_why(connects: list[str], error: Exception) -> None:
    async def fails(client: Client) -> None:
        raise error

    with pytest.raises(OpsError, match=r"^Temporal: (odd|TimeoutError)$"):
        TemporalCalls(lambda: "127.0.0.1:1").call(fails, 5)


def test_a_server_that_is_not_there_is_an_error_and_is_looked_for_again(
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
