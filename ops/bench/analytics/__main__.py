"""`python -m ops.bench.analytics --events 100000`: the report of a generated history, and of 1 % more after it.

Each run is a process of its own, as `rehome report` starts one. Prints its seconds, the CPU time of its processes (it
depends less on what else runs), their most memory together (Python, Java, Spark's workers), and the second run's share
of the first one's time. With `--follow` the runs are rounds of one process: 1 % more comes twice, and seconds count
from its export to the written report.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
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


def followed(folder: Path, out: Path, more: Sequence[Callable[[], object]]) -> Iterator[float]:
    """Run the job with `--follow`; yield the seconds of its first round, and of one after each further export.

    Raises RuntimeError if a round fails.
    """
    command = [sys.executable, "-m", "ops.analytics", str(folder), str(out), "--follow", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        try:
            for publish in (lambda: None, *more):
                publish()
                began, told = time.monotonic(), process.stdout.readline()
                if not told or "error" in json.loads(told):
                    raise RuntimeError(f"a round failed: {told or 'the job has ended'}")
                yield time.monotonic() - began
        finally:
            process.send_signal(signal.SIGINT)


def main() -> int:
    """Measure and print; return 0."""
    parser = argparse.ArgumentParser(prog="python -m ops.bench.analytics", description=__doc__)
    parser.add_argument("--events", type=int, default=100_000, help="events of the first exports")
    parser.add_argument("--exports", type=int, default=1, metavar="N", help="so many exports have them")
    parser.add_argument("--follow", action="store_true", help="measure rounds of a report that follows the exports")
    options = parser.parse_args()
    count, exports = moves_of(options.events), options.exports
    more = max(1, count // 100)
    root = Path(tempfile.mkdtemp(prefix="rehome-analytics-"))
    folder, out = root / "export", root / "out"

    def publish(number: int) -> None:
        export(folder, exports + number, count + (number - 1) * more, more)

    try:
        for number in range(exports):
            first, end = count * number // exports, count * (number + 1) // exports
            export(folder, number + 1, first, end - first)
        if options.follow:
            rounds = followed(folder, out, [partial(publish, 1), partial(publish, 2)])
            whole = next(rounds)
            print(f"{count * EVENTS:,} events: {whole:.1f} s", flush=True)
            for seconds in rounds:
                print(f"{more * EVENTS:,} more: {seconds:.1f} s, {seconds / whole:.0%} of the time", flush=True)
            return 0
        first_run = report(folder, out)
        print(f"{count * EVENTS:,} events: {first_run}", flush=True)
        publish(1)
        then = report(folder, out)
        print(
            f"{more * EVENTS:,} more: {then}, {then.seconds / first_run.seconds:.0%} of the time",
            flush=True,
        )
        again = report(folder, out)
        print(f"nothing new: {again}", flush=True)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
