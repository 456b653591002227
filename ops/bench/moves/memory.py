"""The memory of a node that moves much more data than its memory could hold."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Iterator

import psutil

from ops.bench.bench import Bench, Stack
from ops.bench.clients import librdkafka
from ops.bench.moves import big_moves, wire_moves
from ops.bench.table import Figure

TIMES = 10
ROOM = 2.3
"""The free space that a single move needs, for source and copy, as a multiple of its size."""
MIB = 2**20
WANTED = 50.0
INTERVAL = 0.1


@contextlib.contextmanager
def sampled(pid: int) -> Iterator[list[int]]:
    """Sample the resident set of a process (bytes) ten times a second while the block runs."""
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
    """Measure the node's memory over a move of 20 GiB (in `make bench`), with less space over ten moves of a tenth."""
    whole, stack = TIMES * 2 * bench.size, bench.stack
    at_once = shutil.disk_usage(bench.folder).free > ROOM * whole
    size, times = (whole, 1) if at_once else (whole // TIMES, TIMES)
    bench.say(f"the node's memory over {times} move(s) of {size / 2**30:.1f} GiB ...")
    # The code and caches that the first move loads do not count as growth.
    big_moves.make(big_moves.Server("rehome", stack.bootstrap, stack.disks), "warm-up", 256 * MIB)
    _move(stack, "warm-up")
    big_moves.make(big_moves.Server("rehome", stack.bootstrap, stack.disks), "memory", size)
    before = psutil.Process(stack.node_pid).memory_info().rss
    with sampled(stack.node_pid) as samples:
        for _ in range(times):
            _move(stack, "memory")
    librdkafka.delete_topic(stack.bootstrap, "memory")
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
