"""Ctrl-C at any moment stops what was started, and the next run cleans up after one that was killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ops.demo import folder
from ops.stack import processes, state
from ops.stack.stack import Stack

pytestmark = [pytest.mark.temporal, pytest.mark.timeout(150)]
ROOT = Path(__file__).resolve().parents[3]


def start(data: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-u", "-m", "ops.demo", "--data", str(data)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)


def read_until(process: subprocess.Popen[str], part: str) -> str:
    assert process.stdout is not None
    shown = ""
    for line in process.stdout:
        shown += line
        if part in line:
            return shown
    raise AssertionError(f"{part!r} was never shown: {shown}")


@pytest.mark.parametrize("moment", ["starting controller", "2/8", "5/8"])
def test_an_interrupt_leaves_nothing_running(tmp_path: Path, moment: str) -> None:
    with start(tmp_path) as process:
        read_until(process, moment)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        rest = process.stdout.read()
        assert process.wait(60) == 130, rest
    assert rest.rstrip().endswith("interrupted")
    assert "Traceback" not in rest
    assert Stack(tmp_path).running() == {}


def test_a_killed_run_is_cleaned_up_by_the_next(tmp_path: Path) -> None:
    with start(tmp_path) as process:
        read_until(process, "2/8")
        process.kill()
    left = Stack(tmp_path).running()
    assert set(left) == {"temporal", "controller", "node-1", "node-2", "node-3"}
    try:
        with start(tmp_path) as second:
            shown = read_until(second, "starting temporal")
            assert "removed what an earlier run had left" in shown
            second.send_signal(signal.SIGINT)
            assert second.wait(60) == 130
        assert not any(processes.alive(record) for record in left.values())
        assert Stack(tmp_path).running() == {}
    finally:
        Stack(tmp_path).down()


def test_two_runs_in_one_folder_are_refused(tmp_path: Path) -> None:
    folder.prepare(tmp_path)
    began = time.monotonic()
    with state.owning(tmp_path), start(tmp_path) as process:
        assert process.stdout is not None
        told = process.stdout.read()
        assert process.wait(30) == 1
    assert "is looked after by another" in told
    assert time.monotonic() - began < 30
