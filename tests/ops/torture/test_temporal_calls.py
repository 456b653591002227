"""Blocking calls of Temporal: one client for all, and an error with the reason for each failed call."""

from __future__ import annotations

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


@pytest.mark.parametrize("error", [RuntimeError("odd"), OSError("odd"), TimeoutError()])
def test_failed_call_raises_the_reason(connects: list[str], error: Exception) -> None:
    async def fails(client: Client) -> None:
        raise error

    with pytest.raises(OpsError, match=r"^Temporal: (odd|TimeoutError)$"):
        TemporalCalls(lambda: "127.0.0.1:1").call(fails, 5)
