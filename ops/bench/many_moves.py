"""Many small partitions moved by one request, Apache Kafka and rehome in turn."""

from __future__ import annotations

import statistics

from ops.bench import clients, copies, wire_moves
from ops.bench.bench import Bench
from ops.bench.table import Figure

PARTITIONS = 200
SIZE = 2**20
LOOK = 0.2
"""Between two looks at where the replicas are: each costs the server something, too."""
TIMES = 5.0
"""How often faster than Apache Kafka it is to be."""
ROUNDS = 5
"""At least."""


def many_moves(bench: Bench) -> list[Figure]:
    """200 partitions of 1 MiB in one AlterReplicaLogDirs; partitions per second until the last is in its place."""
    kafka, stack = bench.kafka, bench.stack
    servers = [("kafka", kafka.bootstrap, kafka.log_dirs), ("rehome", stack.bootstrap, stack.disks)]
    bench.say(f"{PARTITIONS} partitions of {SIZE >> 10} KiB in one request, Apache Kafka and rehome in turn ...")
    found: dict[str, list[float]] = {"kafka": [], "rehome": []}
    for _, bootstrap, _ in servers:
        clients.create_topic(bootstrap, "many", partitions=PARTITIONS)
        wire_moves.fill(bootstrap, "many", SIZE, value=10_240, batch=1_000_000, partitions=PARTITIONS)
    for number in range(max(ROUNDS, bench.rounds) + 1):
        for name, bootstrap, disks in servers:
            wanted = {("many", p): wire_moves.other_disk(disks, "many", p) for p in range(PARTITIONS)}
            copies.drop_caches()  # what a user moves was written long ago
            with wire_moves.Mover(bootstrap) as mover:
                seconds = mover.move(wanted, look=LOOK)
            if number:  # the first of each: code is loaded and compiled
                found[name].append(PARTITIONS / seconds)
    ours, theirs = statistics.median(found["rehome"]), statistics.median(found["kafka"])
    return [
        Figure(
            f"{PARTITIONS} partitions of 1 MiB in one request, cold",
            f"{ours:.1f} partitions/s",
            f"{theirs:.1f} partitions/s (Apache Kafka)",
            ours / theirs,
            f">= {TIMES:.0f} times Kafka's",
            ours >= TIMES * theirs,
        )
    ]
