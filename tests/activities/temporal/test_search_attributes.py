"""Search attributes are registered once, and a server that rejects them costs the runs nothing but them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest
from temporalio.api.operatorservice.v1 import RemoveSearchAttributesRequest
from temporalio.service import RPCError, RPCStatusCode

from activities.temporal import search_attributes
from activities.temporal.search_attributes import SearchAttributes
from tests.support.programs.temporal import TemporalServer, own_temporal_server
from workflows.model.search_attributes import TYPES

__all__ = ["own_temporal_server"]


class _Rejecting:
    """A client whose server knows no attribute, and rejects their registration, as a hosted one does."""

    namespace = "default"

    def __init__(self) -> None:
        self.operator_service = self
        self.asked = 0

    async def count_workflows(self, query: str, **_: object) -> None:
        raise RPCError("unknown search attribute", RPCStatusCode.INVALID_ARGUMENT, b"")

    async def list_search_attributes(self, *_: object, **__: object) -> None:
        self.asked += 1
        raise RPCError("the operator service is not enabled", RPCStatusCode.UNIMPLEMENTED, b"")


@pytest.fixture
def notes(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, "activities.temporal.search_attributes"):
        yield caplog


def test_rejected_registration_is_a_note_and_is_repeated_later(notes: pytest.LogCaptureFixture) -> None:
    client, now = _Rejecting(), [1000.0]

    async def work() -> None:
        attributes = SearchAttributes(client, lambda: now[0])  # type: ignore[arg-type]
        attributes.begin()
        assert [await attributes.usable() for _ in range(3)] == [False] * 3
        assert client.asked == 1
        now[0] += search_attributes.AGAIN
        assert not await attributes.usable()
        assert client.asked == 2

    asyncio.run(work())
    assert "the operator service is not enabled; an administrator can create RehomeCluster (Keyword)" in notes.text


def test_failing_client_is_a_note(notes: pytest.LogCaptureFixture) -> None:
    async def work() -> bool:
        return await SearchAttributes(object()).usable()  # type: ignore[arg-type]

    assert asyncio.run(work()) is False
    assert "plans run without search attributes" in notes.text


@pytest.mark.temporal
def test_missing_attributes_are_registered_once(own_temporal_server: TemporalServer) -> None:
    async def work() -> None:
        client = await own_temporal_server.client()
        assert not await search_attributes.known(client)
        assert await search_attributes.register(client)
        assert await search_attributes.register(client)
        # One that an administrator has removed comes back; the others stay as they are.
        await client.operator_service.remove_search_attributes(
            RemoveSearchAttributesRequest(namespace=client.namespace, search_attributes=[sorted(TYPES)[0]])
        )
        for _ in range(60):
            if not await search_attributes.known(client):
                break
            await asyncio.sleep(0.5)
        assert await search_attributes.register(client)

    asyncio.run(work())
