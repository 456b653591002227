"""KIP-73's throttles, measured at the follower's disk: bytes per ten seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from ops.bench.bench import Bench
from ops.bench.moves import wire_moves
from ops.bench.replication import replicas
from ops.bench.replication.replicas import Cluster, Reassigner
from ops.bench.table import MB, Figure

RATES = (1 * MB, 20 * MB, 100 * MB)
SIDES = {"leader": 1, "follower": 2}
"""The throttled side, and its node: node 1 leads, node 2 follows."""
WINDOW = 10.0
BEGIN = 1.0
"""Seconds after the first bytes that are not measured: a throttle's start differs from its steady state."""
SECONDS = 14.0
"""The size of the replica, in seconds at its rate."""
ENOUGH = 30.0
"""Seconds after which the measurement ends even if the replica is not in sync."""
ACCURACY = 0.01
LOOK = 0.005

Sizes = Sequence[tuple[float, int]]


def replica_throttles(bench: Bench) -> list[Figure]:
    """Measure 1, 20 and 100 MB/s, throttled at the leader and at the follower."""
    found: dict[tuple[str, int, str], float] = {}
    for cluster in (replicas.ours, replicas.theirs):
        with cluster(bench, "replica-throttles") as made:
            for rate in RATES:
                for side in SIDES:
                    bench.say(f"replication throttled to {rate // MB} MB/s at the {side}, {made.name} ...")
                    found[side, rate, made.name] = worst(_run(made, side, rate), rate)
    return [
        Figure(
            f"replication throttled to {rate // MB} MB/s at the {side}: the 10 s with the largest deviation",
            f"{ours:.4f} of it",
            f"{theirs:.4f} of it (Apache Kafka)",
            None,
            f"within {ACCURACY:.0%}",
            abs(ours - 1) <= ACCURACY,
        )
        for rate in RATES
        for side in SIDES
        for ours, theirs in [(found[side, rate, "rehome"], found[side, rate, "kafka"])]
    ]


def _run(cluster: Cluster, side: str, rate: int) -> Sizes:
    topic = f"limited-{side}-{rate // MB}"
    with Reassigner(cluster) as made:
        made.create(topic, [[1]])
        # Batches small enough for a resolution of 0.1 s: a follower fetches at least one batch.
        batch = min(1_000_000, rate // 50)
        wire_moves.fill(cluster.bootstrap, topic, int(rate * SECONDS), value=min(10_240, batch // 2), batch=batch)
        made.limit(topic, SIDES[side], side, rate)
        sizes: list[tuple[float, int]] = []
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(LOOK):
                sizes.append((time.monotonic(), replicas.stored(cluster.disks[2], topic)))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            made.ask({(topic, 0): [1, 2]})
            whole = False
            until = time.monotonic() + ENOUGH
            while not whole and time.monotonic() < until:
                time.sleep(0.1)
                whole = made.settled({(topic, 0): [1, 2]})
        finally:
            ended.set()
            watcher.join()
        made.limit(topic, SIDES[side], side, None)
        made.wait({(topic, 0): [1, 2]}, look=0.1)
        made.delete(topic)
    return sizes


def worst(sizes: Sizes, rate: int) -> float:
    """Return the rate of the ten seconds with the largest deviation from `rate`, as a share of it."""
    first = next(at for at, count in sizes if count)
    last = next(at for at, count in sizes if count == sizes[-1][1])
    inside = [(at, count) for at, count in sizes if first + BEGIN <= at <= last]
    shares = []
    until = 0
    for began, before in inside:
        while until < len(inside) and inside[until][0] < began + WINDOW:
            until += 1
        if until == len(inside):
            break
        ended, after = inside[until]
        shares.append((after - before) / (ended - began) / rate)
    if not shares:
        raise RuntimeError(f"a replica limited to {rate} bytes/s was whole after {last - first:.1f} s")
    return max(shares, key=lambda share: abs(share - 1))
