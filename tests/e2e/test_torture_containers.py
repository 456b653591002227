"""`rehome torture --containers`: faults by the engine, the same verdict, and nothing left behind in it or beside it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ops.torture.box import LABEL
from ops.torture.observers.witness import CUT
from tests.support.programs.binary import ensure_temporal
from tests.support.programs.docker import docker_with_base
from tests.support.scale import tally

pytestmark = [pytest.mark.temporal, pytest.mark.docker, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
#: Decides on each of the engine's faults at least three times within half a minute.
SEED = "12440"
FAULTS = (" frozen", " disconnected", " restarted under a memory limit")


@pytest.fixture(scope="module", autouse=True)
def docker() -> Iterator[None]:
    ensure_temporal()
    with docker_with_base():
        yield


def rehome(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "ops.cli.main", "torture", "--containers", "--replication-factor", "1", *arguments],
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def containers() -> list[str]:
    """Ids of the containers of any torture."""
    command = ["docker", "ps", "--all", "--quiet", "--filter", f"label={LABEL}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def left_behind() -> list[str]:
    """What the engine still has of any torture: containers, volumes and networks by their label."""
    found = containers()
    for what in (["volume", "ls"], ["network", "ls"]):
        command = ["docker", *what, "--quiet", "--filter", f"label={LABEL}"]
        found += subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return found


def test_engine_does_every_kind_of_fault_and_nothing_is_lost(tmp_path: Path) -> None:
    folder = tmp_path / "torture"
    with tally("operations under torture in containers") as counted:
        # A busy machine may not get round to every fault in the shorter run.
        for minutes in ("0.6", "2"):
            shutil.rmtree(folder, ignore_errors=True)
            command = rehome("--minutes", minutes, "--seed", SEED, "--data", str(folder), "--json")
            answer, said = command.communicate(timeout=800)
            assert answer, said
            report: dict[str, Any] = json.loads(answer)
            counted.count = report["operations"]
            if report["findings"] or all(any(each.endswith(word) for each in report["kills"]) for word in FAULTS):
                break
    assert not report["findings"], "\n".join(f"{f['check']} {f['sentence']}" for f in report["findings"])
    assert command.returncode == 0
    assert report["verdict"].startswith("no violation in ")
    assert report["counts"]["sends acknowledged"] > 2000
    assert f"--seed {SEED} --replication-factor 1 --containers" in report["again"]

    # What the nemesis says that it did ...
    faults = report["kills"]
    assert any(fault in ("node-1", "node-2", "node-3") for fault in faults), faults
    for word in FAULTS:
        assert any(fault.endswith(word) for fault in faults), (word, faults)
    # ... and what the engine says that it was told to do.
    for event in ("killed", "paused", "unpaused", CUT):
        assert report["engine"][event] >= 1, report["engine"]
    events = [json.loads(line) for line in (folder / "nemesis.jsonl").read_text().splitlines()]
    told = {event["action"]: event["outcome"] for event in events if " s" in event["outcome"]}
    assert "was disconnected for" in told["cut-role"] and "MiB for" in told["squeeze-node"]

    # One disk of one node each, seen from outside; the logs are kept; the engine keeps nothing.
    assert len({path.parent for path in (folder / "volumes").glob("node-*/disk-*/meta.properties")}) == 9
    assert (folder / "logs" / "node-1.log").stat().st_size > 0
    assert not left_behind()


def test_interrupt_while_it_starts_leaves_nothing() -> None:
    command = rehome("--minutes", "30")
    until = time.monotonic() + 120
    while not containers() and command.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    assert command.poll() is None, "it ended before a container came up"
    command.send_signal(signal.SIGINT)
    _, said = command.communicate(timeout=120)
    assert command.returncode == 1
    assert said.strip().splitlines()[-1] == "error: interrupted during the start: there is nothing to check yet"
    assert not left_behind()


def test_without_an_engine_it_says_what_is_needed(tmp_path: Path) -> None:
    nowhere = {"DOCKER_HOST": f"unix://{tmp_path}/none.sock", "PATH": str(tmp_path)}
    before = set(Path(tempfile.gettempdir()).glob("rehome-torture-*"))
    command = rehome("--minutes", "1", environment=nowhere)
    _, said = command.communicate(timeout=120)
    assert command.returncode == 1
    assert said.strip().splitlines()[-1].startswith("error: no Docker engine responds")
    assert "start Docker, or set DOCKER_HOST" in said and "Traceback" not in said
    assert set(Path(tempfile.gettempdir()).glob("rehome-torture-*")) == before
