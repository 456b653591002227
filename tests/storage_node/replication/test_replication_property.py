"""Random schedules of failures: no acknowledged record is lost, and replicas are equal below the high watermark.

A few schedules run whole nodes, many only their replicas, with delayed messages.
"""

from __future__ import annotations

import itertools
import random
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from storage_node.log.leader_epochs import LeaderEpochs
from storage_node.model.ids import TopicPartition as Tp
from storage_node.node import Node
from storage_node.replication.truncation import divergence, truncation_offset
from tests.storage_node.replication.three_replicas import schedule
from tests.support.nodes.memory_cluster import MemoryCluster, running_cluster
from tests.support.nodes.node_harness import until
from tests.support.nodes.replicated import assert_equal, content, settled
from tests.support.scale import scaled, tally

EXTRA = {
    "replica.lag.time.max.ms": "700",
    "replica.fetch.backoff.ms": "100",
    "replica.fetch.wait.max.ms": "100",
    "replica.high.watermark.checkpoint.interval.ms": "100",
}
PARTITIONS = 2
STEPS = 14


class Traffic(threading.Thread):
    """A producer that records what was acknowledged, until it is stopped."""

    def __init__(self, cluster: MemoryCluster) -> None:
        super().__init__(daemon=True)
        self.acknowledged: list[dict[int, bytes]] = [{} for _ in range(PARTITIONS)]
        self.done = threading.Event()
        self._producer = cluster.producer(
            retries=1_000_000, retry_backoff_ms=10, reconnect_backoff_max_ms=100, message_timeout_ms=60_000,
            topic_metadata_refresh_interval_ms=500,
        )  # fmt: skip
        self.sent = 0
        self.failed = 0

    def run(self) -> None:
        while not self.done.is_set():
            for partition in range(PARTITIONS):
                self._producer.produce("t", b"v%d" % self.sent, partition=partition, on_delivery=self._delivered)
                self.sent += 1
            self._producer.poll(0.002)
        self._producer.flush(60)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged[message.partition()][message.offset()] = message.value()
        else:
            self.failed += 1


class Schedule:
    """Random events at three nodes."""

    def __init__(self, cluster: MemoryCluster, seed: int) -> None:
        self.cluster = cluster
        self.dice = random.Random(seed)
        self.down: set[int] = set()
        self.log: list[str] = []

    def step(self) -> None:
        cluster, dice = self.cluster, self.dice
        up = [node for node in (1, 2, 3) if node not in self.down | cluster.controller.cut]
        what = dice.choice(["stop", "kill", "cut", "stall", "elect", "wait"])
        if len(up) < 3 and what in ("stop", "kill", "cut"):
            what = "return"
        node = dice.choice(up)
        self.log.append(f"{what} {node}")
        if what in ("stop", "kill"):
            self.down.add(node)
            cluster.stop(node, clean=what == "stop")
        elif what == "cut":
            # The node continues in its role and receives nothing; the others learn that it was fenced.
            cluster.controller.cut.add(node)
            cluster.controller.fence(node)
        elif what == "return":
            self.back()
        elif what == "stall":
            replica = cluster.replica(node, "t", dice.randrange(PARTITIONS))
            if replica is not None:
                with replica.lock:
                    time.sleep(dice.uniform(0, 1.2))
        elif what == "elect":
            rows = [["t", partition] for partition in range(PARTITIONS)]
            cluster.controller.submit(
                cluster.nodes[node], {"do": "elect_leaders", "partitions": rows, "unclean": False}
            )
        time.sleep(dice.uniform(0, 0.3))

    def back(self) -> None:
        for node in sorted(self.cluster.controller.cut):
            rejoin(self.cluster, self.cluster.nodes[node])
        for node in sorted(self.down):
            self.lose(node)
            self.cluster.start(node)
        self.down.clear()

    def lose(self, node: int) -> None:
        """Delete replicas of a node that is down, now and then; never the last one in sync."""
        for partition in range(PARTITIONS):
            if self.dice.random() < 0.4 and node not in self.cluster.controller.partition("t", partition).isr:
                self.log.append(f"delete t-{partition} of {node}")
                for disk in self.cluster.paths[node]:
                    shutil.rmtree(Path(disk) / f"t-{partition}", ignore_errors=True)


def rejoin(cluster: MemoryCluster, node: Node) -> None:
    """Register a node again that was cut off."""
    cluster.controller.heal(node.id)
    cluster.controller.detach(node)
    cluster.controller.attach(node)


@pytest.mark.parametrize("seed", range(scaled(2, 60)))
@pytest.mark.timeout(400)
def test_nothing_acknowledged_is_lost(tmp_path: Path, seed: int) -> None:
    with running_cluster(tmp_path, extra=EXTRA) as cluster, tally("replication schedules of three nodes") as counted:
        cluster.create_topic("t", [[1, 2, 3], [2, 3, 1]], {"min.insync.replicas": "2", "segment.bytes": "20000"})
        traffic, schedule = Traffic(cluster), Schedule(cluster, seed)
        traffic.start()
        try:
            for _ in range(STEPS):
                schedule.step()
            schedule.back()
            until(
                lambda: all(len(cluster.controller.partition("t", each).isr) == 3 for each in range(PARTITIONS)),
                40,
                f"all are in sync after {schedule.log}",
            )
        finally:
            traffic.done.set()
            traffic.join(70)
        for partition in range(PARTITIONS):
            end = settled(cluster, "t", partition)
            assert_equal(cluster, "t", partition)
            acknowledged = traffic.acknowledged[partition]
            assert acknowledged and max(acknowledged) < end
            found = cluster.consume("t", end, partition)
            lost = {offset: value for offset, value in acknowledged.items() if found[offset] != value}
            assert not lost, (schedule.log, lost)
            # The producer is idempotent: no record is duplicated, whichever node led meanwhile.
            assert len(set(found)) == len(found), schedule.log
            assert content(cluster.replica(1, "t", partition).log)
        counted.count += 1


@pytest.mark.parametrize("first", range(0, scaled(200, 12_000), 50))
@pytest.mark.timeout(400)
def test_replicas_agree_under_delayed_messages(tmp_path: Path, first: int) -> None:
    with tally("replication schedules of three replicas") as counted:
        for seed in range(first, first + 50):
            (root := tmp_path / str(seed)).mkdir()
            with schedule(root, seed) as run:
                for _ in range(300):
                    run.step()
                run.finish()
            shutil.rmtree(root)
            counted.count += 1


class History:
    """A log without its bytes: each record with its leader epoch."""

    def __init__(self) -> None:
        self.records: list[tuple[int, int]] = []
        self.epochs = LeaderEpochs()

    def append(self, epoch: int, record: int) -> None:
        if epoch != self.epochs.latest:
            self.epochs = self.epochs.assign(epoch, len(self.records))
        self.records.append((epoch, record))

    def fetch_from(self, leader: History, epoch: int) -> None:
        """Perform one fetch of a follower: append a record, or truncate."""
        offset, end = len(self.records), len(leader.records)
        if self.epochs.latest >= 0:
            known = leader.epochs.assign(epoch, end).end_offset_for(self.epochs.latest, end)
            if (found := divergence(Tp("t", 0), 0, offset, self.epochs.latest, known)) is not None:
                offset = truncation_offset(self.epochs, offset, found)
                assert offset < len(self.records), "a response that diverges shortens the log"
                del self.records[offset:]
                self.epochs = self.epochs.truncated_from_end(offset)
                return
        if offset < end:
            self.append(*leader.records[offset])


@pytest.mark.parametrize("first", range(0, scaled(500, 50_000), 500))
def test_logs_that_diverge_at_any_depth_converge(first: int) -> None:
    """Any replica may lead next, however short its log: up to a record of equal offset and epoch, logs are equal."""
    for seed in range(first, first + 500):
        dice = random.Random(seed)
        logs = [History() for _ in range(3)]
        epoch = sent = 0
        leader = logs[0]
        for _ in range(60):
            what = dice.choices(["append", "fetch", "elect"], [4, 5, 1])[0]
            if what == "append":
                sent += 1
                leader.append(epoch, sent)
            elif what == "elect":
                leader, epoch = dice.choice(logs), epoch + 1
            else:
                follower = dice.choice([each for each in logs if each is not leader])
                follower.fetch_from(leader, epoch)
            for one, other in itertools.combinations(logs, 2):
                same = [a[0] == b[0] for a, b in zip(one.records, other.records, strict=False)]
                upto = max((at + 1 for at, equal in enumerate(same) if equal), default=0)
                assert one.records[:upto] == other.records[:upto], seed
        for follower in logs:
            lacks = len(leader.records) + len(follower.records)
            for _ in range(lacks if follower is not leader else 0):
                follower.fetch_from(leader, epoch)
            assert follower.records == leader.records, seed
