"""A process' connection to Temporal in `rehome stack status`."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from activities.temporal import state_file
from activities.temporal.client_state import ClientHealth
from activities.temporal.errors import Kind, Problem
from ops.cli import main as cli
from ops.stack import clients, state
from ops.stack.layout import StackSpec
from ops.stack.state import StackState
from tests.support.nodes.node_harness import running

NOON = datetime(2024, 2, 3, 12, 0, 0, tzinfo=UTC)
SENTENCE = (
    "Temporal at t:7233 rejected this process's credentials for namespace n: Jwt is expired; check TEMPORAL_API_KEY or "
    "the client's certificate (or the profile): whether it is valid, has not expired and may use this namespace"
)


def health_at_noon() -> ClientHealth:
    return ClientHealth("the controller", wall=lambda: NOON.timestamp())


def connected() -> dict[str, Any]:
    health = health_at_noon()
    health.connected("t:7233", "n")
    return health.state.as_dict()


def rejected() -> dict[str, Any]:
    health = health_at_noon()
    health.connected("t:7233", "n")
    health.not_connected(Problem(Kind.UNAUTHORIZED, "Jwt is expired"), "t:7233", "n")
    health.note("controller", "it is paused")
    health.started("exports")
    health.failed("exports", ValueError("odd"), 1.0)
    return health.state.as_dict()


def test_connection_is_one_cell_and_nothing_else() -> None:
    assert clients.short(connected()) == "connected since 2024-02-03 12:00:00Z"
    assert clients.lines("controller", connected()) == []
    assert clients.short(None) == "-" and clients.lines("temporal", None) == []


def test_lost_connection_is_explained_in_lines_of_its_own() -> None:
    assert clients.short(rejected()) == "not connected since 2024-02-03 12:00:00Z"
    assert clients.lines("node-1", rejected()) == [
        f"node-1: {SENTENCE}",
        "node-1: it is paused",
        "node-1: exports failed once, last at 2024-02-03 12:00:00Z (ValueError: odd); "
        "it is down now and will be restarted",
    ]


def test_controller_state_counts_only_if_fresh_and_of_this_process(tmp_path: Path) -> None:
    file = tmp_path / "logs" / "controller.state"
    now = datetime.now(UTC)
    assert clients.of_file(file, os.getpid(), now)["reason"].endswith(f"has not written {file} yet")
    health = health_at_noon()
    health.connected("t:7233", "n")
    state_file.write(file, "controller", health.state)
    assert clients.of_file(file, os.getpid(), now) == connected()
    assert clients.of_file(file, os.getpid() + 1, now)["connected"] is None
    late = clients.of_file(file, os.getpid(), now + timedelta(seconds=100))
    assert clients.short(late) == "unknown" and "it is stuck, or its disk is" in late["reason"]
    file.write_text("{")
    assert clients.of_file(file, os.getpid(), now)["connected"] is None


def test_one_node_shows_how_it_reaches_temporal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running(tmp_path, dirs=1) as harness:
        harness.node.controller_client = rejected
        command = ["node", "status", "1", "--bootstrap-server", harness.bootstrap]
        assert cli.run([*command, "--json"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert shown["temporal_client"] == rejected() and shown["node"] == 1
        assert cli.run(command) == 0
        text = capsys.readouterr().out
        assert "temporal client: not connected since 2024-02-03 12:00:00Z" in text and SENTENCE in text
        assert f"{harness.node.dirs.directories[0].name}: online" in text


def test_stack_that_does_not_run_has_no_clients(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state.save(StackState(StackSpec(tmp_path), "temporal", {}))
    assert cli.run(["stack", "status", "--data", str(tmp_path), "--json"]) == 0
    assert [row["temporal_client"] for row in json.loads(capsys.readouterr().out)] == [None] * 5
