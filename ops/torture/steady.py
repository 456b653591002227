"""Clients of one partition each: a producer and a consumer that share no connection with any other partition.

A node responds to a request with batches of several partitions when the slowest of them is appended. So only these
clients show whether one disk delays partitions on others.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, Producer, TopicPartition

from ops.torture.history import ASSIGN, FAIL, INFO, OK, POLL, SEND, Event, Recorder, now
from ops.torture.orders import REFUSED, SILENT, Orders, Stopping

ROUND_SECONDS = 0.05
SIZE = 100
#: With a backoff of up to a second this allows at most 25 attempts per batch (see `clients.Sender`).
DELIVERY_SECONDS = 20


def run(orders: Orders, recorder: Recorder, stopping: Stopping) -> dict[str, int]:
    """Produce to and consume from every partition until `stopping` is set; return counts."""
    counts = {OK: 0, FAIL: 0, INFO: 0, "records": 0}
    places = [(label, name, number) for label, (name, count) in orders.topics.items() for number in range(count)]
    pairs = [_Pair(orders, recorder, counts, *place) for place in places]
    for number, pair in enumerate(pairs):
        pair.due = time.monotonic() + number / len(pairs) / orders.per_second
    while not stopping.asked.is_set():
        for pair in pairs:
            pair.step()
        time.sleep(ROUND_SECONDS)
    until = time.monotonic() + (0 if stopping.hurried else DELIVERY_SECONDS + 5)
    for pair in pairs:
        pair.close(until)
    return counts


class _Pair:
    """The producer and the consumer of one partition."""

    def __init__(
        self, orders: Orders, recorder: Recorder, counts: dict[str, int], label: str, name: str, number: int
    ) -> None:
        self._recorder, self._counts = recorder, counts
        self._process = f"{orders.process}-{label}-{number}"
        self._label, self._name, self._number = label, name, number
        self._interval = 1.0 / orders.per_second
        self.due = 0.0
        self._sent = 0
        self._assigned = False
        usual = {
            "bootstrap.servers": orders.bootstrap,
            "reconnect.backoff.max.ms": 500,
            "topic.metadata.refresh.interval.ms": 3000,
            "log_level": 0,
        }
        self._producer = Producer(
            {
                **usual,
                "acks": orders.acks,
                "max.in.flight.requests.per.connection": 1,
                "retries": 1_000_000,
                "linger.ms": 0,
                "delivery.timeout.ms": DELIVERY_SECONDS * 1000,
                "request.timeout.ms": 10_000,
                "socket.timeout.ms": 12_000,
                "retry.backoff.ms": 100,
                "retry.backoff.max.ms": 1_000,
            },
            logger=SILENT,
        )
        self._consumer = Consumer(
            {
                **usual,
                "group.id": self._process,
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "check.crcs": True,
                "fetch.wait.max.ms": 500,
                "fetch.error.backoff.ms": 100,
            },
            logger=SILENT,
        )

    def step(self) -> None:
        """Consume, and send if the next record is due."""
        if not self._assigned:
            self._assign()
        self._read()
        if (clock := time.monotonic()) >= self.due:
            self.due = max(self.due + self._interval, clock)  # it skips the sends that a pause has delayed
            self._send()
        self._producer.poll(0)

    def close(self, until: float) -> None:
        """Wait until `until` for the outcomes of all sends, and close both clients."""
        self._producer.flush(max(0.0, until - time.monotonic()))
        self._consumer.close()

    def _send(self) -> None:
        value = f"{self._process}-{self._sent}"
        self._sent += 1
        raw = value.encode() + b" " + b"x" * (SIZE - len(value) - 1)
        noted = self._noting(value, now(), time.time_ns())
        try:
            self._producer.produce(self._name, value=raw, partition=self._number, on_delivery=noted)
        except BufferError:
            self._sent -= 1
        except KafkaException as error:
            noted(error.args[0], None)

    def _noting(self, value: str, invoked: int, wall: int) -> Callable[[Any, Any], None]:
        def note(error: Any, message: Any) -> None:
            kind = OK if error is None else FAIL if error.code() in REFUSED else INFO
            offset = -1 if error is not None or message.offset() is None else message.offset()
            self._counts[kind] += 1
            name = "" if error is None else str(error.name())
            self._note(SEND, kind, invoked, wall, value=value, offset=offset, error=name, sound=False)

        return note

    def _assign(self) -> None:
        """Assign the partition at OFFSET_END, which the consumer resolves: a blocking call would delay the others."""
        invoked, wall = now(), time.time_ns()
        self._consumer.assign([TopicPartition(self._name, self._number, OFFSET_END)])
        self._assigned = True
        self._note(ASSIGN, OK, invoked, wall)

    def _read(self) -> None:
        invoked, wall = now(), time.time_ns()
        records = []
        for message in self._consumer.consume(num_messages=100, timeout=0):
            if (error := message.error()) is not None:
                self._note(POLL, INFO, invoked, wall, error=f"{error.name()}: {error.str()}")
                if error.code() in (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET):
                    self._assigned = False
                continue
            value = (message.value() or b"").split(b" ", 1)[0].decode(errors="replace")
            records.append((message.offset(), value))
        if records:
            self._counts["records"] += len(records)
            self._note(POLL, OK, invoked, wall, records=tuple(records))

    def _note(self, op: str, kind: str, invoked: int, wall: int, **rest: Any) -> None:
        self._recorder.note(Event(self._process, op, self._label, self._number, kind, invoked, now(), wall, **rest))
