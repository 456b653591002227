"""Consumers that wait at the log end, in a process that exits with its parent.

`plain` are librdkafka's, whose fetches contain all partitions; `sessions` use fetch sessions (KIP-227), like Apache
Kafka's.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence

import confluent_kafka
import kafka


def main() -> None:
    """Run the consumers; arguments: bootstrap, kind, consumers, partitions of each, partitions per topic, topics."""
    bootstrap, kind, consumers, each, partitions, *topics = sys.argv[1:]
    places = [(topic, number) for topic in topics for number in range(int(partitions))]
    run = {"plain": _plain, "sessions": _sessions}[kind]
    ready = [threading.Event() for _ in range(int(consumers))]
    for number, event in enumerate(ready):
        first = number * int(each) % len(places)
        own = (places[first:] + places[:first])[: int(each)]
        threading.Thread(target=run, args=(bootstrap, own, event), daemon=True).start()
    for event in ready:
        event.wait()
    print("ready", flush=True)
    sys.stdin.read()


def _plain(bootstrap: str, places: Sequence[tuple[str, int]], ready: threading.Event) -> None:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "idle", "log_level": 0})
    end = confluent_kafka.OFFSET_END
    consumer.assign([confluent_kafka.TopicPartition(topic, number, end) for topic, number in places])
    consumer.poll(5)
    ready.set()
    while True:
        consumer.poll(1)


def _sessions(bootstrap: str, places: Sequence[tuple[str, int]], ready: threading.Event) -> None:
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap.split(","), enable_incremental_fetch_sessions=True)
    consumer.assign([kafka.TopicPartition(topic, number) for topic, number in places])
    consumer.seek_to_end()
    consumer.poll(timeout_ms=5000)
    ready.set()
    while True:
        consumer.poll(timeout_ms=1000)


if __name__ == "__main__":
    main()
