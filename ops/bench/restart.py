"""Start-up after SIGKILL with many partitions and much unflushed data."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from ops.bench.bench import Bench
from ops.bench.clients import librdkafka
from ops.bench.moves import copies
from ops.bench.table import Figure

PARTITIONS = 500
WANTED = 15.0
RECORD = bytes(range(256)) * 4
PATIENCE = 120.0
LOOK = 0.02


def restart(bench: Bench) -> list[Figure]:
    """Measure from the start command to the end offset of every partition, with a warm and a cold page cache."""
    total, stack = 2 * bench.size, bench.stack
    bench.say(f"start-up after kill -9 with {PARTITIONS} partitions and {total / 2**30:.1f} GiB unflushed ...")
    lines = []
    for what, cold in (("in memory", False), ("on a cold disk", True)):
        topic = "restart-cold" if cold else "restart"
        librdkafka.create_topic(stack.bootstrap, topic, partitions=PARTITIONS)
        _fill(stack.bootstrap, topic, total)
        stack.kill("node-1")
        if cold and not copies.drop_caches():
            stack.start("node-1")
            continue
        failure: list[BaseException] = []
        began = time.monotonic()
        starter = threading.Thread(target=_guarded, args=(bench, failure))
        starter.start()
        try:
            _wait_until_served(stack.bootstrap, topic)
            took = time.monotonic() - began
        finally:
            starter.join()
        if failure:
            raise RuntimeError(f"the node did not start: {failure[0]}")
        lines.append(
            Figure(
                f"start-up after kill -9, {PARTITIONS} partitions, {total / 2**30:.1f} GiB unflushed {what}",
                f"{took:.1f} s",
                "",
                took / WANTED,
                "" if cold else f"< {WANTED:.0f} s",
                None if cold else took < WANTED,
            )
        )
        librdkafka.delete_topic(stack.bootstrap, topic)
    return lines


def _guarded(bench: Bench, failure: list[BaseException]) -> None:
    try:
        bench.stack.start("node-1")
    except BaseException as error:
        failure.append(error)


def _fill(bootstrap: str, topic: str, total: int) -> None:
    """Produce the same amount to every partition, within the minute after which a node flushes by itself."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "1", "linger.ms": 50, "batch.size": 1_000_000})
    for number in range(total // len(RECORD)):
        while True:
            try:
                # Consecutive records for the same partition fill large batches.
                producer.produce(topic, RECORD, partition=number // 500 % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.05)
        producer.poll(0)
    if producer.flush(120):
        raise RuntimeError(f"not all of {total} bytes were acknowledged")


def _wait_until_served(bootstrap: str, topic: str) -> None:
    """Wait until the node has returned a non-zero end offset of every partition. Raises RuntimeError."""
    deadline = time.monotonic() + PATIENCE
    wanted = {TopicPartition(topic, number): OffsetSpec.latest() for number in range(PARTITIONS)}
    missing = PARTITIONS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            host, _, port = bootstrap.rpartition(":")
            # A plain connect polls faster than a client, which backs off between its attempts.
            socket.create_connection((host, int(port)), timeout=1).close()
            admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
            try:
                ends = [future.result().offset for future in admin.list_offsets(wanted, request_timeout=10).values()]
            except KafkaException:
                continue
            missing = sum(end <= 0 for end in ends)
            if not missing:
                return
        time.sleep(LOOK)
    raise RuntimeError(f"{missing} of {PARTITIONS} partitions were not served within {PATIENCE:.0f} s")
