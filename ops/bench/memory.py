"""The memory of a node while it moves twenty times what it could hold."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import psutil

from ops.bench import clients, moves
from ops.bench.bench import Bench
from ops.bench.table import Figure

TIMES = 10
MIB = 2**20
WANTED = 50.0
INTERVAL = 0.1


@contextlib.contextmanager
def _sampled(pid: int) -> Iterator[list[int]]:
    """The resident set of a process, in bytes, ten times a second while the block runs."""
    process, found, ended = psutil.Process(pid), list[int](), threading.Event()

    def run() -> None:
        while not ended.wait(INTERVAL):
            found.append(process.memory_info().rss)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


def memory(bench: Bench) -> list[Figure]:
    """Ten moves of one partition to and fro, 20 GiB in all with the sizes of `make bench`."""
    size, stack = 2 * bench.size, bench.stack
    bench.say(f"the node's memory over {TIMES} moves of {size / 2**30:.1f} GiB ...")
    clients.create_topic(stack.bootstrap, "memory", {"segment.bytes": str(256 * MIB)})
    clients.produce(stack.bootstrap, "memory", size)
    # One move before: what it loads and caches once is no growth.
    moves.move(stack.temporal, "rehome", "memory", moves.to_and_fro(stack.disks, "memory")[1])
    before = psutil.Process(stack.node_pid).memory_info().rss
    with _sampled(stack.node_pid) as samples:
        for _ in range(TIMES):
            moves.move(stack.temporal, "rehome", "memory", moves.to_and_fro(stack.disks, "memory")[1])
    grown = max(samples) - before
    return [
        Figure(
            f"growth of the node's memory over {TIMES * size / 2**30:.0f} GiB of moves, at most",
            f"{grown / MIB:.0f} MiB (of {before / MIB:.0f})",
            f"{WANTED:.0f} MiB (wanted)",
            max(grown, 0) / MIB / WANTED,
        )
    ]
