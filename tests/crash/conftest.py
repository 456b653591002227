"""What crashes need: strace, loop devices, states to start from. Missing, a test is skipped with the reason; with CI
set it fails."""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash import disks
from tests.crash.states import States
from tests.support.needs import need, need_programs


@pytest.fixture(scope="session")
def strace() -> None:
    """strace is there."""
    need_programs("strace")
    tried = subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        need("ptrace", f"strace may not trace here: {tried.stderr.strip()}")


@functools.cache
def _trial(kind: str, folder: Path) -> str:
    """Why no disk of this kind can be made whose power can be cut, "" when one can."""
    try:
        with disks.disks(kind, folder, count=1) as made:
            switch = disks.Switch([made[0].mount_point])
            try:
                switch.cut()
            finally:
                switch.close()
    except OSError as error:
        return str(error)
    return ""


@pytest.fixture(scope="session")
def loop_disk_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], None]:
    """Makes sure that file systems of a kind can be made and mounted, and skips the test where they cannot: a machine
    that lacks one of them tests the others.
    """
    folder = tmp_path_factory.mktemp("trial")

    def ensure(kind: str) -> None:
        if os.geteuid() != 0:
            need("root", "mounts disks")
        if not os.access("/dev/loop-control", os.R_OK | os.W_OK):
            need("loop devices", "no /dev/loop-control that may be used")
        need_programs("losetup", *disks.PROGRAMS[kind])
        if problem := _trial(kind, folder / kind):
            need(f"{kind} on loop devices", f"no disk whose power can be cut, {problem}")

    return ensure


@pytest.fixture(scope="session")
def states(tmp_path_factory: pytest.TempPathFactory) -> States:
    """Directories to crash, made once."""
    return States(tmp_path_factory.mktemp("states"))
