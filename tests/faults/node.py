"""A node with one good directory and one on each of two faulty disks, written to all the while."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path

from storage_node.alter_log_dirs import DirectoryInfo
from storage_node.directories.directory import LogDirectory
from storage_node.directories.formatting import format_directories
from storage_node.log.batches.batch import build_batch, headers
from storage_node.model.commands import NewTopic
from storage_node.model.error_codes import ErrorCode
from storage_node.model.ids import TopicPartition
from storage_node.move.status import MoveState, MoveStatus
from storage_node.partitions.partition import Partition
from tests.faults.disk import Disk, SmallDisk
from tests.support.nodes.local_controller import LocalController
from tests.support.nodes.node_harness import CLUSTER_ID, Harness, until
from tests.support.wire import Client, Row

TP = TopicPartition("t", 0)
OTHER = TopicPartition("other", 0)
#: How long a disk may hang before it counts as failed, seconds, where a test has one that does.
PATIENCE = 2.0
HANGS = {"log.dir.failure.timeout.ms": f"{PATIENCE * 1000:.0f}"}
#: Segments are small, so that a move has several; what is deleted goes soon. Where no disk hangs, none is taken for one
#: that does because the machine is busy.
SETTINGS = {
    "log.segment.bytes": "20000",
    "file.delete.delay.ms": "100",
    "log.dir.failure.timeout.ms": "30000",
    "log.dir.health.check.interval.ms": "300",
    "replica.move.swap.deadline.ms": "500",
}


class FaultyNode(Harness):
    """See the module; `t` is created on the source disk, `other` on the good one."""

    def __init__(
        self, good: Path, source: Disk | SmallDisk, target: Disk | SmallDisk, name: str, extra: Mapping[str, str]
    ) -> None:
        self.source_disk, self.target_disk, self.name = source, target, name
        self.paths = [str(good), str(source.path / name), str(target.path / name)]
        for path in self.paths:
            Path(path).mkdir(parents=True)
        format_directories(self.paths, cluster_id=CLUSTER_ID, node_id=1)
        self.extra = {**SETTINGS, **extra}
        self.node_id = 1
        self.controller = LocalController(CLUSTER_ID)
        self.node = self._new(0)
        self.start()
        for topic, path in (("t", self.paths[1]), ("other", self.paths[0])):
            self.place(topic, path)

    def place(self, topic: str, path: str) -> None:
        """Create a topic of one partition in a directory."""
        directory = self.node.dirs.by_path(path)
        self.node.preferred_log_dirs.remember([(TopicPartition(topic, 0), directory)])
        result = self._on_loop(
            lambda: self.controller.create_topics([NewTopic(topic)], validate_only=False, timeout=10)
        )
        assert not result[0].error, result
        until(lambda: self.node.partition(TopicPartition(topic, 0)), what=f"{topic} is served")

    def _on_loop(self, call: Callable[[], object], timeout: float = 20.0) -> object:
        loop = self.node.listener.loop
        assert loop is not None
        asked = asyncio.run_coroutine_threadsafe(call(), loop)  # type: ignore[arg-type]
        with self.stacks_on(TimeoutError):
            return asked.result(timeout)

    @contextlib.contextmanager
    def stacks_on(self, kind: type[Exception]) -> Iterator[None]:
        """Add to such an error where every thread of the process is, and what the loop's tasks wait for."""
        loop = self.node.listener.loop
        assert loop is not None
        try:
            yield
        except kind as error:
            error.add_note(_stacks(loop))
            raise

    def end(self) -> None:
        """Stop for good; may be called twice."""
        if hasattr(self, "node"):
            self.close()

    # What is where

    @property
    def good(self) -> LogDirectory:
        return self.node.dirs.directories[0]

    @property
    def source(self) -> LogDirectory:
        return self.node.dirs.directories[1]

    @property
    def target(self) -> LogDirectory:
        return self.node.dirs.directories[2]

    @property
    def replica(self) -> Partition:
        found = self.node.partition(TP)
        assert found is not None
        return found

    # Steps

    def fill(self, count: int = 60, size: int = 1000) -> list[bytes]:
        """Append numbered records to `t`."""
        values = [b"f%06d" % number + b"x" * size for number in range(count)]
        for value in values:
            self.replica.append(build_batch([value]))
        return values

    def alter(self, tp: TopicPartition, path: str, timeout: float = 20.0) -> ErrorCode:
        """AlterReplicaLogDirs."""
        answer = self._on_loop(lambda: self.node.log_dirs.alter({tp: path}), timeout)
        assert isinstance(answer, dict)
        return ErrorCode(answer[tp])

    def begin(self) -> int:
        """Make the `.move` on the target disk, and nothing more; answers the claim."""
        self.controller.hold_moves = True
        assert self.alter(TP, self.paths[2]) is ErrorCode.NONE
        return self.controller.planned[-1].claim

    def run(self) -> None:
        """Let the move that was begun go on, as its run would."""
        self.controller.hold_moves = False
        self.controller.start_moves([self.controller.planned[-1]], throttle=None)

    def status(self) -> MoveStatus | None:
        return self.node.engine.status(TP)

    def ended(self, seconds: float = 30.0) -> MoveStatus:
        """The move's state, once it is one that it keeps."""
        final = (MoveState.FAILED, MoveState.SWAPPED, MoveState.CANCELLED, MoveState.STOPPED)

        def look() -> MoveStatus | None:
            status = self.status()
            return status if status is not None and status.state in final else None

        found = until(look, seconds, "the move ends")
        assert found is not None
        return found

    def describe(self) -> dict[str, DirectoryInfo]:
        """DescribeLogDirs, by path."""
        answer = self._on_loop(lambda: self.node.log_dirs.describe(None))
        assert isinstance(answer, list)
        return {info.path: info for info in answer}

    def forget(self) -> None:
        """Let go of the node that was stopped, and of the files that it did not close."""
        del self.node
        gc.collect()

    def begin_again(self) -> None:
        """Start a new node where one was stopped, once the disks that hung have let go of it."""
        until(lambda: not any(thread.name.startswith("close-") for thread in threading.enumerate()))
        self.node = self._new(0)
        self.start()

    def leftovers(self) -> list[str]:
        """Names of moving and deleted copies of `t`, whatever the disks do."""
        disks = (self.source_disk, self.target_disk)
        return [path.name for disk in disks for path in (disk.backing / self.name).glob("t-0.*")]

    def again(self, clean: bool = False) -> None:
        """Both disks are healed and the node starts again."""
        self.source_disk.heal()
        self.target_disk.heal()
        self.restart(clean)

    def stored(self, topic: str = "t") -> dict[int, bytes]:
        """All of a topic's partition by offset, straight from the log: each batch holds one record."""
        replica = self.node.partition(TopicPartition(topic, 0))
        assert replica is not None
        log = replica.log
        found: dict[int, bytes] = {}
        at = log.log_start_offset
        while at < log.log_end_offset:
            data = log.read(at, 1 << 20)
            for position, header in headers(data.data):
                found[header.base_offset] = bytes(data.data[position : position + header.length])
            at = data.next_offset
        return found


def _stacks(loop: asyncio.AbstractEventLoop) -> str:
    """Where every thread of this process is now, and what the loop's tasks wait for."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0, 2)
        for task in asyncio.all_tasks(loop):
            task.print_stack(file=file)
        file.seek(0)
        return file.read()


class Pauses:
    """How long this process stood still while it was watched: the machine paused, or was given to others."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pauses", daemon=True)

    def _run(self) -> None:
        before = time.monotonic()
        while not self._stop.wait(0.05):
            now = time.monotonic()
            if now - before > 0.25:
                self.seconds += now - before
            before = now

    def __enter__(self) -> Pauses:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


class Writer:
    """Appends numbered records through the listener, one at a time, and notes what was acknowledged and how long it
    took."""

    def __init__(self, node: FaultyNode, topic: str, size: int = 200, pause: float = 0.002, name: str = "") -> None:
        self.acknowledged: dict[int, bytes] = {}
        self.errors: list[int] = []
        self.longest = 0.0
        self._node, self._topic, self._size, self._pause = node, topic, size, pause
        self._name = name or topic
        self._stop = threading.Event()
        self._client = Client(node)
        self._thread = threading.Thread(target=self._run, name=f"writer-{topic}", daemon=True)

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            value = b"%s-%06d-" % (self._name.encode(), number) + b"y" * self._size
            began = time.monotonic()
            try:
                row = self._produce(build_batch([value]))
            except (OSError, ConnectionError):
                return
            self.longest = max(self.longest, time.monotonic() - began)
            if row.error:
                self.errors.append(row.error)
            else:
                self.acknowledged[row.base_offset] = value
            number += 1
            self._stop.wait(self._pause if not row.error else 0.05)

    def _produce(self, records: bytes) -> Row:
        data = {"index": 0, "records": records}
        topic = {"name": self._topic, "partition_data": [data]}
        self._client.send(0, 10, {"acks": 1, "timeout": timedelta(seconds=3), "topic_data": [topic]})
        return self._client.receive_produce()[1]

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(15)
        self._client.close()
        assert not self._thread.is_alive(), "a produce request was never answered"


@contextlib.contextmanager
def undisturbed(node: FaultyNode, bound: float = 3.0) -> Iterator[Writer]:
    """While the block runs, a partition on the good disk takes every record, each within `bound` seconds."""
    with Pauses() as pauses, Writer(node, "other") as writer:
        yield writer
    assert writer.errors == [], writer.errors
    assert writer.acknowledged
    took = writer.longest - pauses.seconds
    assert took < bound, f"a produce to another disk took {took:.2f} s, and {pauses.seconds:.2f} s all stood still"


def lost(node: FaultyNode, acknowledged: Mapping[int, bytes], topic: str = "t") -> list[int]:
    """Offsets that were acknowledged with another value than is stored, or are gone."""
    stored = node.stored(topic)
    return [offset for offset, value in acknowledged.items() if value not in stored.get(offset, b"")]
