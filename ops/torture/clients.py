"""The clients, each a process of its own, which no fault of a role can stop.

    python -m ops.torture.clients '{"role": "producer", ...}'

A client runs until it reads "stop" from standard input, or its end (also when the parent process is killed), and writes
every operation with its outcome to its history. A consumer that reads `stop {"orders": [12, 7]}` continues up to these
end offsets. A primed producer prints "primed" when it begins. Before it exits, a client prints "done" with its counts.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from ops.torture.history import ASSIGN, FAIL, INFO, MARKS, OK, OUT_OF_RANGE, POLL, SEND, SESSION, Event, Recorder, now
from ops.torture.orders import REFUSED, SILENT, Orders, Stopping
from ops.torture.steady import run

#: Above the topic's max.message.bytes, below the client's message.max.bytes: the broker rejects it.
TOO_LARGE = 1_100_000
DELIVERY_SECONDS = 90
MARKS_SECONDS = 1.0
EXCURSION_RECORDS = 3000


class Sessions(logging.Handler):
    """Record the producer epoch bumps of an idempotent producer, which librdkafka only logs.

    librdkafka bumps the epoch when a rejected request leaves a later one in flight out of order (KIP-360). It then
    resends every unacknowledged record of all partitions in the new epoch, also those that a leader has appended.
    """

    def __init__(self, process: str, recorder: Recorder) -> None:
        super().__init__(logging.DEBUG)
        self._process, self._recorder = process, recorder

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if "epoch bump" in message:
            at = now()
            self._recorder.note(Event(self._process, SESSION, "", -1, INFO, at, at, time.time_ns(), error=message))

    def logger(self) -> logging.Logger:
        """Return a logger for the producer, whose messages no other handler receives."""
        logger = logging.Logger(f"rehome.torture.{self._process}", logging.DEBUG)
        logger.addHandler(self)
        return logger


class Sender:
    """A producer that records every send; `run` keeps a rate, `once` sends `count` records at full speed."""

    def __init__(self, orders: Orders, recorder: Recorder) -> None:
        self._orders, self._recorder = orders, recorder
        self._random = random.Random(orders.seed)
        self._number = 0
        self._open: dict[str, Callable[[Any, Any], None]] = {}
        self.counts = {OK: 0, FAIL: 0, INFO: 0}
        self._producer = Producer(
            {
                "bootstrap.servers": orders.bootstrap,
                "enable.idempotence": orders.idempotent,
                "acks": orders.acks,
                # Without idempotence, only one request in flight preserves the order.
                "max.in.flight.requests.per.connection": 5 if orders.idempotent else 1,
                "retries": 1_000_000,
                "linger.ms": 10,
                "message.max.bytes": 4_000_000,
                "delivery.timeout.ms": DELIVERY_SECONDS * 1000,
                "request.timeout.ms": 10_000,
                "socket.timeout.ms": 12_000,
                "queue.buffering.max.messages": 5_000,
                "reconnect.backoff.max.ms": 500,
                # The backoff limits a batch to 25 attempts before its delivery timeout: librdkafka computes it as
                # 2^retries * retry.backoff.ms in 32 bits. After an overflow it retries at once while the batch's later
                # messages still wait, and the producer fails with the fatal error "Unable to reconstruct MessageSet".
                "retry.backoff.ms": 100,
                "retry.backoff.max.ms": 8_000,
                "topic.metadata.refresh.interval.ms": 3000,
                **({"debug": "eos", "log_level": 7} if orders.idempotent else {"log_level": 0}),
            },
            logger=Sessions(orders.process, recorder).logger() if orders.idempotent else SILENT,
        )

    def run(self, stopping: Stopping) -> None:
        with self._noting_what_is_open():
            if self._orders.primed:
                for label, (_, partitions) in sorted(self._orders.topics.items()):
                    for partition in range(partitions):
                        self.send(label, partition)
                self._producer.flush(DELIVERY_SECONDS + 20)
                print("primed", flush=True)
            interval, due = 1.0 / self._orders.per_second, time.monotonic()
            while not stopping.asked.is_set():
                self.send()
                due = max(due + interval, time.monotonic() - 0.5)  # it skips the sends that a pause has delayed
                self._producer.poll(max(0.0, due - time.monotonic()))
            self._producer.flush(0 if stopping.hurried else DELIVERY_SECONDS + 20)

    def once(self) -> None:
        with self._noting_what_is_open():
            for _ in range(self._orders.count):
                self.send()
            self._producer.flush(DELIVERY_SECONDS + 20)

    @contextlib.contextmanager
    def _noting_what_is_open(self) -> Iterator[None]:
        """Record the open sends of a producer that fails with a fatal error: a leader may have appended them."""
        try:
            yield
        except KafkaException as error:
            for note in tuple(self._open.values()):
                note(error.args[0], None)
            raise

    def send(self, label: str | None = None, partition: int | None = None) -> None:
        """Send one record, by default to a random partition."""
        label = label or self._random.choice(sorted(self._orders.topics))
        name, partitions = self._orders.topics[label]
        partition = self._random.randrange(partitions) if partition is None else partition
        size = self._orders.scale * int(self._random.choice((100, 400, 1000, 1000, 4000)))
        if not self._orders.idempotent and self._random.random() < 0.004:
            size = TOO_LARGE
        value = f"{self._orders.process}-{self._number}"
        self._number += 1
        raw = value.encode() + b" " + b"x" * max(0, size - len(value) - 1)
        invoked, wall = now(), time.time_ns()

        def note(error: Any, message: Any) -> None:
            del self._open[value]
            kind = OK if error is None else FAIL if error.code() in REFUSED else INFO
            self.counts[kind] += 1
            self._recorder.note(
                Event(
                    self._orders.process,
                    SEND,
                    label,
                    partition,
                    kind,
                    invoked,
                    now(),
                    wall,
                    value,
                    -1 if error is not None or message.offset() is None else message.offset(),
                    "" if error is None else str(error.name()),
                    sound=self._orders.idempotent,
                )
            )

        self._open[value] = note
        while True:
            try:
                self._producer.produce(name, value=raw, partition=partition, on_delivery=note)
                break
            except BufferError:
                self._producer.poll(0.1)
            except KafkaException as error:
                if error.args[0].fatal() or error.args[0].code() == KafkaError._FATAL:
                    raise
                note(error.args[0], None)
                break
        self._producer.poll(0)


class Reader:
    """A consumer of all partitions that records every poll. A `tail` follows the log end; a `wanderer` also seeks."""

    def __init__(self, orders: Orders, recorder: Recorder) -> None:
        self._orders, self._recorder = orders, recorder
        self._random = random.Random(orders.seed)
        self._labels = {name: label for label, (name, _) in orders.topics.items()}
        self._position: dict[tuple[str, int], int] = {}
        self._since_put: dict[tuple[str, int], int] = {}
        self.counts = {"records": 0, "errors": 0}
        self._consumer = Consumer(
            {
                "bootstrap.servers": orders.bootstrap,
                "group.id": f"torture-{orders.process}",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "isolation.level": "read_committed",
                "check.crcs": True,
                "fetch.wait.max.ms": 200,
                "fetch.error.backoff.ms": 100,
                "queued.max.messages.kbytes": 4096,
                "reconnect.backoff.max.ms": 500,
                "topic.metadata.refresh.interval.ms": 3000,
                "log_level": 0,
            },
            logger=SILENT,
        )

    def run(self, stopping: Stopping) -> None:
        places = [(name, number) for name, count in self._orders.topics.values() for number in range(count)]
        for name, number in places:
            self._put(name, number, None)
        marks_due = wander_due = time.monotonic()
        patience: float | None = None
        while True:
            self._poll()
            clock = time.monotonic()
            if stopping.asked.is_set():
                patience = patience or clock + 60
                if stopping.hurried or self._caught_up(stopping.ends) or clock > patience:
                    break
                continue
            if clock >= marks_due:
                self._watermarks(*self._random.choice(places), timeout=5)
                marks_due = clock + MARKS_SECONDS / 2
            if self._orders.role == "wanderer" and clock >= wander_due:
                self._wander(*self._random.choice(places))
                wander_due = clock + 2
        self._consumer.close()

    def _poll(self) -> None:
        invoked, wall = now(), time.time_ns()
        found = self._consumer.consume(num_messages=1000, timeout=0.2)
        completed = now()
        records: dict[tuple[str, int], list[tuple[int, str]]] = {}
        failed: list[tuple[str, int, int | None, Any]] = []
        for message in found:
            if message.error() is not None:
                failed.append((message.topic() or "", message.partition() or 0, message.offset(), message.error()))
                continue
            value = (message.value() or b"")[:120].split(b" ", 1)[0].decode(errors="replace")
            records.setdefault((message.topic(), message.partition()), []).append((message.offset(), value))
        for (name, number), rows in records.items():
            if self._position.get((name, number), -1) < 0:
                continue  # unassigned meanwhile
            self.counts["records"] += len(rows)
            self._position[name, number] = rows[-1][0] + 1
            self._since_put[name, number] = self._since_put.get((name, number), 0) + len(rows)
            self._note(POLL, name, number, OK, invoked, completed, wall, records=tuple(rows))
            if self._orders.role == "wanderer" and self._since_put[name, number] > EXCURSION_RECORDS:
                self._wander(name, number, home=True)
        for name, number, offset, error in failed:
            self._failed(name, number, offset, error, invoked, completed, wall)

    def _failed(
        self, name: str, number: int, offset: int | None, error: Any, invoked: int, completed: int, wall: int
    ) -> None:
        self.counts["errors"] += 1
        stuck = error.code() in (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET)
        beyond = error.code() == KafkaError.OFFSET_OUT_OF_RANGE or "out of range" in error.str().lower()
        if not (stuck and beyond) or (name, number) not in self._position:
            if name in self._labels:
                self._note(POLL, name, number, INFO, invoked, completed, wall, error=f"{error.name()}: {error.str()}")
            if stuck and (name, number) in self._position:
                self._put(name, number, None, self._position[name, number])
            return
        at = self._position[name, number]
        if offset is not None and 0 <= offset != at:
            # The response of a fetch from before the last assignment, whose offset may have been out of range then.
            self._note(POLL, name, number, INFO, invoked, completed, wall, error=f"{error.name()} at {offset}")
            return
        marks = self._watermarks(name, number, timeout=60) or (-1, -1)
        self._note(
            POLL, name, number, FAIL, invoked, completed, wall,
            offset=at, error=OUT_OF_RANGE, low=marks[0], high=marks[1],
        )  # fmt: skip
        self._put(name, number, marks)

    def _put(self, name: str, number: int, marks: tuple[int, int] | None, offset: int | None = None) -> None:
        """Reassign one partition at `offset`, by default at its log start."""
        marks = marks or self._watermarks(name, number, timeout=60)
        if marks is None or marks[0] < 0:
            return
        target = marks[0] if offset is None else offset
        invoked = now()
        there = TopicPartition(name, number, target)
        if (name, number) in self._position:
            self._consumer.incremental_unassign([TopicPartition(name, number)])
        self._consumer.incremental_assign([there])
        self._position[name, number] = target
        self._since_put[name, number] = 0
        self._note(ASSIGN, name, number, OK, invoked, now(), time.time_ns(), offset=target)

    def _wander(self, name: str, number: int, *, home: bool = False) -> None:
        """Seek to a random earlier record, with `home` to the log end."""
        marks = self._watermarks(name, number, timeout=3)
        if marks is None or marks[1] <= marks[0]:
            return
        if home:
            self._put(name, number, marks, marks[1])
            return
        lowest = max(marks[0], marks[1] - EXCURSION_RECORDS) if self._random.random() < 0.5 else marks[0]
        self._put(name, number, marks, self._random.randint(lowest, min(lowest + EXCURSION_RECORDS, marks[1] - 1)))

    def _watermarks(self, name: str, number: int, timeout: float) -> tuple[int, int] | None:
        until = time.monotonic() + timeout
        while True:
            invoked, wall = now(), time.time_ns()
            try:
                low, high = self._consumer.get_watermark_offsets(TopicPartition(name, number), timeout=min(timeout, 5))
            except KafkaException as error:
                self._note(MARKS, name, number, INFO, invoked, now(), wall, error=str(error.args[0].name()))
                if time.monotonic() > until:
                    return None
                time.sleep(0.2)
                continue
            self._note(MARKS, name, number, OK, invoked, now(), wall, low=low, high=high)
            return low, high

    def _caught_up(self, ends: dict[str, list[int]]) -> bool:
        return all(
            self._position.get((name, number), -1) >= end
            for name, list_of in ends.items()
            for number, end in enumerate(list_of)
        )

    def _note(
        self, op: str, name: str, number: int, kind: str, invoked: int, completed: int, wall: int, **rest: Any
    ) -> None:
        label = self._labels[name]
        self._recorder.note(Event(self._orders.process, op, label, number, kind, invoked, completed, wall, **rest))


def main(arguments: list[str]) -> int:
    orders = Orders.parse(arguments[0])
    stopping = Stopping()
    with Recorder(orders.history) as recorder:
        if orders.role in ("producer", "once"):
            sender = Sender(orders, recorder)
            sender.once() if orders.role == "once" else sender.run(stopping)
            counts = sender.counts
        elif orders.role == "steady":
            counts = run(orders, recorder, stopping)
        else:
            reader = Reader(orders, recorder)
            reader.run(stopping)
            counts = reader.counts
    print(f"done {json.dumps(counts)}", flush=True)
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    os._exit(code)
