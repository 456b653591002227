"""The current leader in a response with NOT_LEADER_OR_FOLLOWER or FENCED_LEADER_EPOCH (KIP-951)."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from storage_node.model.ids import TopicPartition
from storage_node.protocol.apis.cluster import brokers
from storage_node.protocol.host import MetadataHost
from storage_node.wire.primitives import array, string, varint

_LEADER = struct.Struct(">ii")


@dataclass(frozen=True, slots=True)
class Leader:
    """A partition's leader, its leader epoch and its address."""

    node: int
    epoch: int
    host: str
    port: int

    def tagged(self, tag: int) -> bytes:
        """Return the encoded CurrentLeader as a partition's only tagged field."""
        return bytes((1, tag, _LEADER.size + 1)) + _LEADER.pack(self.node, self.epoch) + b"\0"


def leader_of(node: MetadataHost, tp: TopicPartition) -> Leader | None:
    """Return a partition's leader according to this node's metadata; None if it has no live leader."""
    image = node.metadata.image
    row = image.partition(tp)
    for broker in brokers(node, image) if row is not None else ():
        if row is not None and broker["node_id"] == row.leader:
            return Leader(row.leader, row.leader_epoch, broker["host"], broker["port"])
    return None


def endpoints(leaders: Iterable[Leader | None]) -> bytes:
    """Return the tagged fields at the end of a response: the NodeEndpoints of the leaders in it."""
    found = {leader.node: leader for leader in leaders if leader is not None}
    if not found:
        return b"\0"
    body = array(len(found), True)
    for leader in found.values():
        body += leader.node.to_bytes(4, "big") + string(leader.host, True) + leader.port.to_bytes(4, "big") + b"\0\0"
    return b"\x01\0" + varint(len(body)) + body
