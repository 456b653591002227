"""The contract of every command: help, exit codes, one sentence per failure, JSON, no stack trace."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ops.cli import main as cli
from ops.cli.moves import open_moves
from ops.stack.errors import ExitCode
from tests.support.no_cluster import no_cluster_around

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
    *([name] for name in ("pause", "resume", "throttle", "retarget", "cancel")),
    ["reassign"],
    ["reassignments"],
    ["node", "status"],
    ["node", "stop-moves"],
    ["node", "resume-moves"],
    ["node", "connections"],
    ["dirs", "list"],
    ["dirs", "online"],
    ["dirs", "replace"],
    ["dirs", "add"],
    ["dirs", "remove"],
    ["dirs", "forget"],
    ["replicas", "online"],
    ["replicas", "offline"],
    ["storage", "check"],
    ["storage", "random-uuid"],
    ["storage", "format"],
    ["storage", "info"],
    ["cluster", "describe"],
    ["cluster", "recover"],
    ["export"],
    ["report"],
    ["torture"],
    ["plan", "generate"],
    *(["plan", name] for name in ("check", "submit", "show", "list", "watch", "approve", "pause", "resume")),
    *(["plan", name] for name in ("cancel", "rollback", "verify", "skip", "retry", "set", "throttle", "slots")),
    ["drain"],
    ["throttles"],
    ["show"],
    ["sql"],
    ["analytics", "submit"],
    ["dirs", "history"],
]


#: Commands that show what they would change on a stopped broker's disks, and ask; and the one that serves a page.
CONVERSATIONS = [["storage", "repair"], ["storage", "move"], ["dashboard"]]


@pytest.fixture(autouse=True)
def _nothing_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_cluster_around(monkeypatch, tmp_path)


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Run a command that fails; return its exit code and its one sentence."""
    code = cli.run(arguments)
    shown = capsys.readouterr()
    lines = shown.err.strip().splitlines()
    assert shown.out == ""
    assert lines[-1].startswith("error: ")
    assert "Traceback" not in shown.err
    return code, lines[-1]


def fails_in_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """Run a command that fails with --json; return its error."""
    code = cli.run([*arguments, "--json"])
    shown = capsys.readouterr()
    assert shown.out == ""
    said: dict[str, Any] = json.loads(shown.err.strip().splitlines()[-1])
    assert (said["version"], said["exit_code"]) == (1, code)
    assert ExitCode[said["code"].upper()] == code
    return said


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_and_json(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    assert cli.run([*command, "--help"]) == 0
    output = capsys.readouterr().out
    assert "Usage" in output
    # In a terminal of 80 columns too, no option's name is cut.
    found = cli.command()
    for name in command:
        found = found.commands[name]
    names = [name for option in found.params if option.param_type_name == "option" for name in option.opts]
    assert "--json" in names and all(name in re.split(r"[\s,]+", output) for name in names)


@pytest.mark.parametrize("group", [[], ["plan"]], ids=["rehome", "rehome plan"])
def test_list_of_commands_says_what_each_does(capsys: pytest.CaptureFixture[str], group: list[str]) -> None:
    assert cli.run([*group, "--help"]) == 0
    assert "..." not in capsys.readouterr().out.replace("[ARGS]...", "")


def test_list_of_commands_is_complete() -> None:
    root = cli.command()
    found = []
    for name, command in root.commands.items():  # type: ignore[attr-defined]
        found += [[name, inner] for inner in command.commands] if hasattr(command, "commands") else [[name]]
    assert sorted(found) == sorted([*COMMANDS, *CONVERSATIONS])


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["nonsense"], "no such command 'nonsense'"),
        (["move"], "pass the replica and its target"),
        (["move", "orders-0", "--node", "1"], "pass the replica and its target"),
        (["move", "orders", "--node", "1", "--to", "/d"], "'orders' is not a valid TOPIC-PARTITION"),
        (["move", "orders-x", "--node", "1", "--to", "/d"], "is not a valid TOPIC-PARTITION"),
        (["move", "..-1", "--node", "1", "--to", "/d"], "is not a valid TOPIC-PARTITION"),
        (["move", "orders-0", "--node", "-1", "--to", "/d"], "greater than or equal to 0"),
        (["move", "orders-0", "--node", "1", "--to", "/d", "--throttle", "fast"], "'fast' is not a valid rate"),
        (["move", "orders-0", "--node", "1", "--to", "/d", "--throttle", "0"], "'0' is not a valid rate"),
        (["move", "orders-0", "--node", "1", "--to", "/d", "--throttle", "-1MB"], "'-1MB' is not a valid rate"),
        (
            ["move", "orders-0", "--node", "1", "--to", "/d", "--sla", "0"],
            "--sla must be a positive number of seconds below 1,000,000,000, for example 600, not 0",
        ),
        (["move", "orders-0", "--node", "1", "--to", "/d", "--sla", "-5"], "--sla must be a positive number"),
        (["move", "orders-0", "--node", "1", "--to", "/d", "--sla", "nan"], "for example 600, not nan"),
        (["move", "orders-0", "--file", "x.json"], "--file cannot be combined with TOPIC-PARTITION"),
        (["move", "--file", "missing.json", "--bootstrap-server", "127.0.0.1:1"], "cannot read the plan missing.json"),
        (["topic", "create", "t", "--config", "retention", "--bootstrap-server", "127.0.0.1:1"], "NAME=VALUE"),
        (["topic", "create"], "missing argument 'TOPIC'"),
        (["stack", "up", "--nodes", "0", "--data", "d"], "--nodes must be 1 to 9"),
        (["stack", "up", "--port", "70000", "--data", "d"], "70000 is not a valid port"),
        (["cluster", "recover"], "missing option '--without'"),
        (["report", "--export", "nowhere"], "--export nowhere is not a folder"),
        (["report", "--export", ".", "--since", "monday"], "--since 'monday' is not a time in ISO 8601"),
        (
            ["report", "--temporal-address", "127.0.0.1:1", "--cluster", "c"],
            "--export DIR is required: without a stack",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_usage_exits_with_2(capsys: pytest.CaptureFixture[str], arguments: list[str], part: str) -> None:
    code, sentence = fails(capsys, *arguments)
    assert part.lower() in sentence.lower()
    assert code == ExitCode.USAGE
    said = fails_in_json(capsys, *arguments)
    assert (said["code"], said["exit_code"], f"error: {said['message']}") == ("usage", 2, sentence)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_reports_errors_as_json(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    path = " ".join(["rehome", *command])
    said = fails_in_json(capsys, *command, "--nonsense")
    assert said["message"].startswith("no such option: --nonsense")
    assert said["why"].startswith("--nonsense") and said["message"].endswith(f"; see: {path} --help")
    expected = {"code": "usage", "what": "no such option", "where": path, "next": f"see: {path} --help"}
    assert said == said | expected


@pytest.mark.parametrize("command", ["moves", "reassignments"])
def test_watch_is_not_combined_with_json(capsys: pytest.CaptureFixture[str], command: str) -> None:
    said = fails_in_json(capsys, command, "--watch", "--bootstrap-server", "127.0.0.1:1")
    assert (said["code"], said["what"]) == ("usage", "--watch cannot be combined with --json")


def test_json_after_the_end_of_options_is_no_option(capsys: pytest.CaptureFixture[str]) -> None:
    _, sentence = fails(capsys, "plan", "show", "--", "--json")
    assert "no cluster is selected" in sentence or "cluster" in sentence


def test_interrupted_command_reports_it_as_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(open_moves, "gather", interrupted)
    assert cli.run(["moves", "--json"]) == ExitCode.INTERRUPTED
    said = json.loads(capsys.readouterr().err)
    assert (said["code"], said["where"]) == ("interrupted", "rehome moves")


def test_partial_answer_is_printed_and_has_its_own_exit_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = "node 2 does not respond at 127.0.0.1:1 (timed out); is it running? see: rehome stack status"
    monkeypatch.setattr(open_moves, "gather", lambda _: open_moves.Gathered([], [], [silent], [silent]))
    assert cli.run(["moves", "--json"]) == ExitCode.PARTIAL
    shown = capsys.readouterr()
    assert json.loads(shown.out)["notes"] == [silent]
    assert json.loads(shown.err)["code"] == "partial"
    assert cli.run(["moves"]) == ExitCode.PARTIAL
    assert capsys.readouterr() == ("no moves\n", f"error: the result is partial: {silent}\n")


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
def test_error_without_a_cluster_names_the_option(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    _, sentence = fails(capsys, *arguments)
    assert "rehome stack up" in sentence or "--to DIR" in sentence


def test_command_on_a_missing_stack_fails(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for command in (["stack", "status"], ["stack", "start", "node-1"], ["moves"]):
        code, sentence = fails(capsys, *command, "--data", str(tmp_path / "none"))
        assert code == 1
        assert f"there is no stack in {tmp_path / 'none'}" in sentence


def test_unreachable_address_fails_with_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    code, sentence = fails(capsys, "cancel", "some-id", "--temporal-address", "127.0.0.1:1")
    assert code == ExitCode.TIMEOUT
    assert "cannot reach Temporal at 127.0.0.1:1" in sentence


def test_stopping_a_stack_that_never_ran_succeeds_twice(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for _ in range(2):
        assert cli.run(["stack", "down", "--data", str(tmp_path), "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == {"data": str(tmp_path), "stopped": []}


def test_data_folder_that_is_a_file_fails(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, sentence = fails(capsys, "stack", "up", "--data", str(tmp_path / "file"))
    assert code == 2
    assert "is a file" in sentence


def test_no_arguments_print_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    for group in ([], ["plan"]):
        assert cli.run(group) == 2
        shown = capsys.readouterr()
        assert shown.out.startswith(f"Usage: {' '.join(['rehome', *group])} [OPTIONS]") and not shown.err


def test_shell_completion_is_available() -> None:
    assert "--install-completion" in CliRunner().invoke(cli.app, ["--help"]).output


def test_program_exits_with_the_commands_exit_code(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ops.cli.main", "move", "orders", "--node", "1", "--to", "/d"]
    environment = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[2])}
    response = subprocess.run(
        command, capture_output=True, text=True, timeout=60, cwd=tmp_path, env=environment, check=False
    )
    assert response.returncode == 2
    assert response.stderr == "error: 'orders' is not a valid TOPIC-PARTITION; write for example orders-3\n"
    assert response.stdout == ""


@pytest.mark.parametrize(("words", "found"), [("rehome pl", "plan"), ("rehome plan su", "submit")])
def test_tab_completes_commands(words: str, found: str) -> None:
    environment = {"_REHOME_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    result = CliRunner().invoke(cli.app, [], prog_name="rehome", env=environment)
    assert result.output.split() == [found]
