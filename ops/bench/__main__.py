"""`make bench`: measure rehome, Apache Kafka's broker and a plain copy in one run, and print a table."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from ops.bench import at_the_limit, restart
from ops.bench.bench import Bench
from ops.bench.clients import loop_load, rates, small_produce
from ops.bench.hostile import bench as hostile
from ops.bench.moves import big_moves, copies, many_moves, swaps, throttles
from ops.bench.plans import at_scale, on_clusters
from ops.bench.replication import catch_up, failover, many_reassignments, replica_throttles
from ops.bench.table import Figure, as_rows, print_table
from ops.kafka.jars import KafkaUnavailable

WIDTH = 160

#: The benchmarks by their --only names, in the order of the table.
BENCHES: dict[str, Callable[[Bench], list[Figure]]] = {
    "produce": rates.produce,
    "consume": rates.consume,
    "small-produce": small_produce.small_produce,
    "connections": small_produce.connections,
    "moves": big_moves.big_moves,
    "beside-copies": big_moves.beside_copies,
    "many-moves": many_moves.many_moves,
    "throttles": throttles.throttles,
    "swap-latency": swaps.swap_latency,
    "swap-lock": swaps.swap_lock,
    "loop": loop_load.loop,
    "hostile": hostile.hostile,
    "restart": restart.restart,
    "failover": failover.failover,
    "disk-failure": failover.disk_failure,
    "at-the-limit": at_the_limit.at_the_limit,
    "replica-catch-up": catch_up.replica_catch_up,
    "many-reassignments": many_reassignments.many_reassignments,
    "replica-throttles": replica_throttles.replica_throttles,
    "plans-at-scale": at_scale.plans_at_scale,
    "plans-on-clusters": on_clusters.plans_on_clusters,
}


def _chosen(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in BENCHES]
    if unknown or not names:
        raise argparse.ArgumentTypeError(
            f"unknown benchmark {', '.join(unknown) or repr(text)}; choose from {', '.join(BENCHES)}"
        )
    return names


def main() -> int:
    """Run the benchmarks and print the table; return 0, or 1 after an error message."""
    parser = argparse.ArgumentParser(prog="python -m ops.bench", description=__doc__)
    parser.add_argument("--bytes", type=int, default=2**30, help="bytes produced and consumed per round (moves: twice)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each benchmark; the table has medians")
    parser.add_argument(
        "--topics",
        type=int,
        default=at_the_limit.ALL_TOPICS,
        help="topics of a cluster at its limit; fewer for a quick run",
    )
    parser.add_argument(
        "--moves", type=int, default=at_scale.ALL_MOVES, help="moves of a plan at scale; fewer for a quick run"
    )
    parser.add_argument(
        "--partitions", type=int, default=on_clusters.ALL_PARTITIONS, help="partitions of a plan on a real broker"
    )
    parser.add_argument(
        "--partition-bytes", type=int, default=on_clusters.SIZE, help="bytes of each of these partitions"
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--only", type=_chosen, default=list(BENCHES), help=f"subset of {','.join(BENCHES)}")
    options = parser.parse_args()
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)  # a file has no width
    # SIGTERM stops all processes that the benchmarks have started, as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="rehome-bench-", dir=Path.cwd()))
    figures: list[Figure] = []
    try:
        if not copies.drop_caches():
            console.print("the page cache cannot be dropped (that needs root): cold runs are warm or skipped")
        sizes = (
            options.bytes,
            options.rounds,
            options.topics,
            options.moves,
            options.partitions,
            options.partition_bytes,
        )
        with Bench(console, folder, *sizes) as bench:
            for name in options.only:
                figures += BENCHES[name](bench)
    except (KafkaUnavailable, RuntimeError) as problem:
        print(f"the benchmark could not run: {problem}", file=sys.stderr)
        return 1
    finally:
        # A failed benchmark does not discard the figures of those before it.
        if figures:
            print_table(console, figures)
        shutil.rmtree(folder, ignore_errors=True)
    if options.json:
        options.json.write_text(json.dumps(as_rows(figures), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
