"""Reads reassignments repeatedly from the metadata in the nodes' memory, without a call to the controller.
ListPartitionReassignments requests the controller's version each time, which is an update of its run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from ops.cli import nodes
from ops.cli.kafka_admin import KafkaAdmin, NodeAddress, Reassignment, sizes_of
from ops.cli.nodes import Reach, Unreachable
from ops.cli.target import Target
from ops.stack.errors import OpsError
from storage_node.model.ids import TopicPartition
from storage_node.model.reassignments import ReplicaState
from workflows.model.calls import read_row
from workflows.model.reassignment.progress import eta
from workflows.model.reports import ReplicaReport

NODE_SECONDS = 3.0
#: Seconds between two reads from Kafka's API, which is used if no node responds to this host's private calls.
KAFKA_SECONDS = 5.0
#: The same for Apache Kafka's brokers, which have no private calls and list reassignments from memory.
BROKER_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Reassignments by the newest metadata of a node: partitions ("replicas", "isr", "leader"), reassignments in
    progress, bytes by node and partition, and the nodes' reports of the replicas that are being added to them.
    """

    held: Mapping[TopicPartition, Mapping[str, Any]] = field(default_factory=dict)
    under_way: Mapping[TopicPartition, Reassignment] = field(default_factory=dict)
    sizes: Mapping[tuple[int, TopicPartition], int] = field(default_factory=dict)
    live: Mapping[tuple[int, TopicPartition], ReplicaReport] = field(default_factory=dict)
    reach: Mapping[int, Reach] = field(default_factory=dict)
    fenced: frozenset[int] = frozenset()
    version: tuple[int, int] = (-1, -1)


def of(responses: Mapping[int, Mapping[str, Any] | OpsError]) -> Snapshot | None:
    """Read the responses of all nodes to "reassignments"; None if no node responded."""
    reported = {node: each for node, each in responses.items() if not isinstance(each, OpsError)}
    if not reported:
        return None
    reach = {
        node: Reach.RESPONDS
        if not isinstance(each, OpsError)
        else each.reach
        if isinstance(each, Unreachable)
        else Reach.CLOSED
        for node, each in responses.items()
    }
    newest = max(reported.values(), key=_version)
    held: dict[TopicPartition, dict[str, Any]] = {}
    under_way: dict[TopicPartition, Reassignment] = {}
    for topic, partition, replicas, adding, removing, isr, leader in newest["partitions"]:
        tp = TopicPartition(str(topic), int(partition))
        held[tp] = {"partition": tp.partition, "replicas": replicas, "isr": isr, "leader": leader}
        if adding or removing:
            under_way[tp] = Reassignment(tp, tuple(replicas), tuple(adding), tuple(removing))
    sizes = {
        (node, TopicPartition(str(topic), int(partition))): int(size)
        for node, each in reported.items()
        for topic, partition, size in each["sizes"]
    }
    live = {
        (node, TopicPartition(row.topic, row.partition)): row
        for node, each in reported.items()
        for row in (read_row(ReplicaReport, one) for one in each["catching_up"])
        if row is not None
    }
    fenced = frozenset(map(int, newest["fenced"]))
    return Snapshot(held, under_way, sizes, live, reach, fenced, _version(newest))


def _version(response: Mapping[str, Any]) -> tuple[int, int]:
    return int(response["generation"]), int(response["version"])


@dataclass(frozen=True, slots=True)
class Reported:
    """The reports of one partition by the nodes to which a replica is being added: bytes per second of all, ETA in
    seconds (None: unknown), and the first reason why a replica waits.
    """

    rate: float = 0.0
    eta: float | None = None
    message: str = ""


def reported_of(one: Reassignment, live: Mapping[tuple[int, TopicPartition], ReplicaReport]) -> Reported | None:
    """Return the nodes' reports of a partition; None if no node reports it."""
    rows = [live[node, one.partition] for node in one.adding if (node, one.partition) in live]
    if not rows:
        return None
    open_ = [row for row in rows if row.state != ReplicaState.IN_SYNC]
    etas = [eta(row.state, row.bytes_total, row.bytes_copied, row.rate) for row in open_]
    known = [eta for eta in etas if eta is not None]
    whole = len(known) == len(etas) and len(rows) == len(one.adding)
    return Reported(
        sum(row.rate for row in open_),
        max(known, default=0.0) if whole else None,
        next((row.message for row in rows if row.message), ""),
    )


class SnapshotReader:
    """Reads the reassignments of some topics, or (None) of all, for one command; never an older state than before."""

    def __init__(self, target: Target, topics: Collection[str] | None = None) -> None:
        self._topics = None if topics is None else sorted(topics)
        self._addresses = nodes.Addresses(target, retry=0.0)
        self._brokers = target.apache_kafka
        #: Seconds between two reads from Kafka's API.
        self.kafka_seconds = BROKER_SECONDS if self._brokers else KAFKA_SECONDS
        self._last: Snapshot | None = None

    def read(self) -> Snapshot | None:
        """Return what the nodes report now; None if no node responds to this host, or only nodes with older metadata
        than before, or if they are Apache Kafka's brokers. Raises `OpsError` if the nodes' addresses were never found.
        """
        if self._brokers:
            return None
        found = of(_query(self._addresses.get(), self._topics))
        if found is None or (self._last is not None and found.version < self._last.version):
            return None
        self._last = found
        return found

    @property
    def problem(self) -> OpsError | None:
        """Why the last lookup of the nodes' addresses failed; the earlier addresses are used."""
        return self._addresses.problem


def query_node(
    where: NodeAddress, topics: Sequence[str] | None = None, seconds: float = NODE_SECONDS
) -> Mapping[str, Any] | OpsError:
    """Return a node's response to "reassignments", or why there is none within so many seconds."""
    try:
        return nodes.call(where, "reassignments", timeout=seconds, topics=topics)
    except OpsError as error:
        return error


def _query(known: Sequence[NodeAddress], topics: Sequence[str] | None) -> dict[int, Mapping[str, Any] | OpsError]:
    with ThreadPoolExecutor(max_workers=max(1, len(known))) as pool:
        responses = pool.map(lambda where: query_node(where, topics), known)
        return {where.node: response for where, response in zip(known, responses, strict=True)}


def described(admin: KafkaAdmin, topics: Collection[str]) -> dict[TopicPartition, Mapping[str, Any]]:
    """Return the partitions of some topics, of those that exist, by one request. Raises `OpsError`."""
    found = admin.describe(sorted(topics), known_only=True) if topics else []
    return {TopicPartition(topic["name"], row["partition"]): row for topic in found for row in topic["partitions"]}


def by_kafka(admin: KafkaAdmin, read_nodes: Callable[[], Snapshot | None] = lambda: None) -> Snapshot:
    """Read the reassignments from Kafka's API, and add what `read_nodes` returns of the nodes' reports. Raises
    `OpsError`.
    """
    under_way = admin.reassignments()
    reported = (read_nodes() if under_way else None) or Snapshot()
    known = {node.node for node in admin.nodes(fenced=True)} if under_way else set()
    alive = {node.node for node in admin.nodes()} if under_way else set()
    held = described(admin, {tp.topic for tp in under_way})
    sizes = sizes_of(admin.log_dirs(sorted(alive))) if under_way else {}
    return Snapshot(held, under_way, sizes, reported.live, reported.reach, frozenset(known - alive), reported.version)
