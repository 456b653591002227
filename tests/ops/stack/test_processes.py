"""Processes are started, found and terminated; a pid that belongs to another process now is left alone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.stack import processes
from ops.stack.layout import ProcessSpec
from ops.stack.state import ProcessRecord

SLEEPER = "import time\nprint('ready', flush=True)\ntime.sleep(60)"
DEAF = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready', flush=True)\ntime.sleep(60)"


def spec(tmp_path: Path, script: str, name: str = "sleeper") -> ProcessSpec:
    environment = {"REHOME_TEST": str(tmp_path)}
    command = (sys.executable, "-c", f"{script}  # {tmp_path}")
    return ProcessSpec(name, command, tmp_path / "logs" / f"{name}.log", environment=environment)


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[ProcessRecord]:
    record = started(spec(tmp_path, SLEEPER))
    yield record
    processes.kill(record)


def started(process: ProcessSpec) -> ProcessRecord:
    record = processes.launch(process)
    until = time.monotonic() + 20
    while "ready" not in process.log.read_text():
        assert time.monotonic() < until
        time.sleep(0.01)
    return record


def test_process_exits_on_terminate(sleeper: ProcessRecord) -> None:
    assert processes.alive(sleeper)
    assert processes.terminate(sleeper, deadline=10)
    assert processes.alive(sleeper) is None


def test_process_that_ignores_sigterm_is_killed_at_the_deadline(tmp_path: Path) -> None:
    record = started(spec(tmp_path, DEAF))
    assert not processes.terminate(record, deadline=0.3)
    assert processes.alive(record) is None


def test_killed_process_is_gone_and_not_a_zombie(sleeper: ProcessRecord) -> None:
    processes.kill(sleeper)
    assert processes.alive(sleeper) is None


def test_pid_given_to_another_process_does_not_count(sleeper: ProcessRecord) -> None:
    stale = ProcessRecord(sleeper.pid, sleeper.created - 100)
    assert processes.alive(stale) is None
    processes.kill(stale)
    assert processes.alive(sleeper)


def test_process_started_by_hand_is_found(tmp_path: Path) -> None:
    wanted = spec(tmp_path, SLEEPER)
    assert processes.find((wanted,)) == {}
    by_hand = subprocess.Popen(
        wanted.command, env={**os.environ, **wanted.environment}, stdout=subprocess.PIPE, text=True
    )
    try:
        assert by_hand.stdout is not None
        by_hand.stdout.readline()
        assert processes.find((wanted,))["sleeper"].pid == by_hand.pid
        other = ProcessSpec("other", wanted.command, wanted.log, environment={"REHOME_TEST": "elsewhere"})
        assert processes.find((other,)) == {}
    finally:
        by_hand.kill()
        by_hand.communicate()


def test_missing_program_is_one_sentence(tmp_path: Path) -> None:
    missing = ProcessSpec("node-1", ("/no/such/program",), tmp_path / "logs" / "node-1.log")
    with pytest.raises(processes.StartFailed, match="cannot start node-1"):
        processes.launch(missing)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("one\ntwo\n", "its log ends with: two "),
        (
            "one\nnode 1 does not start: 2 of 2\n  /a: x; y\n  /b: x; y\n",
            "its log ends with: node 1 does not start: 2 of 2\n  /a",
        ),
        ("one\njava.lang.Failure: two\n\tat three\n", "its log ends with: java.lang.Failure: two\n\tat three "),
        ("", "is empty"),
    ],
)
def test_last_words_are_the_last_line_with_its_continuation(tmp_path: Path, written: str, expected: str) -> None:
    log = tmp_path / "node-1.log"
    log.write_text(written)
    assert expected in processes.last_words(log)
    assert str(log) in processes.last_words(log)
