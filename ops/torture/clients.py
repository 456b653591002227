"""The clients, each a process of its own, so that nothing of rehome can take them along.

    python -m ops.torture.clients '{"role": "producer", ...}'

They run until standard input says "stop" or ends (also when whoever started them was killed), and write all that they
asked and were told into their history. A consumer told "stop" goes on until it has read up to the ends given:
`stop {"orders": [12, 7]}`. When all is written a client prints "done" with its counts and leaves.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from ops.torture.history import ASSIGN, FAIL, INFO, MARKS, OK, OUT_OF_RANGE, POLL, SEND, SESSION, Event, Recorder, now

SILENT = logging.getLogger("rehome.torture.librdkafka")
SILENT.addHandler(logging.NullHandler())
SILENT.propagate = False

#: A send that ends with one of these was certainly not written; every other failure leaves it open.
REFUSED = {
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.INVALID_CONFIG,
}
#: Above the topic's max.message.bytes, below the client's own limit: the broker refuses it.
TOO_LARGE = 1_100_000
DELIVERY_SECONDS = 90
MARKS_SECONDS = 1.0
EXCURSION_RECORDS = 3000


@dataclass(frozen=True, slots=True)
class Orders:
    """What a client is told at the start. `topics` maps labels to (name, partitions); one-shot producers send `count`.

    `scale` makes its records larger; `acks` is the producer's setting.
    """

    role: str
    process: str
    bootstrap: str
    history: Path
    topics: dict[str, tuple[str, int]]
    per_second: float = 50.0
    idempotent: bool = True
    seed: int = 0
    count: int = 0
    scale: int = 1
    acks: str = "all"

    @staticmethod
    def parse(text: str) -> Orders:
        row = json.loads(text)
        topics = {label: (str(name), int(count)) for label, (name, count) in row.pop("topics").items()}
        return Orders(history=Path(row.pop("history")), topics=topics, **row)


class Stopping:
    """Standard input: says when to stop, and what was said."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.ends: dict[str, list[int]] = {}
        self.hurried = False
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        line = sys.stdin.readline()
        word, _, rest = line.strip().partition(" ")
        self.hurried = word != "stop"  # whoever started it is gone
        if rest:
            self.ends = json.loads(rest)
        self.asked.set()


class Sessions(logging.Handler):
    """Notes when an idempotent producer begins a new epoch, which only its log tells.

    librdkafka does so after a later request in flight was out of order because an earlier one was refused. What was
    sent in the old epoch, of any partition, is sent once more in the new one, also what a leader had appended by then.
    """

    def __init__(self, process: str, recorder: Recorder) -> None:
        super().__init__(logging.DEBUG)
        self._process, self._recorder = process, recorder

    def emit(self, record: logging.LogRecord) -> None:
        said = record.getMessage()
        if "epoch bump" in said:
            at = now()
            self._recorder.note(Event(self._process, SESSION, "", -1, INFO, at, at, time.time_ns(), error=said))

    def logger(self) -> logging.Logger:
        """The logger to give to the producer; what it says goes nowhere else."""
        logger = logging.Logger(f"rehome.torture.{self._process}", logging.DEBUG)
        logger.addHandler(self)
        return logger


class Sender:
    """A producer that notes every send; `run` keeps a rate, `once` sends a number of records as fast as it goes."""

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
                # A plain producer keeps its order only with one request at a time.
                "max.in.flight.requests.per.connection": 5 if orders.idempotent else 1,
                "retries": 1_000_000,
                "linger.ms": 10,
                "message.max.bytes": 4_000_000,
                "delivery.timeout.ms": DELIVERY_SECONDS * 1000,
                "request.timeout.ms": 10_000,
                "socket.timeout.ms": 12_000,
                "queue.buffering.max.messages": 5_000,
                "reconnect.backoff.max.ms": 500,
                # So slow that no batch is sent more than 25 times in its life: librdkafka computes the pause before the
                # next time as 2^retries * retry.backoff.ms in 32 bits. Beyond, what is negative counts as no pause, the
                # batch's later messages are still held back, and the producer ends with a fatal error: "Unable to
                # reconstruct MessageSet".
                "retry.backoff.ms": 100,
                "retry.backoff.max.ms": 8_000,
                "topic.metadata.refresh.interval.ms": 3000,
                **({"debug": "eos", "log_level": 7} if orders.idempotent else {"log_level": 0}),
            },
            logger=Sessions(orders.process, recorder).logger() if orders.idempotent else SILENT,
        )

    def run(self, stopping: Stopping) -> None:
        with self._noting_what_is_open():
            interval, due = 1.0 / self._orders.per_second, time.monotonic()
            while not stopping.asked.is_set():
                self.send()
                due = max(due + interval, time.monotonic() - 0.5)  # after a standstill it does not make up for it
                self._producer.poll(max(0.0, due - time.monotonic()))
            self._producer.flush(0 if stopping.hurried else DELIVERY_SECONDS + 20)

    def once(self) -> None:
        with self._noting_what_is_open():
            for _ in range(self._orders.count):
                self.send()
            self._producer.flush(DELIVERY_SECONDS + 20)

    @contextlib.contextmanager
    def _noting_what_is_open(self) -> Iterator[None]:
        """A producer that dies of a fatal error leaves sends without an outcome: their records may be in the logs."""
        try:
            yield
        except KafkaException as error:
            for note in tuple(self._open.values()):
                note(error.args[0], None)
            raise

    def send(self) -> None:
        label = self._random.choice(sorted(self._orders.topics))
        name, partitions = self._orders.topics[label]
        partition = self._random.randrange(partitions)
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
    """A consumer of all partitions that notes every poll. A `tail` follows; a `wanderer` goes back now and then."""

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
                continue  # taken off between two assignments
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
            # Of a fetch that was sent before the last assignment, from where the log may have ended or begun.
            self._note(POLL, name, number, INFO, invoked, completed, wall, error=f"{error.name()} at {offset}")
            return
        marks = self._watermarks(name, number, timeout=60) or (-1, -1)
        self._note(
            POLL, name, number, FAIL, invoked, completed, wall,
            offset=at, error=OUT_OF_RANGE, low=marks[0], high=marks[1],
        )  # fmt: skip
        self._put(name, number, marks)

    def _put(self, name: str, number: int, marks: tuple[int, int] | None, offset: int | None = None) -> None:
        """Assign one partition anew, at its log start or at `offset`."""
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
        """Go to some earlier record, or `home` to the end."""
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
            from ops.torture.steady import run

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
