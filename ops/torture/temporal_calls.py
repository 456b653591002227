"""Blocking calls of Temporal from threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import TimeoutError as TookTooLong
from typing import TypeVar

from temporalio.client import Client
from temporalio.exceptions import TemporalError

from activities.temporal import connection
from ops.stack.errors import OpsError

T = TypeVar("T")

CONNECT_SECONDS = 10.0
SLACK_SECONDS = 5.0


class TemporalCalls:
    """A client on an event loop of its own, which is never closed: the SDK's threads may complete a call long after its
    timeout, and would report a closed loop as an error.
    """

    def __init__(self, address: Callable[[], str]) -> None:
        """`address` returns the server's current host and port."""
        self._address = address
        self._guard = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: tuple[str, Client] | None = None

    def call(self, work: Callable[[Client], Awaitable[T]], seconds: float) -> T:
        """Return the result of `work` with the client. Raises `OpsError`, also after `seconds`."""
        running = asyncio.run_coroutine_threadsafe(self._do(work, seconds), self._started())
        try:
            with connection.silent_sdk():
                return running.result(CONNECT_SECONDS + seconds + SLACK_SECONDS)
        except (RuntimeError, TemporalError, OSError, TimeoutError, TookTooLong) as error:
            running.cancel()
            raise OpsError(f"Temporal: {str(error) or type(error).__name__}") from error

    async def _do(self, work: Callable[[Client], Awaitable[T]], seconds: float) -> T:
        client = await asyncio.wait_for(self._connected(), CONNECT_SECONDS)
        return await asyncio.wait_for(work(client), seconds)

    async def _connected(self) -> Client:
        address = self._address()
        if self._client is None or self._client[0] != address:
            overrides = {"target_host": address, "namespace": "default"}
            self._client = address, await Client.connect(**connection.settings("torture", None, overrides))
        return self._client[1]

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._guard:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="temporal calls", daemon=True).start()
            return self._loop
