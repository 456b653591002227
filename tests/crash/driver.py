"""The lives of a node that is crashed: each act starts the real node on its directories, asks something of it while a
producer is at work, and ends without a clean stop unless it says so. Runs in a process of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import itertools
import json
import logging
import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from storage_node import failpoints
from storage_node.errors import RequestRefused, StorageError
from storage_node.groups.offsets import Offset
from storage_node.groups.room import Commit
from storage_node.model.error_codes import ErrorCode
from tests.crash.disks import Switch
from tests.crash.subject import TOPIC, Subject, wait_for_file
from tests.support.nodes.node_harness import until

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.crash.driver", "tests.crash.verify"])

PARTITIONS = 2
BATCHES = 40  # per partition, in what every act but the first finds
READY = "ready"  # a file in the ledger's folder: from now on the node is at work
BEGUN, GO, THREADS = "begun", "go", "threads"
PASSED = "passed"  # the failpoints that were passed, a line each
CUT = "cut"  # there once the power went at a failpoint

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Cut:
    """A power cut at the `after`-th pass of a failpoint; `dies`: the node goes with its disks."""

    point: str
    after: int
    mount_points: tuple[Path, ...]
    dies: bool


@dataclass(frozen=True, slots=True)
class Life:
    """One life: the directories, the ledger's folder, what is asked, and how it is to be observed or to end.

    `points` arms failpoints as REHOME_FAILPOINTS does. `trace`: "*" lets the process wait for its tracer before it
    begins; a thread's name and number among those of its name ("mover-0", 0) lets that thread wait. `cut`: at this
    pass of this failpoint the power of the disks mounted at these points goes, and, if all are named, the node with
    them. `note`: the failpoints that are passed are written down.
    """

    paths: Sequence[str]
    folder: Path
    act: str
    points: str = ""
    trace: tuple[str, int] | None = None
    seed: int = 0
    cut: Cut | None = None
    note: bool = False


def start(life: Life) -> BaseProcess:
    """Begin a life in a process of its own."""
    for name in (READY, BEGUN, GO, THREADS, PASSED, CUT):
        (life.folder / name).unlink(missing_ok=True)
    life.folder.mkdir(parents=True, exist_ok=True)
    process = PROCESSES.Process(target=live, args=(life,))
    process.start()
    return process


def die_with_parent() -> None:
    """A life whose test was killed is not to go on for ever."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def live(life: Life) -> None:
    """The process of a life."""
    die_with_parent()
    logging.disable(logging.CRITICAL)
    if life.points:
        failpoints.configure({"REHOME_FAILPOINTS": life.points})
    _announce(life)
    with _cutting(life), _noting(life):
        ACTS[life.act](life)
        os._exit(0)  # without a word to the disk beyond what the act said


@contextlib.contextmanager
def _cutting(life: Life) -> Iterator[None]:
    cut = life.cut
    if cut is None:
        yield
        return
    switch = Switch(cut.mount_points)
    passes = itertools.count(1)

    def act() -> None:
        if next(passes) == cut.after:
            switch.cut()
            (life.folder / CUT).touch()
            if cut.dies:
                os.kill(os.getpid(), signal.SIGKILL)

    with failpoints.active({cut.point: act}):
        yield


@contextlib.contextmanager
def _noting(life: Life) -> Iterator[None]:
    if not life.note:
        yield
        return
    fd = os.open(life.folder / PASSED, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    seen: set[str] = set()

    def passed(name: str) -> None:
        if name not in seen:
            seen.add(name)
            os.write(fd, f"{name}\n".encode())

    with failpoints.active({name: functools.partial(passed, name) for name in failpoints.registered()}):
        yield


# Threads that wait for their tracer


def _announce(life: Life) -> None:
    """Let the thread that is to be traced say who it is, and wait for its tracer; note every thread's name."""
    if life.trace is None:
        return
    seen: dict[str, int] = {}
    lock = threading.Lock()
    original = threading.Thread.run
    log = os.open(life.folder / THREADS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def introduce(name: str) -> None:
        with lock:
            number = seen[name] = seen.get(name, -1) + 1
        tid = threading.get_native_id()
        if life.trace is not None and life.trace[0] == "*":
            os.write(log, f"{json.dumps([tid, name, number])}\n".encode())
        if life.trace == (name, number) or (name == "main" and life.trace is not None and life.trace[0] == "*"):
            waiting = life.folder / f"{BEGUN}.new"
            waiting.write_text(str(tid))
            waiting.rename(life.folder / BEGUN)
            wait_for_file(life.folder / GO)

    def run(self: threading.Thread) -> None:
        introduce(self.name)
        original(self)

    threading.Thread.run = run  # type: ignore[method-assign]
    introduce("main")


# Acts


@contextlib.contextmanager
def _node(life: Life, produce: bool = True) -> Iterator[Subject]:
    subject = Subject(life.paths, life.folder)
    subject.start()
    subject.settle()
    with subject.producing(PARTITIONS, seed=life.seed) if produce else contextlib.nullcontext():
        (life.folder / READY).touch()
        yield subject


def fresh(life: Life) -> None:
    """Format the directories, create the topic, load it: what every other act finds."""
    with _node(life, produce=False) as node:
        if TOPIC not in node.controller.image.topics:
            node.create_topic(TOPIC, PARTITIONS)
        for number in range(BATCHES):
            for partition in range(PARTITIONS):
                assert node.append(partition, b"%d-%d-" % (partition, number) + b"x" * 1000)
        node.flush(0)
    # A flush of one partition only: the other's records are acknowledged and no more.


def move(life: Life) -> None:
    """A partition is moved; the old replica is deleted."""
    with _node(life) as node:
        planned = node.alter(node.elsewhere()[0])
        assert planned is not None and node.run(planned) == "swapped"
        node.clear()


def shorten(life: Life) -> None:
    """Records are deleted up to the middle of a segment's first batch, and what is left is moved."""
    with _node(life) as node:
        replica = node.replica()
        assert replica is not None
        with replica.lock:
            replica.log.roll()
            start = replica.log.log_end_offset
            assert node.append(0, b"two of them", count=2)
        node.shorten(0, start + 1)
        replica.delete_old_segments(0)
        planned = node.alter(node.elsewhere()[0])
        assert planned is not None and node.run(planned) == "swapped"
        node.clear()


def cancel(life: Life) -> None:
    """A move is cancelled while it is copied: the replica's own directory is asked for."""
    with _node(life) as node:
        node.begin(node.elsewhere()[0])
        assert node.alter(node.here()) is None
        node.clear()


def retarget(life: Life) -> None:
    """A move gets another target while it is copied."""
    with _node(life) as node:
        first, second = node.elsewhere()
        node.begin(first)
        planned = node.alter(second)
        assert planned is not None and node.run(planned) == "swapped"
        node.clear()


def delete(life: Life) -> None:
    """The topic is deleted while a partition is moved, and made again."""
    with _node(life) as node:
        node.begin(node.elsewhere()[0])
        node.delete_topic(TOPIC)
        until(lambda: node.replica() is None)
        node.create_topic(TOPIC, PARTITIONS)
        for number in range(5):
            assert node.append(0, b"again-%d" % number)
        node.clear()


def finish(life: Life) -> None:
    """Go on with whatever the start found, to its end."""
    with _node(life) as node:
        node.finish()
        node.clear()


def stop(life: Life) -> None:
    """All moves are stopped and let go on; then the node is stopped cleanly and started again."""
    with _node(life) as node:
        planned = node.begin(node.elsewhere()[0])
        node.node.engine.stop_moves()
        node.node.engine.resume_moves()
        assert node.run(planned) == "swapped"
        node.clear()
    node.restart(clean=True)


def undo(life: Life) -> None:
    """The target fails when the copy has got its final name: the source is taken back."""
    with _node(life) as node:
        planned = node.alter(node.elsewhere()[0])
        assert planned is not None
        with failpoints.active({"swap.after_target_renamed": "raise"}):
            node.run(planned)
        until(lambda: node.append(0, b"after the undo"))


def full(life: Life) -> None:
    """The same, and from then on no file can be replaced for want of room: the source's marker is changed in place."""
    with _node(life) as node:
        planned = node.alter(node.elsewhere()[0])
        assert planned is not None
        no_room: list[bool] = []

        def target_fails() -> None:
            no_room.append(True)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        def replace_file() -> None:
            if no_room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with failpoints.active({"swap.after_target_renamed": target_fails, "atomic.written": replace_file}):
            node.run(planned)
        until(lambda: node.append(0, b"after the undo"))


def commit(life: Life) -> None:
    """Consumers commit offsets."""
    with _node(life) as node:
        groups = node.node.groups
        until(lambda: groups.loaded)
        for offset in range(3):
            one = Offset(offset, -1, "", 0, node.controller.image.topics[TOPIC].id)
            kept = Commit.of("group", groups.data.get("group"), [(TOPIC, 0, one)])
            assert node.call(groups.commit("group", kept)) is ErrorCode.NONE


def doubt(life: Life) -> None:
    """The disks are asked whether they are well, as after an error that may be one file's own."""
    with _node(life) as node:
        for directory in node.node.directories():
            assert not directory.check("a file was not where it should be")


def storm(life: Life) -> None:
    """Whatever comes, one after the other, until the end comes from outside. Repeatable from the seed but for time."""
    chance = random.Random(life.seed)
    with _node(life) as node:
        while True:
            try:
                _some(node, chance)
            except (RequestRefused, StorageError, AssertionError):
                time.sleep(0.01)  # a disk went before the other: what is left goes on


def _some(node: Subject, chance: random.Random) -> None:
    """One thing that may be asked of a node."""
    partition = chance.randrange(PARTITIONS)
    replica = node.replica(partition)
    if replica is None:
        raise RequestRefused("offline")
    first, second = chance.sample(node.elsewhere(partition), 2)
    what = chance.choices(["move", "cancel", "retarget", "delete", "shorten"], [8, 3, 2, 1, 1])[0]
    if what == "delete":
        node.delete_topic(TOPIC)
        node.create_topic(TOPIC, PARTITIONS)
        for number in range(BATCHES):
            node.append(chance.randrange(PARTITIONS), b"new-%d-" % number + b"x" * 1000)
        return
    planned = node.alter(first, partition)
    if planned is None:
        return
    if what == "shorten":
        log = replica.log
        node.shorten(partition, chance.randint(log.log_start_offset, log.log_end_offset))
    elif what != "move":
        node.node.engine.start_copy(planned.partition, planned.claim)
        node.node.engine.wait(planned.partition, planned.claim, chance.random() * 0.05)
        planned = node.alter(second if what == "retarget" else node.here(partition), partition)
    if planned is not None:
        node.run(planned)


ACTS: dict[str, Callable[[Life], None]] = {
    act.__name__: act
    for act in (fresh, move, shorten, cancel, retarget, delete, finish, stop, undo, full, commit, doubt, storm)
}
