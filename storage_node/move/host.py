"""What the mover needs of the node around it: partitions, log directories, checkpoints."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from storage_node.directories.directory import LogDirectory
from storage_node.log.log import Log
from storage_node.log_hold import Hold
from storage_node.types import TopicPartition

if TYPE_CHECKING:
    from storage_node.move.future import FutureLog


class PartitionLike(Protocol):
    """A replica on this node (`storage_node.partition.Partition`).

    `lock` is held by whoever changes `log`, and the hold by a swap, which asks the target's disk and must not keep the
    lock meanwhile; `future` is the moving copy, which has a lock of its own inside, so that a slow target never holds
    up a producer. Lock order: `lock`, then the copy's.
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

    def hold(self, seconds: float) -> Hold | None:
        """Keep all writers from the log until `release`; None where the lock is not free within `seconds`."""
        ...

    def release(self, hold: Hold) -> None:
        """End a hold, from any thread."""
        ...

    def swapped(self, log: Log, directory: LogDirectory, generation: int) -> None:
        """Called during a hold once both renames are durable: from now on `log` is the replica and there is no copy."""
        ...


class MoveHost(Protocol):
    """The node, as the mover sees it. Thread-safe."""

    def partition(self, tp: TopicPartition) -> PartitionLike | None:
        """The replica on this node that is being served, or None."""
        ...

    def directories(self) -> Sequence[LogDirectory]:
        """All of log.dirs, online or not, in their order."""
        ...

    def checkpoint(self, directory: LogDirectory, moving: PartitionLike | None) -> None:
        """Write the checkpoint files (recovery points, log starts, high watermarks) of one directory, durable.

        They hold what the node serves from that directory now and, if `moving` is given, also that partition with the
        offsets of its copy, which is about to become the replica there. Raises StorageError.
        """
        ...

    def moved(self) -> None:
        """A replica has just moved to another directory."""
        ...

    def lost(self, tp: TopicPartition, reason: str) -> None:
        """A replica cannot be served until the next start, though its directory is good."""
        ...
