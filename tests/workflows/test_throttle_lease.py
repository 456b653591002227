"""ThrottleLease on a real Temporal server, under the real controller: what is set, and what ends the lease."""

from __future__ import annotations

from typing import Any

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import CancelledError

from tests.support.programs.temporal import TemporalServer
from tests.workflows.conftest import Recorder
from tests.workflows.fakes import until, until_true
from tests.workflows.reassignment.scene import Cluster, Handle, failure, run
from workflows.model import names
from workflows.model.metadata.state import ClusterState
from workflows.model.throttles import MOVE_RATE

pytestmark = pytest.mark.temporal

BEFORE = {"1": "7"}


async def rates(it: Cluster) -> dict[str, str]:
    """The nodes' rates of moves, as the controller has them."""
    state = ClusterState.of(await it.handle.query("state"))
    found = {name: values.get(MOVE_RATE) for (kind, name), values in state.configs.items() if kind == "broker"}
    return {name: value for name, value in found.items() if value is not None}


async def restored(it: Cluster, left: dict[str, str] = BEFORE) -> None:
    async def there() -> bool:
        return await rates(it) == left

    await until_true(there)


async def up(it: Cluster) -> None:
    """Node 1 has a rate that an operator has set."""
    await it.up()
    command = {"do": "alter_configs", "kind": "broker", "name": "1", "changes": {MOVE_RATE: "7"}}
    assert not (await it.node(1).submit(it.handle, command))["results"][0][0].get("error")


async def lease(it: Cluster, rate: str = "100", patience: int = 60, name: str = "lease") -> Handle:
    parameter = {
        "throttles": {"nodes": {"1": {MOVE_RATE: rate}, "2": {MOVE_RATE: rate}}},
        "replicas": [[1, "t", 0], [1, "t", 1], [2, "t", 2]],
        "patience": patience,
    }
    handle: Handle = await it.client.start_workflow(
        names.THROTTLE_LEASE, parameter, id=f"{it.name}/{name}", task_queue=it.name
    )
    assert (await handle.execute_update("held"))["held"] is True
    return handle


def test_lease_lasts_until_the_moves_of_each_node_have_ended(
    temporal_server: TemporalServer, task_queue: str, recorded: Recorder
) -> None:
    async def scene(it: Cluster) -> None:
        await up(it)
        handle = await lease(it)
        assert await rates(it) == {"1": "100", "2": "100"}
        it.node(1).moving, it.node(2).moving = {("t", 0)}, {("t", 2)}
        await handle.signal("requested", {"replicas": "all"})  # cannot be read
        await handle.signal("requested", {"replicas": [[1, "t", 0], [2, "t", 2]]})
        await until(lambda: bool(it.node(1).awaited and it.node(2).awaited))
        assert it.node(1).awaited == [[["t", 0]]]
        found = await handle.query("progress")
        assert (found["phase"], found["nodes"], found["waiting_for"]) == ("watching", [1, 2], "")
        it.node(2).moving.clear()
        await restored(it, {"1": "100"})
        it.node(1).moving.clear()
        result = await handle.result()
        assert [phase for phase, _, _ in result["phases"]] == ["asking", "holding", "watching", "releasing"]
        assert await rates(it) == BEFORE
        await recorded("throttle-lease", it.client, handle.id)

    run(temporal_server, task_queue, scene)


def test_command_that_died_before_it_sent_the_moves_leaves_no_throttle(
    temporal_server: TemporalServer, task_queue: str
) -> None:
    async def scene(it: Cluster) -> None:
        await up(it)
        it.node(1).moving = {("t", 1)}
        handle = await lease(it, patience=1)
        await until(lambda: bool(it.node(1).awaited))
        assert it.node(1).awaited == [[["t", 0], ["t", 1]]], "all that it may have requested"
        await restored(it, {"1": "100"})
        it.node(1).moving.clear()
        await handle.result()
        assert await rates(it) == BEFORE

    run(temporal_server, task_queue, scene)


def test_lease_outlasts_an_unavailable_node_with_open_moves(temporal_server: TemporalServer, task_queue: str) -> None:
    async def scene(it: Cluster) -> None:
        await up(it)
        it.node(1).moving = {("t", 0)}
        await it.away(1)
        handle = await lease(it)
        await handle.signal("requested", {"replicas": [[1, "t", 0]]})
        await restored(it, {"1": "100"})
        await it.serve(it.node(1))
        await until(lambda: bool(it.node(1).awaited))
        assert await rates(it) == {"1": "100"}
        it.node(1).moving.clear()
        await handle.result()
        assert await rates(it) == BEFORE

    run(temporal_server, task_queue, scene)


@pytest.mark.parametrize("phase", ["holding", "watching"])
def test_cancel_ends_the_lease_at_once(
    temporal_server: TemporalServer, task_queue: str, recorded: Recorder, phase: str
) -> None:
    async def scene(it: Cluster) -> None:
        await up(it)
        it.node(1).moving = {("t", 0)}
        handle = await lease(it)
        if phase == "watching":
            await handle.signal("requested", {"replicas": [[1, "t", 0]]})
            await until(lambda: bool(it.node(1).awaited))
        await handle.cancel()
        with pytest.raises(WorkflowFailureError) as caught:
            await handle.result()
        assert isinstance(caught.value.cause, CancelledError)
        assert await rates(it) == BEFORE
        if phase == "watching":
            await recorded("throttle-lease-cancelled", it.client, handle.id)

    run(temporal_server, task_queue, scene)


def test_two_leases_on_one_node_end_in_either_order(temporal_server: TemporalServer, task_queue: str) -> None:
    async def scene(it: Cluster) -> None:
        await up(it)
        for order in ((0, 1), (1, 0)):
            handles = [await lease(it, rate, name=f"lease-{rate}-{order}") for rate in ("100", "200")]
            assert await rates(it) == {"1": "200", "2": "200"}
            await handles[order[0]].cancel()
            left = ("200", "100")[order[0]]
            await restored(it, {"1": left, "2": left})
            await handles[order[1]].cancel()
            await restored(it)

    run(temporal_server, task_queue, scene)


def test_lease_of_a_run_that_was_terminated_ends_with_the_next_one(
    temporal_server: TemporalServer, task_queue: str
) -> None:
    async def scene(it: Cluster) -> None:
        await up(it)
        lost = await lease(it, "100", name="lost")
        await lost.terminate("by hand")
        assert await rates(it) == {"1": "100", "2": "100"}
        handle = await lease(it, "200")
        await handle.signal("requested", {"replicas": []})
        await handle.result()
        await restored(it)

    run(temporal_server, task_queue, scene)


@pytest.mark.parametrize(
    "parameter, path",
    [(None, "$"), ({"throttles": {"nodes": {"x": {}}}, "replicas": []}, "$.throttles.nodes.x")],
)
def test_invalid_parameter_fails_with_its_path(
    temporal_server: TemporalServer, task_queue: str, parameter: Any, path: str
) -> None:
    async def scene(it: Cluster) -> None:
        await it.up()
        handle = await it.client.start_workflow(
            names.THROTTLE_LEASE, parameter, id=f"{it.name}/lease", task_queue=it.name
        )
        with pytest.raises(WorkflowFailureError) as caught:
            await handle.result()
        assert (failure(caught.value).type, failure(caught.value).details[0]) == ("InvalidPlan", path)

    run(temporal_server, task_queue, scene)
