"""`make bench`: the table of measured figures, Apache Kafka's single broker and a plain copy beside us, in one run."""

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

from ops.bench import (
    at_the_limit,
    big_moves,
    catch_up,
    controller,
    copies,
    failover,
    looking,
    loop_load,
    many_moves,
    many_reassignments,
    memory,
    metadata,
    pairs,
    rates,
    replica_throttles,
    restart,
    small_produce,
    steps,
    swaps,
    throttles,
)
from ops.bench.bench import Bench
from ops.bench.hostile import bench as hostile
from ops.bench.table import Figure, as_rows, print_table
from ops.kafka.broker import KafkaUnavailable

WIDTH = 160

#: By the name that --only takes, in the order of the table.
BENCHES: dict[str, Callable[[Bench], list[Figure]]] = {
    "steps": steps.steps,
    "produce": rates.produce,
    "consume": rates.consume,
    "small-produce": small_produce.small_produce,
    "connections": small_produce.connections,
    "moves": big_moves.big_moves,
    "beside-copies": big_moves.beside_copies,
    "many-moves": many_moves.many_moves,
    "looking": looking.looking,
    "throttles": throttles.throttles,
    "pairs": pairs.pairs,
    "swap-latency": swaps.swap_latency,
    "swap-lock": swaps.swap_lock,
    "loop": loop_load.loop,
    "memory": memory.memory,
    "hostile": hostile.hostile,
    "metadata": metadata.metadata,
    "restart": restart.restart,
    "failover": failover.failover,
    "controller": controller.controller,
    "at-the-limit": at_the_limit.at_the_limit,
    "replica-catch-up": catch_up.replica_catch_up,
    "many-reassignments": many_reassignments.many_reassignments,
    "replica-throttles": replica_throttles.replica_throttles,
}


def _chosen(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in BENCHES]
    if unknown or not names:
        raise argparse.ArgumentTypeError(
            f"no benchmark {', '.join(unknown) or 'named'}; there are {', '.join(BENCHES)}"
        )
    return names


def main() -> int:
    """Exit code 0 with the table, 1 with a sentence that says what is missing."""
    parser = argparse.ArgumentParser(prog="python -m ops.bench", description=__doc__)
    parser.add_argument("--bytes", type=int, default=2**30, help="bytes produced and consumed per round (moves: twice)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each; the table shows medians")
    parser.add_argument(
        "--topics",
        type=int,
        default=at_the_limit.ALL_TOPICS,
        help="of a cluster at its limit; fewer for a quick look",
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--only", type=_chosen, default=list(BENCHES), help=f"some of {','.join(BENCHES)}")
    options = parser.parse_args()
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)  # a file has no width of its own
    # Told to end, it ends as at Ctrl-C: with everything stopped that it has started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="rehome-bench-", dir=Path.cwd()))
    figures: list[Figure] = []
    try:
        if not copies.drop_caches():
            console.print(
                "the page cache cannot be dropped (only root can): what is said to be cold is not, or left out"
            )
        with Bench(console, folder, options.bytes, options.rounds, options.topics) as bench:
            for name in options.only:
                figures += BENCHES[name](bench)
    except (KafkaUnavailable, RuntimeError) as problem:
        print(f"the benchmark could not run: {problem}", file=sys.stderr)
        return 1
    finally:
        # What was measured before one that failed is not lost.
        if figures:
            print_table(console, figures)
        shutil.rmtree(folder, ignore_errors=True)
    if options.json:
        options.json.write_text(json.dumps(as_rows(figures), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
