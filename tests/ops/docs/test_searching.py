"""The page about search attributes is what the command prints, and a real server takes each of its queries."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from activities.temporal import search_attributes as registering
from ops.docs import searching
from tests.support.programs.temporal import TemporalServer, temporal_server
from workflows.model.search_attributes import TYPES

__all__ = ["temporal_server"]

PAGE = Path(searching.__file__).with_name("searching.md")


def test_page_is_what_the_command_prints() -> None:
    assert PAGE.read_text() == searching.page(), "print it again: python -m ops.docs.searching > ops/docs/searching.md"


def test_page_names_each_attribute() -> None:
    assert all(f"| {name} | {kind} |" in searching.page() for name, kind in TYPES.items())


@pytest.mark.temporal
def test_server_takes_each_query_once_the_attributes_are_registered(temporal_server: TemporalServer) -> None:
    async def work() -> None:
        client = await temporal_server.client()
        assert await registering.register(client)
        for query in searching.QUERIES.values():
            filled = query.of(topic="orders", node="3", cluster="none", now="2026-01-01T00:00:00Z")
            await client.count_workflows(filled)

    asyncio.run(work())
