"""`rehome torture` as a person runs it: a verdict, a summary, nothing left behind."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from ops.faults.disk import missing
from ops.torture.nemesis.decisions import ON_DISKS, decisions
from tests.support.programs.binary import ensure_temporal
from tests.support.scale import tally

pytestmark = [pytest.mark.temporal, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]


def rehome(*arguments: str, stderr: int = subprocess.DEVNULL) -> subprocess.Popen[str]:
    ensure_temporal()
    return subprocess.Popen(
        [sys.executable, "-m", "ops.cli.main", "torture", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )


def left_behind(folder: Path) -> list[str]:
    """Processes whose command line names the folder."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or ())
        if str(folder) in line and process.pid != psutil.Process().pid:
            found.append(line)
    return found


#: What its decisions of half a minute are about is asserted; what comes of one depends on what it meets.
SEED = "1437"
MINUTES = 0.6
DECIDED = {
    *("reassign", "reassign-many", "reassign-again", "cancel-reassignment", "cancel-reassignment-by-temporal"),
    *("throttle-replication", "elect-leaders", "kill-leader", "freeze-past-lease", "stop-node", "kill-controller"),
    *(ON_DISKS if not missing() else ()),
}


def test_half_a_minute_of_torture_finds_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "torture"
    with tally("operations under torture") as counted:
        command = rehome("--minutes", str(MINUTES), "--seed", SEED, "--data", str(folder), "--json")
        answer, _ = command.communicate(timeout=800)
        report: dict[str, Any] = json.loads(answer)
        counted.count = report["operations"]
    assert not report["findings"], "\n".join(f"{f['check']} {f['sentence']}" for f in report["findings"])
    assert command.returncode == 0
    assert report["verdict"].startswith("no violation in ")
    assert report["counts"]["sends acknowledged"] > 5000
    assert report["moves"]["replicas deleted"] >= 1
    missed = [told for told in report["problems"] if "before they could be compared" in told]
    assert report["counts"]["swaps compared byte by byte"] >= 1 or missed
    assert sum(report["kills"].values()) >= 2
    assert report["replicas"]["reassignments accepted"] >= 1
    assert report["replicas"]["leader epochs seen"] > 11  # every partition has its first
    assert f"--seed {SEED}" in report["again"]
    assert not left_behind(folder)
    events = [json.loads(line) for line in (folder / "nemesis.jsonl").read_text().splitlines()]
    assert {"at", "wall", "action", "what", "outcome"} <= set(events[0])
    assert [event["action"] for event in events if event["action"] == "killed"]
    # By the seed alone, and carried out as it says: in time for all of them unless the machine is slow.
    first = list(itertools.islice(decisions(int(SEED), replicated=True, disks=not missing()), 200))
    due = itertools.accumulate(each.pause for each in first)
    assert {each.action for each, at in zip(first, due, strict=True) if at < 60 * MINUTES} >= DECIDED
    actions = {each.number: each.action for each in first}
    told = [event for event in events if event["action"] in set(actions.values())]
    assert told and all(event["action"] == actions[event["decision"]] for event in told)
    if missing():
        assert f"no disk fault was injected: {missing()}" in report["problems"]
    else:
        assert report["disks"], [event for event in events if event["action"] in ON_DISKS]


def test_interrupt_ends_it_with_a_verdict(tmp_path: Path) -> None:
    folder = tmp_path / "torture"
    command = rehome("--minutes", "30", "--seed", "1", "--data", str(folder), stderr=subprocess.PIPE)
    assert command.stderr is not None
    for line in command.stderr:
        if line.startswith("torturing for 30 minutes"):
            break
    until = time.monotonic() + 60
    while not (folder / "nemesis.jsonl").read_text() and time.monotonic() < until:
        time.sleep(0.1)
    command.send_signal(signal.SIGINT)
    answer, _ = command.communicate(timeout=400)
    assert command.returncode == 0, answer
    assert "no violation in " in answer and "interrupted" in answer
    assert not left_behind(folder)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [(("--minutes", "0"), "--minutes must be a positive number"), (("--minutes", "x"), "--minutes")],
)
def test_wrong_usage_is_said_at_once(arguments: tuple[str, ...], word: str) -> None:
    command = rehome(*arguments, stderr=subprocess.PIPE)
    _, said = command.communicate(timeout=60)
    assert command.returncode == 2
    assert word in said
