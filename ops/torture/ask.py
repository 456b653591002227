"""Metadata requests to one chosen node: its own response, not a client's view merged from several nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ops.stack.errors import OpsError
from storage_node.wire.client.kafka_client import ask
from storage_node.wire.codec import id_of
from storage_node.wire.table import METADATA

VERSION = 12


@dataclass(frozen=True, slots=True)
class Led:
    """A partition in a node's Metadata response; `leader` is -1 without a leader."""

    topic: str
    topic_id: str
    partition: int
    leader: int
    epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


def metadata(host: str, port: int, timeout: float = 3.0, topics: Sequence[str] | None = None) -> list[Led]:
    """Return the partitions of `topics`, or of all topics, from this node's metadata. Raises `OpsError`."""
    wanted = None if topics is None else [{"topic_id": None, "name": name} for name in topics]
    request = {"topics": wanted, "allow_auto_topic_creation": False}
    try:
        response = ask(host, port, METADATA, VERSION, timeout=timeout, client="rehome-torture", **request)
    except OSError as error:
        raise OpsError(f"the Metadata request to {host}:{port} failed: {error or type(error).__name__}") from error
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
        for topic in response.topics
        for row in topic.partitions
    ]
