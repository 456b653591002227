"""MoveReplica on a real Temporal server: the steps, what fails, and a cancel at every moment."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from datetime import timedelta

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import ApplicationError, CancelledError
from temporalio.service import RPCError

from storage_node.model.moves import Outcome
from tests.support.steps import limit
from tests.workflows.conftest import Recorder
from tests.workflows.fakes import FakeNode, until, until_true
from tests.workflows.move.scene import STEPS, Scene, failure_of, one, rows_of
from workflows.model import calls

pytestmark = pytest.mark.temporal


@pytest.mark.feature("113-01", "113-02")
def test_move_runs_its_steps_and_returns_its_rows(play: Callable[..., None], recorded: Recorder) -> None:
    async def scene(it: Scene) -> None:
        result = await (await it.start(one(throttle="20MB", sla_seconds=60))).result()
        assert it.node.order == STEPS
        assert it.node.calls_of(calls.COPY)[0].throttle == 20_000_000
        assert it.node.calls_of(calls.COPY)[0].replicas[0].claim == 1
        assert it.node.calls_of(calls.SWAP)[0].facts[0]["bytes_copied"] == 1000
        (row,) = result["rows"]
        assert (row["outcome"], row["directory"], row["source"]) == ("deleted", "/disk/b", "/disk/a")
        assert (row["bytes_copied"], row["seconds_locked"], row["attempts"]) == (1000, 0.004, 1)
        assert result["sla"]["met"] is True and result["sla"]["took"] < 60
        assert [phase for phase, _, _ in result["phases"]] == ["creating", "copying", "swapping", "deleting"]
        assert all(begin <= end for _, begin, end in result["phases"])
        await recorded("move-happy", it.client, it.id)

    play(scene)


def test_delete_is_awaited_on_a_durable_timer(play: Callable[..., None]) -> None:
    async def scene(it: Scene) -> None:
        it.node.script[calls.DELETE_REPLICA, 0] = [{"outcome": Outcome.SWAPPED, "delete_after": 0.2}]
        result = await (await it.start(one())).result()
        assert it.node.order == [*STEPS, calls.DELETE_REPLICA]
        assert [phase for phase, _, _ in result["phases"]].count("delete_delay") == 2

    play(scene, FakeNode(delete_after=0.3))


def test_already_in_place_ends_at_once(play: Callable[..., None]) -> None:
    async def scene(it: Scene) -> None:
        it.node.script[calls.CREATE_MOVE, 0] = [Outcome.IN_PLACE]
        result = await (await it.start(one(sla_seconds=5))).result()
        assert it.node.order == [calls.CREATE_MOVE]
        assert result["rows"][0]["outcome"] == "in_place"
        assert result["sla"]["met"] is True

    play(scene)


def test_copy_that_fell_behind_is_copied_again(play: Callable[..., None]) -> None:
    async def scene(it: Scene) -> None:
        it.node.script[calls.SWAP, 0] = [Outcome.BEHIND, Outcome.BEHIND]
        await (await it.start(one())).result()
        assert it.node.order == [
            calls.CREATE_MOVE,
            *[calls.COPY, calls.SWAP] * 3,
            calls.DELETE_REPLICA,
        ]

    play(scene)


def test_lane_with_mixed_outcomes_completes_with_a_row_each(play: Callable[..., None], recorded: Recorder) -> None:
    async def scene(it: Scene) -> None:
        full = {"outcome": Outcome.FAILED, "error": "TargetFull", "message": "The disk /disk/b is full."}
        it.node.script[calls.COPY, 1] = [full]
        it.node.script[calls.SWAP, 2] = [Outcome.BEHIND]
        it.node.script[calls.CREATE_MOVE, 3] = [Outcome.IN_PLACE]
        result = await (await it.start([one(partition) for partition in range(4)])).result()
        rows = rows_of(result)
        assert [rows[at]["outcome"] for at in range(4)] == ["deleted", "failed", "deleted", "in_place"]
        assert rows[1]["error"] == "TargetFull" and "full" in rows[1]["message"]
        # What the failed one left on its good disk is removed, nobody else is touched.
        (cleanup,) = it.node.calls_of(calls.CANCEL_MOVE)
        assert [move.partition for move in cleanup.replicas] == [1]
        await recorded("move-lane-mixed", it.client, it.id)

    play(scene)


def test_run_that_moved_nothing_fails_with_its_reason_and_rows(play: Callable[..., None]) -> None:
    async def scene(it: Scene) -> None:
        gone = {"outcome": Outcome.FAILED, "error": "LogDirOffline", "message": "Directory /disk/b is offline."}
        it.node.script[calls.COPY, 0] = [gone]
        it.node.script[calls.CREATE_MOVE, 1] = [
            ApplicationError("no such directory", type="LogDirNotFound", non_retryable=True)
        ]
        handle = await it.start(one(0))
        with pytest.raises(WorkflowFailureError) as caught:
            await handle.result()
        failure = failure_of(caught.value)
        assert failure.type == "LogDirOffline" and "offline" in failure.message
        assert failure.details[0]["rows"][0]["error"] == "LogDirOffline"
        it.id += "-2"
        with pytest.raises(WorkflowFailureError) as caught:
            await (await it.start(one(1))).result()
        assert failure_of(caught.value).type == "LogDirNotFound"
        assert not it.node.calls_of(calls.CANCEL_MOVE)

    play(scene)


def test_newer_generation_ends_the_run_as_superseded(play: Callable[..., None]) -> None:
    async def scene(it: Scene) -> None:
        it.node.script[calls.SWAP, 0] = [ApplicationError("newer", type="Superseded", non_retryable=True)]
        with pytest.raises(WorkflowFailureError) as caught:
            await (await it.start(one())).result()
        assert failure_of(caught.value).type == "Superseded"
        assert failure_of(caught.value).details[0]["rows"][0]["outcome"] == "superseded"
        assert not it.node.calls_of(calls.CANCEL_MOVE), "a superseded replica is not touched"

    play(scene)


def test_retryable_error_is_retried_without_an_event(play: Callable[..., None]) -> None:
    async def scene(it: Scene) -> None:
        stopped = ApplicationError("an operator stopped the moves", type="MovesStopped")
        it.node.script[calls.COPY, 0] = [stopped, stopped]
        result = await (await it.start(one())).result()
        assert len(it.node.calls_of(calls.COPY)) == 3
        assert result["rows"][0]["outcome"] == "deleted"

    play(scene)


def test_cancel_during_the_copy_undoes_it_after_the_copy_has_ended(
    play: Callable[..., None], recorded: Recorder
) -> None:
    async def scene(it: Scene) -> None:
        handle = await it.copying([one(0), one(1)])
        await handle.cancel()
        with pytest.raises(WorkflowFailureError) as caught:
            await handle.result()
        assert isinstance(caught.value.cause, CancelledError)
        assert it.node.ended == [(calls.COPY, "cancelled")]
        assert it.node.order == [calls.CREATE_MOVE, calls.COPY, calls.CANCEL_MOVE]
        assert len(it.node.calls_of(calls.CANCEL_MOVE)[0].replicas) == 2
        await recorded("move-cancel-mid-copy", it.client, it.id)

    play(scene)


def test_cancel_during_the_swap_is_too_late(play: Callable[..., None], recorded: Recorder) -> None:
    async def scene(it: Scene) -> None:
        it.node.hold_swap.clear()
        handle = await it.start(one())
        await until(lambda: bool(it.node.calls_of(calls.SWAP)))
        await handle.cancel()

        async def noticed() -> bool:
            return bool((await handle.query("progress"))["cancelling"])

        await until_true(noticed)
        it.node.hold_swap.set()
        result = await handle.result()
        assert result["rows"][0]["outcome"] == "deleted"
        assert it.node.order == STEPS
        await recorded("move-cancel-racing-swap", it.client, it.id)

    play(scene)


def test_cancel_together_with_the_swaps_result_changes_nothing(play: Callable[..., None]) -> None:
    async def scene(it: Scene) -> None:
        it.node.hold_swap.clear()
        handle = await it.start([one(0), one(1)])
        await until(lambda: bool(it.node.calls_of(calls.SWAP)))
        cancelling = asyncio.create_task(handle.cancel())
        it.node.hold_swap.set()
        await cancelling
        # Whether the run has seen the answer or only the cancel: the disk says that the replicas are swapped.
        assert {row["outcome"] for row in (await handle.result())["rows"]} == {"deleted"}

    play(scene)


def test_cancel_after_a_swap_that_fell_behind_removes_the_copy(play: Callable[..., None]) -> None:
    async def scene(it: Scene) -> None:
        it.node.hold_swap.clear()
        it.node.script[calls.SWAP, 0] = [Outcome.BEHIND]
        handle = await it.start(one())
        await until(lambda: bool(it.node.calls_of(calls.SWAP)))
        await handle.cancel()
        it.node.hold_swap.set()
        with pytest.raises(WorkflowFailureError):
            await handle.result()
        assert it.node.order[-1] == calls.CANCEL_MOVE

    play(scene)


def test_cancel_of_a_swapped_replica_completes_the_move(play: Callable[..., None]) -> None:
    async def scene(it: Scene) -> None:
        it.node.script[calls.CANCEL_MOVE, 0] = [{"outcome": Outcome.SWAPPED, "delete_after": 0.05}]
        handle = await it.copying([one(0), one(1)])
        await handle.cancel()
        rows = rows_of(await handle.result())
        assert [rows[0]["outcome"], rows[1]["outcome"]] == ["deleted", "cancelled"]

    play(scene)


def test_cancel_while_only_the_delete_is_awaited_changes_nothing(play: Callable[..., None]) -> None:
    async def scene(it: Scene) -> None:
        handle = await it.start(one())
        await until(lambda: bool(it.node.calls_of(calls.SWAP)))

        async def swapped() -> bool:  # and on a slow machine it may be further by now
            return (await handle.query("progress"))["phase"] in ("delete_delay", "deleting", "ended")

        await until_true(swapped)
        with contextlib.suppress(RPCError):  # it has ended already
            await handle.cancel()
        assert (await handle.result())["rows"][0]["outcome"] == "deleted"

    play(scene, FakeNode(delete_after=0.5))


def test_copy_of_a_dead_node_continues_after_its_restart(
    play: Callable[..., None], recorded: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, calls.COPY, heartbeat=timedelta(seconds=0.7))

    async def scene(it: Scene) -> None:
        it.node.silent = True
        handle = await it.copying(one())
        # The next attempt is as silent, and does not end by that.
        limit(monkeypatch, calls.COPY, heartbeat=timedelta(seconds=60))

        async def waiting() -> bool:
            return bool((await handle.query("progress"))["waiting_for"] == "node 1")

        await until_true(waiting)
        found = await handle.query("progress")
        assert (found["phase"], found["bytes_copied"], found["rate"]) == ("copying", 300, 0.0)
        assert found["replicas"][0]["state"] == "waiting for node 1"
        await until(lambda: len(it.node.calls_of(calls.COPY)) == 2)
        assert it.node.calls_of(calls.COPY)[1].facts[0]["bytes_copied"] == 300
        report = {"topic": "t", "partition": 0, "state": "copying", "bytes_total": 1000, "bytes_copied": 400}
        await handle.signal("copy_progress", [report])
        found = await handle.query("progress")
        assert (found["waiting_for"], found["bytes_copied"], found["replicas"][0]["state"]) == ("", 400, "copying")
        it.node.silent = False
        it.node.hold.set()
        assert (await handle.result())["rows"][0]["outcome"] == "deleted"
        await recorded("move-node-timeout-then-resume", it.client, it.id)

    play(scene)


def test_time_without_reports_counts_for_the_controllers_reason(
    play: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, calls.COPY, heartbeat=timedelta(seconds=0.7))

    async def scene(it: Scene) -> None:
        it.node.silent = True
        handle = await it.copying(one())
        limit(monkeypatch, calls.COPY, heartbeat=timedelta(seconds=60))
        until_known = [("", "unavailable", "has not reported why")]
        until_known += [("silent", "cut_off", "is cut off"), ("refused", "dead", "is dead: its address refuses")]
        for probe, stall, words in until_known:
            if probe:
                await handle.signal("located", {"node": 1, "known": True, "fenced": True, "probe": probe})

            async def known(stall: str = stall, words: str = words) -> bool:
                found = await handle.query("progress")
                return found["stall"] == stall and words in found["stall_message"]

            await until_true(known)
        it.node.silent = False
        it.node.hold.set()
        row = (await handle.result())["rows"][0]
        assert row["outcome"] == "deleted"
        assert 0.5 < row["seconds_by_reason"]["dead"] < 60
        assert not {"unavailable", "cut_off", "fenced"} & row["seconds_by_reason"].keys()

    play(scene)


def test_cancel_of_a_dead_nodes_copy_removes_it_after_its_restart(
    play: Callable[..., None], recorded: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, calls.COPY, heartbeat=timedelta(seconds=0.7))

    async def scene(it: Scene) -> None:
        it.node.silent = True
        handle = await it.copying(one())
        await handle.cancel()
        # The attempt ends in a heartbeat timeout, not in a cancellation; the clean-up runs all the same.
        with pytest.raises(WorkflowFailureError) as caught:
            await handle.result()
        assert isinstance(caught.value.cause, CancelledError)
        # (Where the cancel comes late, a second attempt has begun.)
        order = [name for name, _ in itertools.groupby(it.node.order)]
        assert order == [calls.CREATE_MOVE, calls.COPY, calls.CANCEL_MOVE]
        await recorded("move-cancel-dead-node", it.client, it.id)

    play(scene)
