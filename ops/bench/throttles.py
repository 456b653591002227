"""The throttle, counted at the movers' writes: the mean, and the busiest windows of a second and of 100 ms.

A probe in the node notes when each write of a copy ended. Each run is made twice with a pause between, so that windows
after an idle time are among those that are looked at.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from ops.bench import big_moves, clients, wire_moves
from ops.bench.bench import Bench, Stack
from ops.bench.table import MB, Figure
from storage_node.move import probe

RATES = (1 * MB, 20 * MB, 200 * MB)
MOVERS = (1, 4)
SECONDS = 12
"""How long a run takes at its rate."""
IDLE = 3.0
MEAN, SECOND, TENTH = 0.01, 1.05, 2.0
CHUNK_FLOOR = 16 << 10

Writes = Sequence[tuple[float, int]]


def throttles(bench: Bench) -> list[Figure]:
    """1, 20 and 200 MB/s, one mover and four."""
    record = bench.folder / "writes"
    stack = Stack(bench.folder / "throttled", {probe.ENVIRONMENT: str(record)})
    try:
        stack.configure({"num.replica.alter.log.dirs.threads": str(max(MOVERS))})
        return [_throttle(bench, stack, record, rate, movers) for rate in RATES for movers in MOVERS]
    finally:
        stack.down()


def _throttle(bench: Bench, stack: Stack, record: Path, rate: int, movers: int) -> Figure:
    bench.say(f"the throttle at {rate // MB} MB/s, {movers} at a time ...")
    server = big_moves.Server("rehome", stack.bootstrap, stack.disks)
    topic = f"throttled-{rate // MB}-{movers}"
    clients.create_topic(stack.bootstrap, topic, partitions=movers)
    wire_moves.fill(stack.bootstrap, topic, rate * SECONDS // movers, value=10_240, batch=1_000_000, partitions=movers)
    for partition in range(movers):
        # All from the same disk to the same disk, whichever each was made in.
        if wire_moves.other_disk(stack.disks, topic, partition) != stack.disks[1]:
            with wire_moves.Mover(stack.bootstrap) as mover:
                mover.move({(topic, partition): stack.disks[0]})
    big_moves.limit(server, rate)
    runs: list[Writes] = []
    for turn in range(2):
        if turn:
            time.sleep(IDLE)
        seen = len(probe.read(record))
        with wire_moves.Mover(stack.bootstrap) as mover:
            mover.move({(topic, p): stack.disks[1 - turn] for p in range(movers)}, look=0.2)
        runs.append(probe.read(record)[seen:])
    big_moves.limit(server, None)
    means = [mean(run) / rate for run in runs]
    worst = max(means, key=lambda found: abs(found - 1))
    together = [write for run in runs for write in run]
    second, tenth = busiest(together, 1.0) / rate, busiest(together, 0.1) / rate
    chunk = max(count for _, count in together)
    met = abs(worst - 1) <= MEAN and second <= SECOND and tenth <= TENTH and chunk <= max(CHUNK_FLOOR, rate // 100)
    return Figure(
        f"throttle at {rate // MB} MB/s, {movers} at a time: mean, busiest 1 s, busiest 100 ms, chunk",
        f"{worst:.4f}, {second:.3f}, {tenth:.2f}, {chunk >> 10} KiB",
        "",
        None,
        f"within {MEAN:.0%}, <= {SECOND}, <= {TENTH:.0f}, <= 1% of a second",
        met,
    )


def mean(writes: Writes) -> float:
    """Bytes per second from the first to the last write; the first one only begins the time."""
    seconds = writes[-1][0] - writes[0][0]
    return sum(count for _, count in writes[1:]) / seconds if seconds else 0.0


def busiest(writes: Writes, window: float) -> float:
    """Bytes per second in the busiest `window` seconds."""
    most = inside = first = 0
    for at, count in writes:
        inside += count
        while writes[first][0] <= at - window:
            inside -= writes[first][1]
            first += 1
        most = max(most, inside)
    return most / window
