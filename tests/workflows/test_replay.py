"""Every recorded history replays with the code of today: runs that are under way survive an upgrade."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from temporalio.worker import Replayer

import workflows
from tests.workflows.conftest import HISTORIES, read_history
from workflows.runner import workflow_runner

RECORDED = sorted(HISTORIES.glob("*.json.gz"))

#: What must be there; more may be.
SCENARIOS = {
    "move-happy",
    "move-cancel-mid-copy",
    "move-cancel-racing-swap",
    "move-cancel-dead-node",
    "move-node-timeout-then-resume",
    "move-lane-mixed",
    "move-pause-resume",
    "move-set-target",
    "move-all-dropped",
    "move-unknown-node",
    "cluster-changes",
    "cluster-continued",
    "cluster-recovered-without",
    "lease",
    "export",
    "directory-failure",
    "directory-failure-waits",
    "reassign-happy",
    "reassign-cancelled-by-api",
    "reassign-cancelled-by-temporal",
    "reassign-superseded",
    "reassign-by-hand",
    "reassign-topic-deleted",
    "reassign-then-moved",
    "reassign-throttled",
    "throttle-lease",
    "throttle-lease-cancelled",
    "reassign-cancel-refused",
    "reassign-directed-beside-deletion",
    "cluster-reassigned",
    "cluster-settled",
}


def test_every_scenario_is_recorded() -> None:
    assert {path.name.removesuffix(".json.gz") for path in RECORDED} >= SCENARIOS


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_a_recorded_history_carries_the_flag_that_every_worker_sets(path: Path) -> None:
    """Flag 2 of the SDK: what a task brings is one batch; see tests/workflows/test_sdk_hooks.py."""
    events = read_history(path).events
    first = next(event for event in events if event.HasField("workflow_task_completed_event_attributes"))
    flags = first.workflow_task_completed_event_attributes.sdk_metadata.lang_used_flags
    assert list(flags) == [2], "record it anew: python -m tests.golden.histories.record"


@pytest.mark.feature("455-29")
@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_a_recorded_history_replays(path: Path) -> None:
    replayer = Replayer(workflows=workflows.ALL, workflow_runner=workflow_runner())
    asyncio.run(replayer.replay_workflow(read_history(path)))
