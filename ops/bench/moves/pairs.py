"""Two movers between different pairs of disks, each disk a directory with limited read and write rates.

The benchmark shows whether movers delay each other when their disks do not: the production mover runs in this process,
and its reads and writes pass a rate limiter per directory.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from unittest import mock

from ops.bench.bench import Bench
from ops.bench.moves import copies
from ops.bench.table import MB, Figure
from storage_node.directories.directory import LogDirectory
from storage_node.log.batches.batch import build_batch
from storage_node.log.blocks import Walked
from storage_node.log.config import LogConfig
from storage_node.log.log import Log
from storage_node.model.ids import TopicPartition
from storage_node.model.moves import MoveState
from storage_node.move.copying import blocks
from storage_node.move.engine import MoveEngine
from storage_node.move.future import FutureLog
from storage_node.move.host import PartitionLike
from storage_node.move.throttle import RateLimiter
from storage_node.partitions.partition import Partition

RATE = 100 * MB
"""A disk's rate; two of them are well below the rate of the machine's disk."""
SIZE = 256 * 2**20
TIMES = 1.8
PATIENCE = 120.0
TOPIC_ID = "Zm9vYmFyYmF6cXV4MTIzNA"


class Disks:
    """Four directories with a partition in the first and the third; the part of a node that the mover uses."""

    def __init__(self, root: Path, size: int = SIZE) -> None:
        """`size`: the size of each partition (bytes)."""
        self._dirs: list[LogDirectory] = []
        for number in range(4):
            (root / f"disk-{number}").mkdir(parents=True)
            self._dirs.append(LogDirectory(root / f"disk-{number}", f"disk-{number}"))
        self._partitions = {tp: _filled(tp, self._dirs[2 * tp.partition], size) for tp in map(_tp, range(2))}
        self._engine = MoveEngine(self, slots=2)

    def partition(self, tp: TopicPartition) -> PartitionLike | None:
        return self._partitions.get(tp)

    def directories(self) -> Sequence[LogDirectory]:
        return self._dirs

    def checkpoint(self, directory: LogDirectory, moving: PartitionLike | None) -> None:
        """Do nothing: no node restarts from these directories."""

    def moved(self) -> None:
        """Do nothing: there is no controller to notify."""

    def take_offline_with(self, directory: LogDirectory, tps: Iterable[TopicPartition]) -> None:
        """Raise the reason: no directory of the benchmark should fail."""
        raise RuntimeError(directory.failure)

    def replica_failed(self, tp: TopicPartition, reason: str) -> None:
        """Raise the reason: no directory of the benchmark should fail."""
        raise RuntimeError(reason)

    def move(self, numbers: Sequence[int]) -> float:
        """Move partitions concurrently to the other disk of their pair; return bytes per second."""
        began, total, claims = time.monotonic(), 0, {}
        for tp in map(_tp, numbers):
            pair = self._dirs[2 * tp.partition : 2 * tp.partition + 2]
            target = next(d for d in pair if d is not self._partitions[tp].directory)
            claims[tp] = self._engine.create(tp, target.name).claim
            self._engine.start_copy(tp, claims[tp])
        for tp, claim in claims.items():
            status = self._engine.wait(tp, claim, PATIENCE)
            if status.state is not MoveState.CAUGHT_UP:
                raise RuntimeError(f"{tp} was not copied: {status.message}")
            self._engine.swap(tp, claim)
            total += self._partitions[tp].log.size
        return total / (time.monotonic() - began)

    def close(self) -> None:
        """Close the engine, the logs and the directories."""
        self._engine.close()
        for partition in self._partitions.values():
            partition.log.close(clean=False)
        for directory in self._dirs:
            directory.close()


def _tp(number: int) -> TopicPartition:
    return TopicPartition("pairs", number)


def _filled(tp: TopicPartition, directory: LogDirectory, size: int) -> Partition:
    path = directory.path / str(tp)
    path.mkdir()
    log = Log.open(path, tp, LogConfig(segment_bytes=64 * 2**20, file_delete_delay_ms=0), directory=directory.name)
    partition = Partition(tp, TOPIC_ID, log, directory)
    batch = build_batch([bytes(range(256)) * 40] * 90)
    for _ in range(size // len(batch)):
        partition.append(batch)
    log.flush()
    return partition


def pairs(bench: Bench) -> list[Figure]:
    """Compare the rate of two movers on two pairs of disks with that of one."""
    bench.say(f"one mover and two on different pairs of disks of {RATE // MB} MB/s ...")
    one, two = measure(bench.folder / "pairs", SIZE, copies.drop_caches)
    return [
        Figure(
            f"two movers between different disks of {RATE // MB} MB/s",
            f"{two / MB:.0f} MB/s",
            f"{one / MB:.0f} MB/s (one mover)",
            two / one,
            f">= {TIMES} times one",
            two >= TIMES * one,
        )
    ]


def measure(root: Path, size: int, before: Callable[[], object]) -> tuple[float, float]:
    """Return bytes per second of one mover and of two, with partitions of `size` bytes; call `before` before each."""
    disks = Disks(root, size)
    try:
        with _limited(root):
            before()
            one = disks.move([0])
            before()
            return one, disks.move([0, 1])
    finally:
        disks.close()
        shutil.rmtree(root)


@contextlib.contextmanager
def _limited(root: Path) -> Iterator[None]:
    """Limit the movers' reads and writes to their disk's rate."""
    limiters = {path: RateLimiter(RATE) for path in root.iterdir()}

    def disk(descriptor: int) -> RateLimiter:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))  # noqa: PTH115  # the file has no path
        return next(limiter for folder, limiter in limiters.items() if folder in path.parents)

    read, write = blocks.Source.read, FutureLog.write

    def slow_read(self: blocks.Source, buffer: memoryview, count: int, position: int, *, hot: bool) -> int:
        file = self.segment.file
        disk(file.fd).acquire(count)
        return read(self, buffer, count, position, hot=hot)

    def slow_write(self: FutureLog, data: memoryview, walked: Walked) -> None:
        file = self.segments[-1].file
        disk(file.fd).acquire(len(data))
        write(self, data, walked)

    with mock.patch.object(blocks.Source, "read", slow_read), mock.patch.object(FutureLog, "write", slow_write):
        yield
