"""Roles of a replica as metadata would give them, for tests of one partition."""

from __future__ import annotations

from collections.abc import Sequence

from storage_node.partitions.partition import Partition
from tests.support.nodes.static_image import row


def lead(partition: Partition, leader_epoch: int, leads: bool = True, replicas: Sequence[int] = (1,)) -> None:
    """Node 1 leads the partition under this epoch, or another node does."""
    partition.assign(row(replicas, leader=1 if leads else 2, epoch=leader_epoch), partition.topic_id, 1, {})
