"""Many small partitions moved by one request, Apache Kafka and rehome in turn."""

from __future__ import annotations

import statistics

from ops.bench.bench import Bench
from ops.bench.clients import librdkafka
from ops.bench.moves import copies, wire_moves
from ops.bench.table import Figure

PARTITIONS = 200
SIZE = 2**20
LOOK = 0.2
"""Seconds between two polls of the replicas' directories: each poll costs the server time as well."""
TIMES, LEAST = 5.0, 70.0
"""The targets: relative to Apache Kafka's rate, and partitions per second."""
ROUNDS = 5
"""The minimum."""


def many_moves(bench: Bench) -> list[Figure]:
    """Move 200 partitions of 1 MiB by one AlterReplicaLogDirs; measure partitions per second until the last swap."""
    kafka, stack = bench.kafka, bench.stack
    servers = [("kafka", kafka.bootstrap, kafka.log_dirs[1]), ("rehome", stack.bootstrap, stack.disks)]
    bench.say(f"{PARTITIONS} partitions of {SIZE >> 10} KiB in one request, Apache Kafka and rehome in turn ...")
    found: dict[str, list[float]] = {"kafka": [], "rehome": []}
    for _, bootstrap, _ in servers:
        librdkafka.create_topic(bootstrap, "many", partitions=PARTITIONS)
        wire_moves.fill(bootstrap, "many", SIZE, value=10_240, batch=1_000_000, partitions=PARTITIONS)
    for number in range(max(ROUNDS, bench.rounds) + 1):
        for name, bootstrap, disks in servers:
            wanted = {("many", p): wire_moves.other_disk(disks, "many", p) for p in range(PARTITIONS)}
            copies.drop_caches()  # as for replicas that were written long ago
            with wire_moves.Mover(bootstrap) as mover:
                seconds = mover.move(wanted, look=LOOK)
            if number:  # not the first, in which code is loaded and compiled
                found[name].append(PARTITIONS / seconds)
    ours, theirs = statistics.median(found["rehome"]), statistics.median(found["kafka"])
    return [
        Figure(
            f"{PARTITIONS} partitions of 1 MiB in one request, cold",
            f"{ours:.1f} partitions/s",
            f"{theirs:.1f} partitions/s (Apache Kafka)",
            ours / theirs,
            f">= {TIMES:.0f} times Kafka's, >= {LEAST:.0f}/s",
            ours >= TIMES * theirs and ours >= LEAST,
        )
    ]
