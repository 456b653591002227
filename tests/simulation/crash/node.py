"""The production node without threads and listener: start, images, moves and deletions run where they are called.

Everything that touches a disk is production code (`Node.start`, `start_up`, `MetadataPublisher`, `MoveEngine`, `Log`);
what is replaced is who calls it: pools run their jobs at once, movers and deletions run when the script says so, and
the clock stands still. So a script is one sequence of operations on the disks, the same in every run.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar
from unittest.mock import patch

from storage_node.config.node_config import NodeConfig
from storage_node.directories import names
from storage_node.directories.directory import LogDirectory
from storage_node.directories.newest_file import NewestFile
from storage_node.errors import StorageError
from storage_node.lifecycle.housekeeping import Housekeeping
from storage_node.lifecycle.start_up import Started
from storage_node.log.batches.batch import build_batch, headers
from storage_node.log.log import Log
from storage_node.model.assignment import Assignment
from storage_node.model.ids import TopicPartition
from storage_node.model.image import ClusterImage
from storage_node.model.metadata import PartitionImage, TopicImage
from storage_node.model.moves import MoveState
from storage_node.move.engine import MoveEngine
from storage_node.move.scheduler import MoveScheduler, QueuedMove
from storage_node.node import Node
from storage_node.partitions.partition import Partition
from storage_node.replicas.boot.actions import BootPlan

T = TypeVar("T")

TP = TopicPartition("t", 0)
CLUSTER = "crash-model"
SEGMENT = 200
"""Bytes: two of the model's batches fill a segment."""
VALUE = 8
"""Bytes of a record's value."""

_FOREVER = 3600.0


class Inline:
    """A pool whose jobs are done before `submit` returns; what stops the machine goes straight through."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def submit(self, call: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        done: Future[T] = Future()
        try:
            done.set_result(call(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done

    def shutdown(self, *_: object, **__: object) -> None: ...

    def __enter__(self) -> Inline:
        return self

    def __exit__(self, *_: object) -> None: ...


class _NoThread:
    """Stands where a thread of production would be."""

    def join(self, *_: object) -> None: ...

    def is_alive(self) -> bool:
        return False


class _Listener:
    """Nobody connects."""

    loop = None
    port = 0

    def bind(self) -> None: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def limit(self, connections: int, per_address: int) -> None: ...


class _Housekeeping(Housekeeping):
    """Nothing happens by itself."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def directories_changed(self) -> None: ...


def _take(self: MoveScheduler) -> QueuedMove | None:
    """The next move, None when nothing waits, where production waits for one."""
    waiting = self.waiting()
    if not waiting:
        return None
    self._waiting.remove(waiting[0])
    self._running.add(waiting[0])
    return waiting[0]


def _keep_file(self: NewestFile[Any], directory: LogDirectory, value: Any) -> Future[None]:
    """Production's writer, at once."""
    self._waiting[directory] = value
    done: Future[None] = Future()
    try:
        self._drain(directory)
        done.set_result(None)
    except StorageError as error:
        directory.fail_on(error)
        done.set_exception(error)
    return done


class Ids:
    """The names that production would draw by chance: others in each life of a node, the same in each run."""

    def __init__(self) -> None:
        self.restart(0)

    def restart(self, life: int) -> None:
        self._next = itertools.count((life << 32) + 1)

    def __call__(self) -> str:
        return f"{next(self._next):032x}"


@contextmanager
def threadless(ids: Ids | None = None) -> Iterator[None]:
    """Production without threads, random names and impatience while the block runs."""
    drawn = ids or Ids()
    with ExitStack() as stack:
        for where in ("directories.directory", "lifecycle.start_up", "move.copying.movers", "lifecycle.shut_down"):
            stack.enter_context(patch(f"storage_node.{where}.ThreadPoolExecutor", Inline))
        for name in ("start", "join"):
            # Whatever production does in a thread by itself does not happen here.
            stack.enter_context(patch.object(threading.Thread, name, lambda *_: None))
        stack.enter_context(patch("storage_node.node.unless_hung", lambda _dirs, _what, work: work()))
        stack.enter_context(patch.object(NewestFile, "start", _keep_file))
        stack.enter_context(patch.object(MoveScheduler, "take", _take))
        for where in ("replicas.creation", "replicas.retirement", "move.swap"):
            stack.enter_context(patch(f"storage_node.{where}.new_delete_id", drawn))
        for name in ("TAIL_SECONDS", "LOCK_WAIT_SECONDS"):
            stack.enter_context(patch(f"storage_node.move.swap.{name}", _FOREVER))
        yield


# Records


class Record(NamedTuple):
    """A record as it is produced and as it is promised."""

    value: bytes
    batch: bytes


def record(offset: int, life: int) -> Record:
    """A batch of one record; its value tells its offset and in which life of the node it was appended."""
    value = b"%05d.%02d" % (offset, life)
    return Record(value, build_batch([value]))


def values_in(log: Log) -> tuple[int, tuple[bytes, ...]]:
    """The log start offset, and the value at each offset from there."""
    found: list[bytes] = []
    at = log.log_start_offset
    while at < log.log_end_offset:
        data = log.read(at, 1 << 20)
        for position, header in headers(data.data):
            if header.base_offset >= log.log_start_offset:
                end = position + header.length - 1
                found.append(bytes(data.data[end - VALUE : end]))
        at = data.next_offset
    return log.log_start_offset, tuple(found)


# The controller


@dataclass
class Controller:
    """What the controller knows and answers: the image, changed as the Cluster workflow changes it."""

    image: ClusterImage = field(default_factory=lambda: ClusterImage(CLUSTER, 1, 1))

    def copy(self) -> Controller:
        return Controller(self.image)

    def _set(self, topics: dict[str, TopicImage], gone: dict[str, str] | None = None) -> None:
        image = self.image
        self.image = replace(image, version=image.version + 1, topics=topics, gone=gone or image.gone)

    def create_topic(self, topic_id: str, tp: TopicPartition = TP) -> None:
        row = PartitionImage(tp.partition, Assignment((1,)), directories=("",), generations=(0,), isr=(1,), leader=1)
        topic = TopicImage(tp.topic, topic_id, {}, (row,))
        self._set({**self.image.topics, tp.topic: topic})

    def delete_topic(self, tp: TopicPartition = TP) -> None:
        topic = self.image.topics[tp.topic]
        rest = {name: other for name, other in self.image.topics.items() if name != tp.topic}
        self._set(rest, {**self.image.gone, topic.id: tp.topic})

    def row(self, tp: TopicPartition = TP) -> PartitionImage | None:
        return self.image.partition(tp)

    def raise_generation(self, generation: int, directory: str, tp: TopicPartition = TP) -> int | None:
        """The generation for a move of a replica that has `generation`; None where it is a stale copy."""
        row = self.row(tp)
        assert row is not None
        if row.generation_of(1) > generation + 1:
            return None
        self._place(tp, row.directories[0] or directory, generation + 1)
        return generation + 1

    def assign(self, generation: int, directory: str, tp: TopicPartition = TP) -> None:
        """Where a replica is now; ignored from a stale copy."""
        row = self.row(tp)
        if row is not None and row.generation_of(1) <= generation:
            self._place(tp, directory, generation)

    def _place(self, tp: TopicPartition, directory: str, generation: int) -> None:
        topic = self.image.topics[tp.topic]
        row = replace(topic.partitions[tp.partition], directories=(directory,), generations=(generation,))
        if row != topic.partitions[tp.partition]:
            changed = topic.with_partitions([row])
            self._set({**self.image.topics, tp.topic: changed})


# The node


@functools.lru_cache
def _config(log_dirs: tuple[str, ...]) -> NodeConfig:
    return NodeConfig.parse(
        {
            "node.id": "1",
            "log.dirs": ",".join(log_dirs),
            "listeners": "PLAINTEXT://127.0.0.1:1",
            "cluster.id": CLUSTER,
            "log.segment.bytes": str(SEGMENT),
            "log.retention.ms": "-1",
            "file.delete.delay.ms": "60000",
            "replica.move.swap.deadline.ms": str(int(_FOREVER * 1000)),
        }
    )


def config_for(log_dirs: Sequence[str]) -> NodeConfig:
    """A node's configuration: small segments, no patience needed."""
    return _config(tuple(log_dirs))


class QuietNode(Node):
    """See the module; used inside `threadless`."""

    def __init__(self, config: NodeConfig) -> None:
        super().__init__(config)
        self.listener = _Listener()  # type: ignore[assignment]
        self.housekeeping = _Housekeeping(self)
        self.clock_ms = 1_000_000
        self.plans: list[BootPlan] | None = None

    def serve_opened(self, started: Started) -> None:
        self.plans = [*(self.plans or ()), *started.plans]
        super().serve_opened(started)

    def start(self) -> None:
        with (
            patch("storage_node.node.MoveEngine", self._engine),
            patch("storage_node.descriptors.raise_limit", lambda *_: None),
        ):
            super().start()

    def _engine(self, *args: Any, **kwargs: Any) -> MoveEngine:
        engine = MoveEngine(*args, **kwargs, now_ms=lambda: self.clock_ms)
        engine._movers._threads = [_NoThread()] * 64  # type: ignore[list-item]
        return engine

    # What goes on by itself in production

    def copy(self) -> None:
        """What the movers' threads do while anything is queued."""
        self.engine._movers._run()

    def delete_what_is_due(self) -> None:
        """What the settler's and the deletions' threads do, long after everything became due."""
        self.engine.settle()
        self.clock_ms += 10_000_000
        for deletion in self.engine._deletions.pending():
            try:
                self.engine._deletions._try(deletion)
            except StorageError:
                self.engine._deletions._forget(deletion)

    def hear(self, controller: Controller) -> None:
        """The controller pushes its newest image."""
        self.metadata_publisher.apply([controller.image.encode()])

    def tell(self, controller: Controller) -> None:
        """The node tells where its replicas are, and gets the image that comes of it."""
        for tp, partition in self.replicas.served.items():
            row = controller.row(tp)
            if row is None or controller.image.topics[tp.topic].id != partition.topic_id:
                continue
            here, generation = partition.directory.id, partition.generation
            if row.directory_of(1) != here or row.generation_of(1) < generation:
                controller.assign(generation, here, tp)
        self.hear(controller)

    # Looking

    @property
    def served(self) -> Partition | None:
        return self.replicas.served.get(TP)

    def directory_named(self, name: str) -> LogDirectory:
        return next(d for d in self.dirs.directories if d.path.name == name)

    @property
    def moving(self) -> bool:
        status = self.engine.status(TP)
        return status is not None and status.state not in (MoveState.SWAPPED, MoveState.CANCELLED, MoveState.IN_PLACE)


def plain(name: str) -> str:
    """A directory's name without what is drawn by chance."""
    parsed = names.parse(name)
    return name.replace(parsed.id, "*") if parsed.id else name
