"""The move throttle, measured at the movers' writes and, by `stat`, at the files of the copies.

A probe in the node records the end of each write of a copy: the mean, and the busiest windows of a second and of
100 ms. The growth of the files, with cold caches, shows the slowest and the fastest ten seconds. Each run is repeated
after a pause, so that windows after an idle time are measured as well.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from ops.bench.bench import Bench, Stack
from ops.bench.clients import librdkafka
from ops.bench.moves import big_moves, copies, wire_moves
from ops.bench.moves.growth import Growth, growing, windows
from ops.bench.table import MB, Figure
from storage_node.move.copying import probe

RATES = (1 * MB, 20 * MB, 200 * MB)
MOVERS = (1, 4)
SECONDS = 15
"""The duration of a run at its rate."""
WINDOW = 10.0
IDLE = 3.0
MEAN, SECOND, TENTH = 0.01, 1.05, 2.0
CHUNK_FLOOR = 16 << 10

Writes = Sequence[tuple[float, int]]


def throttles(bench: Bench) -> list[Figure]:
    """Measure 1, 20 and 200 MB/s with one mover and with four."""
    record = bench.folder / "writes"
    stack = Stack(bench.folder / "throttled", {probe.ENVIRONMENT: str(record)})
    try:
        stack.configure({"num.replica.alter.log.dirs.threads": str(max(MOVERS))})
        return [
            figure for rate in RATES for movers in MOVERS for figure in _throttle(bench, stack, record, rate, movers)
        ]
    finally:
        stack.down()


def _throttle(bench: Bench, stack: Stack, record: Path, rate: int, movers: int) -> list[Figure]:
    bench.say(f"the throttle at {rate // MB} MB/s, {movers} at a time ...")
    server = big_moves.Server("rehome", stack.bootstrap, stack.disks)
    topic = f"throttled-{rate // MB}-{movers}"
    librdkafka.create_topic(stack.bootstrap, topic, partitions=movers)
    wire_moves.fill(stack.bootstrap, topic, rate * SECONDS // movers, value=10_240, batch=1_000_000, partitions=movers)
    for partition in range(movers):
        # All partitions must be on the same disk before the first measured move.
        if wire_moves.other_disk(stack.disks, topic, partition) != stack.disks[1]:
            with wire_moves.Mover(stack.bootstrap) as mover:
                mover.move({(topic, partition): stack.disks[0]})
    big_moves.limit(server, rate)
    runs: list[Writes] = []
    seen_outside: list[float] = []
    for turn in range(2):
        if turn:
            time.sleep(IDLE)
        seen = len(probe.read(record))
        copies.drop_caches()
        target = stack.disks[1 - turn]
        with wire_moves.Mover(stack.bootstrap) as mover, Growth(target) as growth:
            mover.move({(topic, p): target for p in range(movers)}, look=0.2)
        seen_outside += windows(growing(growth.samples), WINDOW)
        runs.append(probe.read(record)[seen:])
    big_moves.limit(server, None)
    means = [mean(run) / rate for run in runs]
    worst = max(means, key=lambda found: abs(found - 1))
    together = [write for run in runs for write in run]
    second, tenth = busiest(together, 1.0) / rate, busiest(together, 0.1) / rate
    chunk = max(count for _, count in together)
    met = abs(worst - 1) <= MEAN and second <= SECOND and tenth <= TENTH and chunk <= max(CHUNK_FLOOR, rate // 100)
    inside = Figure(
        f"throttle at {rate // MB} MB/s, {movers} at a time: mean, busiest 1 s, busiest 100 ms, chunk",
        f"{worst:.4f}, {second:.3f}, {tenth:.2f}, {chunk >> 10} KiB",
        "",
        None,
        f"within {MEAN:.0%}, <= {SECOND}, <= {TENTH:.0f}, <= 1% of a second",
        met,
    )
    least, most = min(seen_outside, default=0.0) / rate, max(seen_outside, default=0.0) / rate
    outside = Figure(
        f"the same by the files' growth, cold caches: slowest and fastest {WINDOW:.0f} s",
        f"{least:.3f}, {most:.3f}",
        "",
        None,
        f"within {MEAN:.0%}",
        1 - MEAN <= least <= most <= 1 + MEAN,
    )
    return [inside, outside]


def mean(writes: Writes) -> float:
    """Return bytes per second from the end of the first write to the last."""
    seconds = writes[-1][0] - writes[0][0]
    return sum(count for _, count in writes[1:]) / seconds if seconds else 0.0


def busiest(writes: Writes, window: float) -> float:
    """Return bytes per second in the busiest `window` seconds."""
    most = inside = first = 0
    for at, count in writes:
        inside += count
        while writes[first][0] <= at - window:
            inside -= writes[first][1]
            first += 1
        most = max(most, inside)
    return most / window
