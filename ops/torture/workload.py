"""Start and stop the clients' processes, and read all partitions at the end by a new consumer."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, TopicPartition

from ops.stack.errors import OpsError
from ops.torture.checks.facts import FinalRead, Place, TopicFact
from ops.torture.roles import Roles
from ops.torture.topics import MAIN, SHORT

ROOT = Path(__file__).resolve().parents[2]

#: Records per second of each producer.
PER_SECOND = 60.0
#: Records per second of each single-partition client.
STEADY_PER_SECOND = 3.0
#: Seconds for a client to exit: a producer's last records may wait for their delivery timeout.
STOP_SECONDS = 130.0
SILENCE_SECONDS = 20.0
PATIENCE_SECONDS = 90.0
#: The initial records, and the factor of their size: together 5 MB per partition.
LOADED, LARGER = 6000, 6


@dataclass(slots=True)
class Client:
    """A client's process and its history."""

    name: str
    process: subprocess.Popen[str]
    history: Path


class Workload:
    """The clients of one run."""

    def __init__(self, roles: Roles, folder: Path, seed: int, topics: Sequence[TopicFact] = (MAIN, SHORT)) -> None:
        self._roles, self._folder, self._seed = roles, folder, seed
        self._topics = topics
        self._clients: list[Client] = []
        self._fillers: dict[str, Client] = {}

    @property
    def histories(self) -> list[Path]:
        """The history files of all clients and of the nemesis."""
        return sorted((self._folder / "histories").glob("*.jsonl"))

    def load(self) -> None:
        """Produce the initial records, which give moves something to copy. Raises `OpsError`."""
        client = self._start("once", "loader", self._topics, count=LOADED, scale=LARGER)
        self._end([client], STOP_SECONDS)

    def start(self) -> None:
        for number, idempotent in enumerate((True, True, False)):
            name = f"{'idempotent' if idempotent else 'plain'}-{number}"
            self._clients.append(
                self._start("producer", name, self._topics, per_second=PER_SECOND, idempotent=idempotent)
            )
        self._clients.append(self._start("tail", "tail-0", self._topics))
        self._clients.append(self._start("wanderer", "wanderer-0", self._topics))
        self._clients.append(self._start("steady", "steady", self._topics, per_second=STEADY_PER_SECOND))

    def fill(self, topic: TopicFact, count: int) -> None:
        """Start a producer that sends `count` records to a topic; return at once."""
        self._fillers[topic.label] = self._start("once", f"filler-{topic.label}", [topic], count=count)

    def filling(self, label: str) -> bool:
        """Return whether the producer of `fill` is still running."""
        client = self._fillers.get(label)
        return client is not None and client.process.poll() is None

    def stop_producers(self) -> None:
        """Stop the producers after the outcome of every send. Raises `OpsError` if a producer does not exit."""
        producers = [c for c in self._clients if not c.name.startswith(("tail", "wanderer"))]
        for client in producers:
            _write_line(client, "stop")
        self._end([*producers, *self._fillers.values()], STOP_SECONDS)

    def stop_consumers(self, ends: dict[str, list[int]]) -> None:
        """Stop the consumers, the tail once it has read up to `ends`. Raises `OpsError` if one does not exit."""
        consumers = [c for c in self._clients if c.name.startswith(("tail", "wanderer"))]
        for client in consumers:
            _write_line(client, f"stop {json.dumps(ends)}" if client.name.startswith("tail") else "stop")
        self._end(consumers, STOP_SECONDS)

    def abandon(self) -> None:
        """Terminate every client at once; their histories so far remain."""
        for client in [*self._clients, *self._fillers.values()]:
            if client.process.poll() is None:
                client.process.terminate()
        for client in [*self._clients, *self._fillers.values()]:
            with contextlib.suppress(subprocess.TimeoutExpired):
                client.process.wait(5)
            if client.process.poll() is None:
                client.process.kill()
                client.process.wait()

    def _start(
        self,
        role: str,
        name: str,
        topics: Sequence[TopicFact],
        *,
        count: int = 0,
        scale: int = 1,
        per_second: float = 0.0,
        idempotent: bool = True,
    ) -> Client:
        history = self._folder / "histories" / f"{name}.jsonl"
        orders = {
            "role": role,
            "process": name,
            "bootstrap": self._roles.bootstrap,
            "history": str(history),
            "topics": {topic.label: [topic.name, topic.partitions] for topic in topics},
            "per_second": per_second,
            "idempotent": idempotent,
            "seed": self._seed + len(self._clients),
            "count": count,
            "scale": scale,
            # With one replica, acks=1 and acks=all are equivalent.
            "acks": "all" if idempotent or any(topic.replicas > 1 for topic in topics) else "1",
        }
        (self._folder / "logs").mkdir(parents=True, exist_ok=True)
        with (self._folder / "logs" / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "ops.torture.clients", json.dumps(orders)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                text=True,
                start_new_session=True,
            )
        return Client(name, process, history)

    def _end(self, clients: Iterable[Client], seconds: float) -> None:
        until = time.monotonic() + seconds
        for client in clients:
            try:
                code = client.process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired as error:
                raise OpsError(f"the client {client.name} did not exit within {seconds:.0f} s") from error
            if code:
                log = self._folder / "logs" / f"{client.name}.log"
                raise OpsError(f"the client {client.name} exited with code {code}; see {log}")


def _write_line(client: Client, line: str) -> None:
    with contextlib.suppress(OSError):
        assert client.process.stdin is not None
        client.process.stdin.write(f"{line}\n")
        client.process.stdin.flush()


def read_all(bootstrap: str, topics: Iterable[TopicFact]) -> tuple[dict[Place, FinalRead], list[str]]:
    """Read every partition from its log start by a new consumer; return them, and a sentence for each that failed."""
    found: dict[Place, FinalRead] = {}
    problems: list[str] = []
    for topic in topics:
        for number in range(topic.partitions):
            until = time.monotonic() + PATIENCE_SECONDS
            while True:
                # A new client per attempt: one that connected to a starting cluster may keep old metadata for long.
                consumer = _consumer(bootstrap)
                try:
                    found[topic.label, number] = _read_one(consumer, topic.name, number)
                    break
                except OpsError as error:
                    if time.monotonic() > until:
                        problems.append(str(error))
                        break
                finally:
                    consumer.close()
    return found, problems


def _consumer(bootstrap: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "torture-final",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "check.crcs": True,
            "log_level": 0,
        }
    )


def _read_one(consumer: Consumer, name: str, number: int) -> FinalRead:
    low, high = _watermarks(consumer, name, number)
    records: list[tuple[int, str]] = []
    consumer.assign([TopicPartition(name, number, low)])
    quiet = time.monotonic()
    position = low
    while position < high:
        batch = consumer.consume(num_messages=2000, timeout=0.5)
        for message in batch:
            error = message.error()
            if error is not None:
                if not error.retriable() and "out of range" in error.str().lower():
                    raise OpsError(f"reading {name}-{number} at {position}: {error.str()}")
                continue
            quiet = time.monotonic()
            value = (message.value() or b"")[:120].split(b" ", 1)[0].decode(errors="replace")
            records.append((message.offset(), value))
            position = message.offset() + 1
        if time.monotonic() - quiet > SILENCE_SECONDS:
            raise OpsError(f"no records of {name}-{number} from offset {position} of {high} for {SILENCE_SECONDS} s")
    return FinalRead(low, high, tuple(records))


def _watermarks(consumer: Consumer, name: str, number: int) -> tuple[int, int]:
    until = time.monotonic() + SILENCE_SECONDS
    while True:
        try:
            low, high = consumer.get_watermark_offsets(TopicPartition(name, number), timeout=5)
            return int(low), int(high)
        except KafkaException as error:
            if time.monotonic() > until:
                raise OpsError(f"cannot read the offsets of {name}-{number}: {error}") from error
            time.sleep(0.2)
