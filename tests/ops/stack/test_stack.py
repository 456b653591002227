"""A stack of real processes: up, up again, in the foreground, killed and started by hand, down, down again."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.stack import ports, state
from ops.stack.errors import OpsError, UsageError
from ops.stack.layout import StackSpec
from ops.stack.stack import Stack
from storage_node.directories.formatting import format_directories
from tests.support.nodes.node_harness import until

pytestmark = [pytest.mark.temporal, pytest.mark.timeout(400)]
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("stack")
    yield folder
    Stack(folder).down()


@pytest.fixture(scope="module")
def free() -> dict[str, int]:
    first = ports.some_block(5)
    return {"port": first, "temporal_port": first + 3}


def rehome(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "ops.cli.main", *arguments]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(rehome(*arguments), capture_output=True, text=True, timeout=120, cwd=ROOT, check=False)


def test_busy_port_is_reported_before_any_start(tmp_path: Path, free: dict[str, int]) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free["port"] + 1))
        listener.listen(1)
        stack = Stack(tmp_path)
        stack.make_folder()
        stack.prepare({"nodes": 2, "dirs": 2, **free})
        with pytest.raises(ports.PortBusy, match=f"port {free['port'] + 1} for node-2 is in use"):
            stack.up()
        assert stack.running() == {}


def test_folders_of_another_cluster_are_reported_before_any_start(tmp_path: Path, free: dict[str, int]) -> None:
    foreign = StackSpec(tmp_path, nodes=2, dirs=2).log_dirs(2)[1]
    format_directories([foreign], "another", 2)
    stack = Stack(tmp_path)
    stack.make_folder()
    with pytest.raises(OpsError, match=f"directories of node 2 cannot be used: .*{foreign}: Invalid cluster.id"):
        stack.prepare({"nodes": 2, "dirs": 2, **free})


def test_life_in_the_foreground(data: Path, free: dict[str, int]) -> None:
    options = ["--data", str(data), "--nodes", "2", "--dirs", "2"]
    options += ["--port", str(free["port"]), "--temporal-port", str(free["temporal_port"])]
    with subprocess.Popen(
        rehome("stack", "up", *options), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        shown = []
        for line in process.stdout:
            shown.append(line)
            if "Ctrl-C stops it" in line:
                break
        assert any(f"127.0.0.1:{free['port']}" in line for line in shown), shown
        try:
            second = run("stack", "up", "--data", str(data))
            assert second.returncode == 1
            assert "is managed by another `rehome stack up`" in second.stderr
            assert f"(pid {process.pid})" in second.stderr
        finally:
            process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(60) == 130
        assert (
            rest.index("stopping node-1, node-2") < rest.index("stopping controller") < rest.index("stopping temporal")
        )
    assert Stack(data).running() == {}
    assert all(ports.is_free(port) for port in (free["port"], free["temporal_port"]))


def test_stack_keeps_its_shape(data: Path) -> None:
    with pytest.raises(OpsError, match="cannot change its shape"):
        Stack(data).prepare({"dirs": 3})


def test_up_starts_only_what_is_missing(data: Path) -> None:
    first = run("stack", "up", "--data", str(data), "--detach", "--json")
    assert first.returncode == 0, first.stderr
    assert json.loads(first.stdout)["started"] == ["temporal", "controller", "node-1", "node-2"]
    pids = {row["name"]: row["pid"] for row in Stack(data).status()}
    assert run("stack", "kill", "node-2", "--data", str(data)).returncode == 0
    again = json.loads(run("stack", "up", "--data", str(data), "--detach", "--json").stdout)
    assert again["started"] == ["node-2"]
    now = {row["name"]: row["pid"] for row in again["processes"]}
    assert {name for name in pids if pids[name] != now[name]} == {"node-2"}


def test_other_settings_on_a_running_stack_are_refused(data: Path) -> None:
    done = run("stack", "up", "--data", str(data), "--nodes", "3", "--detach")
    assert done.returncode == 1
    assert "a stack runs in" in done.stderr and "rehome stack down" in done.stderr


def test_process_started_by_hand_by_the_line_of_status_belongs_to_the_stack(data: Path) -> None:
    stack = Stack(data)
    stack.kill("node-1")
    (row,) = [row for row in stack.status() if row["name"] == "node-1"]
    assert row["running"] is False
    with subprocess.Popen(
        shlex.split(row["command"]), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/"
    ) as by_hand:
        until(lambda: [r for r in stack.status() if r["name"] == "node-1" and r["ready"]], 60)
        assert stack.running()["node-1"].pid == by_hand.pid
        assert stack.stop("node-1")
        assert by_hand.wait(30) == 0
    assert stack.start("node-1")
    assert stack.start("node-1") is False


def test_stale_pid_is_not_mistaken_for_a_process(data: Path) -> None:
    stack = Stack(data)
    stack.kill("node-2")
    forged = state.require(data).with_record("node-2", state.ProcessRecord(os.getpid(), 1.0))
    state.save(forged)
    assert "node-2" not in stack.running()
    assert stack.kill("node-2") is False
    assert stack.start("node-2")


def test_unknown_process_is_wrong_usage(data: Path) -> None:
    with pytest.raises(UsageError, match="no process named node-9; it has temporal, controller, node-1, node-2"):
        Stack(data).stop("node-9")


def test_temporal_keeps_histories_for_a_month_and_survives_a_kill(data: Path) -> None:
    stack = Stack(data)
    stack.kill("temporal")
    assert stack.start("temporal")
    spec, binary = stack.spec(), state.require(data).temporal_binary
    command = [binary, "operator", "namespace", "describe", "default", "--address", spec.temporal_address, "-o", "json"]
    described = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    assert json.loads(described)["config"]["workflowExecutionRetentionTtl"] == "2592000s"


def test_down_twice(data: Path) -> None:
    first = json.loads(run("stack", "down", "--data", str(data), "--json").stdout)
    assert first["stopped"] == ["temporal", "controller", "node-1", "node-2"]
    assert json.loads(run("stack", "down", "--data", str(data), "--json").stdout)["stopped"] == []


def test_down_stops_all_although_the_disk_is_full(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    stack = Stack(data, said.append)
    stack.start("temporal")

    def full(_: object) -> None:
        raise OpsError("cannot write the stack's state: No space left on device")

    monkeypatch.setattr(state, "save", full)
    assert stack.down() == ["temporal"]
    assert stack.running() == {} and said[-1].endswith("No space left on device")
