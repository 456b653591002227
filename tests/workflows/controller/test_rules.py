"""A newer controller goes on with a run by the rules that the run began by, and the next run has the newest."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from tests.support.programs.temporal import TemporalServer
from tests.workflows.controller.test_cluster import Scene, run, topic
from tests.workflows.fakes import orchestrator, until_true
from workflows import options
from workflows.model.metadata import rules

pytestmark = pytest.mark.temporal


async def newer(it: Scene) -> None:
    """Another program takes the controller's place, which has to replay what the one before it decided."""
    await it.workers.pop(0).aclose()
    it.workers[0] = await it._enter(orchestrator(it.client, it.name, it.prober.probe_node))


def test_rules_change_with_the_run_not_with_the_program(
    temporal_server: TemporalServer, task_queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "QUIET_FOR", timedelta(milliseconds=200))
    newest = rules.RULES + 1

    async def scene(it: Scene) -> None:
        handle = await it.up(continue_at=[80, 260], rules=rules.RULES)
        first = (await handle.describe()).run_id
        await it.members[0].submit(handle, topic("t"))
        monkeypatch.setattr(rules, "RULES", newest)
        await newer(it)
        assert (await handle.query("describe"))["rules"] == newest - 1

        async def continued() -> bool:
            await it.members[0].submit(handle, topic(f"u{asyncio.get_running_loop().time()}"))
            return (await handle.describe()).run_id != first

        await until_true(continued)
        assert (await handle.query("describe"))["rules"] == newest

    run(temporal_server, task_queue, scene)
