"""The node that is crashed: all of the storage node, with a controller whose metadata survives the node's death."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from storage_node.directories.formatting import format_directories
from storage_node.errors import RequestRefused, StorageError
from storage_node.log.batches.batch import build_batch, headers
from storage_node.model.commands import NewTopic
from storage_node.model.error_codes import ErrorCode
from storage_node.model.ids import TopicPartition
from storage_node.model.image import ClusterImage, decode_whole
from storage_node.move.copying import flusher
from storage_node.move.status import MoveStatus
from storage_node.node import Node
from storage_node.partitions.partition import Partition
from storage_node.ports import PlannedMove
from tests.crash.ledger import IMAGE, Key, Ledger
from tests.support.nodes.local_controller import LocalController
from tests.support.nodes.node_harness import CLUSTER_ID, Harness, make_config, until

TOPIC = "t"
ROUNDS = 10  # of a producer, in the shortest life
CLEAR = 45.0  # seconds; a busy disk takes many for a dozen flushes
CONFIGS = {"segment.bytes": "12000"}
SETTINGS = {
    "file.delete.delay.ms": "0",
    # One thread where there might be several, so that what a thread does in one run it does in the next.
    "num.io.threads.per.data.dir": "1",
    "num.recovery.threads.per.data.dir": "1",
    "num.replica.alter.log.dirs.threads": "1",
    # A copy takes some chunks and a tenth of a second.
    "replica.alter.log.dirs.io.max.bytes.per.second": "1000000",
}


def directories(root: Path, count: int = 3) -> list[str]:
    """The log directories below a root, as the subject has them."""
    return [str(root / f"d{index}") for index in range(count)]


class KeptController(LocalController):
    """Its image is in a file outside the node's directories before any node hears of it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(CLUSTER_ID)
        self.hold_moves = True  # what drives a move here does so step by step
        self._file = folder / IMAGE
        if self._file.exists():
            self.image = decode_whole(self._file.read_text())

    def _change(self, change: Callable[[ClusterImage], ClusterImage]) -> int:
        def kept(image: ClusterImage) -> ClusterImage:
            changed = change(image)
            text = replace(changed, version=image.version + 1).encode()
            fresh = self._file.with_suffix(".new")
            fresh.write_text(text)
            fresh.rename(self._file)
            return changed

        return super()._change(kept)


class Subject(Harness):
    """One life of the node on `paths`; what it promises goes into the ledger in `folder`."""

    def __init__(self, paths: Sequence[str], folder: Path, settings: Mapping[str, str] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.paths = list(paths)
        self.extra = {**SETTINGS, **(settings or {})}
        self.node_id = 1
        self.ledger = Ledger(folder)
        self.controller = KeptController(folder)
        flusher.INTERVAL = 16 << 10  # many flushes on the way of a small copy
        format_directories(self.paths, cluster_id=CLUSTER_ID, node_id=1)
        self.node: Node = self._new(0)

    def _new(self, port: int) -> Node:
        return Node(make_config(self.paths, self.node_id, port, self.extra), self.controller)

    # What it is asked to do

    def call(self, asked: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the listener's loop."""
        loop = self.node.listener.loop
        assert loop is not None
        return asyncio.run_coroutine_threadsafe(asked, loop).result(20)

    def create_topic(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        wanted = NewTopic(name, partitions, configs=dict(configs or CONFIGS))
        asyncio.run(self.controller.create_topics([wanted], validate_only=False, timeout=10))
        self.settle()

    def delete_topic(self, name: str) -> None:
        self.ledger.gone(self.controller.image.topics[name].id)
        asyncio.run(self.controller.delete_topics([name], timeout=10))

    def replica(self, partition: int = 0, topic: str = TOPIC) -> Partition | None:
        return self.node.partition(TopicPartition(topic, partition))

    def here(self, partition: int = 0) -> str:
        """Where a replica is."""
        found = self.replica(partition)
        assert found is not None
        return found.directory.name

    def elsewhere(self, partition: int = 0) -> list[str]:
        """Where it is not, the next directory first."""
        at = self.paths.index(self.here(partition))
        return [*self.paths[at + 1 :], *self.paths[:at]]

    def alter(self, target: str, partition: int = 0) -> PlannedMove | None:
        """AlterReplicaLogDirs as a client asks for it; answers the move it made, None when it made none."""
        tp = TopicPartition(TOPIC, partition)
        before = len(self.controller.planned)
        codes = self.call(self.node.log_dirs.alter({tp: target}))
        if codes[tp] != ErrorCode.NONE:
            raise RequestRefused(f"{tp} to {target}: {codes[tp].name}", codes[tp])
        return self.controller.planned[-1] if len(self.controller.planned) > before else None

    def run(self, move: PlannedMove) -> str:
        """Drive a move to its end, as its run does; answers how it ended."""
        return self.controller.run_move(self.node, move)

    def begin(self, target: str, partition: int = 0, bytes_copied: int = 1) -> PlannedMove:
        """Ask for a move and let it copy that much at least."""
        move = self.alter(target, partition)
        assert move is not None
        self.node.engine.start_copy(move.partition, move.claim)
        until(lambda: self._copied(move.partition) >= bytes_copied)
        return move

    def _copied(self, tp: TopicPartition) -> int:
        status = self.node.engine.status(tp)
        return status.bytes_copied if status is not None else 0

    def finish(self) -> None:
        """Bring the moves to their end that this start found; a stop of all moves that it remembers is undone."""
        self.node.engine.resume_moves()
        for status in self.node.engine.statuses():
            outcome = self.run(planned(status))
            assert outcome == "swapped", f"the move of {status.tp} to {status.directory} ends {outcome}"

    def leftovers(self) -> list[Path]:
        """What of moves and deletions is left on the disks."""
        names = [entry for path in self.paths for entry in Path(path).iterdir()]
        return [path for path in names if path.name.endswith((".move", ".delete"))]

    def clear(self) -> None:
        """Wait until nothing of moves and deletions is left."""
        with contextlib.suppress(AssertionError):
            until(lambda: not self.leftovers(), CLEAR)
        left = {f"{path.parent.name}/{path.name}": sorted(e.name for e in path.iterdir()) for path in self.leftovers()}
        engine = self.node.engine
        offline = {each.name: each.failure for each in self.node.dirs.directories if not each.online}
        state = f"moves: {engine.statuses()}; deletions: {engine._deletions.pending()}; offline: {offline}"
        assert not left, f"left over: {left}; {state}"

    # What it promises

    def append(self, partition: int, value: bytes, topic: str = TOPIC, count: int = 1) -> bool:
        """Produce one batch of `count` records; False when the replica cannot take it now."""
        found = self.replica(partition, topic)
        if found is None:
            return False
        batch = build_batch([value] * count)
        crc = next(headers(batch))[1].crc
        try:
            offset = found.append(batch).base_offset
        except (RequestRefused, StorageError) as error:
            if isinstance(error, StorageError):
                self.node.storage_failed(error)
            return False
        self.ledger.acknowledged((found.topic_id, partition), offset, crc)
        return True

    def shorten(self, partition: int, offset: int) -> None:
        """DeleteRecords: nothing below the offset is wanted any more."""
        found = self.replica(partition)
        if found is not None:
            self.ledger.shortened((found.topic_id, partition), offset)
            found.delete_records(offset)

    def flush(self, partition: int, topic: str = TOPIC) -> None:
        """Flush a replica as the node does, and note how far it says to be flushed."""
        found = self.replica(partition, topic)
        if found is not None:
            try:
                found.log.flush()
            except StorageError as error:
                self.node.storage_failed(error)
            except RequestRefused:
                pass  # swapped or deleted in the meantime
            self.note_flushed(found, partition)

    def note_flushed(self, found: Partition, partition: int) -> None:
        """Note up to where the replica in use is flushed."""
        key: Key = (found.topic_id, partition)
        with found.lock:
            point = found.log.recovery_point
        self.ledger.flushed(key, point)

    @contextlib.contextmanager
    def producing(self, partitions: int = 2, pause: float = 0.004, size: int = 600, seed: int = 0) -> Iterator[None]:
        """Produce to all partitions while the block runs, a few rounds at least, and flush now and then."""
        stop = threading.Event()
        chance = random.Random(seed)
        filler = b"x" * size

        def produce() -> None:
            number = 0
            while number < ROUNDS or not stop.is_set():
                for partition in range(partitions):
                    self.append(partition, b"%d-%d-" % (partition, number) + filler)
                number += 1
                if chance.random() < 0.3:
                    self.flush(chance.randrange(partitions))
                for partition in range(partitions):
                    found = self.replica(partition)
                    if found is not None:
                        self.note_flushed(found, partition)
                stop.wait(pause)

        thread = threading.Thread(target=produce, name="producer")
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def planned(status: MoveStatus) -> PlannedMove:
    """A move that was found, as the run that goes on with it knows it."""
    return PlannedMove(status.tp, status.source, status.directory, status.claim, status.generation, status.bytes_total)


def wait_for_file(path: Path, seconds: float = 30.0) -> None:
    """Poll for a file that another process leaves as a sign."""
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"no {path.name} within {seconds} s"
        time.sleep(0.001)
