"""Producers that go on while a disk fails, and what was acknowledged to them."""

from __future__ import annotations

import threading
from typing import Any

from confluent_kafka import Producer

from tests.support.nodes.node_harness import until


class Producing:
    """Idempotent producers, one for each of the given partitions, which may be named several times; they send while
    the block runs, and note what was acknowledged at which offset.
    """

    def __init__(self, bootstrap: str, topic: str, partitions: list[int]) -> None:
        self.acknowledged: dict[int, dict[int, bytes]] = {number: {} for number in partitions}
        self.failed: list[str] = []
        self._bootstrap, self._topic = bootstrap, topic
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(name, number)) for name, number in enumerate(partitions)
        ]

    def _run(self, name: int, partition: int) -> None:
        settings = {"enable.idempotence": True, "message.timeout.ms": 60000, "linger.ms": 0}
        producer = Producer({"bootstrap.servers": self._bootstrap, **settings})

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                self.failed.append(f"{partition}: {error}")
                return
            before = self.acknowledged[partition].setdefault(message.offset(), message.value())
            if before != message.value():
                self.failed.append(f"{partition}: offset {message.offset()} was given twice")

        number = 0
        while not self._stop.wait(0.05):  # less than the copy is throttled to
            producer.produce(self._topic, b"%d: %d" % (name, number), partition=partition, on_delivery=delivered)
            producer.poll(0)
            number += 1
        producer.flush(60)

    def go_on(self, partitions: list[int], seconds: float) -> None:
        """Wait until each partition has ten more records acknowledged."""
        known = {number: len(self.acknowledged[number]) for number in partitions}
        until(
            lambda: all(len(self.acknowledged[number]) > before + 10 for number, before in known.items()),
            seconds,
            f"partitions {partitions} take records",
        )

    def __enter__(self) -> Producing:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(90)
