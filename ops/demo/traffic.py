"""Traffic by librdkafka: the load, a live producer and consumer, the final read."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from ops.demo.proof import Record
from ops.stack.errors import OpsError

_SILENT = logging.getLogger("rehome.demo.librdkafka")
_SILENT.addHandler(logging.NullHandler())
_SILENT.propagate = False

DELIVERY_SECONDS = 120
#: Seconds for which ListOffsets is retried while a broker is unavailable.
UNAVAILABLE_SECONDS = 30


def payload(value: str, size: int) -> bytes:
    """Return the value, padded to `size` bytes with a filler that depends on it."""
    head = value.encode() + b" "
    filler = (value.encode() * (size // max(1, len(value)) + 1))[: max(0, size - len(head))]
    return head + filler


def value_of(raw: bytes | None) -> str:
    """Return the unique value in a record's bytes."""
    return (raw or b"").split(b" ", 1)[0].decode(errors="replace")


class Acknowledged:
    """An idempotent producer with acks=all that records every send and every acknowledgement."""

    def __init__(self, bootstrap: str, topic: str, *, linger_ms: int) -> None:
        self._topic = topic
        self.sent: set[str] = set()
        self.acks: list[Record] = []
        self.failures: list[str] = []
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": linger_ms,
                "batch.size": 512_000,
                "queue.buffering.max.kbytes": 65_536,
                "delivery.timeout.ms": DELIVERY_SECONDS * 1000,
                "reconnect.backoff.max.ms": 500,
                "retry.backoff.ms": 100,
                "topic.metadata.refresh.interval.ms": 5000,
                "log_level": 0,
            },
            logger=_SILENT,
        )

    def send(self, value: str, partition: int, size: int) -> None:
        """Send one record; wait while the producer's queue is full."""
        self.sent.add(value)
        raw = payload(value, size)
        while True:
            try:
                self._producer.produce(self._topic, value=raw, partition=partition, on_delivery=self._note)
                break
            except BufferError:
                self._producer.poll(0.1)
        self._producer.poll(0)

    def poll(self, seconds: float) -> None:
        self._producer.poll(seconds)

    def flush(self, seconds: float = DELIVERY_SECONDS) -> None:
        """Wait until every record is acknowledged or has failed. Raises `OpsError` after `seconds`."""
        left = self._producer.flush(seconds)
        if left:
            raise OpsError(f"{left} records were not acknowledged within {seconds:.0f} s; see the nodes' logs")

    def _note(self, error: Any, message: Any) -> None:
        value = value_of(message.value())
        if error is not None:
            self.failures.append(f"{value}: {error}")
        else:
            self.acks.append(Record(message.partition(), message.offset(), value))


def load(
    producer: Acknowledged, partitions: int, bytes_each: int, record_bytes: int, progress: Callable[[int], None]
) -> int:
    """Produce about `bytes_each` bytes to every partition; return the total. `progress` receives the bytes so far."""
    done = 0
    for number in range(bytes_each // record_bytes):
        for partition in range(partitions):
            producer.send(f"load-{partition}-{number}", partition, record_bytes)
        done += partitions * record_bytes
        if number % 50 == 0:
            progress(done)
    producer.flush()
    progress(done)
    return done


class LiveTraffic:
    """A producer and a consumer on threads of their own, from `start` until `stop`."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, *, per_second: int, record_bytes: int) -> None:
        self._bootstrap, self._topic, self._partitions = bootstrap, topic, partitions
        self._interval, self._record_bytes = 1.0 / per_second, record_bytes
        self.producer = Acknowledged(bootstrap, topic, linger_ms=20)
        self.consumed: list[Record] = []
        self._ends: dict[int, int] = {}
        self._stop = threading.Event()
        self._stop_consumer = threading.Event()
        self._begun = threading.Event()
        self._problems: list[str] = []
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), name=work.__name__, daemon=True)
            for work in (self._produce, self._consume)
        ]

    def start(self) -> None:
        """Start both; return once the consumer has its start offsets or has failed: later faults affect both."""
        for thread in self._threads:
            thread.start()
        self._begun.wait(2 * UNAVAILABLE_SECONDS)

    def stop(self) -> None:
        """Stop the producer after its last acknowledgement, the consumer after the last record. Raises `OpsError`."""
        self._stop.set()
        self._threads[0].join(DELIVERY_SECONDS + 10)
        self._stop_consumer.set()
        self._threads[1].join(60)
        if self._problems:
            raise OpsError(f"a live client failed: {self._problems[0]}")

    def abandon(self) -> None:
        """Stop both without waiting, after an interrupt."""
        self._stop.set()
        self._stop_consumer.set()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (OpsError, KafkaException, RuntimeError) as error:
            self._problems.append(str(error))

    def _produce(self) -> None:
        number = 0
        due = time.monotonic()
        while not self._stop.is_set():
            partition = number % self._partitions
            self.producer.send(f"live-{partition}-{number}", partition, self._record_bytes)
            number += 1
            due = max(due + self._interval, time.monotonic() - 1.0)  # it skips the sends that a pause has delayed
            self.producer.poll(max(0.0, due - time.monotonic()))
        self.producer.flush()
        for record in self.producer.acks:
            self._ends[record.partition] = max(self._ends.get(record.partition, 0), record.offset + 1)

    def _consume(self) -> None:
        consumer = _consumer(self._bootstrap)
        try:
            start = {p: _watermarks(consumer, self._topic, p)[1] for p in range(self._partitions)}
            consumer.assign([TopicPartition(self._topic, p, offset) for p, offset in start.items()])
            self._begun.set()
            position = dict(start)
            until: float | None = None
            while True:
                for record in _poll(consumer, 0.2):
                    self.consumed.append(record)
                    position[record.partition] = record.offset + 1
                if self._stop_consumer.is_set():
                    until = until or time.monotonic() + 30
                    if all(position[p] >= end for p, end in self._ends.items()):
                        return
                    if time.monotonic() > until:
                        raise OpsError("the consumer had not caught up 30 s after the last record")
        finally:
            self._begun.set()
            consumer.close()


def read_all(
    bootstrap: str, topic: str, partitions: int, progress: Callable[[int, int], None], *, silence: float = 30.0
) -> tuple[list[Record], dict[int, int]]:
    """Read the topic from the beginning; return its records, and the end offsets from before the read.

    `progress` receives the number of records read and the total. Raises `OpsError` after `silence` seconds without
    records.
    """
    consumer = _consumer(bootstrap)
    try:
        marks = {p: _watermarks(consumer, topic, p) for p in range(partitions)}
        ends = {p: high for p, (_, high) in marks.items()}
        total = sum(high - low for low, high in marks.values())
        consumer.assign([TopicPartition(topic, p, low) for p, (low, _) in marks.items()])
        records: list[Record] = []
        left = {p for p, (low, high) in marks.items() if high > low}
        quiet = time.monotonic()
        while left:
            batch = _poll(consumer, 0.5)
            for record in batch:
                if record.offset < ends[record.partition]:
                    records.append(record)
                if record.offset >= ends[record.partition] - 1:
                    left.discard(record.partition)
            if batch:
                quiet = time.monotonic()
                progress(len(records), total)
            elif time.monotonic() - quiet > silence:
                raise OpsError(f"no records of partitions {sorted(left)} of {topic} for {silence:.0f} s")
        return records, ends
    finally:
        consumer.close()


def _consumer(bootstrap: str) -> Any:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "rehome-demo",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "check.crcs": True,
            "fetch.wait.max.ms": 200,
            "queued.max.messages.kbytes": 32_768,
            "reconnect.backoff.max.ms": 500,
            "topic.metadata.refresh.interval.ms": 5000,
            "log_level": 0,
        },
        logger=_SILENT,
    )


def _watermarks(consumer: Any, topic: str, partition: int) -> tuple[int, int]:
    """Return log start and end offset. Raises `OpsError`, for an unavailable broker after `UNAVAILABLE_SECONDS`."""
    until = time.monotonic() + UNAVAILABLE_SECONDS
    while True:
        try:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=15)
        except KafkaException as error:
            if error.args[0].code() not in _PASSING or time.monotonic() > until:
                raise OpsError(f"cannot read the offsets of {topic}-{partition}: {error}") from error
            time.sleep(0.2)
        else:
            return int(low), int(high)


#: Errors of a broker that is temporarily unavailable: the client reconnects by itself.
_PASSING = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._PARTITION_EOF,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.REQUEST_TIMED_OUT,
}


def _poll(consumer: Any, seconds: float) -> list[Record]:
    found: list[Record] = []
    for message in consumer.consume(num_messages=2000, timeout=seconds):
        error = message.error()
        if error is None:
            found.append(Record(message.partition(), message.offset(), value_of(message.value())))
        elif error.code() not in _PASSING:
            raise OpsError(f"the consumer failed: {error.str()}")
    return found
