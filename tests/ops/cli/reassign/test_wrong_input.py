"""What people get wrong with reassignments: one sentence that says what, where, why and what next, and an exit code."""

from __future__ import annotations

import codecs
import json
from pathlib import Path
from typing import Any

import pytest

from activities.kafka_admin import admin
from ops.cli import main as cli
from ops.cli.kafka_admin import LogDirectoryView
from ops.cli.reassign import comparing
from ops.stack.errors import ExitCode
from workflows.model.plans.document import PlannedPartition

NOWHERE = "127.0.0.1:1"


def failed(capsys: pytest.CaptureFixture[str], *arguments: str, code: int) -> str:
    """The one sentence of a command that fails."""
    assert cli.run(arguments) == code
    shown = capsys.readouterr()
    assert shown.out == ""
    (line,) = shown.err.splitlines()
    if "--json" in arguments:
        line = f"error: {json.loads(line)['message']}"
    assert line.startswith("error: ")
    return line


def planned(**entry: Any) -> str:
    return json.dumps({"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1], **entry}]})


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "No such file or directory"),
        (b"\xff\xfe", "it is not valid UTF-8 text"),
        ("", "$ is not JSON"),
        ('{"version": 1,', "line 1 column 15"),
        ("[]", "$ must be an object, not a list"),
        ('{"partitions": []}', "there is nothing to do"),
        ('{"version": 2, "partitions": []}', "only version 1 is known"),
        ('{"version": 1, "partitions": []}', "there is nothing to do"),
        (planned(replicas=[]), "$.partitions[0].replicas is empty"),
        (planned(replicas=[1, 1]), "$.partitions[0].replicas[1] is 1 again"),
        (planned(partition="0"), "$.partitions[0].partition must be a whole number, not a string"),
        (planned(log_dirs=["any", "any"]), "$.partitions[0].log_dirs has 2 entries for 1 replicas"),
        (planned(log_dirs=["disk"]), "must be any or an absolute path"),
        (planned(replica=[1]), "replica"),
        (planned(partition=2.0), "$.partitions[0].partition must be a whole number, not 2.0"),
        (
            planned().replace('{"version": 1', '{"version": 1, "sla_seconds": -1'),
            "$.sla_seconds must be a number of seconds",
        ),
    ],
)
@pytest.mark.parametrize("more", [(), ("--json",), ("--cancel",)], ids=["plain", "json", "cancel"])
def test_invalid_plan_fails_with_the_path_of_the_bad_field(
    content: str | bytes | None, why: str, more: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan.json"
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    message = failed(capsys, "reassign", str(file), "--bootstrap-server", NOWHERE, *more, code=2)
    assert str(file) in message and why in message and message.endswith("rehome reassign --help")


@pytest.mark.parametrize("command", ["reassign", "plan check", "move --file"])
def test_plan_that_kafkas_tool_takes_is_taken_with_a_warning(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a version, with fields of somebody's own, and with the mark that some editors put first."""
    monkeypatch.setattr(admin, "CONNECT_SECONDS", 0.3)
    row = {"topic": "t", "partition": 0, "replicas": [1], "log_dirs": ["/a"], "comment": "x"}
    file = tmp_path / "plan.json"
    file.write_bytes(codecs.BOM_UTF8 + json.dumps({"partitions": [row]}).encode())
    assert cli.run([*command.split(), str(file), "--bootstrap-server", NOWHERE]) == ExitCode.TIMEOUT
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == [
        f'warning: the plan {file} has no "version", which is taken as 1',
        f"warning: the plan {file} has fields that are not used: $.partitions[*].comment",
    ]
    assert len(lines) == 3 and lines[2].startswith("error: ") and "no node responded" in lines[2]


@pytest.mark.parametrize("command", [("reassign", "{file}"), ("reassignments",), ("topic", "describe", "t")])
def test_command_without_a_reachable_cluster_fails(
    command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "CONNECT_SECONDS", 0.3)
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "plan.json"
    file.write_text(planned())
    call = [part.format(file=file) for part in command]
    for more in ((), ("--json",)):
        message = failed(capsys, *call, "--bootstrap-server", NOWHERE, *more, code=ExitCode.TIMEOUT)
        assert "no node responded" in message and NOWHERE in message and "rehome stack status" in message
    assert "--bootstrap-server HOST:PORT" in failed(capsys, *call, code=1)
    assert "'localhost' is not a valid Kafka address" in failed(
        capsys, *call, "--bootstrap-server", "localhost", code=2
    )
    assert "'h:port' is not a valid Kafka address" in failed(
        capsys, *call, "--bootstrap-server", "localhost:1,h:port", code=2
    )
    assert "rehome stack up --data" in failed(capsys, *call, "--data", str(tmp_path / "none"), code=1)


def test_sla_that_has_no_effect_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plan.json"
    file.write_text(planned())
    call = ("reassign", str(file), "--bootstrap-server", NOWHERE, "--sla")
    for seconds in ("0", "-1", "nan", "1e9"):
        assert "--sla must be a positive number of seconds" in failed(capsys, *call, seconds, code=2)
    without = "an SLA without Temporal has no effect"
    assert without in failed(capsys, *call, "60", "--no-plan", code=2)
    file.write_text(json.dumps({**json.loads(planned()), "sla_seconds": 60}))
    assert without in failed(capsys, *call[:-1], "--no-plan", code=2)
    assert "--cancel cannot be combined with" in failed(capsys, *call, "60", "--cancel", code=2)


def test_problems_name_unknown_nodes_and_partitions() -> None:
    entries = [PlannedPartition("t", 0, (1, 9), ("any", "any")), PlannedPartition("no", 3, (1,), ("any",))]
    first, second = comparing.problems(entries, {comparing.partition_of(entries[0]): [1]}, [1, 2], [])
    assert first == "t-0: node 9 does not exist; the cluster has 1,2"
    assert second == "partition no-3 does not exist; see: rehome topic list, rehome topic describe no"


def test_problem_shows_a_space_at_the_end_of_a_directory() -> None:
    entry = PlannedPartition("t", 0, (1,), ("/d/a ",))
    view = LogDirectoryView(1, "/d/a", "", 0, 0, ())
    (problem,) = comparing.problems([entry], {comparing.partition_of(entry): [1]}, [1], [view])
    assert problem == "t-0: '/d/a ' is not one of the log.dirs of node 1, which are /d/a"
