"""A plan whose move does not advance shows why and what was done, on a real Temporal server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from activities.plans import lane_steps, stalled_moves
from activities.plans.alerts import Format, Webhook
from storage_node.model.ids import TopicPartition
from tests.support.programs.temporal import TemporalServer
from tests.support.webhook import receiving
from tests.workflows.conftest import Recorder
from tests.workflows.fakes import until_true
from tests.workflows.plans.scene import Scene, run
from workflows.model.plans.running import stalls

pytestmark = pytest.mark.temporal


def test_stalled_copy_is_requested_again_shown_and_alerted(
    temporal_server: TemporalServer,
    task_queue: str,
    recorded: Recorder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(stalls, "STALLED_AFTER", 0.2)
    monkeypatch.setattr(lane_steps, "MEND_AFTER", 0.5)
    monkeypatch.setattr(stalled_moves, "EVIDENCE_AGE", 0.1)

    async def scene(it: Scene) -> None:
        it.kafka.holding = {TopicPartition("t", 0)}
        plan = await it.submit({"alerts": "oncall"})
        rows: list[dict[str, Any]] = []

        async def tried() -> bool:
            rows[:] = (await plan.query("progress"))["stalled"]
            return bool(rows) and rows[0]["repeats"] == lane_steps.MOST_MENDS

        await until_true(tried)
        assert (rows[0]["key"], rows[0]["stalled"]) == ("t-0@1", "not_advancing")
        assert "the copy of t-0 on broker 1 does not advance (KAFKA-9087), after 2 requests more" in rows[0]["reason"]
        assert (await it.lane(0).query("progress"))["phase"] == "stalled"
        it.kafka.holding = set()
        result = await plan.result()
        assert (result["outcome"], result["outcomes"]) == ("done", {"moved": 2})
        assert (await plan.query("progress"))["stalled"] == []
        await recorded("plan-stalled", it.client, plan.id)
        await it.lane(0).result()
        await recorded("plan-lane-stalled", it.client, it.lane(0).id)

        async def alerted() -> bool:
            return [each["event"] for each in webhook.received] == ["stalled", "done"]

        await until_true(alerted)
        assert "KAFKA-9087" in webhook.received[0]["text"]

    with receiving() as webhook:
        run(temporal_server, task_queue, scene, {"oncall": Webhook(webhook.url, Format.JSON)})
