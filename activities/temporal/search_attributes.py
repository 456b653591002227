"""Registers the search attributes of plans with the server: idempotently, and never at the cost of the runs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import timedelta

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from workflows.model.search_attributes import CLUSTER, DEADLINE, TYPES, ValueType

log = logging.getLogger(__name__)

RPC_PATIENCE = timedelta(seconds=10)
#: Seconds for all parts of the server to learn of new attributes: each reads the namespace again every few seconds.
LEARNING = 15.0
_LOOK = 0.5
#: Seconds after which a server that has rejected them is asked again.
AGAIN = 300.0

_CODES = {
    ValueType.KEYWORD: IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    ValueType.KEYWORD_LIST: IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD_LIST,
    ValueType.DATETIME: IndexedValueType.INDEXED_VALUE_TYPE_DATETIME,
}
#: A query that is valid only if the server knows all attributes, with these types; it finds nothing.
_PROBE = " AND ".join(
    [f"{CLUSTER} = ''"]
    + [f"{name} = ''" for name in TYPES if name not in (CLUSTER, DEADLINE)]
    + [f"{DEADLINE} < '1970-01-01T00:00:00Z'"]
)


async def known(client: Client) -> bool:
    """Return whether the client's namespace has all attributes."""
    try:
        await client.count_workflows(_PROBE, rpc_timeout=RPC_PATIENCE)
    except RPCError as error:
        if error.status is not RPCStatusCode.INVALID_ARGUMENT:
            log.info("cannot ask Temporal for its search attributes: %s", error.message)
        return False
    return True


async def register(client: Client) -> bool:
    """Register the attributes that are missing; return whether runs may use them. Raises nothing: it logs a note."""
    if await known(client):
        return True
    try:
        listed = await client.operator_service.list_search_attributes(
            ListSearchAttributesRequest(namespace=client.namespace), timeout=RPC_PATIENCE
        )
        missing = {
            name: _CODES[kind]
            for name, kind in TYPES.items()
            if name not in listed.custom_attributes and name not in listed.system_attributes
        }
        if missing:
            await client.operator_service.add_search_attributes(
                AddSearchAttributesRequest(namespace=client.namespace, search_attributes=missing), timeout=RPC_PATIENCE
            )
    except RPCError as error:
        if error.status is not RPCStatusCode.ALREADY_EXISTS:
            log.info(
                "plans run without search attributes: Temporal rejected their registration in namespace %s: %s; an "
                "administrator can create %s",
                client.namespace,
                error.message,
                ", ".join(f"{name} ({kind})" for name, kind in TYPES.items()),
            )
            return False
    until = time.monotonic() + LEARNING
    while not await known(client):
        if time.monotonic() >= until:
            log.info("plans run without search attributes: Temporal does not accept them yet, or has other types")
            return False
        await asyncio.sleep(_LOOK)
    return True


class SearchAttributes:
    """The attributes as one worker knows them: registered at its start, and requested again where they are missing."""

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._clock = client, clock
        self._work: asyncio.Task[bool] | None = None
        self._asked = 0.0

    def begin(self) -> None:
        """Register them in the background; for a running loop."""
        self._asked = self._clock()
        self._work = asyncio.create_task(register(self._client))

    async def usable(self) -> bool:
        """Return whether a run may use the attributes. Raises nothing."""
        if self._work is None or (self._work.done() and not _result(self._work) and self._due()):
            self.begin()
        assert self._work is not None
        await asyncio.wait([self._work])
        return _result(self._work)

    def _due(self) -> bool:
        return self._clock() >= self._asked + AGAIN


def _result(work: asyncio.Task[bool]) -> bool:
    if work.cancelled():
        return False
    if error := work.exception():
        log.warning("plans run without search attributes: %s", error)
        return False
    return work.result()
