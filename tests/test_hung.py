"""A run of tests ends, with the stacks of what hung, also where pytest-timeout cannot interrupt a test."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.report.tables import ROOT

CONFTEST = """
from pathlib import Path
from tests.support.report.hung import Hung

def pytest_configure(config):
    config.pluginmanager.register(Hung(Path("stacks.txt"), grace=0.5, exit_seconds=1))
"""
TEARDOWN = """
    import subprocess, pytest

    @pytest.fixture
    def child():
        process = subprocess.Popen(["sleep", "600"])
        yield process
        process.wait()

    def test_fails(child):
        assert False, "it fails"
"""
IN_C = """
    import ctypes

    def test_waits():
        # One call that keeps the interpreter's lock: no other thread of Python runs meanwhile.
        ctypes.PyDLL(None).sigsuspend(bytes([255] * 128))
"""
THREAD = """
    import threading

    def test_leaves_a_thread():
        threading.Thread(target=threading.Event().wait).start()
"""


def run(folder: Path, source: str, *arguments: str) -> tuple[int, str, str]:
    """Run one file of tests, whose time is up after a second; exit code, output, stacks."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_it.py").write_text(textwrap.dedent(source))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--timeout",
        "1",
        "-p",
        "no:cacheprovider",
        *arguments,
        "test_it.py",
    ]
    done = subprocess.run(
        command,
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    stacks = folder / "stacks.txt"
    return done.returncode, done.stdout + done.stderr, stacks.read_text() if stacks.exists() else ""


def test_teardown_that_hangs_after_a_failure_goes_on_without_what_it_waits_for(tmp_path: Path) -> None:
    code, said, stacks = run(tmp_path, TEARDOWN)
    assert code == 1 and "it fails" in said and "1 failed" in said
    assert "test_it.py::test_fails hangs; killed: ['sleep 600']" in stacks
    assert "in child" in stacks


@pytest.mark.parametrize("parallel", [(), ("-n", "1", "--max-worker-restart", "0")], ids=["one process", "several"])
def test_test_that_cannot_be_interrupted_ends_its_process(tmp_path: Path, parallel: tuple[str, ...]) -> None:
    code, said, stacks = run(tmp_path, IN_C, *parallel)
    assert code == 1
    assert "in test_waits" in stacks and "Timeout" in stacks
    if parallel:
        assert "crashed while running 'test_it.py::test_waits'" in said


def test_process_whose_thread_does_not_end_ends(tmp_path: Path) -> None:
    code, said, stacks = run(tmp_path, THREAD)
    assert code == 1 and "1 passed" in said
    assert "in wait" in stacks and "Timeout" in stacks
