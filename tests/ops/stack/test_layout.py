"""The dev stack as values."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from ops.stack import layout
from ops.stack.layout import StackSpec

DATA = Path("/data/stack")


def test_processes_in_starting_order() -> None:
    names = [process.name for process in layout.processes(StackSpec(DATA), "/bin/temporal")]
    assert names == ["temporal", "controller", "node-1", "node-2", "node-3"]


def test_node_i_listens_i_minus_one_above_the_port() -> None:
    spec = StackSpec(DATA, nodes=3, port=19000)
    assert spec.bootstrap == "127.0.0.1:19000,127.0.0.1:19001,127.0.0.1:19002"
    assert layout.server_properties(spec, 3)["listeners"] == "PLAINTEXT://127.0.0.1:19002"


def test_the_folders_of_a_node() -> None:
    spec = StackSpec(DATA, dirs=2)
    assert spec.log_dirs(1) == (DATA / "node-1" / "disk-a", DATA / "node-1" / "disk-b")
    properties = layout.server_properties(spec, 1)
    assert properties["log.dirs"] == "/data/stack/node-1/disk-a,/data/stack/node-1/disk-b"
    assert properties["file.delete.delay.ms"] == "5000"


def test_the_command_line_starts_a_process_again_with_its_environment() -> None:
    node = layout.processes(StackSpec(DATA, temporal_port=7300), "/bin/temporal")[2]
    words = shlex.split(node.command_line)
    assert words[0] == "env"
    assert "TEMPORAL_ADDRESS=127.0.0.1:7300" in words
    assert words[-2:] == ["--config", "/data/stack/node-1/server.properties"]


@pytest.mark.parametrize(
    "setting",
    [
        "history.transferProcessorMaxPollRPS=2000",
        "history.timerProcessorMaxPollRPS=2000",
        'history.timerProcessorMaxTimeShift="50ms"',
        "frontend.WorkflowPauseEnabled=true",
        "journal_mode=WAL",
        "synchronous=NORMAL",
    ],
)
def test_the_temporal_server_is_tuned(setting: str) -> None:
    assert setting in layout.processes(StackSpec(DATA), "/bin/temporal")[0].command


@pytest.mark.parametrize(
    ("spec", "part"),
    [
        (StackSpec(DATA, nodes=0), "--nodes must be 1 to 9"),
        (StackSpec(DATA, nodes=10), "--nodes must be 1 to 9"),
        (StackSpec(DATA, dirs=0), "--dirs must be 1 to 26"),
        (StackSpec(DATA, port=7232, nodes=3), "overlap"),
        (StackSpec(DATA, port=0), "no port number"),
        (StackSpec(DATA, port=65535), "no port number"),
        (StackSpec(Path("/data/a,b")), "separated by commas"),
    ],
)
def test_what_cannot_be_is_named(spec: StackSpec, part: str) -> None:
    problem = layout.problem(spec)
    assert problem is not None
    assert part in problem


def test_the_usual_stack_is_fine() -> None:
    assert layout.problem(StackSpec(DATA)) is None
    assert layout.problem(StackSpec(DATA, temporal_port=65000)) is None
