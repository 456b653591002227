"""What crashes need: strace, loop devices, states to start from. Missing, a test is skipped with the reason; with CI
set it fails."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from tests.crash import disks
from tests.crash.states import States


def _needs(problem: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(f"CI needs it: {problem}")
    pytest.skip(problem)


@pytest.fixture(scope="session")
def strace() -> None:
    """strace is there."""
    if shutil.which("strace") is None:
        _needs("strace is not installed")
    tried = subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        _needs(f"strace may not trace here: {tried.stderr.strip()}")


@pytest.fixture(scope="session")
def loop_disks(tmp_path_factory: pytest.TempPathFactory) -> None:
    """File systems can be made and mounted."""
    if os.geteuid() != 0:
        _needs("mounts disks, which needs root")
    if not os.access("/dev/loop-control", os.R_OK | os.W_OK):
        _needs("there are no loop devices")
    missing = [name for name in ("losetup", "mkfs.ext4", "mkfs.xfs", "e2fsck", "xfs_repair") if not shutil.which(name)]
    if missing:
        _needs(f"not installed: {', '.join(missing)}")
    for kind in disks.MAKE:
        try:
            with disks.disks(kind, tmp_path_factory.mktemp(kind), count=1) as made:
                switch = disks.Switch([made[0].mount_point])
                try:
                    switch.cut()
                finally:
                    switch.close()
        except OSError as error:
            _needs(f"no {kind} on a loop device whose power can be cut: {error}")


@pytest.fixture(scope="session")
def states(tmp_path_factory: pytest.TempPathFactory) -> States:
    """Directories to crash, made once."""
    return States(tmp_path_factory.mktemp("states"))
