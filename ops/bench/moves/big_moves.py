"""Moves of one large partition: Apache Kafka's mover, rehome and a plain copy in turn, and produce latency meanwhile.

A disk's speed may vary by a factor between hours: only rounds of the same minutes, with cold caches, are compared.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from ops.bench.bench import Bench
from ops.bench.clients import librdkafka, pacer
from ops.bench.moves import copies, wire_moves
from ops.bench.table import MB, Figure, milliseconds, percentile

SEGMENT = 256 * 2**20
VALUE = 10_240
ROUNDS = 5
"""The minimum: medians of fewer rounds vary too much between runs."""
WARM_UP = 2
"""The first moves after a start are not measured: code is loaded and compiled."""
TIMES_KAFKA = 1.3
OF_COPY = 0.9
RATE_KEY = "replica.alter.log.dirs.io.max.bytes.per.second"
THROTTLE = 100 * MB
REQUESTS = 1000.0


@dataclass(frozen=True, slots=True)
class Server:
    """A server under test: its name, bootstrap address and two disks."""

    name: str
    bootstrap: str
    disks: list[Path]


def servers(bench: Bench) -> list[Server]:
    """Return Apache Kafka's broker and rehome's node."""
    kafka, stack = bench.kafka, bench.stack
    return [Server("kafka", kafka.bootstrap, kafka.log_dirs[1]), Server("rehome", stack.bootstrap, stack.disks)]


def make(server: Server, topic: str, size: int) -> None:
    """Create a topic with one partition of `size` bytes."""
    librdkafka.create_topic(server.bootstrap, topic, {"segment.bytes": str(SEGMENT)})
    wire_moves.fill(server.bootstrap, topic, size, value=VALUE, batch=1_000_000)


def big_moves(bench: Bench) -> list[Figure]:
    """Measure an unthrottled flushed move: bytes per second from the request until the future replica is swapped in."""
    size, both = 2 * bench.size, servers(bench)
    rounds, cold = max(ROUNDS, bench.rounds), True
    bench.say(f"moves of {size / 2**30:.1f} GiB: Apache Kafka's mover, rehome and a plain copy in turn ...")
    for server in both:
        make(server, "big", size)
    found: dict[str, list[float]] = {"kafka": [], "rehome": [], "copy": []}
    for number in range(WARM_UP + rounds):
        for server in both if number % 2 else reversed(both):
            target = wire_moves.other_disk(server.disks, "big")
            with wire_moves.Mover(server.bootstrap) as mover:
                cold = copies.drop_caches() and cold
                # Polled rarely: each poll costs the server time as well.
                seconds = mover.move({("big", 0): target}, look=0.05)
            if number >= WARM_UP:
                found[server.name].append(copies.folder_bytes(target / "big-0") / seconds)
            # Kafka's copy is still in the page cache: its writeback must not slow down the next server.
            copies.drop_caches()
        if number >= WARM_UP:
            target = wire_moves.other_disk(both[1].disks, "big")
            source = next(d for d in both[1].disks if d != target) / "big-0"
            found["copy"].append(copies.folder_bytes(source) / copies.flushed_copy(source, target / "bench-copy.tmp"))
    ours, theirs, copy = (statistics.median(found[name]) for name in ("rehome", "kafka", "copy"))
    met = ours >= TIMES_KAFKA * theirs or ours >= OF_COPY * copy
    temperature = "cold" if cold else "caches not dropped (not root)"
    what = f"unthrottled flushed move of {size / 2**30:.1f} GiB, {temperature}, median of {rounds}"
    wanted = f">= {TIMES_KAFKA} of Kafka's or >= {OF_COPY} of the copy"
    return [
        Figure(what, f"{ours / MB:.0f} MB/s", f"{theirs / MB:.0f} MB/s (Apache Kafka)", ours / theirs, wanted, met),
        Figure(
            "the same, beside a plain copy flushed by a second thread",
            f"{ours / MB:.0f} MB/s",
            f"{copy / MB:.0f} MB/s (copy)",
            ours / copy,
            wanted,
            met,
        ),
    ]


def beside_copies(bench: Bench) -> list[Figure]:
    """Measure the latency of a producer to another partition during a copy, throttled and unthrottled."""
    size, both = bench.size, servers(bench)
    bench.say(f"a producer at {REQUESTS:.0f} requests/s beside copies, throttled and not, Apache Kafka and rehome ...")
    for server in both:
        make(server, "beside", size)
        librdkafka.create_topic(server.bootstrap, "paced")
    lines = []
    for what, rate in ((f"throttled to {THROTTLE // MB} MB/s", THROTTLE), ("unthrottled", None)):
        found: dict[str, list[list[float]]] = {"kafka": [], "rehome": []}
        for number in range(bench.rounds + 1):
            for server in both if number % 2 else reversed(both):
                latencies = _beside(bench, server, rate)
                if number:
                    found[server.name].append(latencies)
        ours, theirs = (
            [statistics.median(percentile(r, q) for r in found[n]) for q in (0.99, 0.5, 1.0)]
            for n in ("rehome", "kafka")
        )
        lines.append(
            Figure(
                f"produce latency while copying {what}: p99 (p50, longest)",
                _spread(ours),
                f"{_spread(theirs)} (Apache Kafka)",
                ours[0] / theirs[0],
                "p99 no worse than Kafka's",
                ours[0] <= theirs[0],
            )
        )
    return lines


def _spread(values: list[float]) -> str:
    p99, p50, longest = (milliseconds(value) for value in values)
    return f"{p99} ({p50}, {longest})"


def _beside(bench: Bench, server: Server, rate: int | None) -> list[float]:
    limit(server, rate)
    copies.drop_caches()
    target = wire_moves.other_disk(server.disks, "beside")
    with (
        wire_moves.Mover(server.bootstrap) as mover,
        pacer.paced(server.bootstrap, "paced", REQUESTS, bench.folder / "pacer.txt") as client,
    ):
        began = time.monotonic()
        # Polled rarely: each poll costs the server time as well.
        ended = began + mover.move({("beside", 0): target}, look=0.1)
    if client.errors:
        raise RuntimeError(f"{client.errors} produce requests failed during a copy")
    return [took for sent, took in client.requests if began <= sent <= ended]


def limit(server: Server, rate: int | None) -> None:
    """Set or remove the broker's move rate by IncrementalAlterConfigs."""
    operation = AlterConfigOpType.SET if rate is not None else AlterConfigOpType.DELETE
    entry = ConfigEntry(RATE_KEY, str(rate) if rate is not None else None, incremental_operation=operation)
    resource = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)
