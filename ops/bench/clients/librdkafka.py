"""Produce and consume rates with confluent-kafka, the same for every server."""

from __future__ import annotations

import time
from collections.abc import Mapping

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

RECORD = bytes(range(256)) * 4


def create_topic(bootstrap: str, topic: str, configs: Mapping[str, str] | None = None, partitions: int = 1) -> None:
    """Create a topic and wait for the response."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    future = admin.create_topics([NewTopic(topic, partitions, 1, config=dict(configs or {}))], operation_timeout=30)[
        topic
    ]
    future.result(30)


def delete_topic(bootstrap: str, topic: str) -> None:
    """Delete a topic, which frees its space for the next benchmarks."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.delete_topics([topic], operation_timeout=30)[topic].result(30)


def produce(bootstrap: str, topic: str, total_bytes: int, *, acks: str = "1", partition: int = 0) -> float:
    """Produce 1 KiB records to one partition in batches of up to 1 MB; return bytes per second until the last ack."""
    failed: list[str] = []

    def delivered(error: object, _message: object) -> None:
        if error is not None:
            failed.append(str(error))

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": acks,
            "batch.size": 1_000_000,
            "linger.ms": 20,
            "queue.buffering.max.kbytes": 262_144,
            "queue.buffering.max.messages": 1_000_000,
            "enable.idempotence": acks == "all",
        }
    )
    count = total_bytes // len(RECORD)
    started = time.perf_counter()
    for _ in range(count):
        while True:
            try:
                producer.produce(topic, RECORD, partition=partition, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.05)
        producer.poll(0)
    left = producer.flush(120)
    seconds = time.perf_counter() - started
    if left or failed:
        raise RuntimeError(f"{left + len(failed)} records were not acknowledged: {failed[:1]}")
    return count * len(RECORD) / seconds


def consume(bootstrap: str, topic: str, total_bytes: int, *, partition: int = 0) -> float:
    """Consume one partition from its beginning; return bytes per second from the first record on."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.message.max.bytes": 4_000_000,
            "queued.max.messages.kbytes": 262_144,
            # By default the client pauses for a second whenever its queue has 100,000 records: the faster the server,
            # the longer it pauses.
            "queued.min.messages": 1_000_000,
            "fetch.queue.backoff.ms": 5,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    wanted, got, started, deadline = total_bytes // len(RECORD), 0, 0.0, time.monotonic() + 120
    try:
        while got < wanted:
            messages = consumer.consume(10_000, timeout=1.0)
            if messages and not started:
                started = time.perf_counter()
            got += len(messages)
            if time.monotonic() > deadline:
                raise RuntimeError(f"only {got} of {wanted} records were consumed within two minutes")
        return got * len(RECORD) / (time.perf_counter() - started)
    finally:
        consumer.close()
