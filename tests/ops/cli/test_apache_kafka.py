"""Commands on a stack of Apache Kafka that need what only storage nodes have: one sentence, without a connection."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.cli import main as cli
from ops.cli.moves import runs
from ops.stack import state
from ops.stack.errors import ExitCode, OpsError
from ops.stack.layout import StackKind, StackSpec
from ops.stack.stack import Stack
from ops.stack.state import StackState

PLAN = '{"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1], "log_dirs": ["/d"]}]}'


@pytest.fixture
def data(tmp_path: Path) -> Path:
    # Nothing listens on the port: a command that connects would fail with another sentence.
    state.save(StackState(StackSpec(tmp_path, port=1, kind=StackKind.APACHE_KAFKA), "/bin/temporal"))
    (tmp_path / "plan.json").write_text(PLAN)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["node", "status", "1"], "only rehome's storage nodes support this command"),
        (["node", "stop-moves", "1"], "only rehome's storage nodes support this command"),
        (["node", "resume-moves", "1"], "only rehome's storage nodes support this command"),
        (["node", "connections", "1"], "only rehome's storage nodes support this command"),
        (["replicas", "online", "1", "t-0"], "only rehome's storage nodes support this command"),
        (["replicas", "offline"], "only rehome's storage nodes support this command"),
        (["cluster", "describe"], "its own controllers hold the metadata"),
        (["cluster", "recover", "--without", "1"], "its own controllers hold the metadata"),
        (["dirs", "forget", "1", "abc"], "there is nothing to forget"),
        (["move", "t-0", "--node", "1", "--to", "/d"], "rehome move --file FILE"),
    ],
)
def test_command_that_needs_storage_nodes_is_refused(
    data: Path, arguments: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run([*arguments, "--data", str(data)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: this cluster is Apache Kafka: ") and part in line


@pytest.mark.parametrize("command", [["move", "--file"], ["reassign"]])
def test_throttle_without_wait_is_refused(data: Path, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--throttle", "1MB", "--no-plan", "--data", str(data)]
    assert cli.run([*command, str(data / "plan.json"), *options]) == 2
    assert "--throttle on Apache Kafka requires --wait" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "more"), [(["move", "--file"], []), (["reassign"], []), (["reassign"], ["--cancel"])]
)
def test_silent_temporal_fails_what_a_plan_may_hold_back(
    data: Path,
    command: list[str],
    more: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(runs, "CONNECT_SECONDS", 0.5)
    file = data / "plan.json"
    call = [*command, str(file), *more, "--data", str(data), "--temporal-address", "127.0.0.1:1"]
    assert cli.run(call) == ExitCode.TIMEOUT
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: nothing was changed, since a plan of {file} may be open: cannot reach Temporal at ")
    assert line.endswith(
        "; or pass --no-plan, which requests the changes from the brokers whether a plan is open or not"
    )


def test_stack_cannot_change_its_kind(tmp_path: Path) -> None:
    state.save(StackState(StackSpec(tmp_path), "/bin/temporal"))
    with pytest.raises(OpsError, match="has storage nodes and cannot change to Apache Kafka"):
        Stack(tmp_path).prepare({"kind": StackKind.APACHE_KAFKA})
