"""Producers that keep going while something happens to the cluster, one per kind of client, and their readers.

All are idempotent: what they were given is in the partition once, in the order given, whatever happened meanwhile.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as LibrdkafkaPartition
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from tests.conformance.clients.java import JavaClients

#: Records that each producer sends, and seconds between two.
COUNT, PAUSE = 300, 0.02
PATIENCE = 60.0

VALUES = [f"live-{number}" for number in range(COUNT)]


class JavaTraffic:
    def __init__(self, java: JavaClients, bootstrap: str) -> None:
        self._java, self._bootstrap = java, bootstrap

    def produce(self, topic: str) -> None:
        paced = {"prefix": "live", "count": COUNT, "pauseMs": int(PAUSE * 1000)}
        sent = self._java.call(self._bootstrap, "produce", topic=topic, partition=0, **paced)
        assert sent["failures"] == []

    def read(self, topic: str, count: int) -> list[str]:
        found = self._java.call(self._bootstrap, "consume", assign=[[topic, 0]], count=count, seconds=PATIENCE)
        return [value for _, _, value in found["records"]]

    def follow(self, topics: list[str], group: str) -> Future[Any]:
        """A member of a group that reads and commits until `stop`."""
        settings = {"group.id": group, "enable.auto.commit": "true", "auto.commit.interval.ms": "200"}
        endless = {"count": 10**9, "seconds": 600, "name": group, "config": settings, "topics": True}
        return self._java.begin(self._bootstrap, "consume", subscribe=topics, **endless)

    def stop(self, group: str) -> None:
        self._java.call(self._bootstrap, "stop", name=group)


class LibrdkafkaTraffic:
    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def produce(self, topic: str) -> None:
        failures: list[Any] = []
        producer = Producer({"bootstrap.servers": self._bootstrap, "enable.idempotence": True, "log_level": 0})
        for value in VALUES:
            producer.produce(topic, value, partition=0, on_delivery=lambda error, _: error and failures.append(error))
            producer.poll(PAUSE)
        assert producer.flush(PATIENCE) == 0
        assert failures == []

    def read(self, topic: str, count: int) -> list[str]:
        reader = Consumer({"bootstrap.servers": self._bootstrap, "group.id": topic, "log_level": 0})
        try:
            reader.assign([LibrdkafkaPartition(topic, 0, 0)])
            return _collect(lambda: [m.value().decode() for m in reader.consume(500, 0.1) if m.error() is None], count)
        finally:
            reader.close()


class LibrdkafkaFollower:
    """A member of a group that reads and commits until `stop`."""

    def __init__(self, bootstrap: str, topics: list[str], group: str) -> None:
        self.found: set[tuple[str, str]] = set()
        self._stopped = threading.Event()
        settings = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest", "log_level": 0}
        self._consumer = Consumer({**settings, "auto.commit.interval.ms": 200})
        self._consumer.subscribe(topics)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.is_set():
            for message in self._consumer.consume(500, 0.1):
                if message.error() is None:
                    self.found.add((message.topic(), message.value().decode()))
        self._consumer.close()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(PATIENCE)


class KafkaPythonTraffic:
    def __init__(self, bootstrap: str) -> None:
        self._servers = bootstrap.split(",")

    def produce(self, topic: str) -> None:
        producer = KafkaProducer(bootstrap_servers=self._servers)
        try:
            sent = []
            for value in VALUES:
                sent.append(producer.send(topic, value.encode(), partition=0))
                time.sleep(PAUSE)
            for future in sent:
                future.get(PATIENCE)
        finally:
            producer.close(timeout=5)

    def read(self, topic: str, count: int) -> list[str]:
        reader = KafkaConsumer(bootstrap_servers=self._servers, enable_auto_commit=False)
        try:
            reader.assign([TopicPartition(topic, 0)])
            reader.seek_to_beginning()
            return _collect(
                lambda: [r.value.decode() for rows in reader.poll(timeout_ms=100).values() for r in rows], count
            )
        finally:
            reader.close()


class KcatTraffic:
    def __init__(self, bootstrap: str) -> None:
        program = shutil.which("kcat")
        assert program is not None
        self._command = [program, "-b", bootstrap, "-q", "-p", "0", "-X", "log_level=0"]

    def produce(self, topic: str) -> None:
        command = [*self._command, "-P", "-t", topic, "-X", "enable.idempotence=true", "-X", "linger.ms=5", "-E"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None and process.stderr is not None
            for value in VALUES:
                process.stdin.write(f"{value}\n")
                process.stdin.flush()
                time.sleep(PAUSE)
            process.stdin.close()
            process.stdin = None
            _, complaints = process.communicate(timeout=PATIENCE)
            assert process.returncode == 0, complaints

    def read(self, topic: str, count: int) -> list[str]:
        command = [*self._command, "-C", "-t", topic, "-o", "beginning", "-c", str(count)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()


def _collect(poll: Callable[[], list[str]], count: int) -> list[str]:
    found: list[str] = []
    until = time.monotonic() + PATIENCE
    while len(found) < count and time.monotonic() < until:
        found.extend(poll())
    return found
