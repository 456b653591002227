"""A Python without the global interpreter lock is rejected by every entry, with a sentence."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

import pytest

import worker
from ops.cli import entry
from storage_node.directories.errors import StartRefused
from storage_node.lifecycle import interpreter
from storage_node.node import Node
from tests.support.nodes.node_harness import make_config, make_dirs


@pytest.fixture(params=["a free-threaded build", "a lock that is turned off"])
def free_threaded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "a free-threaded build":
        known = sysconfig.get_config_var
        monkeypatch.setattr(sysconfig, "get_config_var", lambda name: 1 if name == "Py_GIL_DISABLED" else known(name))
    else:
        monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)


def test_python_with_the_lock_is_supported() -> None:
    assert interpreter.refusal() == ""


@pytest.mark.usefixtures("free_threaded")
def test_node_does_not_start_and_leaves_its_directories_alone(tmp_path: Path) -> None:
    (path,) = make_dirs(tmp_path, 1)
    with pytest.raises(StartRefused, match="free-threaded Python"):
        Node(make_config([path], 1, 0)).start()
    assert not (Path(path) / ".lock").exists()


def test_threads_of_a_node_hand_the_lock_over_early(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.getswitchinterval()
    try:
        sys.setswitchinterval(0.005)
        assert worker.main(["node", "--config", "no-such-file"]) == 1
        assert sys.getswitchinterval() == pytest.approx(interpreter.SWITCH)
    finally:
        sys.setswitchinterval(before)
    assert "no-such-file" in capsys.readouterr().err


@pytest.mark.usefixtures("free_threaded")
@pytest.mark.parametrize("role", ["node --config no-such-file", "controller --cluster c", "history --cluster c"])
def test_worker_ends_with_one_sentence(role: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert worker.main(role.split()) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and "free-threaded Python" in lines[0] and "global interpreter lock" in lines[0]


@pytest.mark.usefixtures("free_threaded")
def test_command_ends_with_one_sentence(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("signal.signal", lambda number, handler: None)
    with pytest.raises(SystemExit) as ended:
        entry.main()
    assert ended.value.code == 1
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1 and "free-threaded Python" in lines[0]
