"""DirectoryFailure: what a node tells of a failed directory gets into the metadata and stays in the history."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError

from ops.cli.dirs_history import failure_runs
from tests.support.programs.temporal import TemporalServer
from tests.workflows.conftest import Recorder
from tests.workflows.fakes import FakeMember, FakeProber, orchestrator, until_true
from workflows import options
from workflows.model import names
from workflows.model.metadata.state import ClusterState

pytestmark = pytest.mark.temporal


def notice(topic_id: str, incarnation: str = "i1", **more: Any) -> dict[str, Any]:
    """What node 1 tells when its second directory fails."""
    return {
        "node": 1,
        "incarnation": incarnation,
        "directory": "/b",
        "directory_id": "dir-1-b",
        "reason": "appending to the log of t-0 failed on log directory /b: Input/output error",
        "noticed": 1_790_000_000.25,
        "replicas": [["t", topic_id, [[0, 0], [1, 0]]]],
        "moves": [
            {
                "topic": "t",
                "partition": 2,
                "source": "/a",
                "directory": "/b",
                "workflow_id": "c/move/1/t-2/1",
                "run_id": "r",
                "message": "t-2 cannot be moved: /b is offline (Input/output error)",
            }
        ],
        **more,
    }


async def cluster_with_topic(stack: AsyncExitStack, client: Client, name: str) -> tuple[Any, FakeMember, str]:
    """A controller that serves, node 1, and the topic `t` of three partitions; answers its id too."""
    member = FakeMember(1)
    await stack.enter_async_context(orchestrator(client, name, FakeProber(member).probe_node))
    handle = await client.start_workflow("Cluster", {}, id=name, task_queue=name)
    await member.submit(handle, member.registration())
    new = {"name": "t", "partitions": 3, "replication_factor": 1, "configs": {}}
    reply = await member.submit(handle, {"do": "create_topics", "topics": [new], "validate_only": False})
    return handle, member, str(reply["results"][0][0]["topic_id"])


async def partitions(handle: Any) -> list[tuple[int, str]]:
    """Leader and directory of every partition of the topic, as the controller has them."""
    state = ClusterState.of(await handle.query("state"))
    return [(each.leader, each.directories[0]) for each in state.topics["t"].partitions]


async def started(client: Client, cluster: str, parameter: Any) -> Any:
    id_ = names.directory_failure_id(cluster, 1, "dir-1-b", 1_790_000_000.25)
    return await client.start_workflow("DirectoryFailure", parameter, id=id_, task_queue=cluster)


@pytest.mark.feature("858-09", "858-12", "18-09")
def test_failure_is_recorded_in_the_metadata_and_the_history(
    temporal_server: TemporalServer, task_queue: str, recorded: Recorder
) -> None:
    async def main() -> None:
        client = await temporal_server.client()
        async with AsyncExitStack() as stack:
            cluster, member, topic_id = await cluster_with_topic(stack, client, task_queue)
            # The controller has never heard where the replicas are: that is told with the failure.
            assert await partitions(cluster) == [(1, "")] * 3
            run = await started(client, task_queue, notice(topic_id))
            result = await asyncio.wait_for(run.result(), 20)
            assert await partitions(cluster) == [(-1, "dir-1-b"), (-1, "dir-1-b"), (1, "")]
            assert result["outcome"] == "recorded" and result["node"] == 1 and result["directory"] == "/b"
            assert result["replicas"] == [{"topic": "t", "partitions": [0, 1]}]
            assert [(row["topic"], row["partition"], row["workflow_id"]) for row in result["moves"]] == [
                ("t", 2, "c/move/1/t-2/1")
            ]
            assert "Input/output error" in result["reason"] and result["noticed"] == 1_790_000_000.25
            assert result["recorded"] > 0 and result["version"] > 0
            described = await cluster.query("describe")
            assert [row[2] for row in described["nodes"][0]["directories"]] == [True, False]
            progress = await run.query("progress")
            assert progress["phase"] == "ended" and progress["waiting_for"] == ""
            await recorded("directory-failure", client, run.id)
            for _ in range(100):  # the server lists a run a moment later
                if found := await failure_runs(client, task_queue, 1, "/b"):
                    break
                await asyncio.sleep(0.1)
            assert [(row["workflow_id"], row["noticed"], row["replicas"]) for row in found] == [
                (run.id, result["noticed"], result["replicas"])
            ], "`rehome dirs history` reads it"
            assert (
                await failure_runs(client, task_queue, 1, "/a") == await failure_runs(client, task_queue, 2, "/b") == []
            )

            # Told again, by whom and how often ever, nothing changes, and a node that forgets it is not believed.
            before = (await cluster.query("describe"))["version"]
            evidence = {"verdict": "hung", "operation": "the swap of t-0", "path": "/b", "errno": "", "time": 1.5}
            told = notice(topic_id, evidence=evidence)
            again = await client.execute_workflow("DirectoryFailure", told, id=f"{run.id}-again", task_queue=task_queue)
            assert again["replicas"] == result["replicas"]
            assert (again["evidence"], result["evidence"]) == (evidence, None), "a node of before sends none"
            assert (await cluster.query("describe"))["version"] == before
            forgetful = member.registration() | {"directories": [["dir-1-a", "/a", 1]]}
            await member.submit(cluster, forgetful)
            assert [row for row in (await cluster.query("describe"))["nodes"][0]["directories"]] == [
                ["dir-1-a", "/a", True],
                ["dir-1-b", "/b", False],
            ]
            assert await partitions(cluster) == [(-1, "dir-1-b"), (-1, "dir-1-b"), (1, "")]

    asyncio.run(main())


def test_failure_waits_for_a_controller_and_for_its_nodes_registration(
    temporal_server: TemporalServer, task_queue: str, recorded: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "RECORD_AGAIN_AFTER", timedelta(milliseconds=200))
    monkeypatch.setattr(options, "RECORD_AGAIN_AFTER_MAX", timedelta(milliseconds=400))

    async def main() -> None:
        client = await temporal_server.client()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(orchestrator(client, task_queue, FakeProber().probe_node))
            run = await started(client, task_queue, notice("no-such-topic"))

            async def waits_for(what: str) -> bool:
                return bool((await run.query("progress"))["waiting_for"].startswith(what))

            await until_true(lambda: waits_for("no controller"))
            cluster = await client.start_workflow("Cluster", {}, id=task_queue, task_queue=task_queue)
            await until_true(lambda: waits_for("The controller collects"))
            member = FakeMember(1)
            await member.submit(cluster, member.registration())
            result = await asyncio.wait_for(run.result(), 20)
            assert result["outcome"] == "recorded" and result["replicas"] == []
            await recorded("directory-failure-waits", client, run.id)

    asyncio.run(main())


def test_directory_that_returned_before_stays_online(temporal_server: TemporalServer, task_queue: str) -> None:
    async def main() -> None:
        client = await temporal_server.client()
        async with AsyncExitStack() as stack:
            cluster, member, topic_id = await cluster_with_topic(stack, client, task_queue)
            member.incarnation = "i2"
            await member.submit(cluster, member.registration())
            result = await (await started(client, task_queue, notice(topic_id, "i1"))).result()
            assert result["outcome"] == "healed" and result["replicas"] == []
            assert [leader for leader, _ in await partitions(cluster)] == [1, 1, 1]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        ({"node": -1}, "$.node"),
        ({"noticed": "now"}, "$.noticed"),
        ({"replicas": [["t", "id"]]}, "$.replicas[0]"),
        ({"replicas": [["t", "id", [[0]]]]}, "$.replicas[0][2][0]"),
        ({"moves": [{"partition": 1}]}, "$.moves[0].topic"),
        ({"colour": 1}, "$.colour"),
    ],
)
def test_invalid_parameter_fails_with_its_path(
    temporal_server: TemporalServer, task_queue: str, wrong: dict[str, Any], path: str
) -> None:
    async def main() -> None:
        client = await temporal_server.client()
        async with orchestrator(client, task_queue):
            with pytest.raises(WorkflowFailureError) as caught:
                await (await started(client, task_queue, notice("id") | wrong)).result()
            failure = caught.value.cause
            assert isinstance(failure, ApplicationError) and failure.type == "InvalidPlan"
            assert failure.details[0] == path

    asyncio.run(main())
