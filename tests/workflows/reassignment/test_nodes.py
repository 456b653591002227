"""PartitionReassignment and its nodes' disks: what a dropped node deletes, the directory that a new one is to use."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError

from tests.support.programs.temporal import TemporalServer
from tests.support.steps import limit
from tests.workflows.conftest import Recorder
from tests.workflows.fakes import until
from tests.workflows.reassignment.scene import Cluster, failure, run
from workflows import options
from workflows.model import calls

pytestmark = pytest.mark.temporal


def test_removed_node_that_does_not_return_is_not_awaited_for_ever(
    temporal_server: TemporalServer, task_queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, calls.AWAIT_DELETION, pick_up=timedelta(seconds=1))

    async def scene(it: Cluster) -> None:
        await it.up()
        await it.away(1)
        await it.reassign((0, [2]))
        await it.begun(await it.run())
        await it.in_sync()
        row = (await (await it.run()).result())["rows"][0]
        assert (row["outcome"], row["replicas"], row["error"]) == ("done", [2], "")
        assert row["message"].startswith("Node 1 has not confirmed that its data is deleted")

    run(temporal_server, task_queue, scene)


def test_deletion_that_a_node_cannot_carry_out_ends_with_the_runs_cancel(
    temporal_server: TemporalServer, task_queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder may be immutable; the replicas are where they were requested, and the node tries again by itself."""
    monkeypatch.setattr(options, "DELETION_PATIENCE", timedelta(seconds=1))

    async def scene(it: Cluster) -> None:
        await it.up()
        it.node(1).hold_deletion.clear()
        await it.reassign((0, [2]))
        await it.begun(await it.run())
        await it.in_sync()
        await it.open(await it.run(), "deleting")
        await asyncio.sleep(2)
        assert (await (await it.run()).describe()).status == WorkflowExecutionStatus.RUNNING
        await (await it.run()).cancel()
        row = (await (await it.run()).result())["rows"][0]
        assert (row["outcome"], row["replicas"], row["error"]) == ("done", [2], "")
        assert row["message"].startswith("Node 1 has not confirmed that its data is deleted")

    run(temporal_server, task_queue, scene)


def test_unavailable_removed_node_delays_no_directory(
    temporal_server: TemporalServer, task_queue: str, recorded: Recorder
) -> None:
    async def scene(it: Cluster) -> None:
        await it.up()
        await it.away(1)
        it.node(2).lost_wishes = True
        mine = await it.start([{"topic": "t", "partition": 0, "replicas": [2], "log_dirs": ["/b"]}])
        await it.open(mine, "catching_up")
        await until(lambda: ("t", 0) in it.node(2).held)
        await it.in_sync()
        moved = it.client.get_workflow_handle((await it.runs("MoveReplica", 1)).pop())
        await moved.result()
        await it.open(mine, "deleting")
        await it.serve(it.node(1))
        found = await mine.result()
        assert (found["rows"][0]["outcome"], found["rows"][0]["directories"]) == ("done", [[2, "/b", True]])
        phases = [phase for phase, _, _ in found["phases"]]
        assert phases == ["asking", "catching_up", "directing", "deleting", "verifying"]
        await recorded("reassign-directed-beside-deletion", it.client, mine.id)

    run(temporal_server, task_queue, scene)


def test_replica_removed_by_a_later_target_fails_its_directory(
    temporal_server: TemporalServer, task_queue: str
) -> None:
    async def scene(it: Cluster) -> None:
        await it.up()
        mine = await it.start([{"topic": "t", "partition": 0, "replicas": [2], "log_dirs": ["/b"]}])
        await it.open(mine, "catching_up")
        await until(lambda: ("t", 0) in it.node(2).held)
        it.node(2).taken_away = True
        await it.in_sync()
        with pytest.raises(WorkflowFailureError) as caught:
            await mine.result()
        assert failure(caught.value).type == "DirectoryNotReached"
        assert [call.wish for name, call in it.node(2).seen if name == calls.PLACE_REPLICAS] == [True, False]

    run(temporal_server, task_queue, scene)


@pytest.mark.parametrize("lost", [False, True], ids=["wish kept", "wish lost"])
def test_reassignment_with_log_dirs_completes_in_the_directory(
    temporal_server: TemporalServer, task_queue: str, recorded: Recorder, lost: bool
) -> None:
    async def scene(it: Cluster) -> None:
        await it.up()
        it.node(2).lost_wishes = lost
        mine = await it.start([{"topic": "t", "partition": 0, "replicas": [2], "log_dirs": ["/b"]}])
        await it.open(mine, "catching_up")
        await until(lambda: ("t", 0) in it.node(2).held)
        assert it.node(2).held["t", 0] == ("/a" if lost else "/b")
        await it.in_sync()
        row = (await mine.result())["rows"][0]
        assert (row["outcome"], row["directories"]) == ("done", [[2, "/b", True]])
        moves = await it.runs("MoveReplica", int(lost))
        assert len(moves) == int(lost)
        if lost:
            # Not complete before the directory is reached.
            moved = (await it.client.get_workflow_handle(moves.pop()).describe()).close_time
            ended = (await mine.describe()).close_time
            assert moved is not None and ended is not None and moved <= ended
            await recorded("reassign-then-moved", it.client, mine.id)
        else:
            assert it.node(2).names()[0] == calls.PLACE_REPLICAS

    run(temporal_server, task_queue, scene)


def test_unknown_directory_fails_the_partition_unchanged(temporal_server: TemporalServer, task_queue: str) -> None:
    async def scene(it: Cluster) -> None:
        await it.up()
        it.node(2).unknown_directories.add("/nowhere")
        mine = await it.start([{"topic": "t", "partition": 0, "replicas": [2], "log_dirs": ["/nowhere"]}])
        with pytest.raises(WorkflowFailureError) as caught:
            await mine.result()
        assert failure(caught.value).type == "LogDirNotFound"
        assert not (await it.partition()).assignment.reassigning

    run(temporal_server, task_queue, scene)
