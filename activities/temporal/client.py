"""A process's one client of Temporal: it is connected, watched, and replaced when its settings change.

The SDK's client reconnects by itself, silently, and with the settings that it was created with. So this checks the
server every few seconds, as a worker does when it starts (DescribeNamespace: address, TLS, credentials and namespace in
one call); and when that fails while the settings have changed (a renewed certificate or key, a corrected profile), it
connects a new client with those.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client

from activities.temporal import connection, errors
from activities.temporal.client_state import ClientHealth
from activities.temporal.errors import BadConfiguration, Kind

WATCH = 5.0  # seconds between two checks of the server
SOON = 1.0  # seconds to the next check after a failed one
PATIENCE = 5.0  # seconds for the server to respond to a check
CONNECT_SECONDS = 20.0  # for one attempt to connect
FIRST_PAUSE = 0.2  # seconds before the second attempt to connect
LONGEST_PAUSE = 5.0
#: Checks that may fail, one after the other, before the connection counts as lost: a busy server may miss one.
MAY_FAIL = 1

#: Problems that no retry can fix and that one failed check proves.
CERTAIN = (Kind.TLS, Kind.UNAUTHORIZED, Kind.NO_NAMESPACE)


class TemporalClient:
    """The client, on one event loop: `run` connects and watches, `get` waits for it."""

    def __init__(
        self,
        role: str,
        health: ClientHealth,
        profile: str | None = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> None:
        self._role, self._health, self._profile, self._overrides = role, health, profile, overrides
        self._client: Client | None = None
        self._made_with: dict[str, Any] = {}
        self._change = asyncio.Event()

    @property
    def connected(self) -> bool:
        """Return whether the client exists; its server may be unavailable nevertheless."""
        return self._client is not None

    async def get(self) -> Client:
        """Return the client, once it is connected."""
        while self._client is None:
            await self._change.wait()
        return self._client

    async def replaced(self, client: Client) -> None:
        """Return once another client has replaced this one."""
        while self._client is client:
            await self._change.wait()

    async def run(self) -> None:
        """Connect, watch, and reconnect with changed settings, until cancelled. The last client stays meanwhile."""
        while True:
            if self._client is None:
                await self._connect()
            else:
                await self._watch(self._client)

    async def _connect(self) -> None:
        pause = FIRST_PAUSE
        while not await self._connect_once():
            await asyncio.sleep(pause)
            pause = min(LONGEST_PAUSE, pause * 1.6)

    async def _connect_once(self) -> bool:
        settings: dict[str, Any] = {}
        try:
            settings = connection.settings(self._role, self._profile, self._overrides)
            async with asyncio.timeout(CONNECT_SECONDS):
                client = await Client.connect(**settings)
            await look_at(client)
        except Exception as error:
            self._report(error, settings)
            return False
        self._set(client, settings)
        self._health.connected(settings["target_host"], client.namespace)
        return True

    def _set(self, client: Client, settings: dict[str, Any]) -> None:
        self._client, self._made_with = client, settings
        self._change.set()
        self._change = asyncio.Event()

    async def _watch(self, client: Client) -> None:
        """Check the server until the client is replaced."""
        failed = 0
        while self._client is client:
            await asyncio.sleep(SOON if failed else WATCH)
            try:
                await look_at(client)
            except Exception as error:
                failed += 1
                if failed <= MAY_FAIL and errors.classify(error).kind not in CERTAIN:
                    continue
                if self._settings_changed():
                    await self._connect_once()
                else:
                    self._report(error, self._made_with)
            else:
                failed = 0
                self._health.connected(self._made_with["target_host"], client.namespace)

    def _settings_changed(self) -> bool:
        try:
            return connection.settings(self._role, self._profile, self._overrides) != self._made_with
        except BadConfiguration:
            return False  # The file may be incomplete while it is written.

    def _report(self, error: BaseException, settings: Mapping[str, Any]) -> None:
        address, namespace = settings.get("target_host", ""), settings.get("namespace", "default")
        problem = errors.classify(error, tls=bool(settings.get("tls")))
        self._health.not_connected(problem, address, namespace)


async def look_at(client: Client) -> None:
    """Return if the server responds, accepts this client and has its namespace. Raises RPCError."""
    request = DescribeNamespaceRequest(namespace=client.namespace)
    await client.workflow_service.describe_namespace(request, retry=False, timeout=timedelta(seconds=PATIENCE))
