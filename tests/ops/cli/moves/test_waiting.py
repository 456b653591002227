"""What a command shows while it waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, cast

import pytest
from temporalio.api.enums.v1 import WorkflowExecutionStatus as RawStatus
from temporalio.api.workflowservice.v1 import DescribeWorkflowExecutionResponse
from temporalio.client import Client

from ops.cli import nodes, waits
from ops.cli.kafka_admin import NodeAddress
from ops.cli.moves import waiting
from ops.cli.moves.open_runs import OpenRun
from ops.cli.moves.view import MoveLine
from ops.cli.moves.waiting import Bars, Shown
from ops.cli.target import Target
from ops.stack.errors import OpsError
from workflows.model.phases import PAUSED


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return []


def test_bars_without_a_terminal_print_a_line_every_30_seconds(printed: list[str]) -> None:
    now = [100.0]
    with Bars(printed.append, waits.Due(lambda: now[0])) as bars:
        for second in range(91):
            now[0] = 100.0 + second
            bars.show("orders-0", Shown("copying", 1_000_000, second * 10_000, 10_000.0, 100.0 - second))
            bars.polled()
    assert printed == [
        "orders-0: copying; 300.0 kB of 1.0 MB, 10.0 kB/s, 1:10 min to go",
        "orders-0: copying; 600.0 kB of 1.0 MB, 10.0 kB/s, 40 s to go",
        "orders-0: copying; 900.0 kB of 1.0 MB, 10.0 kB/s, 10 s to go",
    ]


def test_summary_of_many_replicas_is_one_line() -> None:
    done, slow = Shown("in_place", 100, 100, done=True), Shown("copying", 100, 50, 5.0, 10.0)
    assert (
        waiting.summary({"a-0": done, "a-1": slow, "a-2": Shown("queued", 100), "a-3": slow})
        == "1 of 4 done: 2 copying, 1 queued; 200 B of 400 B, 10 B/s, time to go unknown"
    )
    assert waiting.summary({"a-0": done, "a-1": slow}).endswith(
        "1 of 2 done: copying; 150 B of 200 B, 5 B/s, 10 s to go"
    )


def test_summary_of_replicas_with_nothing_left_to_copy_has_no_eta() -> None:
    deleted, swapping = Shown("copying", 0, 0, eta=0.0), Shown("swapping", 100, 100, eta=0.0)
    assert waiting.summary({"a-0": deleted}) == "a-0: copying; 0 B of 0 B"
    slow = Shown("copying", 100, 50, 5.0, 10.0)
    assert waiting.summary({"a-0": deleted, "a-1": swapping, "a-2": slow}).endswith("150 B of 200 B, 5 B/s, 10 s to go")


def test_summary_of_finished_replicas_has_no_eta() -> None:
    done = Shown("in_place", 100, 100, done=True)
    assert waiting.summary({"a-0": done, "a-1": done, "a-2": done}) == "3 of 3 done: 300 B of 300 B"
    assert waiting.summary({"a-0": done}) == "a-0: 100 B of 100 B"


MOVE = {"topic": "orders", "partition": 0, "node": 1, "directory": "/b"}
STATUS = {"topic": "orders", "partition": 0, "owner": "run-1", "directory": "/b", "state": "copying", "bytes_total": 9}


class Server:
    """Temporal's server as far as one run is described."""

    namespace = "default"

    def __init__(self) -> None:
        self.workflow_service = self
        self.status = RawStatus.WORKFLOW_EXECUTION_STATUS_RUNNING
        self.memo: list[str] = []
        self.calls = 0

    async def describe_workflow_execution(self, *_: Any, **__: Any) -> DescribeWorkflowExecutionResponse:
        self.calls += 1
        found = DescribeWorkflowExecutionResponse()
        found.workflow_execution_info.status = self.status
        for name in self.memo:
            found.workflow_execution_info.memo.fields[name].data = b""
        return found


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def follow(server: Server, monkeypatch: pytest.MonkeyPatch) -> Callable[[], MoveLine]:
    """Read a run that node 1 reports completely once more; return the replica's line."""
    monkeypatch.setattr(nodes, "addresses", lambda *_, **__: [NodeAddress(node, "127.0.0.1", 1) for node in (1, 2)])
    monkeypatch.setattr(nodes, "call", lambda where, *_, **__: {"moves": [STATUS] if where.node == 1 else []})
    target = Target("127.0.0.1:1", "127.0.0.1:2", "default", "c")
    follows = waiting._Follow(cast(Client, server), target, OpenRun("run-1", "r", MOVE))

    def look() -> MoveLine:
        (line,) = asyncio.run(follows.lines())
        return line

    return look


def test_wait_looks_unknown_addresses_up_again(follow: Callable[[], MoveLine], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    def fails(*_: Any, **__: Any) -> Any:
        raise OpsError("the bootstrap node restarts")

    with monkeypatch.context() as patched:
        patched.setattr(nodes, "addresses", fails)
        assert follow().phase != "copying"
    clock[0] += 31.0
    assert (follow().phase, follow().bytes_total) == ("copying", 9)
    clock[0] += 31.0
    monkeypatch.setattr(nodes, "addresses", fails)
    assert follow().phase == "copying", "what is known is good"


def test_wait_shows_a_pause_and_resume_of_the_run(
    follow: Callable[[], MoveLine], server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "SERVER_SECONDS", 0.0)
    assert follow().phase == "copying"
    server.memo = [PAUSED]
    assert (follow().phase, follow().stall_message) == ("paused", "the run is paused")
    server.memo, server.status = [], RawStatus.WORKFLOW_EXECUTION_STATUS_PAUSED
    assert "the Temporal server has paused the run" in follow().stall_message
    server.status = RawStatus.WORKFLOW_EXECUTION_STATUS_RUNNING
    assert follow().phase == "copying"


def test_wait_reads_the_server_every_few_seconds(follow: Callable[[], MoveLine], server: Server) -> None:
    for _ in range(5):
        follow()
    assert server.calls == 1


def test_eta_of_a_bar_is_the_nodes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Rich would measure 900 kB in a moment, and show that no time is left."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "160")
    with Bars() as bars:
        bars.show("orders-0", Shown("copying", 1_000_000, 0, 1_000.0, 7390.0))
        bars.show("orders-0", Shown("copying", 1_000_000, 900_000, 1_000.0, 7290.0))
    shown = capsys.readouterr().err
    assert "2:01:30 h" in shown and "1.0 kB/s" in shown
