"""What people get wrong with plans, and what is away: one sentence that says what, where and what next, and a code."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from activities.kafka_admin import admin
from activities.plans import activities
from ops.cli import main as cli
from ops.cli.plan import runs
from ops.stack.errors import ExitCode
from tests.ops.cli.serving import served, temporal
from tests.support.kafka_in_memory import KafkaInMemory
from tests.support.no_cluster import no_cluster_around
from tests.support.nodes.node_harness import until
from tests.support.programs.temporal import TemporalServer, task_queue, temporal_server
from tests.workflows.plans.scene import BEFORE, Scene

__all__ = ["served", "task_queue", "temporal", "temporal_server"]

NOWHERE = "127.0.0.1:1"
ENTRY = {"topic": "t", "partition": 0, "replicas": [1]}


@pytest.fixture(autouse=True)
def _nothing_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_cluster_around(monkeypatch, tmp_path)
    monkeypatch.setattr(admin, "CONNECT_SECONDS", 0.3)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "moves.json"
    path.write_text(json.dumps({"version": 1, "partitions": [ENTRY]}))
    return path


def failed(capsys: pytest.CaptureFixture[str], *arguments: str, code: int) -> str:
    """The one sentence of a command that fails."""
    assert cli.run(arguments) == code
    shown = capsys.readouterr()
    assert shown.out == "" and "Traceback" not in shown.err
    line: str = shown.err.strip().splitlines()[-1]
    assert line.startswith("error: ")
    return line


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "No such file or directory"),
        (b"\xff\xfe", "it is not valid UTF-8 text"),
        (b"", "$ is not JSON"),
        (b'{"version": 1, "partitions": []}', "there is nothing to do"),
        (json.dumps({"version": 1, "partitions": [{**ENTRY, "replicas": [1, 1]}]}), "replicas[1] is 1 again"),
        (json.dumps({"version": 1, "partitions": [ENTRY], "options": {"speed": 1}}), "$.options.speed is not known"),
    ],
)
@pytest.mark.parametrize("command", ["check", "submit"])
def test_bad_file_is_named_with_the_bad_field(
    command: str, content: bytes | str | None, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.json"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    message = failed(capsys, "plan", command, str(path), "--bootstrap-server", NOWHERE, code=2)
    assert str(path) in message and why in message


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--throttle-between-brokers", "fast"), "throttle_between_brokers"),
        (("--throttle-between-directories", "0"), "throttle_between_directories"),
        (("--window", "Mon-Foo"), "window"),
        (("--deadline", "tomorrow"), "deadline"),
        (("--approval", "three"), "must be one of none, required, two_persons"),
        (("--slots-per-disk", "0"), "slots-per-disk"),
    ],
)
def test_bad_option_is_named(
    options: tuple[str, ...], why: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert why in failed(capsys, "plan", "submit", str(file), "--bootstrap-server", NOWHERE, *options, code=2)


@pytest.mark.parametrize("command", ["check", "submit"])
def test_cluster_that_cannot_be_reached_is_named(command: str, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = failed(capsys, "plan", command, str(file), "--bootstrap-server", NOWHERE, code=ExitCode.TIMEOUT)
    assert NOWHERE in message and "no node responded" in message


def test_bad_client_settings_are_named(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "client.properties"
    config.write_text("bootstrap.servers=a:1\nsecurity.protocol=SASL_SSL\nsasl.mechanism=GSSAPI\n")
    message = failed(capsys, "plan", "check", str(file), "--command-config", str(config), code=2)
    assert f"{config}: sasl.mechanism is GSSAPI" in message


#: Every command that takes a plan's name.
NAMED: tuple[tuple[str, ...], ...] = (
    ("show", "p"),
    ("watch", "p"),
    ("approve", "p"),
    ("pause", "p"),
    ("resume", "p"),
    ("rollback", "p"),
    ("cancel", "p", "--rollback"),
    ("skip", "p", "t-0"),
    ("retry", "p"),
    ("set", "p", "--slots-per-disk", "3"),
    ("throttle", "p", "20MB"),
    ("slots", "p", "--per-disk", "3"),
)


@pytest.mark.parametrize("command", [*NAMED, ("list",)], ids=lambda command: command[0])
def test_temporal_that_cannot_be_reached_is_named(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    message = failed(capsys, "plan", *command, "--cluster", "c", "--temporal-address", NOWHERE, code=ExitCode.TIMEOUT)
    assert f"cannot reach Temporal at {NOWHERE}" in message


def test_nothing_to_set_is_a_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert "nothing to set" in failed(capsys, "plan", "set", "p", "--cluster", "c", code=2)
    assert "nothing to set" in failed(capsys, "plan", "slots", "p", "--cluster", "c", code=2)


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (("throttle", "p", "fast"), "'fast', which is not a size"),
        (("throttle", "p", "0", "--between", "brokers"), "throttle_between_brokers"),
        (("throttle", "p", "1MB", "--between", "disks"), "--between"),
        (("slots", "p", "--per-broker", "many"), "slots_per_broker"),
        (("slots", "p", "--whole-cluster", "0"), "slots_cluster"),
    ],
    ids=" ".join,
)
def test_throttle_or_slots_that_are_not_valid_reach_no_plan(
    command: tuple[str, ...], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    message = failed(capsys, "plan", *command, "--cluster", "c", "--temporal-address", NOWHERE, code=ExitCode.USAGE)
    assert why in message


@pytest.mark.temporal
def test_unknown_plan_and_missing_worker_are_told_apart(
    temporal: tuple[str, ...],
    temporal_server: TemporalServer,
    task_queue: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for command in NAMED:
        assert f"the plan {task_queue}/plan/p does not exist" in failed(capsys, "plan", *command, *temporal, code=1)
    monkeypatch.setattr(runs, "QUERY_SECONDS", 0.3)
    monkeypatch.setattr(runs, "UPDATE_SECONDS", 0.3)

    async def submit() -> None:
        await Scene(await temporal_server.client(), task_queue, KafkaInMemory(BEFORE)).submit()

    asyncio.run(submit())
    assert "no worker responds" in failed(capsys, "plan", "show", "p", *temporal, code=ExitCode.TIMEOUT)
    assert "no response to pause within 0.3 s" in failed(capsys, "plan", "pause", "p", *temporal, code=ExitCode.TIMEOUT)


@pytest.fixture
def heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activities, "HEARTBEAT", 0.05)


@pytest.mark.temporal
def test_plan_has_the_figures_of_its_moves_disks_and_brokers_from_the_steps_heartbeats(
    heartbeats: None, served: Scene, temporal: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    def now() -> Any:
        capsys.readouterr()
        assert cli.run(["plan", "show", "p", *temporal, "--json"]) == 0
        return json.loads(capsys.readouterr().out)["now"]

    until(lambda: len(now()["moves"]) == 2, 20, "both moves are reported")
    found = now()
    moves = {row["key"]: (row["state"], row["figures"]["percent"]) for row in found["moves"]}
    assert moves == {"t-0@1": ("copying", 50.0), "t-1": ("copying", 0.0)} and found["unread"] == 0
    assert {(1, "/disk/a", 2), (1, "/disk/b", 1)} <= {
        (row["broker"], row["path"], row["moves"]) for row in found["disks"]
    }
    assert [(row["broker"], row["moves"]) for row in found["brokers"]] == [(1, 2), (2, 1)]
    assert [row["figures"]["eta_low"] for row in found["moves"]] == [None, None], "nothing is copied"
    assert cli.run(["plan", "show", "p", *temporal]) == 0
    assert "500 B of 1.0 kB" in capsys.readouterr().out


@pytest.mark.temporal
def test_commands_print_what_scripts_read(
    served: Scene, temporal: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    def printed(*command: str, code: int = 0) -> Any:
        capsys.readouterr()
        assert cli.run(["plan", *command, *temporal, "--json"]) == code
        return json.loads(capsys.readouterr().out)

    found = printed("show", "p")
    assert (found["format_version"], found["phase"], found["moves"], found["lanes_left"]) == (1, "moving", 2, 0)
    assert sorted(key for lane in found["lanes_running"] for key in lane["moves"]) == ["t-0@1", "t-1"]
    assert not any(name.endswith("_packed") for name in found["check"])
    assert printed("set", "p", "--slots-per-disk", "3", "--throttle-between-brokers", "1MB")["options"] == {
        **found["options"], "slots_per_disk": 3, "throttle_between_brokers": 1_000_000,
    }  # fmt: skip
    options = printed("throttle", "p", "2MB", "--between", "directories")["options"]
    assert (options["throttle_between_brokers"], options["throttle_between_directories"]) == (1_000_000, 2_000_000)
    options = printed("throttle", "p", "none")["options"]
    assert (options["throttle_between_brokers"], options["throttle_between_directories"]) == (None, None)
    options = printed("slots", "p", "--per-broker", "2", "--whole-cluster", "4")["options"]
    assert (options["slots_per_disk"], options["slots_per_broker"], options["slots_cluster"]) == (3, 2, 4)
    assert cli.run(["plan", "slots", "p", "--per-broker", "none", *temporal]) == 0
    assert "slots per disk 3, per broker no limit, in the cluster 4" in capsys.readouterr().out
    assert "t-9" in printed("skip", "p", "t-9")["skipped"]
    assert printed("pause", "p") == {"format_version": 1, "paused": True, "mode": "finish"}
    assert "paused already; resume it first" in failed(capsys, "plan", "pause", "p", *temporal, code=ExitCode.REFUSED)
    assert printed("resume", "p") == {"format_version": 1, "paused": False}
    assert "is not paused" in failed(capsys, "plan", "resume", "p", *temporal, code=ExitCode.REFUSED)
    assert "needs no approval" in failed(capsys, "plan", "approve", "p", *temporal, code=ExitCode.REFUSED)
    assert "No move of the plan has failed" in failed(capsys, "plan", "retry", "p", *temporal, code=ExitCode.REFUSED)
    assert "$.window" in failed(capsys, "plan", "set", "p", "--window", "x", *temporal, code=ExitCode.REFUSED)
    assert printed("cancel", "p") == {"format_version": 1, "cancelling": True, "rollback": False}
    result = printed("watch", "p", code=1)
    assert (result["outcome"], result["outcomes"]) == ("cancelled", {"cancelled": 2}), result
    assert served.kafka.placed == BEFORE
