"""Ctrl-C at any time stops all processes of the demo, and the next run cleans up after a killed one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from ops.demo import folder
from ops.stack import processes, state
from ops.stack.stack import Stack

pytestmark = [pytest.mark.temporal, pytest.mark.timeout(400)]
ROOT = Path(__file__).resolve().parents[3]
MARK = "REHOME_TEST_STARTED_FOR"

#: The demo, and variants that reach a step sooner.
WHOLE = ("-m", "ops.demo")
_RUN = "import runpy; runpy.run_module('ops.demo', run_name='__main__', alter_sys=True)"
SMALL = ("-c", f"from ops.demo import choice; choice.PARTITION_BYTES, choice.THROTTLE = 8_000_000, 1_500_000; {_RUN}")
REPORT = ("-c", f"from ops.demo.run import Demo; Demo._steps = lambda demo: demo._report(demo._start()); {_RUN}")


def start(data: Path, demo: tuple[str, ...] = WHOLE) -> subprocess.Popen[str]:
    """Start the demo in a process group of its own, as a terminal does."""
    return subprocess.Popen(
        [sys.executable, "-u", *demo, "--data", str(data)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env={**os.environ, MARK: str(data)},
        start_new_session=True,
    )


def read_until(process: subprocess.Popen[str], part: str) -> str:
    assert process.stdout is not None
    shown = ""
    for line in process.stdout:
        shown += line
        if part in line:
            return shown
    raise AssertionError(f"{part!r} was never shown: {shown}")


def started_for(data: Path) -> list[str]:
    """Return the command lines of all descendants of a demo in that folder, also of reparented ones."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == str(data):
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of all interrupted runs: each cleans up after the one before."""
    return tmp_path_factory.mktemp("demo")


@pytest.mark.parametrize("loaded", ["site-packages", "confluent_kafka"])
def test_interrupt_right_after_the_start(data: Path, loaded: str) -> None:
    with start(data) as process:
        # The demo has printed nothing yet; its memory maps show the progress of its imports.
        until = time.monotonic() + 30
        while loaded not in Path(f"/proc/{process.pid}/maps").read_text():
            assert time.monotonic() < until
            time.sleep(0.002)
        os.killpg(process.pid, signal.SIGINT)
        assert process.stdout is not None
        shown = process.stdout.read()
        assert process.wait(60) == 130, shown
    assert shown.rstrip().endswith("interrupted")
    assert "Traceback" not in shown
    assert started_for(data) == []


@pytest.mark.parametrize(
    ("demo", "moment"),
    [
        pytest.param(WHOLE, "starting controller", id="the start"),
        pytest.param(WHOLE, "loading", id="the loading"),
        pytest.param(SMALL, "$ rehome stack start node-2", id="the moves"),
        pytest.param(REPORT, "Spark is reading", id="Spark", marks=pytest.mark.spark),
    ],
)
def test_interrupt_leaves_nothing_running(data: Path, demo: tuple[str, ...], moment: str) -> None:
    with start(data, demo) as process:
        read_until(process, moment)
        if "Spark" in moment:
            until = time.monotonic() + 30
            while not any("java" in line for line in started_for(data)):
                assert time.monotonic() < until, "Spark started no Java"
                time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)
        os.killpg(process.pid, signal.SIGINT)
        assert process.stdout is not None
        rest = process.stdout.read()
        assert process.wait(60) == 130, rest
    assert rest.rstrip().endswith("interrupted")
    assert "Traceback" not in rest
    assert started_for(data) == []
    assert Stack(data).running() == {}


def test_killed_run_is_cleaned_up_by_the_next(tmp_path: Path) -> None:
    with start(tmp_path) as process:
        read_until(process, "2/9")
        process.kill()
    left = Stack(tmp_path).running()
    assert set(left) == {"temporal", "controller", "node-1", "node-2", "node-3"}
    try:
        with start(tmp_path) as second:
            shown = read_until(second, "starting temporal")
            assert "removed the processes and data of an earlier run" in shown
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
        printed = process.stdout.read()
        assert process.wait(30) == 1
    assert "is managed by another" in printed
    assert time.monotonic() - began < 30
