"""The memory of a node while it moves twenty times what it could hold."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Iterator

import psutil

from ops.bench import big_moves, clients, wire_moves
from ops.bench.bench import Bench, Stack
from ops.bench.table import Figure

TIMES = 10
ROOM = 2.3
"""Free space that a move at once takes, for the source and the copy, as a multiple of its size."""
MIB = 2**20
WANTED = 50.0
INTERVAL = 0.1


@contextlib.contextmanager
def sampled(pid: int) -> Iterator[list[int]]:
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
    """One move of 20 GiB with the sizes of `make bench`; with less room a tenth of it ten times to and fro."""
    whole, stack = TIMES * 2 * bench.size, bench.stack
    at_once = shutil.disk_usage(bench.folder).free > ROOM * whole
    size, times = (whole, 1) if at_once else (whole // TIMES, TIMES)
    bench.say(f"the node's memory over {times} move(s) of {size / 2**30:.1f} GiB ...")
    # What the first move loads and caches once is no growth.
    big_moves.make(big_moves.Server("rehome", stack.bootstrap, stack.disks), "warm-up", 256 * MIB)
    _move(stack, "warm-up")
    big_moves.make(big_moves.Server("rehome", stack.bootstrap, stack.disks), "memory", size)
    before = psutil.Process(stack.node_pid).memory_info().rss
    with sampled(stack.node_pid) as samples:
        for _ in range(times):
            _move(stack, "memory")
    clients.delete_topic(stack.bootstrap, "memory")
    grown = max(samples) - before
    return [
        Figure(
            f"growth of the node's memory over {times} move(s) of {size / 2**30:.0f} GiB, at most",
            f"{grown / MIB:.0f} MiB (of {before / MIB:.0f})",
            f"{WANTED:.0f} MiB",
            max(grown, 0) / MIB / WANTED,
            f"<= {WANTED:.0f} MiB",
            grown <= WANTED * MIB,
        )
    ]


def _move(stack: Stack, topic: str) -> None:
    with wire_moves.Mover(stack.bootstrap) as mover:
        mover.move({(topic, 0): wire_moves.other_disk(stack.disks, topic)}, look=0.2)
