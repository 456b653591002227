"""rehome move --file on a cluster without Temporal: the command itself holds the throttle, and must not lose it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ops.cli import main as cli
from ops.cli.kafka_admin import KafkaAdmin
from ops.cli.moves import file_move, log_dirs, throttling
from ops.cli.moves.throttling import note_of
from ops.stack.errors import OpsError
from tests.support.no_cluster import no_cluster_around
from tests.support.nodes.node_harness import Harness, running
from workflows.model.run_results import ThrottleHeld
from workflows.model.throttles import MOVE_RATE


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Harness]:
    no_cluster_around(monkeypatch, tmp_path)
    with running(tmp_path) as it:
        it.create_topic("t")
        it.produce("t", [b"x" * 1000] * 100)
        yield it


@pytest.fixture
def file(harness: Harness, tmp_path: Path) -> Path:
    """A plan that moves the replica."""
    return plan(harness, tmp_path / "moves.json")


def plan(harness: Harness, file: Path) -> Path:
    entry = {"topic": "t", "partition": 0, "replicas": [1], "log_dirs": [harness.other_directory("t")]}
    file.write_text(json.dumps({"version": 1, "partitions": [entry]}))
    return file


@pytest.fixture
def move(harness: Harness, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Run the command with --wait; its exit code, and what it says."""

    def call(file: Path, *more: str) -> tuple[int, str]:
        capsys.readouterr()
        code = cli.run(["move", "--file", str(file), "--wait", "--bootstrap-server", harness.bootstrap, *more])
        return code, capsys.readouterr().err

    return call


def rate(harness: Harness) -> str | None:
    """The throttle that the controller has for the node."""
    return harness.controller.image.dynamic_configs(1)[0].get(MOVE_RATE)


def fails_with(error: BaseException) -> Callable[..., Any]:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    return fail


def test_interrupted_call_prints_the_command_that_removes_the_throttle(
    harness: Harness, file: Path, move: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(file_move, "_wait", fails_with(KeyboardInterrupt()))
        code, said = move(file, "--throttle", "50MB")
    assert (code, rate(harness)) == (130, "50000000")
    assert f"the throttle stays on node 1 until it is removed by: rehome move --file {file} --wait" in said
    assert move(file)[0] == 0
    assert rate(harness) is None
    assert not note_of(file).exists()


@pytest.mark.parametrize("step", ["request_moves", "_wait"])
def test_failed_call_without_open_moves_removes_its_throttle(
    harness: Harness, file: Path, move: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    if step == "_wait":
        assert move(file)[0] == 0  # so that the replica is in place
    monkeypatch.setattr(
        log_dirs if step == "request_moves" else file_move, step, fails_with(OpsError("the node is gone"))
    )
    code, said = move(file, "--throttle", "50MB")
    assert (code, "the node is gone" in said, "stays" in said) == (1, True, False)
    assert rate(harness) is None
    assert not note_of(file).exists()


def test_failed_call_during_a_copy_leaves_its_throttle(
    harness: Harness, file: Path, move: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.controller.hold_moves = True
    with monkeypatch.context() as patched:
        patched.setattr(file_move, "_wait", fails_with(OpsError("the node is gone")))
        code, said = move(file, "--throttle", "50MB")
    assert (code, rate(harness)) == (1, "50000000")
    assert f"rehome move --file {file} --wait" in said
    (planned,) = harness.controller.planned
    harness.controller.run_move(harness.node, planned)
    assert move(file)[0] == 0
    assert rate(harness) is None


def test_plan_is_rejected_while_another_holds_the_throttle_of_its_node(
    harness: Harness, file: Path, move: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = plan(harness, tmp_path / "other.json")
    with monkeypatch.context() as patched:
        patched.setattr(file_move, "_wait", fails_with(KeyboardInterrupt()))
        assert move(file, "--throttle", "50MB")[0] == 130
    code, said = move(other, "--throttle", "60MB")
    assert (code, rate(harness)) == (1, "50000000")
    assert f"the plan {file} holds the throttle of node 1" in said and "no move was requested" in said
    assert not note_of(other).exists()
    assert move(file, "--throttle", "60MB")[0] == 0, "its own plan may change the rate"
    assert rate(harness) is None
    assert move(other, "--throttle", "60MB")[0] == 0
    assert rate(harness) is None


def test_plan_of_another_folder_is_rejected_during_moves_under_a_foreign_throttle(
    harness: Harness, file: Path, move: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    other = plan(harness, tmp_path / "elsewhere" / "moves.json")
    harness.controller.hold_moves = True
    with monkeypatch.context() as patched:
        patched.setattr(file_move, "_wait", fails_with(KeyboardInterrupt()))
        assert move(file, "--throttle", "50MB")[0] == 130
    code, said = move(other, "--throttle", "60MB")
    assert (code, rate(harness)) == (1, "50000000")
    assert "no move was requested" in said
    assert "node 1 moves replicas under a throttle that this plan has not set: 50000000 bytes/s" in said
    assert not note_of(other).exists()
    (planned,) = harness.controller.planned
    harness.controller.run_move(harness.node, planned)
    assert move(file)[0] == 0
    assert rate(harness) is None, "as before the first plan"


def test_throttle_of_an_operator_is_replaced_and_restored_without_open_moves(
    harness: Harness, file: Path, move: Callable[..., tuple[int, str]]
) -> None:
    with KafkaAdmin(harness.bootstrap) as admin:
        admin.change_configs("broker", {"1": {MOVE_RATE: ("SET", "70000000")}})
    assert move(file, "--throttle", "60MB")[0] == 0
    assert rate(harness) == "70000000"


def test_throttle_changed_meanwhile_is_kept_and_reported(
    harness: Harness, file: Path, move: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(file_move, "_wait", fails_with(KeyboardInterrupt()))
        assert move(file, "--throttle", "50MB")[0] == 130
    note_of(file).write_text(json.dumps({"1": {"before": None, "set": "70000000"}}))
    code, said = move(file)
    assert code == 0
    assert f"node 1 keeps {MOVE_RATE} = 50000000, which was set meanwhile; before the moves it was unset" in said
    assert not note_of(file).exists()


def test_lease_without_an_unregistered_node_reports_the_node() -> None:
    class Run:
        async def execute_update(self, _name: str, result_type: type[ThrottleHeld]) -> ThrottleHeld:
            return result_type(held=True, left_out=[3])

    client = SimpleNamespace(get_workflow_handle=lambda _id: Run())
    why = asyncio.run(throttling._not_held(client, "lease"))  # type: ignore[arg-type]
    assert why == "node 3 is not registered with the controller"
