"""An empty follower catches up with its leader: Apache Kafka's brokers and rehome's nodes in turn."""

from __future__ import annotations

import statistics
import time

from ops.bench.bench import Bench
from ops.bench.moves import big_moves, copies, wire_moves
from ops.bench.replication import replicas
from ops.bench.replication.replicas import Cluster, Reassigner
from ops.bench.table import MB, Figure

TOPIC = "catch-up"
WARM_UP = 1
"""The first rounds after a start are not measured: code is loaded and compiled."""


def replica_catch_up(bench: Bench) -> list[Figure]:
    """Measure bytes per second from the request for a second replica until it is in sync."""
    size = 2 * bench.size
    bench.say(f"a new replica of {size / 2**30:.1f} GiB, Apache Kafka's brokers and rehome's nodes in turn ...")
    found: dict[str, list[float]] = {"kafka": [], "rehome": []}
    with replicas.theirs(bench, TOPIC) as kafka, replicas.ours(bench, TOPIC) as rehome:
        both = (kafka, rehome)
        for cluster in both:
            with Reassigner(cluster) as made:
                made.create(TOPIC, [[1]], {"segment.bytes": str(big_moves.SEGMENT)})
            wire_moves.fill(cluster.bootstrap, TOPIC, size, value=big_moves.VALUE, batch=1_000_000)
        for number in range(WARM_UP + bench.rounds):
            for cluster in both if number % 2 else reversed(both):
                rate = _round(cluster, 2 + number % 2)
                bench.say(f"  {cluster.name}: {rate / MB:.0f} MB/s{'' if number >= WARM_UP else ', to warm up'}")
                if number >= WARM_UP:
                    found[cluster.name].append(rate)
    ours, theirs = (statistics.median(found[name]) for name in ("rehome", "kafka"))
    return [
        Figure(
            f"a follower catches up with {size / 2**30:.1f} GiB of one leader, median of {bench.rounds}",
            f"{ours / MB:.0f} MB/s ({_spread(found['rehome'])})",
            f"{theirs / MB:.0f} MB/s ({_spread(found['kafka'])}, Apache Kafka)",
            ours / theirs,
            ">= Kafka's",
            ours >= theirs,
        )
    ]


def _spread(rates: list[float]) -> str:
    return f"{min(rates) / MB:.0f} to {max(rates) / MB:.0f}"


def _round(cluster: Cluster, node: int) -> float:
    copies.drop_caches()
    with Reassigner(cluster) as made:
        began = time.monotonic()
        made.ask({(TOPIC, 0): [1, node]})
        ended = made.wait_in_sync(TOPIC, node)
        count = replicas.stored(cluster.disks[1], TOPIC)
        made.wait({(TOPIC, 0): [1, node]})
        made.ask({(TOPIC, 0): [1]})
        made.wait({(TOPIC, 0): [1]})
    replicas.wait_gone(cluster.disks[node], TOPIC)
    # The copy's writeback must not slow down the next cluster.
    copies.drop_caches()
    return count / (ended - began)
