"""Reads reassignments repeatedly: from the metadata that the nodes have in memory, without a call to the controller.
ListPartitionReassignments requests the controller's version each time, which is an update of its run.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from ops.cli import nodes
from ops.cli.kafka_admin import NodeAddress, Reassignment
from ops.cli.nodes import Reach, Unreachable
from ops.cli.target import Target
from ops.stack.errors import OpsError
from storage_node.types import TopicPartition
from workflows.model.reassignment_progress import eta

NODE_SECONDS = 3.0
#: Where no node responds to this host's private calls, Kafka's API is asked, and so often.
KAFKA_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Looked:
    """Reassignments by the newest metadata that a node has: partitions ("replicas", "isr", "leader"), what is under
    way, bytes by node and partition, and what the nodes report of the replicas that they add.
    """

    held: Mapping[TopicPartition, Mapping[str, Any]] = field(default_factory=dict)
    under_way: Mapping[TopicPartition, Reassignment] = field(default_factory=dict)
    sizes: Mapping[tuple[int, TopicPartition], int] = field(default_factory=dict)
    live: Mapping[tuple[int, TopicPartition], Mapping[str, Any]] = field(default_factory=dict)
    reach: Mapping[int, Reach] = field(default_factory=dict)
    fenced: frozenset[int] = frozenset()
    version: tuple[int, int] = (-1, -1)


def of(answers: Mapping[int, Mapping[str, Any] | OpsError]) -> Looked | None:
    """Read the responses of all nodes to "reassignments"; None if no node responded."""
    reported = {node: each for node, each in answers.items() if not isinstance(each, OpsError)}
    if not reported:
        return None
    reach = {
        node: Reach.RESPONDS
        if not isinstance(each, OpsError)
        else each.reach
        if isinstance(each, Unreachable)
        else Reach.CLOSED
        for node, each in answers.items()
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
        (node, TopicPartition(str(row["topic"]), int(row["partition"]))): row
        for node, each in reported.items()
        for row in each["catching_up"]
    }
    fenced = frozenset(map(int, newest["fenced"]))
    return Looked(held, under_way, sizes, live, reach, fenced, _version(newest))


def _version(answer: Mapping[str, Any]) -> tuple[int, int]:
    return int(answer["generation"]), int(answer["version"])


@dataclass(frozen=True, slots=True)
class Reported:
    """What the nodes that get a replica report of one partition: bytes per second of all, seconds to go (None: not
    known), and the first reason why one waits.
    """

    rate: float = 0.0
    eta: float | None = None
    message: str = ""


def reported_of(one: Reassignment, live: Mapping[tuple[int, TopicPartition], Mapping[str, Any]]) -> Reported | None:
    """Return what the nodes report of a partition; None if none does."""
    rows = [live[node, one.partition] for node in one.adding if (node, one.partition) in live]
    if not rows:
        return None
    open_ = [row for row in rows if row["state"] != "in_sync"]
    etas = [
        eta(str(row["state"]), int(row["bytes_total"]), int(row["bytes_copied"]), float(row["rate"])) for row in open_
    ]
    known = [eta for eta in etas if eta is not None]
    whole = len(known) == len(etas) and len(rows) == len(one.adding)
    return Reported(
        sum(float(row["rate"]) for row in open_),
        max(known, default=0.0) if whole else None,
        next((str(row["message"]) for row in rows if row["message"]), ""),
    )


class ReassignmentLook:
    """Reads the reassignments of some topics, or (None) of all, for one command; never older ones than before."""

    def __init__(self, target: Target, topics: Collection[str] | None = None) -> None:
        self._topics = None if topics is None else sorted(topics)
        self._addresses = nodes.Addresses(target, retry=0.0)
        self._last: Looked | None = None

    def look(self) -> Looked | None:
        """Return what the nodes report now; None if none of them responds to this host, or none that knows what was
        reported before. Raises `OpsError` if the nodes' addresses were never found.
        """
        found = of(_ask(self._addresses.get(), self._topics))
        if found is None or (self._last is not None and found.version < self._last.version):
            return None
        self._last = found
        return found

    @property
    def problem(self) -> OpsError | None:
        """Why the nodes' addresses could not be looked up the last time; those of before are asked."""
        return self._addresses.problem


def _ask(known: Sequence[NodeAddress], topics: Sequence[str] | None) -> dict[int, Mapping[str, Any] | OpsError]:
    def one(where: NodeAddress) -> Mapping[str, Any] | OpsError:
        try:
            return nodes.call(where, "reassignments", timeout=NODE_SECONDS, topics=topics)
        except OpsError as error:
            return error

    with ThreadPoolExecutor(max_workers=max(1, len(known))) as pool:
        return {where.node: answer for where, answer in zip(known, pool.map(one, known), strict=True)}
