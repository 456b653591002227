"""What every command promises: help, exit codes, one clear sentence, JSON; no stack trace ever."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from ops.cli import main as cli

COMMANDS = [
    ["stack", "up"],
    ["stack", "down"],
    ["stack", "status"],
    ["stack", "start"],
    ["stack", "stop"],
    ["stack", "kill"],
    ["topic", "create"],
    ["topic", "list"],
    ["topic", "describe"],
    ["topic", "delete"],
    ["move"],
    ["moves"],
    ["cancel"],
    ["reassign"],
    ["reassignments"],
    ["node", "status"],
    ["node", "stop-moves"],
    ["node", "resume-moves"],
    ["node", "connections"],
    ["dirs", "list"],
    ["dirs", "forget"],
    ["replicas", "online"],
    ["replicas", "offline"],
    ["storage", "random-uuid"],
    ["storage", "format"],
    ["storage", "info"],
    ["cluster", "describe"],
    ["cluster", "recover"],
    ["export"],
    ["report"],
    ["torture"],
]


@pytest.fixture(autouse=True)
def no_cluster_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REHOME_DATA", "REHOME_BOOTSTRAP_SERVER", "TEMPORAL_ADDRESS", "REHOME_CLUSTER", "REHOME_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The exit code and the one sentence of a command that fails."""
    code = cli.run(arguments)
    shown = capsys.readouterr()
    lines = shown.err.strip().splitlines()
    assert shown.out == ""
    assert lines[-1].startswith("error: ")
    assert "Traceback" not in shown.err
    return code, lines[-1]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_and_json(command: list[str]) -> None:
    answer = CliRunner().invoke(cli.app, [*command, "--help"])
    assert answer.exit_code == 0
    assert "--json" in answer.output
    assert "Usage" in answer.output


def test_the_list_of_commands_is_complete() -> None:
    root = typer.main.get_command(cli.app)
    found = []
    for name, command in root.commands.items():  # type: ignore[attr-defined]
        found += [[name, inner] for inner in command.commands] if hasattr(command, "commands") else [[name]]
    assert sorted(found) == sorted(COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["nonsense"], "no such command 'nonsense'"),
        (["move"], "say what to move"),
        (["move", "orders-0", "--node", "1"], "say what to move"),
        (["move", "orders", "--node", "1", "--to", "/d"], "'orders' is no TOPIC-PARTITION"),
        (["move", "orders-x", "--node", "1", "--to", "/d"], "is no TOPIC-PARTITION"),
        (["move", "..-1", "--node", "1", "--to", "/d"], "is no TOPIC-PARTITION"),
        (["move", "orders-0", "--node", "-1", "--to", "/d"], "greater than or equal to 0"),
        (["move", "orders-0", "--node", "1", "--to", "/d", "--throttle", "fast"], "'fast' is no rate"),
        (["move", "orders-0", "--node", "1", "--to", "/d", "--throttle", "0"], "'0' is no rate"),
        (["move", "orders-0", "--node", "1", "--to", "/d", "--throttle", "-1MB"], "'-1MB' is no rate"),
        (["move", "orders-0", "--node", "1", "--to", "/d", "--sla", "0"], "--sla 0 is no time"),
        (["move", "orders-0", "--node", "1", "--to", "/d", "--sla", "-5"], "--sla -5 is no time"),
        (["move", "orders-0", "--node", "1", "--to", "/d", "--sla", "nan"], "--sla nan is no time"),
        (["move", "orders-0", "--file", "x.json"], "--file says which replicas go where"),
        (["move", "--file", "missing.json", "--bootstrap-server", "127.0.0.1:1"], "cannot read the plan missing.json"),
        (["topic", "create", "t", "--config", "retention", "--bootstrap-server", "127.0.0.1:1"], "NAME=VALUE"),
        (["topic", "create"], "missing argument 'TOPIC'"),
        (["stack", "up", "--nodes", "0", "--data", "d"], "--nodes must be 1 to 9"),
        (["stack", "up", "--port", "70000", "--data", "d"], "70000 is no port number"),
        (["cluster", "recover"], "missing option '--without'"),
        (["report", "--export", "nowhere"], "--export nowhere is no folder"),
        (["moves", "--watch", "--json", "--bootstrap-server", "127.0.0.1:1"], "--watch is for people"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_usage_is_2(capsys: pytest.CaptureFixture[str], arguments: list[str], part: str) -> None:
    code, sentence = fails(capsys, *arguments)
    assert part.lower() in sentence.lower()
    assert code == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["topic", "list"],
        ["moves"],
        ["cancel", "x"],
        ["export"],
        ["cluster", "describe"],
        ["node", "stop-moves", "1"],
        ["dirs", "list"],
        ["replicas", "offline"],
        ["replicas", "online", "1", "orders-0"],
        ["move", "orders-0", "--node", "1", "--to", "/d"],
    ],
    ids=" ".join,
)
def test_without_a_cluster_the_error_says_how_to_name_one(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    _, sentence = fails(capsys, *arguments)
    assert "rehome stack up" in sentence or "--to DIR" in sentence


def test_a_stack_that_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for command in (["stack", "status"], ["stack", "start", "node-1"], ["moves"]):
        code, sentence = fails(capsys, *command, "--data", str(tmp_path / "none"))
        assert code == 1
        assert f"there is no stack in {tmp_path / 'none'}" in sentence


def test_nobody_listens_at_the_address(capsys: pytest.CaptureFixture[str]) -> None:
    code, sentence = fails(capsys, "cancel", "some-id", "--temporal-address", "127.0.0.1:1")
    assert code == 1
    assert "cannot reach Temporal at 127.0.0.1:1" in sentence


def test_stopping_what_never_ran_is_fine_twice(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for _ in range(2):
        assert cli.run(["stack", "down", "--data", str(tmp_path), "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {"data": str(tmp_path), "stopped": []}


def test_a_data_folder_that_is_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, sentence = fails(capsys, "stack", "up", "--data", str(tmp_path / "file"))
    assert code == 2
    assert "is a file" in sentence


def test_no_arguments_show_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([]) == 2
    assert "Usage" in capsys.readouterr().out


def test_completion_is_on() -> None:
    assert "--install-completion" in CliRunner().invoke(cli.app, ["--help"]).output


def test_the_program_itself_leaves_with_the_code(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ops.cli.main", "move", "orders", "--node", "1", "--to", "/d"]
    environment = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[2])}
    answer = subprocess.run(
        command, capture_output=True, text=True, timeout=60, cwd=tmp_path, env=environment, check=False
    )
    assert answer.returncode == 2
    assert answer.stderr == "error: 'orders' is no TOPIC-PARTITION; write for example orders-3\n"
    assert answer.stdout == ""
