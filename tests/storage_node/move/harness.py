"""A node of the smallest kind: real directories, real logs, a real mover; no listener, no controller.

`life` is what the crash tests run in processes that they kill at every failpoint and start again: it boots what it
finds, appends all the while, moves the partition, and notes every acknowledged record in the file `acked`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from storage_node import failpoints
from storage_node.directories.directory import LogDirectory
from storage_node.errors import StorageError, UnknownTopicOrPartition
from storage_node.log.batches.batch import build_batch, headers
from storage_node.log.config import LogConfig
from storage_node.log.log import Log
from storage_node.model.ids import TopicPartition
from storage_node.model.moves import MoveState
from storage_node.move.copying import flusher
from storage_node.move.engine import MoveEngine
from storage_node.move.future import FutureLog
from storage_node.move.host import PartitionLike
from storage_node.partitions.partition import Partition
from storage_node.replicas.boot import apply
from storage_node.replicas.boot.actions import BootPlan
from storage_node.replicas.boot.scan import scan
from storage_node.replicas.boot.table import decide
from storage_node.replicas.deletion import wall_clock_ms

TP = TopicPartition("t", 0)
TOPIC_ID = "Zm9vYmFyYmF6cXV4MTIzNA"
CONFIG = LogConfig(segment_bytes=1 << 20, file_delete_delay_ms=60_000)
LIFE = LogConfig(segment_bytes=64 << 10, file_delete_delay_ms=0)


def batch(value: bytes, count: int = 1) -> bytes:
    """A batch of `count` records that hold `value`."""
    return build_batch([value] * count)


@dataclass(slots=True)
class SmallNode:
    """Directories `a`, `b`, ... under `root`, each with the id `id-a`, ...; it is a `MoveHost`."""

    root: Path
    names: Sequence[str] = ("a", "b")
    config: LogConfig = CONFIG
    slots: int = 2
    rate: int | None = None
    missing: frozenset[str] = frozenset()
    assigned: str | None = None
    known_generation: int = 0
    now_ms: Callable[[], int] = wall_clock_ms
    dirs: list[LogDirectory] = field(default_factory=list)
    partitions: dict[TopicPartition, Partition] = field(default_factory=dict)
    plans: list[BootPlan] = field(default_factory=list)
    checkpoints: list[tuple[str, bool]] = field(default_factory=list)
    engine: MoveEngine = field(init=False)

    def __post_init__(self) -> None:
        for name in self.names:
            path = self.root / name
            path.mkdir(parents=True, exist_ok=True)
            self.dirs.append(LogDirectory(path, f"id-{name}"))
        self.boot()

    # MoveHost

    def partition(self, tp: TopicPartition) -> Partition | None:
        return self.partitions.get(tp)

    def directories(self) -> Sequence[LogDirectory]:
        return self.dirs

    def moved(self) -> None: ...

    def take_offline_with(self, directory: LogDirectory, tps: Iterable[TopicPartition]) -> None:
        for tp in tps:
            self.replica_failed(tp, directory.failure or "")

    def replica_failed(self, tp: TopicPartition, reason: str) -> None:
        self.partitions.pop(tp).take_offline(reason)

    def checkpoint(self, directory: LogDirectory, moving: PartitionLike | None) -> None:
        self.checkpoints.append((directory.path.name, moving is not None))
        points = {p.tp: p.log.recovery_point for p in self.partitions.values() if p.directory is directory}
        starts = {p.tp: p.log.log_start_offset for p in self.partitions.values() if p.directory is directory}
        if moving is not None and moving.future is not None:
            points[moving.tp] = moving.future.recovery_point
            starts[moving.tp] = moving.future.log_start_offset
        directory.recovery_points.write(points)
        directory.log_start_offsets.write(starts)

    # Start and stop

    def boot(self) -> None:
        """Do what a start does: look, decide, repair, open, go on."""
        found = scan(self.dirs).found
        self.plans = [decide(f, self.missing, self.assigned, self.known_generation) for f in found.values()]
        for plan in self.plans:
            apply.apply(plan)
            if plan.state == "online" and plan.path is not None:
                directory = next(d for d in self.dirs if d.id == plan.directory_id)
                self.partitions[plan.tp] = Partition(
                    plan.tp,
                    TOPIC_ID,
                    Log.open(
                        plan.path,
                        plan.tp,
                        self.config,
                        directory=directory.name,
                        recovery_point=directory.recovery_points.read().get(plan.tp, 0),
                        log_start_offset=directory.log_start_offsets.read().get(plan.tp, 0),
                    ),
                    directory,
                    generation=plan.generation,
                )
        self.engine = MoveEngine(self, slots=self.slots, rate=self.rate, now_ms=self.now_ms)
        for plan in self.plans:
            self.engine.resume(plan)

    def close(self) -> None:
        """Stop without a word to the disk beyond what the logs flush."""
        self.engine.close()
        for partition in self.partitions.values():
            with contextlib.suppress(StorageError):
                partition.log.close(clean=False)
        for directory in self.dirs:
            directory.close()

    # What tests do

    def add(self, tp: TopicPartition = TP, where: str = "a") -> Partition:
        """Make an empty replica in a directory."""
        directory = self.dir(where)
        log = Log.open(directory.path / str(tp), tp, self.config, directory=directory.name)
        self.partitions[tp] = Partition(tp, TOPIC_ID, log, directory)
        return self.partitions[tp]

    def fill(self, count: int, size: int = 1000, tp: TopicPartition = TP) -> None:
        """Append `count` batches of `size` bytes or so."""
        for number in range(count):
            self.partitions[tp].append(batch(b"%08d" % number + b"x" * (size - 8)))

    def dir(self, name: str) -> LogDirectory:
        return next(d for d in self.dirs if d.path.name == name)

    def path(self, name: str) -> str:
        return self.dir(name).name

    def listing(self) -> dict[str, list[str]]:
        """Names of partitions' folders per directory, the ids of `.delete`s left out."""
        return {
            d.path.name: sorted(plain(p.name) for p in d.path.iterdir() if p.is_dir()) for d in self.dirs if d.online
        }

    def move(self, where: str, tp: TopicPartition = TP, **options: object) -> None:
        """The whole move: create, copy, swap."""
        status = self.engine.create(tp, self.path(where), **options)  # type: ignore[arg-type]
        self.finish(status.claim, tp)

    def finish(self, claim: int, tp: TopicPartition = TP, timeout: float = 30.0) -> None:
        """Copy and swap a move that was created, however often it takes."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            self.engine.start_copy(tp, claim)
            status = self.engine.wait(tp, claim, timeout)
            assert status.state is MoveState.CAUGHT_UP, status
            if self.engine.swap(tp, claim).outcome == "swapped":
                self.engine.settle()
                return
        raise AssertionError("the move did not end")


Make = Callable[..., SmallNode]
"""The fixture `make`: starts a small node with these options below the test's folder."""


def plain(name: str) -> str:
    """The name of a folder, without the id of a `.delete`."""
    return f"{name.split('.')[0]}.delete" if name.endswith(".delete") else name


def values(log: Log | FutureLog) -> list[bytes]:
    """The bytes of all batches from the log start on, offsets included."""
    found, at = [], log.log_start_offset
    while at < log.log_end_offset:
        data = log.read(at, 1 << 20)
        found += [data.data[p : p + h.length] for p, h in headers(data.data)]
        at = data.next_offset
    return found


def eventually(check: Callable[[], bool], timeout: float = 60.0) -> None:
    """Wait until `check` holds."""
    deadline = time.monotonic() + timeout
    while not check():
        assert time.monotonic() < deadline, "did not come true"
        time.sleep(0.005)


@contextlib.contextmanager
def appending(partition: Partition, note: Callable[[int, bytes], None], pause: float = 0.001) -> Iterator[None]:
    """Append numbered records in a thread of its own; `note(offset, value)` is called after each acknowledgement."""
    stop = threading.Event()
    problems: list[BaseException] = []

    def run() -> None:
        number = 0
        while not stop.is_set():
            value = b"%d-%d" % (os.getpid(), number)
            try:
                note(partition.append(batch(value)).base_offset, value)
            except UnknownTopicOrPartition:
                return  # the topic was deleted
            except Exception as error:
                problems.append(error)
                return
            number += 1
            stop.wait(pause)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if problems:
        raise problems[0]


def life(root: Path, step: str, points: str = "") -> None:
    """One life of the node, in a process of its own, with failpoints armed; see `main`."""
    logging.disable(logging.CRITICAL)
    flusher.INTERVAL = 16 << 10
    if points:
        failpoints.configure({"REHOME_FAILPOINTS": points})
    main(root, step)


def main(root: Path, step: str) -> None:
    """Boot what is there (or make the replica in `a`), append all the while, and do the step.

    move: to `b`, whatever is left to be done of it. keep: the same, but the old replica is kept for a while. cancel:
    begin that and cancel. stop: begin and stop all moves. resume: let moves go on and finish. discard: begin that, then
    the topic is deleted. boot: nothing more.
    """
    node = SmallNode(root, config=CONFIG if step == "keep" else LIFE)
    partition = node.partitions.get(TP)
    if partition is None:
        partition = node.add()
        node.fill(100)
    with (root / "acked").open("ab", buffering=0) as acked:

        def note(offset: int, value: bytes) -> None:
            acked.write(b"%d %s\n" % (offset, value))

        with appending(partition, note):
            eventually(lambda: partition.log.log_end_offset > 100)
            if step == "resume":
                node.engine.resume_moves()
            if partition.directory.id == "id-a" and step != "boot":
                status = node.engine.create(TP, node.path("b"), owner="run")
                if step == "discard":
                    partition.delete()
                    node.engine.discard(TP)
                    return
                if step == "stop":
                    node.engine.stop_moves()
                    return
                node.engine.start_copy(TP, status.claim)
                if step == "cancel":
                    node.engine.wait(TP, status.claim, 20)
                    node.engine.cancel(TP, status.claim)
                else:
                    node.finish(status.claim)
            eventually(lambda: node.engine.delete_now_if_due(TP) == 0.0)
    node.close()
