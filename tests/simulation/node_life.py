"""A storage node on simulated disks: what can be done with it and to it, and what must hold then.

The node is production's (`crash.node.QuietNode`: start, images, moves, deletions, logs); one thread, one sequence of
operations on the disks. Between them disks fail and heal, are full or not there, and the node is killed, or loses
power, at any operation on a disk. `look` is what must always hold.
"""

from __future__ import annotations

import errno
import itertools
import logging
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import ClassVar
from unittest.mock import patch

from storage_node.directories import clean_shutdown, probing
from storage_node.directories.errors import StartRefused
from storage_node.directories.formatting import format_directories
from storage_node.errors import RequestRefused, StorageError
from storage_node.model.moves import MoveState
from storage_node.move.engine import MoveEngine
from storage_node.move.status import MoveStatus
from storage_node.partitions.partition import Partition
from tests.simulation.crash.node import CLUSTER, TP, Controller, QuietNode, config_for, threadless
from tests.simulation.disks import ALL, BLOCK_BYTES, FLUSHES, READS, WRITES, Crash, Disk
from tests.simulation.machine import Machine
from tests.simulation.patching import simulated
from tests.simulation.promises import Promises, read_all

DISKS = ("a", "b", "c")
CHUNK = 260
"""Bytes a copier takes at once: a few batches."""

FAULTS = {
    "dead": (errno.EIO, ALL, None, False),
    "read-only": (errno.EROFS, WRITES, None, False),
    "one error": (errno.EIO, ALL, 1, False),
    "one read error": (errno.EIO, READS, 1, False),
    "one flush fails": (errno.EIO, FLUSHES, 1, False),
    "one flush loses": (errno.EIO, FLUSHES, 1, True),
    "one flush has no space": (errno.ENOSPC, FLUSHES, 1, True),
    "no space once": (errno.ENOSPC, WRITES - FLUSHES, 1, False),
}


class NodeLife:
    """See the module. `counts` says how much of what was done, over all runs."""

    counts: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        self.stack = ExitStack()
        self.controller = Controller()
        self.node: QuietNode | None = None
        self.promises: Promises | None = None
        self.numbers = itertools.count(1)
        self.topics = itertools.count(1)
        self.claims = [0]
        self.hurt = False
        """A disk did not do what it was asked since the node was started."""
        self.away: set[str] = set()
        self.death: tuple[bool, list[int]] = (False, [])
        self.depth = 0
        self.halted = False
        self.clock_ms = 1_000_000

    def begin(self, follow: bool = True) -> None:
        """Make the machine, start a node on it, and create the topic."""
        logging.disable(logging.CRITICAL)
        self.stack.callback(logging.disable, logging.NOTSET)
        self.machine = Machine(*DISKS, names_follow=follow)
        self.stack.enter_context(simulated(self.machine))
        self.stack.enter_context(threadless())
        for name, value in (
            ("throttle.MAX_CHUNK", CHUNK),
            ("throttle.MIN_CHUNK", CHUNK),
            ("copying.flusher.INTERVAL", 600),
        ):
            self.stack.enter_context(patch(f"storage_node.move.{name}", value))
        for name in ("start", "join"):
            self.stack.enter_context(patch.object(threading.Thread, name, lambda *_: None))
        ids = itertools.count(1)
        drawn = "storage_node.directories.meta.properties.random_directory_id"
        self.stack.enter_context(patch(drawn, lambda: f"{next(ids):021d}A"))
        paths = [self.machine.path(name) for name in DISKS]
        format_directories(paths, cluster_id=CLUSTER, node_id=1)
        self.config = config_for(paths)
        self.boot()
        self.create_topic()

    # Helpers

    @property
    def partition(self) -> Partition | None:
        """The replica of the topic, while it can be used."""
        partition = self.node.served if self.node is not None else None
        if partition is None or partition.offline or self.promises is None:
            return None
        return partition if partition.topic_id == self.promises.topic_id else None

    @property
    def running(self) -> QuietNode:
        """The node, which must be running."""
        assert self.node is not None
        return self.node

    @property
    def engine(self) -> MoveEngine:
        """Its mover."""
        return self.running.engine

    def move(self) -> MoveStatus | None:
        """The move that is on disk."""
        status = self.node.engine.status(TP) if self.node is not None else None
        over = (MoveState.SWAPPED, MoveState.CANCELLED, MoveState.IN_PLACE)
        return status if status is not None and status.state not in over and status.directory else None

    @contextmanager
    def doing(self) -> Iterator[None]:
        """Around whatever the node does: errors become what production makes of them, and a crash is one."""
        self.depth += 1
        try:
            try:
                yield
            except StorageError as error:
                self.hurt = True
                if self.node is not None:
                    self.node.storage_failed(error)
            except RequestRefused:
                pass
            if self.depth == 1:
                self.background()
            if self.machine.crashed:
                raise Crash  # somebody swallowed it
        except Crash:
            if self.depth > 1:
                raise
            self.die(*self.death)
        finally:
            self.depth -= 1

    def background(self) -> None:
        """What waits for the node's other threads."""
        while self.node is not None and not self.node.failures._work.empty():
            work = self.node.failures._work.get()
            if work is not None:
                work()
        if self.halted:
            raise Crash

    def halt(self, sentence: str) -> None:
        """The node cannot go on, and its process ends."""
        self.halted = True

    def die(self, power: bool, choose: list[int]) -> None:
        """The machine stops now."""
        self.counts["power losses" if power else "kills"] += 1
        if self.node is not None:
            self.clock_ms = self.node.clock_ms
        self.node = None
        self.halted = False
        lost = [disk.evict() for disk in self.machine.disks.values()]
        if power:
            stream = itertools.chain(choose, itertools.repeat(0))
            self.machine.power_loss(lambda n: next(stream) % n)
        else:
            self.machine.kill()
        if self.promises is not None:
            self.promises.crash(power or any(lost))

    def trouble(self) -> bool:
        """Whether a disk is not as it should be."""
        return bool(self.away) or any(
            disk.capacity is not None or any(fault.times != 0 for fault in disk.faults)
            for disk in self.machine.disks.values()
        )

    # Life

    def boot(self) -> None:
        """Start the node."""
        self.hurt = self.trouble()
        node = QuietNode(self.config)
        node.clock_ms = self.clock_ms
        node.halt = self.halt
        with self.doing():
            try:
                node.start()
            except StartRefused as refused:
                assert self.hurt, f"the node does not start on good disks: {refused}"
                return
            self.node = node
            self.counts["starts"] += 1

    def stop(self) -> None:
        """A clean stop."""
        node = self.node
        assert node is not None
        with self.doing():
            node.stop()
            if not self.hurt:
                marked = [clean_shutdown.FILE in disk.state.root.entries for disk in self.machine.disks.values()]
                assert all(marked), "a node on good disks was not stopped cleanly"
                self.counts["clean stops"] += 1
            self.die(False, [])

    def end_life(self, how: str, choose: list[int], then: str) -> None:
        """A stop, a kill or a loss of power; then perhaps the next start, of mended disks or not."""
        if how == "stop" and self.node is not None:
            self.stop()
        else:
            self.die(how == "power loss", choose)
        if then == "mend and boot":
            self.mend_all()
        if then != "wait" and self.node is None:
            self.boot()

    def crash_soon(self, steps: int, power: bool, choose: list[int]) -> None:
        """Let the machine stop at one of the next operations on a disk."""
        self.machine.crash_at(steps)
        self.death = (power, choose)

    # Disks

    def fail(self, disk: str, what: str, after: int) -> None:
        """Let a disk fail after so many operations; see FAULTS."""
        error, ops, times, drop = FAULTS[what]
        self.machine.disks[disk].fail(error, ops, times=times, drop=drop, after=after)
        self.hurt = True

    def fill(self, disk: str, room: int) -> None:
        """Leave so many blocks of room."""
        found = self.machine.disks[disk]
        found.capacity = found.used + room * BLOCK_BYTES
        self.hurt = True

    def mend_all(self) -> None:
        """Every disk is there and good again; what went offline stays so until the next start."""
        for disk in self.machine.disks.values():
            self.mend(disk)

    def mend(self, disk: Disk) -> None:
        disk.heal()
        disk.capacity = None
        if disk.name in self.away:
            self.away.remove(disk.name)
            disk.mount()

    def unmount(self, disk: str) -> None:
        """The disk is not there when the node starts next."""
        if disk not in self.away:
            self.away.add(disk)
            self.machine.disks[disk].unmount()

    def look_at_health(self) -> None:
        """The regular health check."""
        node = self.node
        assert node is not None
        for directory in node.dirs.online():
            with self.doing():
                directory.verify()
                try:
                    probing.probe(directory.path)
                except StorageError as error:
                    directory.fail_on(error)

    # The controller

    def tell(self) -> None:
        """The node tells where its replicas are, and hears the newest image."""
        node = self.node
        assert node is not None
        with self.doing():
            node.tell(self.controller)

    def create_topic(self) -> None:
        """A topic of the one name, with an id of its own."""
        topic_id = f"{next(self.topics):021d}A"
        self.controller.create_topic(topic_id)
        self.promises = Promises(topic_id)
        self.claims = [0]
        self.tell()

    # What must hold

    def look(self) -> None:
        """What must hold at any time."""
        if self.node is None:
            return
        self.check_copies()
        with self.doing():
            self.check_records()

    def check_records(self) -> None:
        node, partition, promises = self.node, self.partition, self.promises
        assert node is not None
        if partition is None or promises is None:
            topic = node.metadata.image.topics.get(TP.topic)
            if promises is not None and promises.ever and topic is not None and topic.id == promises.topic_id:
                assert self.hurt, f"all disks are good and the replica is not served: {node.replicas.offline}"
            return
        try:
            start, end, found = read_all(partition.log)
        except StorageError:
            assert self.hurt, "reading failed on good disks"
            raise
        promises.check(start, end, found)
        promises.noted_flushed(partition.log.recovery_point)
        assert partition.high_watermark == end

    def check_copies(self) -> None:
        """One replica under the plain name, whatever the node knows of it."""
        assert self.node is not None
        there = [
            directory.path.name
            for directory in self.node.dirs.online()
            if self.topic_at(self.machine.disks[directory.path.name], str(TP)) == self.current_topic()
        ]
        assert len(there) <= 1 or not self.current_topic(), f"two current copies, in {there}"

    def current_topic(self) -> str:
        return self.promises.topic_id if self.promises is not None else ""

    def topic_at(self, disk: Disk, name: str) -> str | None:
        """The topic id in a replica's folder."""
        folder = disk.state.root.entries.get(name)
        file = folder.entries.get("partition.metadata") if folder is not None else None
        if file is None:
            return None
        return bytes(file.content).decode().partition("topic_id: ")[2].strip()

    # The end: all disks are good again, and everything comes to its end

    def close(self) -> None:
        """The real disks and the real time again."""
        self.stack.close()

    def end(self) -> None:
        self.machine.crash_at(None)
        self.die(False, [])
        self.mend_all()
        self.boot()
        self.look()
        served = self.node.served if self.node is not None else None
        once = (self.plain_tree(), served and (served.directory.name, served.generation, read_all(served.log)))
        self.die(False, [])
        self.boot()
        self.look()
        served = self.node.served if self.node is not None else None
        twice = (self.plain_tree(), served and (served.directory.name, served.generation, read_all(served.log)))
        assert once == twice, f"another start changes something: {once} {twice}"
        self.tell()
        self.look()
        self.finish()

    def plain_tree(self) -> dict[str, frozenset[str]]:
        """Folders, and of replicas the segments with their sizes."""
        trees = {name: disk.tree() for name, disk in self.machine.disks.items()}
        return {
            name: frozenset(
                f"{path} {'' if data is None else len(data)}"
                for path, data in tree.items()
                if data is None or path.endswith((".log", "partition.move"))
            )
            for name, tree in trees.items()
        }

    def finish(self) -> None:
        """What is being moved can be copied to its end and swapped, and nothing is left over then."""
        assert self.node is not None
        engine = self.node.engine
        if engine.moves_stopped:
            engine.resume_moves()
        if self.move() is not None:
            for _ in range(3):
                status = self.move()
                if status is not None:
                    engine.start_copy(TP, status.claim)
                    self.node.copy()
                    status = engine.wait(TP, status.claim, 0)
                    assert status.state is MoveState.CAUGHT_UP, status
                    engine.swap(TP, status.claim, status.generation)
            assert self.move() is None, self.move()
            self.look()
            self.tell()
        self.node.delete_what_is_due()
        self.look()
        left = {
            f"{name}/{entry}"
            for name, disk in self.machine.disks.items()
            for entry, inode in disk.state.root.entries.items()
            if inode.is_dir
        }
        partition = self.partition
        want = {f"{partition.directory.path.name}/{TP}"} if partition is not None else set()
        assert left == want, f"left on the disks: {left}, wanted {want}"
        assert (partition is not None) == (self.promises is not None), self.node.replicas.offline
