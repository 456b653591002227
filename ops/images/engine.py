"""The Docker engine: a running one, or, as root on a machine with `dockerd`, a temporary one."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ops.stack.errors import OpsError

START_SECONDS = 40.0
STOP_SECONDS = 20.0


class NoEngine(OpsError):
    """No Docker engine is running, and none can be started."""


def answers(host: str | None = None) -> bool:
    """Return whether an engine responds at `host` (None: DOCKER_HOST or Docker's default)."""
    docker = shutil.which("docker")
    if docker is None:
        return False
    environment = {**os.environ, **({"DOCKER_HOST": host} if host else {})}
    command = [docker, "version", "--format", "{{.Server.Version}}"]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, timeout=20, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


@contextlib.contextmanager
def engine() -> Iterator[None]:
    """Provide an engine while the block runs; a temporary one has its address in DOCKER_HOST.

    All files of a temporary engine are in a temporary folder that is removed at the end. Raises `NoEngine`.
    """
    if answers():
        yield
        return
    dockerd = shutil.which("dockerd")
    if dockerd is None or os.geteuid() != 0:
        raise NoEngine(
            "no Docker engine responds, and none can be started (that needs root and dockerd); "
            "start Docker, or set DOCKER_HOST to an engine"
        )
    folder = Path(tempfile.mkdtemp(prefix="rehome-docker-"))
    host, before = f"unix://{folder}/docker.sock", os.environ.get("DOCKER_HOST")
    process = _start(dockerd, folder, host)
    try:
        _wait(process, folder, host)
        os.environ["DOCKER_HOST"] = host
        yield
    finally:
        if before is None:
            os.environ.pop("DOCKER_HOST", None)
        else:
            os.environ["DOCKER_HOST"] = before
        _stop(process)
        _unmount_below(folder)
        shutil.rmtree(folder, ignore_errors=True)


def _start(dockerd: str, folder: Path, host: str) -> subprocess.Popen[bytes]:
    with (folder / "dockerd.log").open("wb") as log:
        return subprocess.Popen(
            [
                dockerd,
                *("--data-root", str(folder / "data")),
                *("--exec-root", str(folder / "exec")),
                *("--pidfile", str(folder / "pid")),
                *("--host", host),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _wait(process: subprocess.Popen[bytes], folder: Path, host: str) -> None:
    until = time.monotonic() + START_SECONDS
    while not answers(host):
        if process.poll() is not None or time.monotonic() > until:
            log = (folder / "dockerd.log").read_text(errors="replace").strip().splitlines()
            last = log[-1] if log else "its log is empty"
            raise NoEngine(f"cannot start dockerd: {last}; start Docker, or set DOCKER_HOST to an engine")
        time.sleep(0.1)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _unmount_below(folder: Path) -> None:
    """Unmount the mounts that a killed engine has left, innermost first."""
    lines = Path("/proc/self/mounts").read_text(errors="replace").splitlines()
    mounts = [line.split()[1] for line in lines]
    for mount in sorted((m for m in mounts if m.startswith(f"{folder}/")), reverse=True):
        subprocess.run(["umount", "-l", mount], capture_output=True, check=False)
