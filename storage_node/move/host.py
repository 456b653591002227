"""What the mover needs of the node around it: partitions, log directories, checkpoints."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

from storage_node.directories.directory import LogDirectory
from storage_node.log.log import Log
from storage_node.types import TopicPartition


class PartitionLike(Protocol):
    """A replica on this node (`storage_node.partition.Partition`).

    `lock` is held by whoever changes `log`; `future` is the moving copy, which has a lock of its own inside, so that
    a slow target never holds up a producer. Lock order: `lock`, then the copy's.
    """

    lock: threading.RLock
    log: Log
    directory: LogDirectory
    generation: int
    future: Log | None

    @property
    def tp(self) -> TopicPartition: ...

    @property
    def topic_id(self) -> str: ...

    @property
    def leader_epoch(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    def swapped(self, log: Log, directory: LogDirectory, generation: int) -> None:
        """Called under `lock` once both renames are durable: from now on `log` is the replica and there is no copy."""
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
