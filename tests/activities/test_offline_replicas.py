"""A leader's folder takes no new file on a good disk: another node leads, and it returns after the repair."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from storage_node.model.metadata import PartitionImage
from tests.activities.cluster import Cluster, running, until
from tests.support.needs import need
from tests.support.programs.temporal import TemporalServer
from workflows.model.metadata.state import ClusterState

pytestmark = [pytest.mark.temporal, pytest.mark.timeout(400)]

TOPIC = "t"
CONFIGS = {"segment.bytes": "50000", "min.insync.replicas": "2"}
SIZE = 2000


def partition(cluster: Cluster) -> PartitionImage:
    """As the controller has it."""
    return ClusterState.of(cluster.query(cluster.name, "state")).topics[TOPIC].partitions[0]


@contextmanager
def immutable(folder: Path) -> Iterator[None]:
    """The folder takes no new files, and gives none up."""
    if subprocess.run(["chattr", "+i", str(folder)], capture_output=True).returncode:
        need("chattr +i", "not with this file system, or this user")
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", str(folder)], check=True)


class Producing:
    """An idempotent producer that sends record after record, each acknowledged by all, until told to stop."""

    def __init__(self, bootstrap: str) -> None:
        self.sent = 0
        self.failed: list[str] = []
        self.acknowledged: list[float] = []
        settings = {"acks": "all", "linger.ms": 0, "enable.idempotence": True, "message.timeout.ms": 60_000}
        self._producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, **settings})
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._producer.produce(
                TOPIC, self.sent.to_bytes(8, "big") + bytes(SIZE), partition=0, on_delivery=self._delivered
            )
            self.sent += 1
            self._producer.poll(0.005)

    def _delivered(self, error: object, _: object) -> None:
        if error is not None:
            self.failed.append(str(error))
        else:
            self.acknowledged.append(time.monotonic())

    def stop(self) -> int:
        """Wait for all that was sent; how many records that is."""
        self._stop.set()
        self._thread.join(10)
        assert self._producer.flush(60) == 0 and not self.failed, self.failed[:1]
        return self.sent


def test_another_node_leads_while_a_folder_is_immutable_and_it_returns_after_the_repair(
    temporal_server: TemporalServer, task_queue: str, tmp_path: Path
) -> None:
    with running(temporal_server, task_queue, tmp_path / "cluster", 3) as cluster:
        admin = cluster.admin()
        topic = NewTopic(TOPIC, replica_assignment=[[1, 2, 3]], config=CONFIGS, num_partitions=1)
        admin.create_topics([topic], operation_timeout=20)[TOPIC].result(30)
        until("all are in sync and known", lambda: all(partition(cluster).directories))
        producing = Producing(cluster.bootstrap)
        until("records are acknowledged", lambda: len(producing.acknowledged) > 50)
        folder = cluster.disk_of(TOPIC, node=1) / f"{TOPIC}-0"
        with immutable(folder):
            until("node 1 has met it", lambda: cluster.ask("status")["offline_replicas"], pause=0.01)
            begun, count = time.monotonic(), len(producing.acknowledged)
            until("another node leads", lambda: partition(cluster).leader == 2, pause=0.01)
            held = partition(cluster)
            assert set(held.isr) == {2, 3} and [each.node for each in held.offline] == [1]
            until("producers go on", lambda: len(producing.acknowledged) > count + 50, pause=0.01)
            times = producing.acknowledged[count - 1 :]
            gap = max(later - earlier for earlier, later in pairwise(times))
            print(f"no acknowledgement for {gap:.2f} s, the first again after {times[1] - begun:.2f} s")
            (row,) = cluster.ask("offline-replicas", node=3)["replicas"]
            assert row["node"] == 1 and row["directory"] == str(folder.parent)
            assert row["file"].startswith(str(folder)) and "Operation not permitted" in row["reason"]

            # Over a restart, of the node and of the controller.
            cluster.kill("node-1")
            cluster.kill("controller")
            cluster.start_controller()
            cluster.start_node(1)
            cluster.wait_registered(1)
            (again,) = partition(cluster).offline
            assert again.node == 1 and str(folder) in again.reason
            assert partition(cluster).leader == 2
            (refused,) = cluster.ask("replicas-online", partitions=[[TOPIC, 0]])["replicas"]
            assert refused["outcome"] == "offline" and str(folder) in refused["message"]
        (reopened,) = cluster.ask("replicas-online", partitions=[[TOPIC, 0]])["replicas"]
        assert reopened["outcome"] == "reopened", reopened
        until("it is in sync again", lambda: set(partition(cluster).isr) == {1, 2, 3})
        assert partition(cluster).offline == ()
        count = producing.stop()
        assert cluster.read_numbers(TOPIC, count) == list(range(count))
