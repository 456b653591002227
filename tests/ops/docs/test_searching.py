"""The page about search attributes is what the command prints, and a real server takes each of its queries."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from activities.temporal import search_attributes as registering
from ops.docs import searching
from tests.support.programs.temporal import TemporalServer, temporal_server
from workflows.model.search_attributes import TYPES

__all__ = ["temporal_server"]

PAGE = Path(searching.__file__).with_name("searching.md")
ROOT = Path(__file__).parents[3]


def test_page_is_what_the_command_prints() -> None:
    assert PAGE.read_text() == searching.page(), "print it again: python -m ops.docs.searching > ops/docs/searching.md"


def test_page_names_each_attribute() -> None:
    assert all(f"| {name} | {kind} |" in searching.page() for name, kind in TYPES.items())


def queries_of_pages() -> list[str]:
    """The queries for runs that other pages have: those of the CLI's command, and what is quoted alone."""
    found = []
    for page in sorted(ROOT.glob("*.md")) + sorted(ROOT.glob("*/**/*.md")):
        if page != PAGE and not {".venv", "build", ".rehome", "node_modules"}.intersection(page.parts):
            text = page.read_text()
            found += re.findall(r"workflow (?:list|count)[^\n]*--query '([^'\n]+)'", text)
            found += re.findall(r'workflow (?:list|count)[^\n]*--query "([^"\n]+)"', text)
            found += re.findall(r"`((?:WorkflowType|ExecutionStatus|TaskQueue|Rehome[A-Z]\w+) ?(?:=|IN|<)[^`]+)`", text)
    return found


def test_queries_of_pages_are_found() -> None:
    found = queries_of_pages()
    assert 'WorkflowType="PartitionReassignment"' in found
    assert "WorkflowType = 'PlanAlert' AND ExecutionStatus = 'Failed'" in found


@pytest.mark.temporal
def test_server_takes_each_query_once_the_attributes_are_registered(temporal_server: TemporalServer) -> None:
    async def work() -> None:
        client = await temporal_server.client()
        assert await registering.register(client)
        for query in [*searching.QUERIES.values(), *(searching.Query("", each) for each in queries_of_pages())]:
            filled = query.of(topic="orders", node="3", cluster="none", now="2026-01-01T00:00:00Z")
            assert len([run async for run in client.list_workflows(filled, limit=1)]) <= 1, filled

    asyncio.run(work())
