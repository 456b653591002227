"""A cluster in one process: storage nodes and the controller's own decisions, without Temporal.

The metadata is changed by `workflows.model.controller.controller.Controller`, which the `Cluster` workflow wraps too;
commands are encoded by the nodes' real port. Images are pushed to each node in order by a thread of its own.
"""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from activities.controller.port import ControllerPort, _result
from storage_node.errors import RequestTimedOut
from storage_node.model.command_rows import encode
from storage_node.model.commands import Command, DirectoryFailed
from storage_node.model.ids import TopicPartition as Tp
from storage_node.model.metadata import PartitionImage
from storage_node.node import Node
from storage_node.ports import ChangeResult, PlannedMove
from tests.support.nodes.node_harness import CLUSTER_ID, make_config, make_dirs, until
from workflows.model.calls import ImageResult
from workflows.model.controller.controller import Controller
from workflows.model.metadata.state import ClusterState


def new_id() -> str:
    """A topic id."""
    return base64.urlsafe_b64encode(b"A" + secrets.token_bytes(15)).decode().rstrip("=")


class MemoryController:
    """One controller for several nodes. `cut` holds the nodes that cannot reach it, and that it cannot reach."""

    def __init__(self, cluster: str = CLUSTER_ID) -> None:
        self.it = Controller.start(cluster, None)
        self.it.state, self.it.collecting = ClusterState(cluster), None
        self.nodes: dict[int, Node] = {}
        self.cut: set[int] = set()
        self.applied: list[dict[str, Any]] = []
        """Every command that was submitted, in order."""
        self.planned: list[PlannedMove] = []
        self.differences: list[dict[str, Any]] = []
        """Where a node's metadata was found to differ from the controller's; must stay empty."""
        self.failed: list[DirectoryFailed] = []
        self._lock = threading.RLock()
        self._pushers: dict[int, ThreadPoolExecutor] = {}

    @property
    def state(self) -> ClusterState:
        """The metadata."""
        assert self.it.state is not None
        return self.it.state

    def partition(self, topic: str, index: int = 0) -> PartitionImage:
        """A partition as the metadata has it."""
        return self.state.topics[topic].partitions[index]

    def port(self) -> MemoryPort:
        """What a node is made with; bind it with `attach`."""
        return MemoryPort(self)

    def attach(self, node: Node) -> None:
        """Register a node that has started, and wait until it has the newest image."""
        with self._lock:
            self.nodes[node.id] = node
            self._pushers[node.id] = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"push-{node.id}")
        (result,) = self.submit(node, json.loads(json.dumps(encode(node.registration()))))
        assert not result.get("error"), result
        self.spread()

    def detach(self, node: Node) -> None:
        """No more images for it."""
        with self._lock:
            self.nodes.pop(node.id, None)
            pusher = self._pushers.pop(node.id, None)
        if pusher is not None:
            pusher.shutdown(wait=True)

    def fence(self, node: int) -> None:
        """Its lease is lost."""
        with self._lock:
            known = self.state.nodes[node]
            self.it.fence(node, known.incarnation)
            self._push()

    def submit(self, node: Node, command: dict[str, Any]) -> list[dict[str, Any]]:
        """A command as the node sends it; raises RequestTimedOut when the node is cut off."""
        if node.id in self.cut:
            raise RequestTimedOut("the controller is away")
        with self._lock:
            self.applied.append(command)
            generation, version = node.metadata.image.pair
            batch = {
                "node": node.id,
                "incarnation": node.incarnation,
                "generation": generation,
                "version": version,
                "commands": [command],
            }
            reply = self.it.submit(batch, new_id)
            self.it.make_urgent()
            self._push()
        if reply["image"]:
            node.apply_images([reply["image"]])
        self._check(node, reply["generation"], reply["version"], reply["digest"])
        results: list[dict[str, Any]] = reply["results"][0]
        return results

    def _push(self) -> None:
        for node in self.it.to_push():
            if node in self._pushers and node not in self.cut:
                self._pushers[node].submit(self._tell, node)

    def _tell(self, number: int) -> None:
        with self._lock:
            node = self.nodes.get(number)
            due, images, stamp = self.it.pair, self.it.images_for(number), self.it.stamp
        if node is None or not images or number in self.cut:
            return
        generation, version = node.apply_images(images)
        self._check(node, *stamp)
        with self._lock:
            self.it.pushed(number, ImageResult(generation, version, node.incarnation), due)

    def _check(self, node: Node, generation: int, version: int, digest: str) -> None:
        """A node that took the controller's images knows what the controller knows."""
        if isinstance(node, Node) and not node.metadata_check.look(generation, version, digest):
            self.differences.append(node.metadata_check.status())

    def spread(self) -> None:
        """Wait until every node that can be reached has the newest image."""
        with self._lock:
            self.it.make_urgent()
            self._push()
            pair = self.it.pair
        assert not self.differences
        reached = [node for node in self.nodes.values() if node.id not in self.cut]
        until(lambda: all(node.metadata.image.pair >= pair for node in reached), what=f"all nodes have {pair}")

    def heal(self, node: int) -> None:
        """The node reaches the controller again."""
        with self._lock:
            self.cut.discard(node)
            self._push()

    def close(self) -> None:
        for node in list(self.nodes.values()):
            self.detach(node)


class MemoryPort(ControllerPort):
    """The real port, but for the way to the controller; runs are noted, not started."""

    def __init__(self, controller: MemoryController) -> None:
        super().__init__(asyncio.new_event_loop())
        self._controller = controller
        self.node: Node | None = None

    def bind(self, node: Node) -> None:
        self.node, self._node = node, node.id

    async def _submit(
        self, command: Command, seconds: float | None, *, count: int = 1, first: bool = False
    ) -> list[ChangeResult]:
        if count == 0:
            return []
        assert self.node is not None
        plain = json.loads(json.dumps(encode(command)))
        rows = await asyncio.to_thread(self._controller.submit, self.node, plain)
        found = [_result(row) for row in rows]
        return found * count if len(found) == 1 and count > 1 else found

    def start_moves(self, moves: Sequence[PlannedMove], *, throttle: int | None) -> None:
        self._controller.planned.extend(moves)

    def register_again(self) -> None:
        assert self.node is not None
        plain = json.loads(json.dumps(encode(self.node.registration())))
        (result,) = self._controller.submit(self.node, plain)
        assert not result.get("error"), result

    def directory_failed(self, failure: DirectoryFailed, taken: Callable[[], None]) -> None:
        self._controller.failed.append(failure)
        taken()


class MemoryCluster:
    """Nodes 1 to `nodes` with `dirs` log directories each."""

    def __init__(self, root: Path, nodes: int = 3, dirs: int = 2, extra: Mapping[str, str] | None = None) -> None:
        self.controller = MemoryController()
        self.extra = dict(extra or {})
        self.paths = {number: make_dirs(root, dirs, number) for number in range(1, nodes + 1)}
        self.nodes: dict[int, Node] = {}
        self._ports: dict[int, int] = {}

    def start(self, number: int, extra: Mapping[str, str] | None = None, *, attach: bool = True) -> Node:
        """Start a node, at the port that it had before; `attach`: it registers at once."""
        port = self.controller.port()
        config = make_config(self.paths[number], number, self._ports.get(number, 0), {**self.extra, **(extra or {})})
        node = Node(config, port)
        port.bind(node)
        node.start()
        self._ports[number] = node.port
        self.nodes[number] = node
        if attach:
            self.controller.attach(node)
        return node

    def stop(self, number: int, *, clean: bool = True, fenced: bool = True) -> None:
        """End a node; with `fenced` the controller knows."""
        node = self.nodes.pop(number)
        self.controller.detach(node)
        node.stop(clean)
        if fenced:
            self.controller.fence(number)

    def close(self) -> None:
        for number in list(self.nodes):
            self.stop(number, fenced=False)
        self.controller.close()

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{node.port}" for node in self.nodes.values())

    # What clients do

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap})

    def create_topic(
        self, name: str, assignment: Sequence[Sequence[int]], configs: Mapping[str, str] | None = None
    ) -> None:
        """A topic with these replicas, known to all nodes, each of which has what it is to hold, or knows why not."""
        topic = NewTopic(
            name, len(assignment), replica_assignment=[list(each) for each in assignment], config=dict(configs or {})
        )
        admin = self.admin()
        admin.create_topics([topic])[name].result(20)
        self.controller.spread()
        # A node publishes an image before it has made the replicas that only follow.
        wanted = [(Tp(name, index), number) for index, numbers in enumerate(assignment) for number in numbers]
        until(lambda: all(self._settled(number, tp) for tp, number in wanted), what=f"the replicas of {name} are made")

    def _settled(self, number: int, tp: Tp) -> bool:
        node = self.nodes.get(number)
        away = node is None or number in self.controller.cut
        return away or tp in node.replicas.served or tp in node.replicas.offline

    def producer(self, **settings: Any) -> Producer:
        base = {"bootstrap.servers": self.bootstrap, "acks": "all", "linger.ms": 2, "enable.idempotence": True}
        return Producer({**base, **{key.replace("_", "."): value for key, value in settings.items()}})

    def produce(self, topic: str, values: Sequence[bytes], partition: int = 0, **settings: Any) -> list[int]:
        """Send values, wait for all acknowledgements; answers the offsets."""
        offsets: list[int] = []

        def delivered(error: Any, message: Any) -> None:
            assert error is None, error
            offsets.append(message.offset())

        producer = self.producer(**settings)
        for value in values:
            producer.produce(topic, value, partition=partition, on_delivery=delivered)
        assert producer.flush(30) == 0
        return offsets

    def consume(self, topic: str, count: int, partition: int = 0, offset: int = 0) -> list[bytes]:
        """Values from an offset on."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "g", "enable.auto.commit": False})
        consumer.assign([TopicPartition(topic, partition, offset)])
        found: list[bytes] = []

        def enough() -> bool:
            found.extend(_values(consumer))
            return len(found) >= count

        try:
            until(enough, what=f"{count} records")
        finally:
            consumer.close()
        return found[:count]

    def replica(self, number: int, topic: str, partition: int = 0) -> Any:
        """The replica that a node serves, None without one."""
        return self.nodes[number].replicas.served.get(Tp(topic, partition))


def _values(consumer: Consumer) -> list[bytes]:
    return [message.value() or b"" for message in consumer.consume(500, 0.2) if message.error() is None]


@contextmanager
def running_cluster(
    root: Path, nodes: int = 3, dirs: int = 2, extra: Mapping[str, str] | None = None
) -> Iterator[MemoryCluster]:
    """Started nodes, ended at the end."""
    cluster = MemoryCluster(root, nodes, dirs, extra)
    try:
        for number in cluster.paths:
            cluster.start(number)
        yield cluster
    finally:
        cluster.close()
