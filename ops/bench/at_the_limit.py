"""Three nodes with the maximum number of small partitions, almost idle.

950 topics of 7 partitions with three replicas each (`--topics` for fewer): the time to create them, their cost while
idle, one record to each partition, a node that is killed and restarted, and idle consumers. Apache Kafka's three
brokers run the same.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import psutil
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from ops.bench import ROOT
from ops.bench.bench import Bench
from ops.bench.replication import replicas
from ops.bench.replication.replicas import NODES, Cluster
from ops.bench.table import Figure

PARTITIONS = 7
#: Topics of one CreateTopics request.
BATCH = 50
CONSUMERS, EACH = 20, 500
VICTIM = 3
#: Seconds of a measurement of idle load, and before it; the same for a quick run.
IDLE, SETTLE = 30.0, 20.0
QUICK_IDLE, QUICK_SETTLE = 6.0, 4.0
PATIENCE = 900.0
LOOK = 0.2
MIB = 2**20
#: delivery.timeout.ms of the producer that sends one record to each partition.
DELIVERY = 120.0

#: The targets.
IDLE_SHARE, CONSUMERS_SHARE, RECORDS, DESCRIPTORS = 0.05, 0.05, 15.0, 7000
ALL_TOPICS = 950


@dataclass(frozen=True, slots=True)
class Sent:
    """One record to each partition: seconds, failed records, CPU seconds of the client."""

    seconds: float
    failed: int
    client: float

    def __str__(self) -> str:
        failed = f", {self.failed:,} failed" if self.failed else ""
        return f"{self.seconds:.1f} s{failed} (client {self.client:.1f} s of CPU)"


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of one cluster; times in seconds, CPU in shares of a core."""

    created: float
    in_sync: float
    idle: float
    descriptors: int
    memory: int
    first: Sent
    again: Sent
    led_by_others: float
    back: float
    in_sync_again: float
    plain_consumers: float
    """CPU in addition to that without consumers."""
    session_consumers: float


def at_the_limit(bench: Bench) -> list[Figure]:
    """Measure our three nodes, then Apache Kafka's three brokers."""
    found = []
    for cluster in (replicas.ours, replicas.theirs):
        with cluster(bench, "at-the-limit") as made:
            bench.say(f"{bench.topics * PARTITIONS:,} partitions of three replicas, {made.name} ...")
            found.append(_Run(bench, made).measure())
    return _figures(bench.topics, *found)


class _Run:
    def __init__(self, bench: Bench, cluster: Cluster) -> None:
        self._bench = bench
        self._cluster = cluster
        self._admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        whole = bench.topics >= ALL_TOPICS
        self._idle, self._settle = (IDLE, SETTLE) if whole else (QUICK_IDLE, QUICK_SETTLE)
        self._topics = [f"limit-{number:03}" for number in range(bench.topics)]

    def measure(self) -> Measured:
        began = time.monotonic()
        self._create()
        created = time.monotonic() - began
        self._until("all replicas are in sync", lambda: self._in_sync(len(NODES)))
        in_sync = time.monotonic() - began
        time.sleep(self._settle)
        idle = self._cpu(self._idle) / len(NODES)
        processes = self._processes()
        descriptors = max(process.num_fds() for process in processes)
        memory = max(process.memory_info().rss for process in processes)
        first, again = self._send(), self._send()
        self._say("consumers wait")
        time.sleep(self._settle)
        alone = self._cpu(self._idle)  # measured again: a JVM stays busy for a while after load
        plain, sessions = (max(0.0, self._consumers(kind) - alone) for kind in ("plain", "sessions"))
        self._say("a node is killed and restarted")
        began = time.monotonic()
        self._kill()
        self._until("all partitions have other leaders", lambda: self._led_by(VICTIM) == 0)
        led = time.monotonic() - began
        began = time.monotonic()
        self._start()
        back = time.monotonic() - began
        self._until("all replicas are in sync again", lambda: self._in_sync(len(NODES)))
        total = time.monotonic() - began
        return Measured(
            created, in_sync, idle, descriptors, memory, first, again, led, back, total - back, plain, sessions
        )

    def _say(self, what: str) -> None:
        self._bench.say(f"{what}, {self._cluster.name} ...")

    def _create(self) -> None:
        for at in range(0, len(self._topics), BATCH):
            new = [
                NewTopic(
                    name,
                    PARTITIONS,
                    replica_assignment=[[NODES[(at + n + p + k) % 3] for k in range(3)] for p in range(PARTITIONS)],
                )
                for n, name in enumerate(self._topics[at : at + BATCH])
            ]
            for future in self._admin.create_topics(new, operation_timeout=120, request_timeout=150).values():
                future.result(200)

    def _partitions(self) -> list[tuple[int, int]]:
        """Return leader and ISR size of each partition, in the metadata of a live node."""
        found = self._admin.list_topics(timeout=30).topics
        return [
            (int(partition.leader), len(partition.isrs))
            for name in self._topics
            if name in found
            for partition in found[name].partitions.values()
        ]

    def _in_sync(self, size: int) -> bool:
        rows = self._partitions()
        return len(rows) == len(self._topics) * PARTITIONS and all(isr == size and led > 0 for led, isr in rows)

    def _led_by(self, node: int) -> int:
        rows = self._partitions()
        return sum(led in (node, -1) for led, _ in rows) if rows else -1

    def _until(self, what: str, look: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with contextlib.suppress(KafkaException):
                if look():
                    return
            time.sleep(LOOK)
        raise RuntimeError(f"timed out after {PATIENCE:.0f} s: {what}")

    # Processes

    def _processes(self) -> list[psutil.Process]:
        stack, kafka = self._cluster.stack, self._cluster.kafka
        if stack is not None:
            return [psutil.Process(stack.pid(f"node-{node}")) for node in NODES]
        assert kafka is not None
        return [psutil.Process(kafka.pid(node)) for node in NODES]

    def _cpu(self, seconds: float) -> float:
        """Return the CPU that all nodes use together, as a share of a core."""
        processes = self._processes()
        before, began = _used(processes), time.monotonic()
        time.sleep(seconds)
        return (_used(processes) - before) / (time.monotonic() - began)

    def _kill(self) -> None:
        if self._cluster.stack is not None:
            self._cluster.stack.kill(f"node-{VICTIM}")
        elif self._cluster.kafka is not None:
            self._cluster.kafka.kill(VICTIM)

    def _start(self) -> None:
        if self._cluster.stack is not None:
            self._cluster.stack.start(f"node-{VICTIM}")
        elif self._cluster.kafka is not None:
            self._cluster.kafka.start(VICTIM)

    # Clients

    def _send(self) -> Sent:
        """Send one record to each partition with acks=all, and wait until each is acknowledged or has failed."""
        self._say("one record to each partition")
        failed, client = 0, psutil.Process()

        def delivered(error: object, _message: object) -> None:
            nonlocal failed
            failed += error is not None

        producer = Producer(
            {
                "bootstrap.servers": self._cluster.bootstrap,
                "acks": "all",
                "log_level": 0,
                "delivery.timeout.ms": int(DELIVERY * 1000),
            }
        )
        used, began = _used([client]), time.monotonic()
        for name in self._topics:
            for partition in range(PARTITIONS):
                producer.produce(name, b"x" * 100, partition=partition, on_delivery=delivered)
            producer.poll(0)
        failed += producer.flush(2 * DELIVERY)
        return Sent(time.monotonic() - began, failed, _used([client]) - used)

    def _consumers(self, kind: str) -> float:
        """Return the CPU that all nodes use together while consumers of `kind` wait for records."""
        with _waiting(self._cluster.bootstrap, self._topics, kind):
            time.sleep(self._settle)
            return self._cpu(self._idle)


def _used(processes: Sequence[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


@contextlib.contextmanager
def _waiting(bootstrap: str, topics: Sequence[str], kind: str) -> Iterator[None]:
    """Run consumers at the log end, in a process of their own."""
    command = [sys.executable, "-m", "ops.bench.clients.idle_consumers", bootstrap, kind, str(CONSUMERS), str(EACH)]
    command += [str(PARTITIONS), *topics]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT)
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError(f"the consumers ({kind}) did not start")
        yield
    finally:
        process.kill()
        process.wait()


def _figures(topics: int, ours: Measured, theirs: Measured) -> list[Figure]:
    whole = topics == ALL_TOPICS
    count = f"{topics * PARTITIONS:,} partitions"

    def both(text: Callable[[Measured], str]) -> tuple[str, str]:
        return text(ours), f"{text(theirs)} (Apache Kafka)"

    def figure(
        what: str, text: Callable[[Measured], str], value: Callable[[Measured], float], wanted: str, met: bool | None
    ) -> Figure:
        beside = value(theirs)
        ratio = value(ours) / beside if beside > 0 else None
        return Figure(what, *both(text), ratio, wanted if whole else "", met if whole else None)

    slowest = max(ours.first.seconds, ours.again.seconds)
    return [
        figure(
            f"{count} of three replicas: created, all in sync",
            lambda m: f"{m.created:.1f} s, {m.in_sync:.1f} s",
            lambda m: m.in_sync,
            "",
            None,
        ),
        figure(
            "the same, idle: CPU of a node",
            lambda m: f"{m.idle:.1%} of a core",
            lambda m: m.idle,
            f"< {IDLE_SHARE:.0%}",
            ours.idle < IDLE_SHARE,
        ),
        figure(
            "descriptors and memory of a node",
            lambda m: f"{m.descriptors:,}, {m.memory / MIB:,.0f} MiB",
            lambda m: m.descriptors,
            f"<= {DESCRIPTORS:,}",
            ours.descriptors <= DESCRIPTORS,
        ),
        figure(
            "one record to each partition, acks=all; again",
            lambda m: f"{m.first}; {m.again}",
            lambda m: max(m.first.seconds, m.again.seconds),
            f"< {RECORDS:.0f} s",
            slowest < RECORDS and not ours.first.failed + ours.again.failed,
        ),
        figure(
            f"{CONSUMERS} idle consumers of {EACH} partitions: CPU of all nodes, with fetch sessions; without",
            lambda m: f"{m.session_consumers:.1%}; {m.plain_consumers:.1%}",
            lambda m: m.session_consumers,
            f"< {CONSUMERS_SHARE:.0%}",
            ours.session_consumers < CONSUMERS_SHARE and ours.plain_consumers < CONSUMERS_SHARE,
        ),
        figure(
            "a node killed: other leaders; restarted; all in sync",
            lambda m: f"{m.led_by_others:.1f} s; {m.back:.1f} s; {m.in_sync_again:.1f} s",
            lambda m: m.led_by_others,
            "",
            None,
        ),
    ]
