"""`python -m ops.bench.analytics --events 100000`: the report of a generated history, and of 1 % more after it.

Each run is a process of its own, as `rehome report` starts one. Prints its seconds, the CPU time of its processes (it
depends less on what else runs), their most memory together (Python, Java, Spark's workers), and the second run's share
of the first one's time.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from ops.bench import ROOT
from ops.bench.analytics.generate import EVENTS, export, moves_of

INTERVAL = 0.5


@dataclass(frozen=True, slots=True)
class Taken:
    """The time of one run and the CPU time of its processes in seconds, and their most memory together in bytes."""

    seconds: float
    computed: float
    memory: int

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s, {self.computed:.0f} s computed, {self.memory / 1e6:,.0f} MB"


def report(folder: Path, out: Path) -> Taken:
    """Run the job in a process of its own. Raises CalledProcessError."""
    most, ended = [0], threading.Event()
    began, before = time.monotonic(), _computed()
    command = [sys.executable, "-m", "ops.analytics", str(folder), str(out)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=ROOT)

    def watch() -> None:
        while not ended.wait(INTERVAL):
            most[0] = max(most[0], _memory(process.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        code = process.wait()
    finally:
        ended.set()
        watcher.join()
    if code:
        raise subprocess.CalledProcessError(code, process.args)
    return Taken(time.monotonic() - began, _computed() - before, most[0])


def _computed() -> float:
    """Return the CPU time of all processes that this one has started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _memory(pid: int) -> int:
    """Return the proportional memory of a process and its children: workers share their parent's pages."""
    total = 0
    try:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    for one in family:
        try:
            total += one.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return total


def main() -> int:
    """Measure and print; return 0."""
    parser = argparse.ArgumentParser(prog="python -m ops.bench.analytics", description=__doc__)
    parser.add_argument("--events", type=int, default=100_000, help="events of the first export")
    options = parser.parse_args()
    count = moves_of(options.events)
    more = max(1, count // 100)
    root = Path(tempfile.mkdtemp(prefix="rehome-analytics-"))
    try:
        folder, out = root / "export", root / "out"
        export(folder, 1, 0, count)
        first = report(folder, out)
        print(f"{count * EVENTS:,} events: {first}", flush=True)
        export(folder, 2, count, more)
        then = report(folder, out)
        print(
            f"{more * EVENTS:,} more: {then}, {then.seconds / first.seconds:.0%} of the time",
            flush=True,
        )
        again = report(folder, out)
        print(f"nothing new: {again}", flush=True)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
