"""`make bench`: the table of measured figures, Apache Kafka's single broker and a plain copy beside us, in one run."""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ops.bench import clients, moves
from ops.bench.noop import no_op_activity_seconds
from ops.kafka.broker import KafkaBroker, KafkaUnavailable, free_port

MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table; `ratio` is ours divided by the peer's (or the target's)."""

    what: str
    ours: str
    peer: str = ""
    ratio: float | None = None


class Stack:
    """A stack of one node with two disks in a folder of its own, by the same commands that people use."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        port, temporal = free_port(), free_port()
        self._up(["--nodes", "1", "--dirs", "2", "--port", str(port), "--temporal-port", str(temporal), "--detach"])
        self.bootstrap = f"127.0.0.1:{port}"
        self.temporal = f"127.0.0.1:{temporal}"
        status: list[dict[str, Any]] = json.loads(self._rehome("status", "--json"))
        node = next(each for each in status if each["name"] == "node-1")
        self.disks = [Path(d) for d in node["directories"]]

    def _up(self, options: list[str]) -> None:
        self._rehome("up", *options)

    def _rehome(self, verb: str, *options: str) -> str:
        command = [sys.executable, "-m", "ops.cli.main", "stack", verb, "--data", str(self.folder), *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=180)
        if done.returncode:
            raise RuntimeError(f"rehome stack {verb} failed: {done.stderr.strip()}")
        return done.stdout

    def down(self) -> None:
        self._rehome("down")


def measure(console: Console, folder: Path, size: int, rounds: int) -> list[Figure]:
    """All figures, in order."""
    figures: list[Figure] = []
    stack = Stack(folder / "stack")
    try:
        console.print("one no-op activity, one empty move ...")
        noop = no_op_activity_seconds(stack.temporal)
        figures.append(Figure("one sequential no-op activity", f"{noop * 1e3:.1f} ms"))
        clients.create_topic(stack.bootstrap, "empty")
        empty = moves.empty_move_seconds(stack.temporal, "rehome", "empty", stack.disks, rounds)
        figures.append(Figure("move of an empty partition, start to swapped", f"{empty * 1e3:.0f} ms"))
        console.print("produce and consume, Apache Kafka and rehome in turn ...")
        figures += client_figures(stack, folder / "kafka", size, rounds)
        console.print(f"moves of {2 * size / 2**30:.1f} GiB, a plain copy in turn ...")
        figures += move_figures(stack, 2 * size, rounds)
        return figures
    finally:
        stack.down()


def client_figures(stack: Stack, folder: Path, size: int, rounds: int) -> list[Figure]:
    """Produce and consume rates beside Apache Kafka's single broker."""
    theirs, ours = [], []
    with KafkaBroker(folder) as kafka:
        clients.rates(kafka.bootstrap, "warm", size // 4)
        clients.rates(stack.bootstrap, "warm", size // 4)
        for number in range(rounds):
            theirs.append(clients.rates(kafka.bootstrap, f"rates-{number}", size))
            ours.append(clients.rates(stack.bootstrap, f"rates-{number}", size))
    lines = []
    for what in ("produce", "consume"):
        mine = statistics.median(getattr(rate, what) for rate in ours)
        kafka_rate = statistics.median(getattr(rate, what) for rate in theirs)
        lines.append(
            Figure(
                f"{what}, 1 KiB records, acks=1" if what == "produce" else f"{what}, 1 KiB records",
                f"{mine / MB:.0f} MB/s",
                f"{kafka_rate / MB:.0f} MB/s (Apache Kafka)",
                mine / kafka_rate,
            )
        )
    return lines


def move_figures(stack: Stack, size: int, rounds: int) -> list[Figure]:
    """Unthrottled moves beside `cp` and fsync, the lock's time, and the throttle's mean."""
    clients.create_topic(stack.bootstrap, "big", {"segment.bytes": str(256 * 2**20)})
    clients.produce(stack.bootstrap, "big", size)
    done = moves.big_moves(stack.temporal, "rehome", "big", stack.disks, rounds)
    rate, copy = statistics.median(d.move for d in done), statistics.median(d.copy for d in done)
    locked = [d.locked for d in done]
    clients.create_topic(stack.bootstrap, "slow")
    clients.produce(stack.bootstrap, "slow", 200 * MB)
    _, target = moves.to_and_fro(stack.disks, "slow")
    row = moves.move(stack.temporal, "rehome", "slow", target, throttle=20 * MB).row
    mean = row["bytes_copied"] / (row["seconds_copying"] + row["seconds_throttled"])
    return [
        Figure(
            f"unthrottled flushed move of {size / 2**30:.1f} GiB, start to swapped",
            f"{rate / MB:.0f} MB/s",
            f"{copy / MB:.0f} MB/s (cp and fsync)",
            rate / copy,
        ),
        Figure("the swap's time under the lock, worst", f"{max(locked) * 1e3:.1f} ms"),
        Figure("throttle at 20 MB/s, mean", f"{mean / MB:.2f} MB/s", "20 MB/s (asked for)", mean / (20 * MB)),
    ]


def print_table(console: Console, figures: list[Figure]) -> None:
    table = Table(title="rehome, measured")
    for column in ("what", "rehome", "beside it", "ratio"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for f in figures:
        table.add_row(f.what, f.ours, f.peer, f"{f.ratio:.2f}" if f.ratio is not None else "")
    console.print(table)


def main() -> int:
    """Exit code 0 with the table, 1 with a sentence that says what is missing."""
    parser = argparse.ArgumentParser(prog="python -m ops.bench", description=__doc__)
    parser.add_argument("--bytes", type=int, default=2**30, help="bytes produced and consumed per round (moves: twice)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each; the table shows medians")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    console = Console()
    folder = Path(tempfile.mkdtemp(prefix="rehome-bench-", dir=Path.cwd()))
    try:
        figures = measure(console, folder, options.bytes, options.rounds)
    except (KafkaUnavailable, RuntimeError) as problem:
        print(f"the benchmark could not run: {problem}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print_table(console, figures)
    if options.json:
        rows = [{"what": f.what, "rehome": f.ours, "beside": f.peer, "ratio": f.ratio} for f in figures]
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
