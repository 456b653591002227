"""The command is interrupted while it is still being loaded."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

COMMAND = """
import os, signal, sys
class Interrupter:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupter())
sys.argv = ["rehome", "--help"]
from ops.cli.entry import main
main()
"""


def run(module: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", COMMAND.format(module=module)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **options)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize("module", ["ops.cli.main", "typer", "rich.table", "temporalio"])
def test_ctrl_c_during_the_imports_exits_with_130(module: str) -> None:
    done = run(module)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_ignored_sigint_stays_ignored() -> None:
    done = run("typer", preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    assert done.returncode == 0 and "Usage" in done.stdout


def test_ctrl_c_after_the_imports_interrupts_the_command() -> None:
    done = run("ops.cli.no_such_module")
    assert done.returncode == 0 and "Usage" in done.stdout


def test_module_run_as_a_program_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ops.cli.entry", "storage", "info", "-c", "none"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    problem = "error: none cannot be read: No such file or directory; give the path of the node's server.properties\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", problem)
