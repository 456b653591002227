"""Watching costs the controller nothing: no command that reads repeatedly queries `Cluster` or a run, since each query
costs the worker a replay, and none requests the controller's version.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from temporalio import service
from temporalio.api.workflowservice.v1 import PauseWorkflowExecutionRequest, UnpauseWorkflowExecutionRequest
from temporalio.client import Client

from ops.cli.kafka_admin import KafkaAdmin
from ops.cli.moves import open_moves, runs, waiting
from ops.cli.moves.open_runs import OpenRun
from ops.cli.moves.view import MoveLine
from ops.cli.reassign import reassignments
from ops.cli.target import resolve
from ops.stack.stack import Stack
from tests.ops.cli.conftest import Rehome, fill, known
from tests.ops.cli.test_on_stack import another, where
from tests.support.nodes.node_harness import until

pytestmark = [pytest.mark.temporal, pytest.mark.timeout(400)]

LOOKS = 3


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count this process's calls of the server's API, and those of Kafka's API that query the controller."""
    made: Counter[str] = Counter()
    plain, listing = service._BridgeServiceClient._rpc_call, KafkaAdmin.reassignments

    async def counted(self: Any, rpc: str, *arguments: Any, **options: Any) -> Any:
        made[rpc] += 1
        return await plain(self, rpc, *arguments, **options)

    def listed(self: KafkaAdmin) -> Any:
        made["ListPartitionReassignments"] += 1
        return listing(self)

    monkeypatch.setattr(service._BridgeServiceClient, "_rpc_call", counted)
    monkeypatch.setattr(KafkaAdmin, "reassignments", listed)
    return made


@pytest.fixture
def moved(rehome: Rehome, topic: str) -> Iterator[dict[str, Any]]:
    """A move that takes a minute."""
    node, directory = where(rehome, topic)
    started = rehome("move", f"{topic}-0", "--node", str(node), "--to", str(another(directory)), "--throttle", "100kB")
    until(lambda: any(row["bytes_copied"] and row["rate"] for row in rehome("moves")["moves"]))
    yield started | {"source": str(directory)}
    rehome("cancel", started["id"])


def waited_for(data: Path, moved: dict[str, Any]) -> MoveLine:
    """The move's line as a command that waits for it sees it first."""
    parameter = {key: moved[key] for key in ("topic", "partition", "node", "directory")}

    async def read(client: Client) -> MoveLine:
        (line,) = await waiting._Follow(client, resolve(data), OpenRun(moved["id"], "", parameter)).lines()
        return line

    return runs.with_temporal(resolve(data), read)


def test_watching_moves_queries_neither_the_controller_nor_the_runs(
    data: Path, moved: dict[str, Any], calls: Counter[str]
) -> None:
    with open_moves.MoveReader(resolve(data), again=True) as reader:
        for _ in range(LOOKS):
            (line,) = reader.gather().lines
    assert (line.id, line.node, line.source) == (moved["id"], moved["node"], moved["source"])
    assert 0 < line.bytes_copied < line.bytes_total
    assert line.rate > 0 and line.eta and line.attempt >= 1
    assert calls["query_workflow"] == 0
    assert calls["list_workflow_executions"] == LOOKS, "one call for each page of runs"
    assert calls["get_workflow_execution_history"] == 1, "what a run was started with is read once"
    assert calls["describe_workflow_execution"] == 0, "its node reports all of it"


def test_host_that_reaches_temporal_alone_sees_the_moves_without_a_query(
    data: Path, moved: dict[str, Any], calls: Counter[str]
) -> None:
    target = resolve(data, bootstrap="127.0.0.1:1")

    with open_moves.MoveReader(target, again=True) as reader:

        def seen() -> Any:
            (line,) = reader.gather().lines
            return line if line.bytes_copied and line.rate else None

        line = until(seen, 60, "the heartbeat of its step reports its progress")
    assert (line.id, line.node, line.phase) == (moved["id"], moved["node"], "copying")
    assert (line.source, line.directory) == (moved["source"], moved["directory"])
    assert line.eta and line.attempt >= 1 and line.stall in ("", "run_limit")
    assert calls["query_workflow"] == 0


def test_paused_move_is_shown_as_paused_without_a_query(
    data: Path, rehome: Rehome, moved: dict[str, Any], calls: Counter[str]
) -> None:
    def order(name: str) -> None:
        runs.with_temporal(resolve(data), lambda client: client.get_workflow_handle(moved["id"]).execute_update(name))

    order("pause")
    try:
        line = until(lambda: (row := rehome("moves")["moves"][0])["phase"] == "paused" and row, 20)
        assert (line["stall"], line["stall_message"]) == ("stopped", "the run is paused")
        assert waited_for(data, moved).phase == "paused", "a command that waits for it shows the same"
    finally:
        order("resume")
    until(lambda: rehome("moves")["moves"][0]["phase"] in ("copying", "throttled"), 20)
    assert waited_for(data, moved).phase in ("copying", "throttled")
    assert calls["query_workflow"] == 0


def test_move_paused_by_the_server_is_shown_with_how_to_resume_it(
    data: Path, rehome: Rehome, moved: dict[str, Any]
) -> None:
    def request(kind: Any, name: str) -> None:
        async def send(client: Client) -> None:
            message = kind(namespace=client.namespace, workflow_id=moved["id"], identity="operator")
            await getattr(client.workflow_service, name)(message)

        runs.with_temporal(resolve(data), send)

    request(PauseWorkflowExecutionRequest, "pause_workflow_execution")
    try:
        line = until(lambda: (row := rehome("moves")["moves"][0])["phase"] == "paused" and row, 20)
        assert line["stall"] == "paused_by_server"
        assert f"temporal workflow unpause --workflow-id {moved['id']}" in line["stall_message"]
        assert waited_for(data, moved).stall == "paused_by_server"
    finally:
        request(UnpauseWorkflowExecutionRequest, "unpause_workflow_execution")
    until(lambda: rehome("moves")["moves"][0]["phase"] in ("copying", "throttled"), 20)


def test_waiting_for_a_move_queries_no_run(rehome: Rehome, topic: str, calls: Counter[str]) -> None:
    node, directory = where(rehome, topic)
    move = ["move", f"{topic}-0", "--node", str(node), "--to", str(another(directory)), "--throttle", "2MB", "--wait"]
    assert rehome(*move)["result"]["rows"][0]["outcome"] in ("deleted", "swapped")
    assert calls["query_workflow"] == 0


def test_watching_and_waiting_for_a_reassignment_queries_the_controller_once(
    stack: Stack, rehome: Rehome, topic: str, producer: Any, tmp_path: Path, data: Path, calls: Counter[str]
) -> None:
    fill(producer, topic)
    known(stack, topic)
    here = rehome("topic", "describe", topic)["partitions"][0]["leader"]
    there = 3 - here
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({"version": 1, "partitions": [{"topic": topic, "partition": 0, "replicas": [there]}]}))
    rates = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
    lists = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
    with KafkaAdmin(stack.spec().bootstrap) as admin:
        admin.change_configs("topic", {topic: {key: ("SET", "*") for key in lists}})
        admin.change_configs("broker", {str(n): {key: ("SET", "1000000") for key in rates} for n in (here, there)})
        done: list[Any] = []
        waits = threading.Thread(target=lambda: done.append(rehome("reassign", str(file), "--wait")))
        waits.start()
        try:
            with reassignments.ReassignmentReader(admin, resolve(data), again=True) as reader:
                until(lambda: reader.gather().lines, 40, "it has begun")
                before = calls["ListPartitionReassignments"]
                line = until(
                    lambda: (found := reader.gather().lines) and found[0].rate > 0 and found[0].eta and found[0], 40
                )
                assert (line.source, line.target, line.in_sync) == ((here,), (there,), ())
                assert 0 < line.bytes_copied < line.bytes_total and line.id and line.by
                assert calls["ListPartitionReassignments"] == before, "neither of the two calls it again"
        finally:
            admin.change_configs("broker", {str(n): {key: ("DELETE", None) for key in rates} for n in (here, there)})
            waits.join()
    assert done[0][0]["outcome"] == "done"
    assert calls["query_workflow"] == 0
