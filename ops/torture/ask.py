"""One question to one node in Kafka's protocol: what it says itself, not what a client makes of several answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ops.stack.errors import OpsError
from storage_node.protocol.codec import id_of
from storage_node.protocol.kafka_client import ask
from storage_node.protocol.table import METADATA

VERSION = 12


@dataclass(frozen=True, slots=True)
class Led:
    """A partition as a node's Metadata answer has it; `leader` -1 without one."""

    topic: str
    topic_id: str
    partition: int
    leader: int
    epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


def metadata(host: str, port: int, timeout: float = 3.0, topics: Sequence[str] | None = None) -> list[Led]:
    """The partitions of these topics, or of all, as this node knows them. Raises `OpsError`."""
    wanted = None if topics is None else [{"topic_id": None, "name": name} for name in topics]
    asked = {"topics": wanted, "allow_auto_topic_creation": False}
    try:
        answer = ask(host, port, METADATA, VERSION, timeout=timeout, client="rehome-torture", **asked)
    except OSError as error:
        raise OpsError(f"{host}:{port} does not tell its metadata: {error or type(error).__name__}") from error
    return [
        Led(
            str(topic.name),
            id_of(topic.topic_id),
            int(row.partition_index),
            int(row.leader_id),
            int(row.leader_epoch),
            tuple(int(node) for node in row.replica_nodes),
            tuple(int(node) for node in row.isr_nodes),
        )
        for topic in answer.topics
        for row in topic.partitions
    ]
