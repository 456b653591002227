"""MoveReplica on a real Temporal server: updates, progress, and what people type."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError, CancelledError

from storage_node.model.moves import Outcome
from tests.workflows.conftest import Recorder
from tests.workflows.fakes import until
from tests.workflows.move.scene import Scene, failure_of, one, rows_of
from workflows.model import calls

pytestmark = pytest.mark.temporal


def test_pause_stops_the_copy_and_resume_continues_it(play: Callable[..., None], recorded: Recorder) -> None:
    async def scene(it: Scene) -> None:
        handle = await it.copying(one())
        assert await handle.execute_update("pause") == {"format_version": 1, "paused": True}
        assert it.node.ended == [(calls.COPY, "cancelled")]
        with pytest.raises(WorkflowUpdateFailedError):
            await handle.execute_update("pause")
        progress = await handle.query("progress")
        assert (progress["phase"], progress["paused"]) == ("paused", True)
        await handle.execute_update("resume")
        await until(lambda: len(it.node.calls_of(calls.COPY)) == 2)
        with pytest.raises(WorkflowUpdateFailedError):
            await handle.execute_update("resume")
        it.node.hold.set()
        result = await handle.result()
        assert "paused" in [phase for phase, _, _ in result["phases"]]
        await recorded("move-pause-resume", it.client, it.id)

    play(scene)


def test_paused_run_can_be_cancelled(play: Callable[..., None]) -> None:
    async def scene(it: Scene) -> None:
        handle = await it.copying(one())
        await handle.execute_update("pause")
        await handle.cancel()
        with pytest.raises(WorkflowFailureError) as caught:
            await handle.result()
        assert isinstance(caught.value.cause, CancelledError)
        assert it.node.order[-1] == calls.CANCEL_MOVE

    play(scene)


def test_set_throttle_applies_to_the_copy_in_progress(play: Callable[..., None]) -> None:
    async def scene(it: Scene) -> None:
        handle = await it.copying(one(throttle=1000))
        assert (await handle.execute_update("set_throttle", {"rate": "5MB"}))["throttle"] == 5_000_000
        await until(lambda: len(it.node.calls_of(calls.COPY)) == 2)
        assert [call.throttle for call in it.node.calls_of(calls.COPY)] == [1000, 5_000_000]
        with pytest.raises(WorkflowUpdateFailedError, match="Workflow update failed"):
            await handle.execute_update("set_throttle", {"rate": "quick"})
        it.node.hold.set()
        await handle.result()

    play(scene)


@pytest.mark.feature("113-08")
def test_set_target_replaces_the_old_copy(play: Callable[..., None], recorded: Recorder) -> None:
    async def scene(it: Scene) -> None:
        handle = await it.copying([one(0), one(1)])
        order = {"topic": "t", "partition": 1, "directory": "/disk/c"}
        assert (await handle.execute_update("set_target", order))["directory"] == "/disk/c"
        again = it.node.calls_of(calls.CREATE_MOVE)[1]
        assert [(move.partition, move.directory) for move in again.replicas] == [(1, "/disk/c")]
        with pytest.raises(WorkflowUpdateFailedError):
            await handle.execute_update("set_target", order)
        it.node.hold.set()
        rows = rows_of(await handle.result())
        assert [rows[0]["directory"], rows[1]["directory"]] == ["/disk/b", "/disk/c"]
        await recorded("move-set-target", it.client, it.id)

    play(scene)


@pytest.mark.parametrize("again", ["the copy goes on", "nor can the earlier one be made"])
def test_set_target_rejected_by_the_node_fails_and_the_move_continues(play: Callable[..., None], again: str) -> None:
    full = {"outcome": "failed", "error": "TargetFull", "message": "10 bytes left"}

    async def scene(it: Scene) -> None:
        handle = await it.copying([one(0), one(1)])
        goes_on = again == "the copy goes on"
        it.node.script[calls.CREATE_MOVE, 1] = [full] if goes_on else [full, {**full, "error": "LogDirOffline"}]
        order = {"topic": "t", "partition": 1, "directory": "/disk/c"}
        with pytest.raises(WorkflowUpdateFailedError) as caught:
            await handle.execute_update("set_target", order)
        assert isinstance(caught.value.cause, ApplicationError)
        assert (caught.value.cause.type, caught.value.cause.message) == ("TargetFull", "10 bytes left")
        await until(lambda: len(it.node.calls_of(calls.CREATE_MOVE)) == 3)
        asked = [(move.partition, move.directory) for move in it.node.calls_of(calls.CREATE_MOVE)[2].replicas]
        assert asked == [(1, "/disk/b")]
        it.node.hold.set()
        rows = rows_of(await handle.result())
        assert (rows[0]["outcome"], rows[0]["directory"]) == ("deleted", "/disk/b")
        ended = ("deleted", "", "") if goes_on else ("failed", "LogDirOffline", "10 bytes left")
        assert (rows[1]["outcome"], rows[1]["error"], rows[1]["message"]) == ended
        assert rows[1]["directory"] == "/disk/b"
        assert calls.CANCEL_MOVE not in it.node.order

    play(scene)


def test_update_after_the_swap_is_rejected(play: Callable[..., None]) -> None:
    async def scene(it: Scene) -> None:
        it.node.hold_swap.clear()
        handle = await it.start(one())
        await until(lambda: bool(it.node.calls_of(calls.SWAP)))
        order = {"topic": "t", "partition": 0, "directory": "/disk/c"}
        asked = asyncio.create_task(handle.execute_update("set_target", order))
        await it.phase(handle, "swapping")
        it.node.hold_swap.set()
        with pytest.raises(WorkflowUpdateFailedError) as caught:
            await asked
        assert isinstance(caught.value.cause, ApplicationError) and caught.value.cause.type == "TooLate"
        assert rows_of(await handle.result())[0]["directory"] == "/disk/b"

    play(scene)


@pytest.mark.feature("113-05")
def test_drop_of_one_keeps_the_others_and_of_all_ends_cancelled(play: Callable[..., None], recorded: Recorder) -> None:
    async def scene(it: Scene) -> None:
        await it.controller()
        handle = await it.copying([one(0), one(1)])
        assert (await handle.execute_update("drop", {"topic": "t", "partition": 0}))["outcome"] == "cancelled"
        await until(lambda: len(it.node.calls_of(calls.COPY)) == 2)
        assert [move.partition for move in it.node.calls_of(calls.COPY)[1].replicas] == [1]
        for wrong in ({"topic": "t", "partition": 0}, {"topic": "t", "partition": 7}, {"topic": "t"}, 3):
            with pytest.raises(WorkflowUpdateFailedError):
                await handle.execute_update("drop", wrong)
        await handle.execute_update("drop", {"topic": "t", "partition": 1})
        with pytest.raises(WorkflowFailureError) as caught:
            await handle.result()
        assert isinstance(caught.value.cause, CancelledError)
        await recorded("move-all-dropped", it.client, it.id)

    play(scene)


def test_replicas_that_the_node_dropped_itself_count_as_dropped(play: Callable[..., None]) -> None:
    async def scene(it: Scene) -> None:
        it.node.script[calls.COPY, 0] = [Outcome.CANCELLED]
        await it.controller()
        with pytest.raises(WorkflowFailureError) as caught:
            await (await it.start(one())).result()
        assert isinstance(caught.value.cause, CancelledError)

    play(scene)


def test_progress_has_bytes_rate_and_eta(play: Callable[..., None]) -> None:
    async def scene(it: Scene) -> None:
        handle = await it.copying(one(sla_seconds=1000))
        live = {
            "topic": "t",
            "partition": 0,
            "state": "copying",
            "bytes_total": 1000,
            "bytes_copied": 250,
            "rate": 50.0,
        }
        await handle.signal("copy_progress", [live, {"topic": "other", "partition": 0}])
        found = await handle.query("progress")
        assert (found["phase"], found["bytes_total"], found["bytes_copied"]) == ("copying", 1000, 250)
        assert (found["rate"], found["eta_seconds"]) == (50.0, 15.0)
        assert found["replicas"][0]["state"] == "copying"
        assert found["sla"]["met"] is None and found["sla"]["deadline"] > found["started"]
        it.node.hold.set()
        await handle.result()
        found = await handle.query("progress")
        assert (found["phase"], found["bytes_copied"]) == ("ended", 1000)

    play(scene)


@pytest.mark.parametrize(
    ("parameter", "path"),
    [
        ({"topic": "t", "partition": 0, "node": 1}, "$.directory"),
        ([one(0), {**one(1), "directory": "disk"}], "$[1].directory"),
        ('{"topic": "t", "partition": "0", "node": 1, "directory": "/a"}', "$.partition"),
        (None, "$"),
        (one(throttle="fast"), "$.throttle"),
    ],
)
def test_updates_are_parsed_strictly(play: Callable[..., None], parameter: Any, path: str) -> None:
    async def scene(it: Scene) -> None:
        with pytest.raises(WorkflowFailureError) as caught:
            await (await it.start(parameter)).result()
        failure = failure_of(caught.value)
        assert (failure.type, failure.details[0]) == ("InvalidPlan", path)

    play(scene)
