"""What crashes need: strace, loop devices, states to start from. Missing, a test is skipped with the reason; with CI
set it fails."""

from __future__ import annotations

import os
import shutil

import pytest

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


@pytest.fixture(scope="session")
def loop_disks() -> None:
    """File systems can be made and mounted."""
    if os.geteuid() != 0:
        _needs("mounts disks, which needs root")
    missing = [name for name in ("losetup", "mkfs.ext4", "mkfs.xfs", "e2fsck", "xfs_repair") if not shutil.which(name)]
    if missing:
        _needs(f"not installed: {', '.join(missing)}")


@pytest.fixture(scope="session")
def states(tmp_path_factory: pytest.TempPathFactory) -> States:
    """Directories to crash, made once."""
    return States(tmp_path_factory.mktemp("states"))
