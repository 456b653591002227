"""The base image runs this checkout's interpreter, and a temporary engine removes its files."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ops.images import base
from ops.images.engine import NoEngine, engine
from tests.support.programs.docker import docker_with_base

PROJECT = Path(__file__).resolve().parents[3]


def test_what_is_mounted_covers_the_checkout_and_the_interpreter() -> None:
    found = [mount.path for mount in base.mounts(PROJECT)]
    assert all(any(Path(p).is_relative_to(path) for path in found) for p in (PROJECT, sys.prefix))
    assert sys.base_prefix == "/usr" or any(Path(sys.base_prefix).is_relative_to(path) for path in found)
    assert Path("/usr") not in found


def test_linked_environment_works_inside_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If .venv is a link, its target must be mounted as well, at its own path."""
    real, checkout = tmp_path / "shared" / "venv", tmp_path / "checkout"
    real.mkdir(parents=True)
    checkout.mkdir()
    (checkout / ".venv").symlink_to(real)
    monkeypatch.setattr(sys, "prefix", str(checkout / ".venv"))
    found = [mount.path for mount in base.mounts(checkout)]
    assert checkout in found and real in found
    assert checkout / ".venv" not in found


def test_nothing_is_mounted_twice() -> None:
    found = base.mounts(PROJECT, PROJECT / "ops", Path("/elsewhere/file"))
    assert len({mount.path for mount in found}) == len(found)
    assert PROJECT / "ops" not in [mount.path for mount in found]
    assert base.Mount(Path("/elsewhere/file")) in found


def test_without_an_engine_the_error_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(NoEngine, match="start Docker, or set DOCKER_HOST"), engine():
        pass


def test_command_that_times_out_is_killed_with_its_children(tmp_path: Path) -> None:
    """debootstrap runs many child processes: all must exit before their folder is removed."""
    ready = tmp_path / "pid"
    script = f"sh -c 'echo $$ > {ready}; exec sleep 60' & wait"
    with pytest.raises(subprocess.TimeoutExpired):
        base._run_whole(["sh", "-c", script], 2.0)
    child = Path(f"/proc/{ready.read_text().strip()}")
    until = time.monotonic() + 10
    while child.exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert not child.exists()


def test_our_own_interpreter_is_taken_where_it_is_mounted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "base_prefix", "/opt/python")
    assert base.interpreter("any", PROJECT) == (sys.executable, {})


@pytest.mark.docker
@pytest.mark.timeout(900)  # the first run on a machine pulls or builds the image
def test_base_image_runs_what_a_role_needs_and_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.environ.get("DOCKER_HOST")
    with docker_with_base() as image:
        host = os.environ.get("DOCKER_HOST")
        volumes = [word for m in base.mounts(PROJECT) for word in ("-v", f"{m.path}:{m.path}:ro")]
        program = "import ssl, sqlite3, temporalio, uvloop, confluent_kafka, kio, worker"
        done = subprocess.run(
            ["docker", "run", "--rm", "-w", str(PROJECT), *volumes, image, sys.executable, "-c", program],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        if sys.version_info[:2] == (3, 11):  # the version of Debian's packages
            # The system's interpreter is not mounted, and the image may have its own at another path.
            with monkeypatch.context() as patched:
                patched.setattr(sys, "base_prefix", "/usr")
                patched.setattr(sys, "executable", "/usr/bin/not-in-the-image")
                found, environment = base.interpreter(image, PROJECT)
            assert found == "python3.11" and "site-packages" in environment["PYTHONPATH"]
    assert os.environ.get("DOCKER_HOST") == before
    if host != before:  # it was a temporary one; other processes may have theirs
        folder = Path(str(host).removeprefix("unix://")).parent
        assert folder.name.startswith("rehome-docker-") and not folder.exists()
        assert not [line for line in Path("/proc/self/mounts").read_text().splitlines() if f" {folder}/" in line]
