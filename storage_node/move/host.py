"""Declare what the move engine needs of its node: partitions, log directories, checkpoints."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from storage_node.directories.directory import LogDirectory
from storage_node.log.log import Log
from storage_node.log_hold import Hold
from storage_node.model.ids import TopicPartition

if TYPE_CHECKING:
    from storage_node.move.future import FutureLog


class PartitionLike(Protocol):
    """A replica on this node (`storage_node.partitions.partition.Partition`).

    A thread that changes `log` holds `lock`. A swap uses the hold instead, because it waits for the target's disk and
    must not keep the lock meanwhile. `future` is the moving copy, which has a lock of its own inside, so that a slow
    target never delays a producer. Lock order: `lock`, then the copy's.
    """

    lock: threading.RLock
    log: Log
    directory: LogDirectory
    generation: int
    future: FutureLog | None

    @property
    def tp(self) -> TopicPartition: ...

    @property
    def topic_id(self) -> str: ...

    @property
    def leader_epoch(self) -> int: ...

    @property
    def partition_epoch(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def deleted(self) -> bool:
        """Whether the replica is being deleted from this node, or was; no move of it may begin."""
        ...

    def hold(self, seconds: float) -> Hold | None:
        """Keep all writers from the log until `release`; return None where the lock is not free within `seconds`."""
        ...

    def release(self, hold: Hold) -> None:
        """End a hold, from any thread."""
        ...

    def swapped(self, log: Log, directory: LogDirectory, generation: int) -> None:
        """Replace the replica by `log`, during a hold, once both renames are durable; there is no copy any more."""
        ...


class MoveHost(Protocol):
    """The node, as the move engine uses it. Thread-safe."""

    def partition(self, tp: TopicPartition) -> PartitionLike | None:
        """Return the replica that this node serves, or None."""
        ...

    def directories(self) -> Sequence[LogDirectory]:
        """Return all of log.dirs, online or not, in their order."""
        ...

    def checkpoint(self, directory: LogDirectory, moving: PartitionLike | None) -> None:
        """Write the checkpoint files (recovery points, log starts, high watermarks) of one directory, durably.

        They hold what the node serves from that directory now and, if `moving` is given, also that partition with the
        offsets of its copy, which is about to become the replica there. Raises StorageError.
        """
        ...

    def moved(self) -> None:
        """Note that a replica has just moved to another directory."""
        ...

    def take_offline_with(self, directory: LogDirectory, tps: Iterable[TopicPartition]) -> None:
        """Take replicas offline whose directory failed while they were moved there."""
        ...

    def replica_failed(self, tp: TopicPartition, reason: str) -> None:
        """Take this replica alone offline: its directory is good, and an operator can request it again."""
        ...
