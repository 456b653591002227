"""Produce and consume rates of rehome and Apache Kafka's broker, in alternating rounds."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from ops.bench.bench import Bench
from ops.bench.clients import fetcher, librdkafka
from ops.bench.table import MB, Figure

AS_FAST = "as fast as Kafka"


def produce(bench: Bench) -> list[Figure]:
    """Produce to one partition with acks=1: 1 KiB records in batches of up to 1 MB."""
    bench.say("produce, Apache Kafka and rehome in turn ...")

    def measure(bootstrap: str, topic: str) -> float:
        librdkafka.create_topic(bootstrap, topic)
        return librdkafka.produce(bootstrap, topic, bench.size)

    return [_compare(bench, "produce, 1 KiB records, acks=1", "produce", measure)]


def consume(bench: Bench) -> list[Figure]:
    """Consume one partition from its beginning, from the page cache: by a client library, and by fetches alone.

    A client library uses much more CPU per record than a server; only the plain fetches compare the servers.
    """
    bench.say("consume, Apache Kafka and rehome in turn ...")
    for bootstrap in (bench.kafka.bootstrap, bench.stack.bootstrap):
        librdkafka.create_topic(bootstrap, "consume")
        librdkafka.produce(bootstrap, "consume", bench.size)

    def library(bootstrap: str, _: str) -> float:
        return librdkafka.consume(bootstrap, "consume", bench.size)

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
        # The order alternates, because the first server's load affects the second.
        for bootstrap in (theirs, ours) if number % 2 else (ours, theirs):
            rate = measure(bootstrap, f"{name}-{number}")
            if number:  # the first round warms up
                found[bootstrap].append(rate)
    mine, kafka = statistics.median(found[ours]), statistics.median(found[theirs])
    # The median of the rounds' ratios: the machine's other load changes from minute to minute.
    ratio = statistics.median(ours / theirs for ours, theirs in zip(found[ours], found[theirs], strict=True))
    wanted = AS_FAST if must else ""
    met = ratio >= 1 if must else None
    return Figure(what, f"{mine / MB:.0f} MB/s", f"{kafka / MB:.0f} MB/s (Apache Kafka)", ratio, wanted, met)
