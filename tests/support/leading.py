"""Roles of a replica as metadata would give them, for tests of one partition."""

from __future__ import annotations

from collections.abc import Sequence

from storage_node.metadata import PartitionImage
from storage_node.partition import Partition


def lead(partition: Partition, leader_epoch: int, leads: bool = True, replicas: Sequence[int] = (1,)) -> None:
    """Node 1 leads the partition under this epoch, or another node does."""
    partition.assign(row(leader_epoch, 1 if leads else 2, replicas), partition.topic_id, 1, {})


def row(
    leader_epoch: int,
    leader: int = 1,
    replicas: Sequence[int] = (1, 2, 3),
    *,
    isr: Sequence[int] = (),
    partition_epoch: int = 0,
    partition: int = 0,
) -> PartitionImage:
    """A partition's row, everybody in sync unless `isr` says less."""
    given = tuple(replicas)
    return PartitionImage(
        partition,
        given,
        directories=("",) * len(given),
        generations=(0,) * len(given),
        isr=tuple(isr) or given,
        leader=leader,
        leader_epoch=leader_epoch,
        partition_epoch=partition_epoch,
    )
