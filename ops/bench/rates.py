"""Produce and consume rates beside Apache Kafka's single broker, round by round in turn."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from ops.bench import clients, fetcher
from ops.bench.bench import Bench
from ops.bench.table import MB, Figure

AS_FAST = "as fast as Kafka"


def produce(bench: Bench) -> list[Figure]:
    """Into one partition, acks=1, 1 KiB records in batches of up to 1 MB."""
    bench.say("produce, Apache Kafka and rehome in turn ...")

    def measure(bootstrap: str, topic: str) -> float:
        clients.create_topic(bootstrap, topic)
        return clients.produce(bootstrap, topic, bench.size)

    return [_compare(bench, "produce, 1 KiB records, acks=1", "produce", measure)]


def consume(bench: Bench) -> list[Figure]:
    """From the beginning of one partition, whose records are in memory: by a client library, and by fetches alone.

    A client library spends much more on a record than any server does; what only fetches shows the servers.
    """
    bench.say("consume, Apache Kafka and rehome in turn ...")
    for bootstrap in (bench.kafka.bootstrap, bench.stack.bootstrap):
        clients.create_topic(bootstrap, "consume")
        clients.produce(bootstrap, "consume", bench.size)

    def library(bootstrap: str, _: str) -> float:
        return clients.consume(bootstrap, "consume", bench.size)

    def fetches(bootstrap: str, _: str) -> float:
        return statistics.median(fetcher.rate(bootstrap, "consume", bench.size) for _ in range(3))

    return [
        _compare(bench, "consume, 1 KiB records", "consume", library),
        _compare(bench, "fetches of 4 MB alone", "fetch", fetches, must=False),
    ]


def _compare(bench: Bench, what: str, name: str, measure: Callable[[str, str], float], must: bool = True) -> Figure:
    theirs, ours = bench.kafka.bootstrap, bench.stack.bootstrap
    found: dict[str, list[float]] = {theirs: [], ours: []}
    for number in range(bench.rounds + 1):
        # Who comes second finds the machine in another state: they take turns at that as well.
        for bootstrap in (theirs, ours) if number % 2 else (ours, theirs):
            rate = measure(bootstrap, f"{name}-{number}")
            if number:  # the first round warms up
                found[bootstrap].append(rate)
    mine, kafka = statistics.median(found[ours]), statistics.median(found[theirs])
    # Of each round by itself: what the machine does besides changes from minute to minute.
    ratio = statistics.median(ours / theirs for ours, theirs in zip(found[ours], found[theirs], strict=True))
    wanted = AS_FAST if must else ""
    met = ratio >= 1 if must else None
    return Figure(what, f"{mine / MB:.0f} MB/s", f"{kafka / MB:.0f} MB/s (Apache Kafka)", ratio, wanted, met)
