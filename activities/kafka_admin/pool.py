"""Blocking admin clients for an event loop: a few connections that all callers share."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from activities.kafka_admin.admin import KafkaAdmin
from activities.kafka_admin.client_config import ClientConfig
from activities.kafka_admin.errors import AdminError, NoResponse

T = TypeVar("T")
log = logging.getLogger(__name__)

#: Clients of one pool: a broker that does not respond holds one of them until its request times out.
CLIENTS = 4


class AdminPool:
    """Runs admin calls on threads, each with a client of its own; a client whose call had no response is replaced.

    `request_timeout` is the patience of one request, in seconds.
    """

    def __init__(
        self,
        config: ClientConfig,
        clients: int = CLIENTS,
        request_timeout: float = 10.0,
        admin: Callable[[ClientConfig, float], KafkaAdmin] = KafkaAdmin,
    ) -> None:
        self.config, self._admin = config, admin
        self._request_timeout = request_timeout
        self._threads = ThreadPoolExecutor(clients, "kafka-admin")
        self._gate = asyncio.Semaphore(clients)
        self._idle: list[KafkaAdmin] = []

    async def run(self, call: Callable[[KafkaAdmin], T]) -> T:
        """Return what `call` returns. Raises `AdminError`; `NoResponse` if the cluster does not respond in time.

        A caller that is cancelled waits for the call, which its thread carries out all the same: what the caller does
        instead must not come before it.
        """
        async with self._gate:
            calling = asyncio.get_running_loop().run_in_executor(self._threads, self._call, call)
            try:
                return await asyncio.shield(calling)
            except asyncio.CancelledError:
                await asyncio.wait([calling])
                if not calling.cancelled():
                    calling.exception()  # Nobody else asks for it.
                raise

    def _call(self, call: Callable[[KafkaAdmin], T]) -> T:
        try:
            admin = self._idle.pop()
        except IndexError:
            admin = self._admin(self.config, self._request_timeout).__enter__()
        try:
            found = call(admin)
        except AdminError as error:
            if isinstance(error, NoResponse):
                _close(admin)
            else:
                self._idle.append(admin)
            raise
        except BaseException:
            _close(admin)
            raise
        self._idle.append(admin)
        return found

    async def close(self) -> None:
        """Close the clients, after the calls in progress."""
        await asyncio.to_thread(self._threads.shutdown)
        while self._idle:
            _close(self._idle.pop())


def _close(admin: KafkaAdmin) -> None:
    with contextlib.suppress(Exception):
        admin.__exit__(None, None, None)
