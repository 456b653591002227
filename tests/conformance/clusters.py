"""A cluster of three as the conformance tests see it: storage nodes of ours, or Apache Kafka's brokers.

What is done to it goes over the wire, in the same way for both kinds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import javaproperties

from ops.cli import main as cli
from ops.kafka import jars
from ops.kafka.brokers import OFFSETS_PARTITIONS
from ops.kafka.cluster import KafkaCluster
from ops.stack import ports
from ops.stack.layout import CONTROLLER, ProcessSpec
from ops.stack.stack import Stack
from ops.stack.state import ProcessRecord
from storage_node.directories.formatting import format_directories
from storage_node.log import build_batch
from tests.conformance.differences import DIFFERENCES
from tests.support.nodes.node_harness import until
from tests.support.permissions import bound, prefix
from tests.support.wire import Client

T = TypeVar("T")

REHOME = "rehome"
APACHE = "apache"
#: An older release of Apache Kafka, for plans: the cases are those of the newer one.
OLDER = "apache-3.9"
KINDS = (REHOME, APACHE)

NODES = (1, 2, 3)
#: This node has a third log directory, for a move that gets a new target.
WIDE = 3
WAIT = 60.0
PATIENCE = timedelta(seconds=20)

TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4
SET, DELETE = 0, 1

#: For both kinds: what is deleted goes after a second, retention looks every second, nothing is made by its name.
COMMON = {
    "file.delete.delay.ms": "1000",
    "log.retention.check.interval.ms": "1000",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "replica.high.watermark.checkpoint.interval.ms": "500",
    # A move is held between its chunks: several of them go into little data.
    "replica.fetch.max.bytes": "65536",
}
RACKS = {1: "east", 2: "east", 3: "west"}
#: What only our nodes know: a failed directory is noticed as soon as Kafka's next checkpoint would notice it.
OURS = {"log.dir.health.check.interval.ms": "500"}


class Cluster(ABC):
    """Three nodes with two log directories each, the third with three. Subclasses start, kill and end them."""

    kind = ""

    def __init__(self) -> None:
        self.addresses: dict[int, str] = {}
        #: Node -> absolute paths of its log directories, in the configuration's order.
        self.log_dirs: dict[int, list[str]] = {}
        #: host:port where controllers listen; brokers' addresses where there are no such listeners.
        self.controllers = ""
        self._clients: list[Client] = []

    # What a kind brings

    @abstractmethod
    def up(self) -> None:
        """Start all nodes and wait until they serve."""

    @abstractmethod
    def down(self) -> None:
        """End everything."""

    @abstractmethod
    def kill(self, node: int) -> None:
        """SIGKILL. Who kills a node starts it again."""

    @abstractmethod
    def stop(self, node: int) -> None:
        """Let a node end by itself (SIGTERM)."""

    @abstractmethod
    def start(self, node: int) -> None:
        """Start a node that was ended, and wait until it serves."""

    @abstractmethod
    def take_back(self, node: int, path: str) -> None:
        """Let a node use a log directory again whose disk was mended."""

    @abstractmethod
    def running(self, node: int) -> bool:
        """Whether the node's process is there."""

    @abstractmethod
    def no_controller(self, node: int) -> contextlib.AbstractContextManager[None]:
        """While the block runs nobody can change metadata; only `node` is sure to serve."""

    # Both kinds

    @property
    def bootstrap(self) -> str:
        """host:port of all nodes, with commas."""
        return ",".join(self.addresses.values())

    def address(self, node: int) -> str:
        """host:port of a node."""
        return self.addresses[node]

    def differs(self, id_: str) -> bool:
        """Whether this kind is the one that differs on purpose, by a row of differences.tsv: True on our nodes."""
        assert id_ in DIFFERENCES, f"differences.tsv has no row {id_}"
        return self.kind == REHOME

    def wire(self, node: int) -> Client:
        """A new connection to a node, closed when the test ends."""
        client = Client(self.addresses[node])
        self._clients.append(client)
        return client

    def close_connections(self) -> None:
        """Close what `wire` opened."""
        for client in self._clients:
            client.close()
        self._clients.clear()

    def eventually(self, what: Callable[[], T], why: str = "", seconds: float = WAIT) -> T:
        """Poll until `what` answers something true; fails with `why` after `seconds`."""
        return until(what, seconds, why)

    # Topics

    def new_topic(
        self,
        partitions: int = 1,
        *,
        assignment: Mapping[int, Sequence[int]] | None = None,
        configs: Mapping[str, str] | None = None,
        name: str | None = None,
    ) -> str:
        """A topic with one replica per partition, its leaders known to all nodes; answers its name."""
        topic = name or f"t{uuid.uuid4().hex[:10]}"
        rows = [{"partition_index": p, "broker_ids": list(ids)} for p, ids in (assignment or {}).items()]
        wanted = {
            "name": topic,
            "num_partitions": -1 if rows else partitions,
            "replication_factor": -1 if rows else 1,
            "assignments": rows,
            "configs": [{"name": key, "value": value} for key, value in (configs or {}).items()],
        }
        (made,) = self.call("CreateTopics", 7, topics=[wanted], timeout=PATIENCE, validate_only=False).topics
        assert int(made.error_code) == 0, f"{topic}: {made.error_code} {made.error_message}"
        count = len(rows) or partitions
        self.eventually(lambda: self.ready(topic, count), f"{topic} is known to all nodes")
        return topic

    def ready(self, topic: str, count: int) -> bool:
        """Whether all nodes know so many partitions, each with a leader that serves it."""
        leaders = [self.leaders(topic, node) for node in self.addresses if self.running(node)]
        if len(leaders[0]) != count or any(found != leaders[0] for found in leaders):
            return False
        # A leader that has not heard of it yet would answer NOT_LEADER_OR_FOLLOWER.
        offsets = [self._end_offset(topic, partition, leader) for partition, leader in leaders[0].items()]
        return min(offsets) >= 0

    def leaders(self, topic: str, node: int | None = None) -> dict[int, int]:
        """Partition -> leader as a node (None: one that runs) tells it; only partitions that have one."""
        (row,) = self.call("Metadata", 12, node=node, topics=[{"name": topic}], allow_auto_topic_creation=False).topics
        return {p.partition_index: p.leader_id for p in row.partitions if p.leader_id > 0 and not int(p.error_code)}

    def end_offset(self, topic: str, partition: int = 0) -> int:
        """The end offset by ListOffsets, from the leader, once it answers for it: one just started may not yet."""
        found = -1

        def told() -> bool:
            nonlocal found
            leader = self.leaders(topic).get(partition)
            found = self._end_offset(topic, partition, leader) if leader is not None else -1
            return found >= 0

        self.eventually(told, f"the leader answers for {topic}-{partition}")
        return found

    def _end_offset(self, topic: str, partition: int, node: int) -> int:
        """The end offset; -1 where the node does not answer for it."""
        rows = [{"partition_index": partition, "timestamp": -1, "current_leader_epoch": -1}]
        topics = [{"name": topic, "partitions": rows}]
        answer = self.call("ListOffsets", 6, node=node, replica_id=-1, isolation_level=0, topics=topics)
        row = answer.topics[0].partitions[0]
        return row.offset if not int(row.error_code) else -1

    def delete_topic(self, name: str) -> None:
        """Delete a topic; no node knows it any more when this returns."""
        rows = self.call("DeleteTopics", 6, topics=[{"name": name, "topic_id": None}], timeout=PATIENCE).responses
        assert [int(row.error_code) for row in rows] == [0]
        self.eventually(lambda: not any(self.leaders(name, n) for n in self.addresses if self.running(n)), name)

    def produce(self, topic: str, partition: int = 0, n: int = 1, size: int = 100, per_batch: int = 100) -> int:
        """Write `n` records of `size` bytes with acks=all; answers the offset of the first."""
        now, first = int(time.time() * 1000), -1
        with contextlib.closing(Client(self.addresses[self.leaders(topic)[partition]])) as client:
            for begin in range(0, n, per_batch):
                values = [b"%08d" % i + b"v" * (size - 8) for i in range(begin, min(n, begin + per_batch))]
                row = client.produce(topic, partition, build_batch(values, timestamp=now))
                assert row.error == 0, f"{topic}-{partition}: {row}"
                first = row.base_offset if first < 0 else first
        return first

    # Configurations

    def set_topic_config(self, topic: str, **values: str | None) -> None:
        """Set (None: delete) configurations of a topic; underscores stand for dots."""
        self._alter(1, TOPIC_RESOURCE, topic, values)

    def set_broker_config(self, node: int, **values: str | None) -> None:
        """Set (None: delete) dynamic configurations of a broker; underscores stand for dots."""
        self._alter(node, BROKER_RESOURCE, str(node), values)

    def _alter(self, node: int, kind: int, name: str, values: Mapping[str, str | None]) -> None:
        configs = [
            {
                "name": key.replace("_", "."),
                "config_operation": DELETE if value is None else SET,
                "value": value,
            }
            for key, value in values.items()
        ]
        resources = [{"resource_type": kind, "resource_name": name, "configs": configs}]
        (row,) = self.call("IncrementalAlterConfigs", 1, node=node, resources=resources, validate_only=False).responses
        assert int(row.error_code) == 0, f"{name}: {row.error_code} {row.error_message}"

    def call(self, api: str, version: int, *, node: int | None = None, **values: Any) -> Any:
        """The answer of a node (None: one that runs) to one request, over a connection of its own."""
        where = node if node is not None else next(n for n in self.addresses if self.running(n))
        with contextlib.closing(Client(self.addresses[where])) as client:
            return client.call(api, version, **values)


def free_ports() -> int:
    """The first of three ports for nodes and one for Temporal, whose UI is 1000 above, all free.

    Other stacks may be starting on this machine: where it looks first is left to chance.
    """
    first = random.randrange(28000, 30900, 4)
    while not ports.is_free(first + 1003):
        first += 4
    return first if ports.free_block(4, start=first) == first else free_ports()


class _BoundStack(Stack):
    """A stack whose nodes run as an ordinary user's would: a directory of mode 000 is closed to them."""

    def _launch(self, process: ProcessSpec) -> ProcessRecord:
        node = process.name.startswith("node-")
        return super()._launch(dataclasses.replace(process, command=bound(process.command)) if node else process)


class Rehome(Cluster):
    """Storage nodes of ours with their controller and a Temporal server, each a process."""

    kind = REHOME

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._stack = _BoundStack(folder)
        self._stack.make_folder()
        first = free_ports()
        spec = self._stack.prepare({"nodes": len(NODES), "dirs": 2, "port": first, "temporal_port": first + 3})
        self.log_dirs = {node: [str(path) for path in spec.log_dirs(node)] for node in NODES}
        self.log_dirs[WIDE].append(str(spec.node_home(WIDE) / "disk-c"))
        format_directories(self.log_dirs[WIDE], spec.cluster, WIDE)
        for node in NODES:
            properties = spec.node_home(node) / "server.properties"
            values = {**javaproperties.loads(properties.read_text()), **COMMON, **OURS, "broker.rack": RACKS[node]}
            values["log.dirs"] = ",".join(self.log_dirs[node])
            properties.write_text(javaproperties.dumps(values, timestamp=False))
        self.addresses = {node: spec.node_address(node) for node in NODES}
        self.controllers = self.bootstrap

    def up(self) -> None:
        self._stack.up()

    def down(self) -> None:
        self._stack.down()

    def kill(self, node: int) -> None:
        self._stack.kill(f"node-{node}")

    def stop(self, node: int) -> None:
        self._stack.stop(f"node-{node}")

    def start(self, node: int) -> None:
        self._stack.start(f"node-{node}")
        # It serves what it has before the controller lets it in; until then nothing can be placed on it.
        self.eventually(lambda: all(node in self._live(other) for other in self._up()), f"node {node} is let in")

    def take_back(self, node: int, path: str) -> None:
        command = ["dirs", "online", str(node), path, "--bootstrap-server", self.addresses[node]]
        assert cli.run(command) == 0

    def running(self, node: int) -> bool:
        return f"node-{node}" in self._stack.running()

    def _up(self) -> list[int]:
        running = self._stack.running()
        return [node for node in NODES if f"node-{node}" in running]

    def _live(self, node: int) -> set[int]:
        """The nodes that are not fenced, as this one knows."""
        asked = {"topics": [], "allow_auto_topic_creation": False}
        return {row.node_id for row in self.call("Metadata", 12, node=node, **asked).brokers}

    @contextlib.contextmanager
    def no_controller(self, node: int) -> Iterator[None]:
        self._stack.kill(CONTROLLER)
        try:
            yield
        finally:
            self._stack.start(CONTROLLER)


class Apache(Cluster):
    """Apache Kafka's brokers (KRaft, combined mode)."""

    def __init__(self, folder: Path, run_tool: Callable[..., Any], kind: str = APACHE) -> None:
        super().__init__()
        self.kind = kind
        properties = {**COMMON, "log.segment.delete.delay.ms": COMMON["file.delete.delay.ms"]}
        del properties["file.delete.delay.ms"]
        self._brokers = KafkaCluster(
            folder,
            log_dirs={1: 2, 2: 2, WIDE: 3},
            properties=properties,
            racks=RACKS,
            run_tool=run_tool,
            prefix=prefix(),
            version=jars.VERSION if kind == APACHE else jars.OLDER_VERSION,
        )
        self.addresses = {node: self._brokers.address(node) for node in NODES}
        self.log_dirs = {node: [str(path) for path in self._brokers.log_dirs[node]] for node in NODES}
        self.controllers = self._brokers.controllers

    def up(self) -> None:
        self._brokers.__enter__()
        # Right after their start brokers have no block of producer ids yet, and clients complain of it.
        asked = {"transactional_id": None, "transaction_timeout_ms": 60_000}
        for node in NODES:
            self.eventually(
                lambda node=node: not self.call("init_producer_id", 4, node=node, **asked).error_code,  # type: ignore[misc]
                why=f"broker {node} has producer ids",
            )
        # Kafka places one replica by racks: alone in its rack, a broker gets every other partition, and of the two that
        # share one, either may get none. Here each coordinates some groups.
        assignment = {partition: [NODES[partition % len(NODES)]] for partition in range(OFFSETS_PARTITIONS)}
        configs = {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": "104857600"}
        self.new_topic(assignment=assignment, configs=configs, name="__consumer_offsets")

    def down(self) -> None:
        self._brokers.__exit__()

    def kill(self, node: int) -> None:
        self._brokers.kill(node)

    def stop(self, node: int) -> None:
        self._brokers.stop(node)

    def start(self, node: int) -> None:
        self._brokers.start(node)

    def take_back(self, node: int, path: str) -> None:
        """Apache Kafka does so at a start only."""
        self.kill(node)
        self.start(node)

    def running(self, node: int) -> bool:
        return self._brokers.running(node)

    @contextlib.contextmanager
    def no_controller(self, node: int) -> Iterator[None]:
        others = [other for other in NODES if other != node]
        for other in others:
            self.kill(other)
        try:
            yield
        finally:
            for other in others:
                self._brokers.launch(other)
            for each in NODES:
                self._brokers.wait(each)
