"""The disks of a stopped broker of Apache Kafka: wrecked by a kill -9, checked, repaired, and moved offline."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ops.cli import main as cli
from ops.kafka.cluster import KafkaCluster
from storage_node.directories.meta import properties as meta_properties
from tests.support.nodes.node_harness import until
from tests.support.programs.kafka import require_kafka, tool
from tests.support.scale import FULL, scaled
from tests.support.wire import Client

pytestmark = pytest.mark.kafka

TOPIC = "orders"
HIT_TRIES = 4


class Broker:
    """A broker with two directories and a topic with one replica; `acked` has the values that it acknowledged."""

    def __init__(self, folder: Path) -> None:
        self.cluster = KafkaCluster(folder, log_dirs={1: 2}, properties={"file.delete.delay.ms": "100"})
        self.disks = self.cluster.log_dirs[1]
        self.config = folder / "broker-1" / "server.properties"
        self.acked: list[bytes] = []

    def make_topic(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap})
        configs = {"segment.bytes": "1048576"}
        admin.create_topics([NewTopic(TOPIC, 1, 1, config=configs)])[TOPIC].result(30)

    def produce(self, count: int, size: int = 1000) -> None:
        """Write records; only those that are acknowledged are counted."""
        producer = Producer({"bootstrap.servers": self.cluster.bootstrap, "acks": "all", "log_level": 0})
        for _ in range(count):
            self._send(producer, size)
        producer.flush(20)

    def _send(self, producer: Producer, size: int) -> None:
        value = b"%08d-%d " % (len(self.acked), time.monotonic_ns()) + b"x" * size

        def delivered(error: object, message: object) -> None:
            if error is None:
                self.acked.append(value)

        producer.produce(TOPIC, value, partition=0, on_delivery=delivered)
        producer.poll(0)

    @contextmanager
    def load(self) -> Iterator[None]:
        """Records arrive all the time while the block runs."""
        over = threading.Event()
        producer = Producer({"bootstrap.servers": self.cluster.bootstrap, "acks": "all", "log_level": 0})

        def run() -> None:
            while not over.wait(0.001):
                self._send(producer, 100)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            producer.flush(1)

    def where(self) -> Path:
        """The directory that has the replica."""
        (disk,) = (disk for disk in self.disks if (disk / f"{TOPIC}-0").is_dir())
        return disk

    def other(self) -> Path:
        return next(disk for disk in self.disks if disk != self.where())

    def killed_between_the_renames(self) -> bool:
        """Move the replica to the other directory, and kill -9 as soon as it has its name there; whether both do."""
        target = self.other()
        path = str(target / f"{TOPIC}-0")
        pid = self.cluster.pid(1)
        with self.load():
            self.alter(target)
            end = time.monotonic() + 30
            while time.monotonic() < end:
                try:
                    os.stat(path)  # noqa: PTH116  # the fastest way to look
                    break
                except FileNotFoundError:
                    pass
            os.kill(pid, signal.SIGKILL)
        self.cluster.kill(1)
        return all((disk / f"{TOPIC}-0").is_dir() for disk in self.disks)

    def alter(self, target: Path) -> None:
        with closing(Client(self.cluster.address(1))) as client:
            topics = [{"name": TOPIC, "partitions": [0]}]
            answer = client.call("AlterReplicaLogDirs", 2, dirs=[{"path": str(target), "topics": topics}])
        assert [int(p.error_code) for t in answer.results for p in t.partitions] == [0]

    def wreck(self) -> None:
        """Leave the replica in both directories."""
        for _ in range(HIT_TRIES):
            if self.killed_between_the_renames():
                return
            self.cluster.start(1)
        raise AssertionError("no kill came between the two renames")

    def refuses(self) -> bool:
        """Whether the broker ends by itself when it is started."""
        self.cluster.launch(1)
        end = time.monotonic() + 40
        while self.cluster.running(1) and time.monotonic() < end:
            time.sleep(0.1)
        ended = not self.cluster.running(1)
        self.cluster.kill(1)
        return ended

    def rehome(self, *arguments: str, failpoints: str = "") -> tuple[int, str]:
        """Run `rehome storage`; exit code and output. In a process of its own where it is to be killed."""
        if not failpoints:
            out, err = io.StringIO(), io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = cli.run(["storage", *arguments, "-c", str(self.config)])
            return code, out.getvalue() + err.getvalue()
        done = subprocess.run(
            [sys.executable, "-m", "ops.cli.main", "storage", *arguments, "-c", str(self.config)],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "REHOME_FAILPOINTS": failpoints},
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout + done.stderr

    def read(self) -> list[bytes]:
        """All values, in the order of their offsets."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.cluster.bootstrap,
                "group.id": "reader",
                "check.crcs": True,
                "enable.partition.eof": True,
            }
        )
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        found: list[bytes] = []
        end = time.monotonic() + 30
        try:
            while time.monotonic() < end:
                message = consumer.poll(1)
                if message is not None and message.error() is None:
                    found.append(message.value())
                elif message is not None and found:
                    break
        finally:
            consumer.close()
        return found

    def serves_all(self) -> None:
        """Every acknowledged record is read."""
        missing = set(self.acked) - set(self.read())
        assert not missing, f"{len(missing)} of {len(self.acked)} acknowledged records are lost"


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    require_kafka()
    made = Broker(tmp_path_factory.mktemp("broker"))
    with made.cluster:
        made.make_topic()
        yield made


@pytest.fixture
def broker(started: Broker) -> Broker:
    """A broker that runs, with what earlier tests have written."""
    if not started.cluster.running(1):
        started.cluster.start(1)
    return started


def test_broker_killed_between_the_two_renames_starts_after_a_repair(broker: Broker) -> None:
    broker.produce(3000)
    code, out = broker.rehome("check")
    assert code == 2 and "in use by process" in out
    broker.wreck()
    assert broker.refuses()
    code, out = broker.rehome("check", "--json")
    found = json.loads(out)
    assert code == 1
    assert [p["kind"] for p in found["problems"] if not p["note"]] == ["duplicate replica"]
    (duplicate,) = found["duplicates"]
    assert duplicate["topic"] == TOPIC and duplicate["keep"] is not None
    code, out = broker.rehome("repair", "--yes")
    assert code == 0, out
    assert str(broker.where()) == duplicate["keep"]
    assert broker.rehome("check")[0] == 0
    broker.cluster.start(1)
    broker.serves_all()
    broker.produce(10)
    broker.serves_all()


def test_offline_move_that_is_killed_and_resumed_is_served_from_its_new_directory(broker: Broker) -> None:
    broker.produce(4000)
    source, target = broker.where(), broker.other()
    broker.cluster.kill(1)
    arguments = ("move", "--offline", "--replica", f"{TOPIC}-0", "--to", str(target))
    for point in ("offline.copy_after_chunk=kill@2", "offline.move_after_placed=kill"):
        code, _ = broker.rehome(*arguments, failpoints=point)
        assert code == -signal.SIGKILL
    # The copy is whole and has the replica's name, and so has the source: the broker does not start, and loses nothing.
    assert broker.refuses()
    code, out = broker.rehome(*arguments)
    assert code == 0, out
    assert broker.where() == target and not (source / f"{TOPIC}-0").exists()
    broker.cluster.start(1)
    broker.serves_all()
    broker.produce(10)
    broker.serves_all()
    assert broker.where() == target
    until(lambda: assigned(broker) == directory_id(target), 30, "the metadata has the new directory")


def assigned(broker: Broker) -> str:
    """The directory id that the metadata of Apache Kafka has for the replica."""
    (folder,) = (disk / "__cluster_metadata-0" for disk in broker.disks if (disk / "__cluster_metadata-0").is_dir())
    topic_id = (broker.where() / f"{TOPIC}-0" / "partition.metadata").read_text().split("topic_id: ")[1].strip()
    files = ",".join(str(path) for path in sorted(folder.glob("*.log")))
    out = tool("org.apache.kafka.tools.DumpLogSegments", "--cluster-metadata-decoder", "--files", files)
    rows = [json.loads(line[line.index("payload: ") + 9 :]) for line in out.splitlines() if "payload: {" in line]
    changes = [row["data"] for row in rows if row["data"].get("topicId") == topic_id and row["data"].get("directories")]
    return str(changes[-1]["directories"][0])


def directory_id(path: Path) -> str | None:
    found = meta_properties.read(path)
    return found.directory_id if found is not None else None


# Only `make conformance` and the large sets run it.
@(pytest.mark.heavy if FULL else pytest.mark.slow_conformance)
@pytest.mark.timeout(1200)
def test_wrecks_are_repaired_one_after_the_other_without_a_lost_record(broker: Broker) -> None:
    broker.produce(1000)
    for number in range(scaled(4, 20)):
        broker.wreck()
        code, out = broker.rehome("repair", "--yes")
        assert code == 0, f"wreck {number}: {out}"
        if number % 4 == 3:  # and there and back again
            assert broker.rehome("repair", "--undo", "--yes")[0] == 0
            assert broker.rehome("check")[0] == 1
            assert broker.rehome("repair", "--yes")[0] == 0
        broker.cluster.start(1)
        broker.serves_all()


@pytest.mark.slow_conformance
def test_disk_that_was_emptied_offline_is_taken_out_of_log_dirs(broker: Broker) -> None:
    """The disk with the metadata log stays, the other one dies: first the metadata has the replica there."""
    broker.produce(1000)
    stays, dies = broker.disks
    if broker.where() == stays:
        broker.cluster.stop(1)
        assert broker.rehome("move", "--offline", "--replica", f"{TOPIC}-0", "--to", str(dies))[0] == 0
        broker.cluster.start(1)
    until(lambda: assigned(broker) == directory_id(dies), 60, "the metadata has the directory that dies")
    broker.cluster.stop(1)
    code, out = broker.rehome("move", "--offline", "--from", str(dies), "--to", str(stays), "--throttle", "500MB")
    assert code == 0 and f"take {dies} out of log.dirs" in out
    before = broker.config.read_text()
    broker.config.write_text(before.replace(f"log.dirs={stays},{dies}", f"log.dirs={stays}"))
    try:
        broker.cluster.start(1)
        broker.serves_all()
        until(lambda: assigned(broker) == directory_id(stays), 60, "the metadata has the directory that stays")
        broker.cluster.stop(1)
    finally:
        broker.config.write_text(before)
