"""Pause, resume and the limit of a PartitionReassignment, on a real Temporal server, under the real controller."""

from __future__ import annotations

from typing import Any

import pytest
from temporalio.client import WorkflowFailureError, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError, CancelledError

from storage_node.model.error_types import ErrorType
from tests.support.programs.temporal import TemporalServer
from tests.workflows.conftest import Recorder
from tests.workflows.reassignment.scene import Cluster, Handle, run
from workflows.model import throttles
from workflows.model.metadata.state import ClusterState
from workflows.model.phases import PAUSED

pytestmark = pytest.mark.temporal

LEADER_RATE, FOLLOWER_RATE = throttles.RATES
LEADERS, FOLLOWERS = throttles.LISTS


async def rates(it: Cluster) -> dict[str, dict[str, str]]:
    """The rates of each node that has one."""
    state = ClusterState.of(await it.handle.query("state"))
    found = {str(node): dict(state.configs.get(("broker", str(node)), {})) for node in state.nodes}
    return {node: held for node, held in found.items() if held}


async def lists(it: Cluster) -> dict[str, str]:
    state = ClusterState.of(await it.handle.query("state"))
    return {key: value for key, value in state.topics["t"].configs.items() if key in throttles.LISTS}


async def rejected(handle: Handle, update: str, *given: Any) -> str:
    with pytest.raises(WorkflowUpdateFailedError) as caught:
        await handle.execute_update(update, *given)
    assert isinstance(caught.value.cause, ApplicationError)
    return str(caught.value.cause.type)


async def catching_up(it: Cluster) -> Handle:
    await it.up()
    await it.reassign((0, [2]))
    handle = await it.run()
    await it.open(handle, "catching_up")
    return handle


def test_run_is_limited_paused_and_resumed(
    temporal_server: TemporalServer, task_queue: str, recorded: Recorder
) -> None:
    async def scene(it: Cluster) -> None:
        handle = await catching_up(it)
        assert (await handle.execute_update("pause"))["paused"] is True
        assert await rates(it) == {"2": {FOLLOWER_RATE: "1"}}, "the node that is added is held, the source is not"
        assert await lists(it) == {FOLLOWERS: "0:2"}
        assert PAUSED in (await handle.describe()).raw_description.workflow_execution_info.memo.fields
        assert await rejected(handle, "pause") == ErrorType.NOTHING_TO_CHANGE
        assert (await handle.execute_update("set_throttle", {"rate": "5MB"}))["throttle"] == 5_000_000
        assert (await rates(it))["2"] == {LEADER_RATE: "5000000", FOLLOWER_RATE: "1"}, "it stays paused"
        found = await handle.query("progress")
        assert (found["paused"], found["throttle"]) == (True, 5_000_000)
        assert (await handle.execute_update("resume"))["paused"] is False
        both = {LEADER_RATE: "5000000", FOLLOWER_RATE: "5000000"}
        assert await rates(it) == {"1": both, "2": both}
        assert await lists(it) == {LEADERS: "0:1", FOLLOWERS: "0:2"}
        assert await rejected(handle, "resume") == ErrorType.NOTHING_TO_CHANGE
        assert (await handle.execute_update("set_throttle", {"rate": None}))["throttle"] is None
        assert (await rates(it), await lists(it)) == ({}, {})
        for update, given in (("set_throttle", ({"rate": 0},)), ("set_throttle", ({},)), ("pause", ({"x": 1},))):
            assert await rejected(handle, update, *given) == ErrorType.INVALID_PLAN
        await handle.execute_update("pause")
        await it.in_sync()
        result = await handle.result()
        assert result["rows"][0]["outcome"] == "done"
        assert (await rates(it), await lists(it)) == ({}, {}), "a run that ends while it is paused gives back"
        await recorded("reassign-paused", it.client, handle.id)

    run(temporal_server, task_queue, scene)


def test_paused_run_is_cancelled_and_gives_back(temporal_server: TemporalServer, task_queue: str) -> None:
    async def scene(it: Cluster) -> None:
        handle = await catching_up(it)
        await handle.execute_update("pause")
        await handle.cancel()
        with pytest.raises(WorkflowFailureError) as caught:
            await handle.result()
        assert isinstance(caught.value.cause, CancelledError)
        assert (await it.partition()).replicas == (1,)
        assert (await rates(it), await lists(it)) == ({}, {})

    run(temporal_server, task_queue, scene)


def test_resume_restores_the_throttles_of_the_parameter(temporal_server: TemporalServer, task_queue: str) -> None:
    async def scene(it: Cluster) -> None:
        await it.up()
        mine = {"topics": {"t": {FOLLOWERS: ["0:2"]}}, "nodes": {"2": {FOLLOWER_RATE: "9000"}}}
        entry = {"topic": "t", "partition": 0, "replicas": [2]}
        handle = await it.start({"version": 1, "partitions": [entry], "throttles": mine})
        await it.open(handle, "catching_up")
        await handle.execute_update("pause")
        assert await rates(it) == {"2": {FOLLOWER_RATE: "1"}}
        await handle.execute_update("resume")
        assert await rates(it) == {"2": {FOLLOWER_RATE: "9000"}}
        await it.in_sync()
        await handle.result()
        assert await rates(it) == {}

    run(temporal_server, task_queue, scene)
