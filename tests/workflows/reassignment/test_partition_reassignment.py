"""PartitionReassignment on a real Temporal server, under the real controller: what ends how, and who asked for it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError

from storage_node.model.packing import pack
from tests.support.programs.temporal import TemporalServer
from tests.workflows.conftest import Recorder
from tests.workflows.fakes import until_true
from tests.workflows.model.replicated import with_isr
from tests.workflows.reassignment.scene import Cluster, failure, run
from workflows import options
from workflows.model import calls, throttles
from workflows.model.metadata import image
from workflows.model.metadata.state import ClusterState

pytestmark = pytest.mark.temporal


def test_controller_starts_a_run_that_follows_the_reassignment(
    temporal_server: TemporalServer, task_queue: str, recorded: Recorder
) -> None:
    async def scene(it: Cluster) -> None:
        await it.up()
        assert (await it.reassign((0, [2])))[0].get("error", 0) == 0
        await it.open(await it.run(), "catching_up")
        found = await (await it.run()).query("progress")
        assert (found["partitions"][0]["original"], found["partitions"][0]["target"]) == ([1], [2])
        report = {"topic": "t", "partition": 0, "node": 2, "state": "catching_up", "bytes_total": 1000}
        await (await it.run()).signal("copy_progress", [{**report, "bytes_copied": 400, "rate": 100.0, "next_in": 10}])
        found = await (await it.run()).query("progress")
        assert (found["bytes_copied"], found["bytes_total"], found["eta_seconds"]) == (400, 1000, 6.0)
        it.node(1).hold_deletion.clear()
        await it.in_sync()
        await it.open(await it.run(), "deleting")
        it.node(1).hold_deletion.set()
        result = await (await it.run()).result()
        (row,) = result["rows"]
        assert (row["outcome"], row["original"], row["target"], row["replicas"]) == ("done", [1], [2], [2])
        assert (row["bytes_copied"], row["seconds_catching_up"], row["seconds_deleting"]) == (1000, 0.5, 0.1)
        assert (row["isr"], row["leader"]) == ([2], 2)
        assert [phase for phase, _, _ in result["phases"]] == ["catching_up", "deleting", "verifying"]
        assert it.node(2).names() == [calls.CATCH_UP] and it.node(1).names() == [calls.AWAIT_DELETION]
        await recorded("reassign-happy", it.client, (await it.run()).id)

    run(temporal_server, task_queue, scene)


def test_run_that_begins_after_the_reassignment_completes(temporal_server: TemporalServer, task_queue: str) -> None:
    async def scene(it: Cluster) -> None:
        await it.up()
        await it.away(2)
        await it.reassign((0, [2]), by=3)
        await it.in_sync()
        assert (await it.partition()).replicas == (2,)
        await it.serve(it.node(2))
        await it.begun(await it.run())
        assert (await (await it.run()).result())["rows"][0]["outcome"] == "done"

    run(temporal_server, task_queue, scene)


@pytest.mark.feature("455-28")
def test_later_target_supersedes_the_earlier_runs_row(
    temporal_server: TemporalServer, task_queue: str, recorded: Recorder
) -> None:
    async def scene(it: Cluster) -> None:
        await it.up()
        await it.reassign((0, [2]))
        await it.open(await it.run(), "catching_up")
        mine = await it.start({"topic": "t", "partition": 0, "replicas": [3]})
        first = await (await it.run()).result()
        assert first["rows"][0]["outcome"] == "superseded"
        await it.open(mine, "catching_up")
        assert (await it.partition()).assignment.original == (1,)
        await it.in_sync()
        row = (await mine.result())["rows"][0]
        assert (row["outcome"], row["original"], row["replicas"]) == ("done", [1], [3])
        await recorded("reassign-superseded", it.client, (await it.run()).id)
        await recorded("reassign-by-hand", it.client, mine.id)
        # The controller has started no second run for what the run by hand asked.
        described = await (await it.run()).describe()
        assert described.status == WorkflowExecutionStatus.COMPLETED

    run(temporal_server, task_queue, scene)


def test_repeated_request_with_the_same_target_has_one_run(temporal_server: TemporalServer, task_queue: str) -> None:
    async def scene(it: Cluster) -> None:
        await it.up()
        await it.reassign((0, [2]))
        await it.reassign((0, [2]))
        mine = await it.start([{"topic": "t", "partition": 0, "replicas": [2]}])
        await it.open(mine, "catching_up")
        await it.in_sync()
        await it.begun(await it.run())
        outcomes = [(await handle.result())["rows"][0]["outcome"] for handle in (await it.run(), mine)]
        assert outcomes == ["done", "done"]
        assert await it.runs("PartitionReassignment", 2) == {(await it.run()).id, mine.id}

    run(temporal_server, task_queue, scene)


def test_deleted_topic_ends_its_run_with_the_reason(
    temporal_server: TemporalServer, task_queue: str, recorded: Recorder
) -> None:
    async def scene(it: Cluster) -> None:
        await it.up()
        await it.reassign((0, [2]))
        await it.open(await it.run(), "catching_up")
        await it.node(3).submit(it.handle, {"do": "delete_topics", "names": ["t"]})
        with pytest.raises(WorkflowFailureError) as caught:
            await (await it.run()).result()
        assert failure(caught.value).type == "TopicDeleted"
        assert failure(caught.value).details[0]["rows"][0]["outcome"] == "failed"
        await recorded("reassign-topic-deleted", it.client, (await it.run()).id)

    run(temporal_server, task_queue, scene)


def test_rejected_partition_fails_and_the_others_continue(temporal_server: TemporalServer, task_queue: str) -> None:
    async def scene(it: Cluster) -> None:
        await it.up(2)
        plan = {
            "version": 1,
            "partitions": [
                {"topic": "t", "partition": 0, "replicas": [9]},
                {"topic": "t", "partition": 1, "replicas": [3]},
            ],
        }
        mine = await it.start(plan)
        await it.open(mine, "catching_up")
        await it.in_sync(1)
        rows = (await mine.result())["rows"]
        assert [row["outcome"] for row in rows] == ["failed", "done"]
        assert rows[0]["error"] == "ReassignmentRefused" and "9" in rows[0]["message"]
        other = await it.start({"topic": "no-such", "partition": 0, "replicas": [1]}, "other")
        with pytest.raises(WorkflowFailureError) as caught:
            await other.result()
        assert failure(caught.value).type == "ReassignmentRefused"
        assert "no-such" in failure(caught.value).message

    run(temporal_server, task_queue, scene)


def test_reassignment_that_completes_at_once_has_a_run(
    temporal_server: TemporalServer, task_queue: str, recorded: Recorder
) -> None:
    async def scene(it: Cluster) -> None:
        await it.up(2, replicas=(1, 3))
        it.node(3).hold_deletion.clear()
        # Another order, and fewer replicas: in one request and one run.
        assert not any(each.get("error") for each in await it.reassign((0, [3, 1]), (1, [1])))
        assert not (await it.partition(1)).assignment.reassigning
        await it.open(await it.run(0, 2), "deleting")
        it.node(3).hold_deletion.set()
        rows = (await (await it.run(0, 2)).result())["rows"]
        told = [(row["outcome"], row["original"], row["target"], row["seconds_deleting"] > 0) for row in rows]
        assert told == [("done", [1, 3], [3, 1], False), ("done", [1, 3], [1], True)]
        await it.reassign((1, [1]))  # as it is already: nothing is begun
        assert len(await it.runs("PartitionReassignment", 1)) == 1
        await recorded("cluster-settled", it.client, it.name)

    run(temporal_server, task_queue, scene)


@pytest.mark.parametrize("end", ["done", "cancelled"])
def test_run_holds_its_throttles_until_its_replicas_are_copied(
    temporal_server: TemporalServer, task_queue: str, recorded: Recorder, end: str
) -> None:
    leaders, followers = throttles.LISTS

    async def scene(it: Cluster) -> None:
        async def configure(kind: str, name: str, values: dict[str, str]) -> None:
            command = {"do": "alter_configs", "kind": kind, "name": name, "changes": values}
            assert not (await it.node(1).submit(it.handle, command))["results"][0][0].get("error")

        async def configs() -> tuple[dict[str, str], dict[str, dict[str, str]]]:
            state = ClusterState.of(await it.handle.query("state"))
            nodes = {name: dict(values) for (_, name), values in state.configs.items() if values}
            return dict(state.topics["t"].configs), nodes

        await it.up()
        await configure("topic", "t", {leaders: "7:7"})
        await configure("broker", "1", {throttles.RATES[0]: "5"})
        held = {
            "topics": {"t": {leaders: ["0:1"], followers: ["0:2"]}},
            "nodes": {"1": {throttles.RATES[0]: "1000"}, "2": {throttles.RATES[0]: "1000"}},
        }
        partitions = [{"topic": "t", "partition": 0, "replicas": [2]}]
        mine = await it.start({"version": 1, "partitions": partitions, "throttles": held})
        await it.open(mine, "catching_up")
        assert (await mine.query("progress"))["throttles"]["nodes"] == held["nodes"]
        lists, nodes = await configs()
        assert lists == {leaders: "7:7,0:1", followers: "0:2"}
        assert {node: nodes[node] for node in ("1", "2")} == held["nodes"]
        for node in (1, 2):
            it.node(node).hold_deletion.clear()  # what is deleted is not waited for
        if end == "done":
            await it.in_sync()
        else:
            await mine.cancel()
        await it.open(mine, "deleting")
        assert await configs() == ({leaders: "7:7"}, {"1": {throttles.RATES[0]: "5"}})
        for node in (1, 2):
            it.node(node).hold_deletion.set()
        if end == "done":
            await mine.result()
            await recorded("reassign-throttled", it.client, mine.id)
        else:
            with pytest.raises(WorkflowFailureError):
                await mine.result()

    run(temporal_server, task_queue, scene)


def test_cancel_while_the_controller_is_unavailable_leaves_no_throttle(
    temporal_server: TemporalServer, task_queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "REQUEST_AGAIN_AFTER", timedelta(seconds=0.3))
    monkeypatch.setattr(options, "REQUEST_AGAIN_AFTER_MAX", timedelta(seconds=1))

    async def scene(it: Cluster) -> None:
        await it.up()
        held = {"topics": {}, "nodes": {"2": {throttles.RATES[0]: "1000"}}}
        partitions = [{"topic": "t", "partition": 0, "replicas": [2]}]
        mine = await it.start({"version": 1, "partitions": partitions, "throttles": held})
        await it.open(mine, "catching_up")
        state = ClusterState.of(await it.handle.query("state"))
        await it.handle.terminate("lost")
        it.handle = await it.client.start_workflow("Cluster", {}, id=it.name, task_queue=it.name)
        # The node knows that its replica has joined; the new controller collects, and cannot end the lease yet.
        done = with_isr(state, [1, 2], 0)
        it.node(2).take(image.whole(done)[0])

        async def waiting() -> bool:
            return bool((await mine.query("progress"))["waiting_for"] == "the controller")

        await until_true(waiting)
        await mine.cancel()
        await it.handle.terminate("found again")
        carried = {"v": 1, "state": pack(done.rows()), "suspects": [], "known": [], "collecting": False}
        it.handle = await it.client.start_workflow("Cluster", carried, id=it.name, task_queue=it.name)
        assert (await mine.result())["rows"][0]["outcome"] == "done"
        found = ClusterState.of(await it.handle.query("state"))
        assert found.configs["broker", "2"] == {}

    run(temporal_server, task_queue, scene)


#: A parameter, and the path at which it is invalid.
INVALID: list[tuple[Any, str]] = [
    ({"topic": "t", "partition": 0}, "$.replicas"),
    ([{"topic": "t", "partition": 0, "replicas": [1, 1]}], "$[0].replicas[1]"),
    ({"topic": "t", "partition": 0, "replicas": [2], "log_dirs": ["b"]}, "$.log_dirs[0]"),
    ({"topic": "t", "partition": -1, "replicas": [2]}, "$.partition"),
    ({"topic": "t", "partition": 0, "replicas": [2], "colour": "red"}, "$.colour"),
    ([], "$"),
    ({"version": 2, "partitions": []}, "$.version"),
    ([{"topic": "t", "partition": each, "replicas": [2]} for each in range(51)], "$"),
    ("{", "$"),
    (None, "$"),
    ({"made": [["t"]], "generation": 1, "version": 1}, "$.made[0]"),
]


def test_invalid_parameter_fails_with_its_path(temporal_server: TemporalServer, task_queue: str) -> None:
    async def scene(it: Cluster) -> None:
        await it.up()
        for parameter, path in INVALID:
            with pytest.raises(WorkflowFailureError) as caught:
                await (await it.start(parameter)).result()
            assert (failure(caught.value).type, failure(caught.value).details[0]) == ("InvalidPlan", path)

    run(temporal_server, task_queue, scene)


def test_request_of_many_partitions_is_split_into_runs(
    temporal_server: TemporalServer, task_queue: str, recorded: Recorder
) -> None:
    async def scene(it: Cluster) -> None:
        await it.up(120)
        results = await it.reassign(*((partition, [2]) for partition in range(120)))
        assert not any(result.get("error") for result in results)
        runs = [await it.run(0, 50), await it.run(50, 50), await it.run(100, 20)]
        for handle in runs:
            await it.open(handle, "catching_up")
        await it.in_sync(*range(120))
        for handle, count in zip(runs, (50, 50, 20), strict=True):
            rows = (await handle.result())["rows"]
            assert [row["outcome"] for row in rows] == ["done"] * count
        assert (await it.handle.describe()).history_length < 200
        await recorded("cluster-reassigned", it.client, it.name)

    run(temporal_server, task_queue, scene)


def test_run_started_by_a_client_waits_for_a_controller(
    temporal_server: TemporalServer, task_queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "REQUEST_AGAIN_AFTER", timedelta(seconds=0.3))

    async def scene(it: Cluster) -> None:
        await it.up()
        rows = await it.handle.query("state")
        await it.handle.terminate("lost")
        mine = await it.start({"topic": "t", "partition": 0, "replicas": [2]})

        async def waiting() -> bool:
            found = await mine.query("progress")
            return bool(found["phase"] == "asking" and found["waiting_for"] == "the controller")

        await until_true(waiting)
        carried = {"v": 1, "state": pack(rows), "suspects": [], "known": [], "collecting": False}
        it.handle = await it.client.start_workflow("Cluster", carried, id=it.name, task_queue=it.name)
        await it.open(mine, "catching_up")
        await it.in_sync()
        assert (await mine.result())["rows"][0]["outcome"] == "done"

    run(temporal_server, task_queue, scene)
