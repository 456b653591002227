"""A controller in the same process: what the Cluster workflow is to a node, small enough for tests of a node."""

from __future__ import annotations

import base64
import json
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

from storage_node.errors import RequestRefused, RequestTimedOut, StorageError
from storage_node.model.assignment import Assignment
from storage_node.model.command_rows import encode
from storage_node.model.commands import (
    AlterPartitions,
    AlterReassignments,
    Command,
    ConfigChange,
    CreatePartitions,
    DirectoryFailed,
    ElectLeaders,
    IsrChange,
    ListChange,
    MorePartitions,
    NewTopic,
    Reassign,
    ReplicaDirectory,
    ReplicaReport,
    ReportReplicas,
)
from storage_node.model.error_codes import ErrorCode
from storage_node.model.ids import UNASSIGNED, TopicPartition
from storage_node.model.image import ClusterImage
from storage_node.model.metadata import NodeImage, PartitionImage, TopicImage
from storage_node.move.status import MoveState
from storage_node.node import Node
from storage_node.ports import ChangeResult, PlannedMove
from workflows.model.metadata import commands
from workflows.model.metadata.state import ClusterState


class LocalController:
    """Implements `storage_node.ports.Controller` over plain values.

    `away` makes every call time out at once; `hold_moves` accepts moves without running them (then `run_move` does).
    """

    def __init__(self, cluster: str = "test-cluster") -> None:
        self.image = ClusterImage(cluster=cluster, cluster_generation=1, version=1)
        self.nodes: dict[int, Node] = {}
        self.away = False
        self.hold_moves = False
        self.planned: list[PlannedMove] = []
        self.raised: list[list[ReplicaDirectory]] = []
        self.assigned: list[ReplicaDirectory] = []
        self.failed: list[DirectoryFailed] = []
        self.registered_again = 0
        self._next_producer_id = 1000
        self._lock = threading.RLock()
        self._pushers: dict[int, ThreadPoolExecutor] = {}
        self._movers = ThreadPoolExecutor(max_workers=16, thread_name_prefix="local-moves")
        self._closed = threading.Event()

    def attach(self, node: Node) -> None:
        """Register a node that has started, and give it the image."""
        registration = node.registration()
        with self._lock:
            self.nodes[node.id] = node
            known = self.image.nodes.get(node.id)
            row = NodeImage(
                node.id,
                registration.incarnation,
                (known.broker_epoch if known else 0) + 1,
                registration.host,
                registration.port,
                registration.directories,
            )
            self._change(lambda image: replace(image, nodes={**image.nodes, node.id: row}))
            version = self.image.version
        assert node.metadata.wait_for_version(version, 30)

    def detach(self, node: Node) -> None:
        """The node stops: no more images for it."""
        with self._lock:
            self.nodes.pop(node.id, None)
            pusher = self._pushers.pop(node.id, None)
        if pusher is not None:
            pusher.shutdown(wait=True)

    def close(self) -> None:
        self._closed.set()
        for node in list(self.nodes.values()):
            self.detach(node)
        self._movers.shutdown(wait=False, cancel_futures=True)

    def _change(self, change: Callable[[ClusterImage], ClusterImage]) -> int:
        """Make the next version and push it; called with the lock held."""
        self.image = replace(change(self.image), version=self.image.version + 1)
        text = self.image.encode()
        for id_, node in self.nodes.items():
            pusher = self._pushers.get(id_)
            if pusher is None:
                pusher = self._pushers[id_] = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"push-{id_}")
            pusher.submit(node.apply_images, [text])
        return self.image.version

    def change(self, **changes: Any) -> None:
        """Change fields of the image and wait until all nodes have it."""
        with self._lock:
            version = self._change(lambda image: replace(image, **changes))
        for node in self.nodes.values():
            assert node.metadata.wait_for_version(version, 30)

    def _check(self) -> None:
        if self.away:
            raise RequestTimedOut("the controller is away")

    # The port

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool, timeout: float
    ) -> list[ChangeResult]:
        self._check()
        with self._lock:
            return [self._create(topic, validate_only) for topic in topics]

    def _create(self, topic: NewTopic, validate_only: bool) -> ChangeResult:
        if topic.name in self.image.topics:
            return ChangeResult(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{topic.name}' already exists.")
        brokers = sorted(self.image.nodes)
        if topic.replication_factor > len(brokers):
            return ChangeResult(ErrorCode.INVALID_REPLICATION_FACTOR, "not that many brokers")
        topic_id = base64.urlsafe_b64encode(b"A" + secrets.token_bytes(15)).decode().rstrip("=")
        partitions = []
        for index in range(topic.partitions):
            if topic.assignment:
                replicas = topic.assignment[index]
            else:
                replicas = tuple(brokers[(index + i) % len(brokers)] for i in range(topic.replication_factor))
            unknown = ("",) * len(replicas)
            given, none = Assignment(replicas), (0,) * len(replicas)
            partitions.append(PartitionImage(index, given, unknown, none, isr=replicas, leader=replicas[0]))
        if validate_only:
            return ChangeResult(topic_id=topic_id)
        made = TopicImage(topic.name, topic_id, dict(topic.configs), tuple(partitions))
        version = self._change(lambda image: replace(image, topics={**image.topics, topic.name: made}))
        return ChangeResult(version=version, topic_id=topic_id)

    async def delete_topics(self, names: Sequence[str], *, timeout: float) -> list[ChangeResult]:
        self._check()
        results = []
        with self._lock:
            for name in names:
                topic = self.image.topics.get(name)
                if topic is None:
                    message = "This server does not host this topic-partition."
                    results.append(ChangeResult(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message))
                    continue
                rest = {key: value for key, value in self.image.topics.items() if key != name}
                gone = {**self.image.gone, topic.id: name}
                version = self._change(partial(replace, topics=rest, gone=gone))
                results.append(ChangeResult(version=version, topic_id=topic.id))
        return results

    async def create_partitions(
        self, topics: Sequence[MorePartitions], *, validate_only: bool, timeout: float
    ) -> list[ChangeResult]:
        """With the controller's own rules: a state made from the image, the command applied, the rows taken over."""
        return self._by_model(CreatePartitions(tuple(topics), validate_only))

    def _by_model(self, command: Command) -> list[ChangeResult]:
        """With the controller's own rules: a state made from the image, the command applied, the rows taken over."""
        self._check()
        with self._lock:
            image = self.image
            state = ClusterState(
                image.cluster, image.cluster_generation, image.version, image.topics, nodes=image.nodes
            )
            change = commands.apply(state, json.loads(json.dumps(encode(command))), str)
            version = image.version
            if change.state.version != state.version:
                version = self._change(lambda image: replace(image, topics=change.state.topics))
        return [
            ChangeResult(int(row.get("error", 0)), str(row.get("message", "")), version, value=int(row.get("value", 0)))
            for row in change.results
        ]

    async def report_replicas(
        self, reports: Sequence[ReplicaReport], *, broker_epoch: int, timeout: float
    ) -> list[ChangeResult]:
        return self._by_model(ReportReplicas(next(iter(self.nodes)), broker_epoch, tuple(reports)))

    async def alter_partitions(self, changes: Sequence[IsrChange], *, timeout: float) -> list[ChangeResult]:
        return self._by_model(AlterPartitions(next(iter(self.nodes)), tuple(changes)))

    async def alter_reassignments(
        self, wanted: Sequence[Reassign], *, may_change_factor: bool, timeout: float, client: str = ""
    ) -> list[ChangeResult]:
        return self._by_model(AlterReassignments(tuple(wanted), may_change_factor))

    async def query_version(self, *, timeout: float) -> ChangeResult:
        self._check()
        return ChangeResult(version=self.image.version)

    async def elect_leaders(
        self, partitions: Sequence[TopicPartition], *, unclean: bool, timeout: float
    ) -> list[ChangeResult]:
        return self._by_model(ElectLeaders(tuple(partitions), unclean))

    async def alter_configs(
        self, kind: str, name: str, changes: Mapping[str, ConfigChange], *, timeout: float
    ) -> ChangeResult:
        self._check()
        with self._lock:
            if kind == "topic":
                if name not in self.image.topics:
                    return ChangeResult(3, f"The topic '{name}' does not exist.")
                topic = self.image.topics[name]
                changed = replace(topic, configs=_changed(topic.configs, changes))
                version = self._change(lambda image: replace(image, topics={**image.topics, name: changed}))
            else:
                key = (kind, name)
                values = _changed(self.image.configs.get(key, {}), changes)
                version = self._change(lambda image: replace(image, configs={**image.configs, key: values}))
        return ChangeResult(version=version)

    async def next_producer_ids(self, count: int, *, timeout: float) -> int:
        self._check()
        with self._lock:
            first = self._next_producer_id
            self._next_producer_id += count
            return first

    async def raise_generations(self, replicas: Sequence[ReplicaDirectory], *, timeout: float) -> list[ChangeResult]:
        self._check()
        with self._lock:
            self.raised.append(list(replicas))
            return self._set([(row, row.generation + 1, None) for row in replicas])

    async def assign_directories(self, replicas: Sequence[ReplicaDirectory], *, timeout: float) -> list[ChangeResult]:
        self._check()
        with self._lock:
            self.assigned.extend(replicas)
            return self._set([(row, row.generation, row.directory_id) for row in replicas])

    def _set(self, rows: Sequence[tuple[ReplicaDirectory, int, str | None]]) -> list[ChangeResult]:
        """One version for the whole request."""
        topics = {name: list(topic.partitions) for name, topic in self.image.topics.items()}
        results = []
        for row, generation, directory in rows:
            topic = self.image.topics.get(row.partition.topic)
            if topic is None or topic.id != row.topic_id:
                results.append(ChangeResult(ErrorCode.UNKNOWN_TOPIC_ID, "no such topic"))
                continue
            partition = topics[topic.name][row.partition.partition]
            directories = tuple(directory or old or UNASSIGNED for old in partition.directories)
            generations = tuple(max(generation, old) for old in partition.generations)
            changed = replace(partition, directories=directories, generations=generations)
            topics[topic.name][changed.index] = changed
            results.append(ChangeResult(version=self.image.version + 1, value=generations[0]))
        named = {name: replace(topic, partitions=tuple(topics[name])) for name, topic in self.image.topics.items()}
        self._change(lambda image: replace(image, topics=named))
        return results

    def start_moves(self, moves: Sequence[PlannedMove], *, throttle: int | None) -> None:
        self.planned.extend(moves)
        if self.hold_moves:
            return
        for move in moves:
            # A replica that has just gone offline still has its move.
            node = next(n for n in self.nodes.values() if n.engine.status(move.partition) is not None)
            self._movers.submit(self.run_move, node, move)

    def register_again(self) -> None:
        self.registered_again += 1
        with self._lock:
            rows = {
                id_: replace(self.image.nodes[id_], directories=node.registration().directories)
                for id_, node in self.nodes.items()
            }
            self._change(lambda image: replace(image, nodes={**image.nodes, **rows}))

    def directory_failed(self, failure: DirectoryFailed, taken: Callable[[], None]) -> None:
        self.failed.append(failure)
        if not self.away:
            taken()

    def run_move(self, node: Node, move: PlannedMove) -> str:
        """What a MoveReplica run does: copy, swap, again while it is behind; answers the last state."""
        tp, claim = move.partition, move.claim
        try:
            while not self._closed.is_set():
                node.engine.start_copy(tp, claim)
                status = node.engine.wait(tp, claim, 1.0)
                while status.state.under_way and not self._closed.is_set():
                    status = node.engine.wait(tp, claim, 1.0)
                if status.state is not MoveState.CAUGHT_UP:
                    return str(status.state)
                if node.engine.swap(tp, claim, move.generation).outcome == "swapped":
                    node.directories_changed()
                    return "swapped"
        except (RequestRefused, StorageError) as error:
            return f"{type(error).__name__}: {error}"
        return "stopped"


def _changed(values: Mapping[str, str], changes: Mapping[str, ConfigChange]) -> dict[str, str]:
    merged: dict[str, str | None] = dict(values)
    for key, change in changes.items():
        if isinstance(change, ListChange):
            items = [
                item
                for item in values.get(key, "").split(",")
                if item and item not in (*change.append, *change.subtract)
            ]
            merged[key] = ",".join([*items, *change.append])
        else:
            merged[key] = change
    return {key: value for key, value in merged.items() if value is not None}
