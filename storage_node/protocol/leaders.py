"""Who leads a partition now, told with the error of who asked the wrong node (KIP-951)."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from storage_node.protocol.cluster import brokers
from storage_node.protocol.wire import array, string, varint
from storage_node.types import TopicPartition

if TYPE_CHECKING:
    from storage_node.node import Node

_LEADER = struct.Struct(">ii")


@dataclass(frozen=True, slots=True)
class Leader:
    """A partition's leader, its epoch, and where it is reached."""

    node: int
    epoch: int
    host: str
    port: int

    def tagged(self, tag: int) -> bytes:
        """The tagged fields of a partition that name it."""
        return bytes((1, tag, _LEADER.size + 1)) + _LEADER.pack(self.node, self.epoch) + b"\0"


def leader_of(node: Node, tp: TopicPartition) -> Leader | None:
    """The leader that the metadata names, None where none is up."""
    image = node.metadata.image
    row = image.partition(tp)
    for broker in brokers(node, image) if row is not None else ():
        if row is not None and broker["node_id"] == row.leader:
            return Leader(row.leader, row.leader_epoch, broker["host"], broker["port"])
    return None


def endpoints(leaders: Iterable[Leader | None]) -> bytes:
    """The tagged fields at the end of an answer: where the leaders named in it are reached."""
    found = {leader.node: leader for leader in leaders if leader is not None}
    if not found:
        return b"\0"
    body = array(len(found), True)
    for leader in found.values():
        body += leader.node.to_bytes(4, "big") + string(leader.host, True) + leader.port.to_bytes(4, "big") + b"\0\0"
    return b"\x01\0" + varint(len(body)) + body
