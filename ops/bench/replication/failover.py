"""The time without a leader after a node is killed, stopped or frozen, a disk of it fails, the controller is killed,
or both.

Each failure is repeated `--rounds` times, because the age of the lease is random. The table has the median and the
worst; the target applies to the worst.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from ops.bench.bench import Bench, rehome
from ops.bench.clients import pacer
from ops.bench.table import Figure
from ops.faults.disk import CHANGES, READS, Disk, missing
from ops.stack import ports
from ops.stack.layout import StackSpec
from storage_node.wire.client.kafka_client import ask
from storage_node.wire.table import METADATA

TOPICS, PARTITIONS = 30, 10
#: Further topics in the controller's state when it is killed.
MANY_TOPICS, MANY_PARTITIONS = 50, 100
MORE = MANY_TOPICS * MANY_PARTITIONS
VICTIM = 3
LOOK = 0.02
AT_REST = 0.2
PATIENCE = 60.0
#: Requests per second to the disk beside one that fails, and for how many seconds before and after.
PRODUCE_RATE, SPAN = 100.0, 10.0
#: How many times its latency may be what it was.
MORE_LATENCY = 2.0

#: The targets in seconds.
AFTER_KILL, AFTER_STOP, AFTER_DISK_ERROR, ALL_WITHIN, READY = 8.0, 1.0, 2.0, 1.0, 5.0


def failover(bench: Bench) -> list[Figure]:
    """Measure elections after SIGKILL, SIGSTOP and a clean stop of a node with 300 leaders, and the controller."""
    bench.say(f"failover of {TOPICS * PARTITIONS} led partitions in {TOPICS} topics on three nodes ...")
    with _cluster(bench.folder / "failover") as cluster:
        figures = []
        for what, end, wanted in (
            ("kill -9", cluster.kill, AFTER_KILL),
            ("SIGSTOP", cluster.freeze, AFTER_KILL),
            ("a clean stop", cluster.stop, AFTER_STOP),
        ):
            ends = _ends(cluster, end, bench.rounds)
            figures.append(_figure(f"leaders changed after {what} of a node", [last for _, last in ends], wanted))
            spread = [last - first for first, last in ends]
            figures.append(
                _figure(f"from the first to the last of {TOPICS * PARTITIONS} partitions", spread, ALL_WITHIN)
            )
        bench.say(f"controller and node killed together, then the controller with {MORE} further partitions ...")
        both = [last for _, last in _ends(cluster, cluster.kill_with_controller, bench.rounds)]
        figures.append(Figure("leaders changed after kill -9 of a node and the controller", _shown(both)))
        ready = [cluster.controller_again()]
        figures.append(_figure(f"controller ready after kill -9, {MORE:,} further partitions", ready, READY))
    return figures


def disk_failure(bench: Bench) -> list[Figure]:
    """Measure elections after the first error of a disk with 300 leaders, one of the node's two, and the latency of
    produces to the other one before and after it; needs FUSE.
    """
    if lacking := missing():
        bench.say(f"left out: leaders changed after a disk error ({lacking})")
        return []
    bench.say(f"disk errors under {TOPICS * PARTITIONS} leaders ...")
    folder = bench.folder / "disk-failure"
    path = StackSpec(folder, dirs=2).log_dirs(VICTIM)[1]
    disk = Disk(path.parent, path.name)
    try:
        with _cluster(folder, 2 * PARTITIONS, disk) as cluster:
            ends, before, after = [], list[float](), list[float]()
            for at in range(bench.rounds):
                cluster.lead_all()
                with pacer.paced(cluster.victim, cluster.beside(), PRODUCE_RATE, folder / f"beside-{at}") as client:
                    time.sleep(SPAN)
                    failed = time.monotonic()
                    ends.append(cluster.leaders_after(cluster.fail_disk))
                    time.sleep(max(0.0, failed + SPAN - time.monotonic()))
                if client.errors:
                    raise RuntimeError(f"{client.errors} requests to the disk beside the failed one had errors")
                before += [took for sent, took in client.requests if sent < failed]
                after += [took for sent, took in client.requests if sent >= failed]
                cluster.back()
            count = len(cluster.failing)
    finally:
        disk.close()
    what = f"leaders of {count} partitions changed after an I/O error of their disk"
    were, are = (statistics.quantiles(each, n=100)[98] for each in (before, after))
    return [
        _figure(what, [last for _, last in ends], AFTER_DISK_ERROR),
        Figure(
            f"the same: a producer's p99 on the node's other disk, in the {SPAN:.0f} s after it and before it",
            f"{are * 1e3:.1f} ms, longest {max(after) * 1e3:.0f} ms",
            f"{were * 1e3:.1f} ms, longest {max(before) * 1e3:.0f} ms (before)",
            are / were,
            f"<= {MORE_LATENCY:.0f} times",
            are / were <= MORE_LATENCY,
        ),
    ]


def _ends(cluster: _Cluster, end: Callable[[], None], rounds: int) -> list[tuple[float, float]]:
    """Return, per round, the seconds until the first and the last partition had another leader."""
    found = []
    for _ in range(rounds):
        cluster.lead_all()
        found.append(cluster.leaders_after(end))
        cluster.back()
    return found


def _shown(seconds: Sequence[float]) -> str:
    """Format the median and the worst."""
    if len(seconds) == 1:
        return f"{seconds[0]:.2f} s"
    return f"{statistics.median(seconds):.2f} s, worst of {len(seconds)} {max(seconds):.2f} s"


def _figure(what: str, seconds: Sequence[float], wanted: float) -> Figure:
    """Return a line whose verdict and ratio are those of the worst round."""
    worst = max(seconds)
    return Figure(what, _shown(seconds), "", worst / wanted, f"<= {wanted:.0f} s", worst <= wanted)


class _Cluster:
    """A stack of three nodes, and a client of the two survivors.

    `partitions`: of each topic. `disk`: the second one of the victim, which can fail.
    """

    def __init__(self, folder: Path, partitions: int = PARTITIONS, disk: Disk | None = None) -> None:
        self.folder, self.partitions, self.disk = folder, partitions, disk
        self.failing: frozenset[tuple[str, int]] = frozenset()
        """The partitions that lose their leader by the failure of the disk; empty: all."""
        port = ports.some_block(4)
        temporal = port + 3
        options = [
            "--nodes",
            "3",
            "--dirs",
            "2" if disk else "1",
            "--port",
            str(port),
            "--temporal-port",
            str(temporal),
            "--detach",
        ]
        rehome(folder, "up", *options)
        self.survivors = ",".join(f"127.0.0.1:{port + node - 1}" for node in (1, 2))
        self.admin = AdminClient({"bootstrap.servers": self.survivors, "log_level": 0})
        self.asked = [("127.0.0.1", port + above) for above in (0, 1)]
        self.victim = f"127.0.0.1:{port + VICTIM - 1}"
        self._beside = ""
        self._made = False
        self._victim = 0
        self._producer = Producer({"bootstrap.servers": self.survivors, "log_level": 0})
        self._pids: dict[str, int] = {}

    def lead_all(self) -> None:
        """Create the topics once, and wait until the victim leads all partitions with all nodes in sync."""
        if not self._made:
            assignment = [[VICTIM, 1, 2]] * self.partitions
            new = [NewTopic(f"failover-{n:02}", self.partitions, replica_assignment=assignment) for n in range(TOPICS)]
            for future in self.admin.create_topics(new, operation_timeout=30, request_timeout=40).values():
                future.result(60)
            self._made = True
        self._until("all partitions are led by the victim and in sync", self._as_wanted)
        rows: list[dict[str, Any]] = json.loads(rehome(self.folder, "status", "--json"))
        self._pids = {str(row["name"]): int(row["pid"] or 0) for row in rows}

    def _as_wanted(self) -> bool:
        rows = self._rows()
        if len(rows) < 2 * TOPICS * self.partitions:
            return False
        if all(leader == VICTIM and isr == 3 for _, leader, isr in rows):
            return True
        if all(isr == 3 for _, _, isr in rows):
            self._prefer()
        return False

    def _prefer(self) -> None:
        from confluent_kafka import ElectionType

        with contextlib.suppress(KafkaException):
            self.admin.elect_leaders(ElectionType.PREFERRED).result(30)

    def _rows(self) -> list[tuple[tuple[str, int], int, int]]:
        """Return leader and ISR size of each partition by both survivors; a client could choose the victim."""
        found = [
            ask(host, port, METADATA, METADATA.max_version, timeout=2, client="bench", topics=None)
            for host, port in self.asked
        ]
        return [
            ((str(topic.name), int(partition.partition_index)), int(partition.leader_id), len(partition.isr_nodes))
            for response in found
            for topic in response.topics
            if topic.name.startswith("failover-")
            for partition in topic.partitions
        ]

    def leaders_after(self, end: Callable[[], None]) -> tuple[float, float]:
        """Call `end`; return the seconds until the first partition has another leader, and until all have."""
        began = time.monotonic()
        end()
        first = 0.0
        while (now := time.monotonic() - began) < PATIENCE:
            with contextlib.suppress(OSError):
                changed = [
                    leader not in (-1, VICTIM)
                    for one, leader, _ in self._rows()
                    if one in self.failing or not self.failing
                ]
                now = time.monotonic() - began
                first = first or (now if any(changed) else 0.0)
                if changed and all(changed):
                    return first, now
            time.sleep(LOOK)
        raise RuntimeError(f"partitions have no new leader after {PATIENCE:.0f} s")

    # Failures of the victim

    def kill(self) -> None:
        self._signal(f"node-{VICTIM}", signal.SIGKILL)

    def freeze(self) -> None:
        self._victim = self._signal(f"node-{VICTIM}", signal.SIGSTOP)

    def stop(self) -> None:
        self._signal(f"node-{VICTIM}", signal.SIGTERM)

    def kill_with_controller(self) -> None:
        """Kill controller and victim; restart the controller at once, as a supervisor does."""
        self._signal("controller", signal.SIGKILL)
        self.kill()
        rehome(self.folder, "start", "controller")

    def fail_disk(self) -> None:
        """Fail every operation of the disk, and let a record be written to it, so that the node notices."""
        assert self.disk is not None
        names = (path.name.rpartition("-") for path in self.disk.backing.glob("failover-*"))
        self.failing = frozenset((topic, int(partition)) for topic, _, partition in names)
        topic, partition = min(self.failing)
        self._producer.list_topics(topic, 10)
        self.disk.rules({"ops": (*CHANGES, *READS), "errno": errno.EIO})
        self._producer.produce(topic, b"x", partition=partition)
        self._producer.poll(0)

    def beside(self) -> str:
        """Return a topic that the victim leads on the disk that does not fail."""
        assert self.disk is not None
        number = 0
        while not self._beside:
            topic, number = f"beside-{number}", number + 1
            new = NewTopic(topic, 1, replica_assignment=[[VICTIM, 1, 2]])
            self.admin.create_topics([new], operation_timeout=30)[topic].result(40)
            self._until("the victim has the replica", lambda topic=topic: self._placed(topic))  # type: ignore[misc]
            self._beside = topic if not (self.disk.backing / f"{topic}-0").exists() else ""
        return self._beside

    def _placed(self, topic: str) -> bool:
        folders = [self.disk.backing, *StackSpec(self.folder, dirs=2).log_dirs(VICTIM)] if self.disk else []
        return any((folder / f"{topic}-0").exists() for folder in folders)

    def back(self) -> None:
        """Restart or continue the victim, or bring its disk back."""
        if self.failing and self.disk is not None:
            self.disk.heal()
            self._producer.flush(30)
            rehome(self.folder, "online", str(VICTIM), str(self.disk.path), group="dirs")
        elif self._victim:
            os.kill(self._victim, signal.SIGCONT)
            self._victim = 0
        else:
            rehome(self.folder, "stop", f"node-{VICTIM}")
            rehome(self.folder, "start", f"node-{VICTIM}")

    def _signal(self, name: str, number: signal.Signals) -> int:
        os.kill(self._pids[name], number)
        return self._pids[name]

    def controller_again(self) -> float:
        """Return the seconds from the start of a new controller, with many partitions, until it creates a topic."""
        new = [
            NewTopic(f"many-{n:02}", MANY_PARTITIONS, replica_assignment=[[1 + n % 2]] * MANY_PARTITIONS)
            for n in range(MANY_TOPICS)
        ]
        for at in range(0, len(new), 10):
            for future in self.admin.create_topics(
                new[at : at + 10], operation_timeout=60, request_timeout=70
            ).values():
                future.result(80)
        self._until("the cluster is idle", self._responds_at_once)
        rows = json.loads(rehome(self.folder, "status", "--json"))
        os.kill(next(int(row["pid"]) for row in rows if row["name"] == "controller"), signal.SIGKILL)
        began = time.monotonic()
        rehome(self.folder, "start", "controller")
        self._until("the controller accepts changes", self._creates)
        return time.monotonic() - began

    def _creates(self) -> bool:
        try:
            futures = self.admin.create_topics([NewTopic("again", 1, 1)], operation_timeout=2, request_timeout=3)
            futures["again"].result(5)
        except KafkaException as error:
            return "TOPIC_ALREADY_EXISTS" in str(error)
        return True

    def _responds_at_once(self) -> bool:
        """Return whether the controller is idle: all nodes have reported the directories of the new replicas."""
        began = time.monotonic()
        self.admin.create_topics([NewTopic("rest", 1, 1)], validate_only=True, request_timeout=10)["rest"].result(15)
        return time.monotonic() - began < AT_REST

    def _until(self, what: str, look: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with contextlib.suppress(KafkaException, OSError):
                if look():
                    return
            time.sleep(LOOK)
        raise RuntimeError(f"timed out after {PATIENCE:.0f} s: {what}")


@contextlib.contextmanager
def _cluster(folder: Path, partitions: int = PARTITIONS, disk: Disk | None = None) -> Iterator[_Cluster]:
    try:
        yield _Cluster(folder, partitions, disk)
    finally:
        rehome(folder, "down")
