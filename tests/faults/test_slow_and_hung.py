"""Disks that are slow, that hang, and that come back: whatever touches them ends, the others are not touched."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from storage_node.errors import RequestRefused
from storage_node.log.batches.batch import build_batch
from storage_node.log.files import Home
from storage_node.model.error_codes import ErrorCode
from storage_node.move.status import MoveState
from tests.faults.disk import CHANGES, needs_fuse
from tests.faults.node import HANGS, PATIENCE, TP, FaultyNode, Writer, lost, undisturbed
from tests.faults.test_errors_by_step import STEPS, go_on, reach
from tests.support.nodes.node_harness import until
from tests.support.scale import FULL, tally

pytestmark = [pytest.mark.fuse, needs_fuse]

Start = Callable[..., FaultyNode]

#: After this many seconds nothing may wait for a disk that hangs: its patience, two looks at the clock, our own load.
DEADLINE = PATIENCE + 18.0


@pytest.mark.parametrize("where", ["source", "target"])
def test_move_over_a_disk_that_answers_late(start: Start, where: str) -> None:
    node = start(**{"replica.move.swap.deadline.ms": "5000"})
    node.fill()
    disk = node.source_disk if where == "source" else node.target_disk
    with undisturbed(node) as other, Writer(node, "t", pause=0.02) as writer:
        disk.rules({"ops": CHANGES, "delay": 0.01})
        assert node.alter(TP, node.paths[2]) is ErrorCode.NONE
        assert node.ended(30).state is MoveState.SWAPPED
        disk.heal()
    assert writer.errors == [] and writer.longest < 20
    assert node.source.online and node.target.online
    assert lost(node, writer.acknowledged) == [] and len(other.acknowledged) > 20


@pytest.mark.parametrize("where", ["source", "target"] if FULL else ["target"])
def test_move_over_a_disk_of_5_mb_per_second(start: Start, where: str) -> None:
    node = start(**{"log.segment.bytes": "1048576"})
    node.fill(80, 100_000)
    disk, op = (node.source_disk, "read") if where == "source" else (node.target_disk, "write")
    with undisturbed(node), Writer(node, "t") as writer:
        disk.rules({"ops": [op], "path": r"\.log$", "rate": 5e6})
        began = time.monotonic()
        assert node.alter(TP, node.paths[2]) is ErrorCode.NONE
        until(lambda: (s := node.status()) is not None and 0 < s.bytes_copied < s.bytes_total, what="half-way")
        assert node.ended(30).state is MoveState.SWAPPED
        took = time.monotonic() - began
        disk.heal()
    assert 1.5 < took < 60
    assert writer.errors == [] and lost(node, writer.acknowledged) == []


CASES = [(step, where) for step in STEPS for where in ("source", "target")]
CHOSEN = CASES if FULL else [("create", "target"), ("cancel", "source")]


@pytest.mark.parametrize(("step", "where"), CHOSEN)
def test_disk_hangs_at_a_step(start: Start, step: str, where: str) -> None:
    node = start(**HANGS)
    node.fill()
    disk, directory = (node.source_disk, node.source) if where == "source" else (node.target_disk, node.target)
    with undisturbed(node), Writer(node, "t") as writer:
        until(lambda: len(writer.acknowledged) > 5)
        reach(node, step)
        disk.rules({"hang": True})
        began = time.monotonic()
        goes_on = threading.Thread(target=go_on, args=(node, step))
        goes_on.start()
        until(lambda: not directory.online, DEADLINE, f"{directory} goes offline")
        goes_on.join(30)
        assert not goes_on.is_alive(), "a request or a move never ended"
        status = node.status()
        if status is not None and status.state is not MoveState.SWAPPED:
            assert status.state in (MoveState.FAILED, MoveState.CANCELLED), status
            assert status.state is MoveState.CANCELLED or directory.name in status.message
        described = node.describe()
        assert described[directory.name].error is ErrorCode.KAFKA_STORAGE_ERROR
        assert described[node.good.name].error is ErrorCode.NONE
        assert time.monotonic() - began < 60
    began = time.monotonic()
    node.stop(clean=True)
    assert time.monotonic() - began < 60, "a node stops whatever hangs"
    with tally("faults injected through FUSE") as counted:
        counted.count += 1
    disk.heal()
    node.begin_again()
    assert lost(node, writer.acknowledged) == []
    assert node.replica.append(build_batch([b"after"])).base_offset >= 60


@pytest.mark.parametrize("where", ["source", "target"])
def test_disk_that_hangs_for_a_moment_is_waited_for(start: Start, where: str) -> None:
    node = start()
    node.fill(300)
    disk = node.source_disk if where == "source" else node.target_disk
    with undisturbed(node), Writer(node, "t") as writer:
        node.node.engine.set_node_rate(400_000)
        assert node.alter(TP, node.paths[2]) is ErrorCode.NONE
        until(lambda: (s := node.status()) is not None and s.bytes_copied > 0)
        disk.rules({"hang": True})
        until(lambda: disk.hanging > 0)
        known = len(writer.acknowledged)
        time.sleep(0.5)
        disk.heal()
        node.node.engine.set_node_rate(None)
        assert node.ended(20).state is MoveState.SWAPPED
        until(lambda: len(writer.acknowledged) > known)
    assert node.source.online and node.target.online
    assert lost(node, writer.acknowledged) == []


def test_what_a_disk_gives_back_after_it_was_given_up_changes_nothing(start: Start) -> None:
    node = start(**HANGS)
    node.fill()
    with undisturbed(node), Writer(node, "t") as writer:
        reach(node, "copy")
        node.target_disk.rules({"hang": True})
        goes_on = threading.Thread(target=go_on, args=(node, "copy"))
        goes_on.start()
        until(lambda: not node.target.online, DEADLINE)
        goes_on.join(30)
        node.target_disk.heal()
        until(lambda: node.target_disk.hanging == 0)
        known = len(writer.acknowledged)
        until(lambda: len(writer.acknowledged) > known + 20)
        assert not node.target.online, "only a start believes it again"
        assert node.alter(TP, node.paths[2]) is ErrorCode.KAFKA_STORAGE_ERROR
        status = node.status()
        assert status is not None and status.state is MoveState.FAILED and status.error == "LogDirOffline"
    assert writer.errors == []
    node.again()
    assert lost(node, writer.acknowledged) == []


@pytest.mark.parametrize("where", ["source", "target"] if FULL else ["source"])
def test_disk_that_hangs_for_a_minute_is_given_up_and_comes_back_without_a_restart(start: Start, where: str) -> None:
    node = start()
    acknowledged = dict(enumerate(node.fill()))
    node.replica.log.flush()
    disk, directory = (node.source_disk, node.source) if where == "source" else (node.target_disk, node.target)
    with undisturbed(node), Writer(node, "t") as writer:
        until(lambda: len(writer.acknowledged) > 5)
        reach(node, "copy")
        disk.rules({"hang": True})
        began = time.monotonic()
        goes_on = threading.Thread(target=node.run)
        goes_on.start()
        until(lambda: not directory.online, 30.0 + DEADLINE, f"{directory} goes offline")
        goes_on.join(30)
        assert not goes_on.is_alive(), "a request never ended"
        status = node.ended()
        assert status.state is MoveState.FAILED and status.error == "LogDirOffline"
        with pytest.raises(RequestRefused, match=f"{directory.name} is not online: "):
            node.node.directory_changes.bring_online(directory.name)
        time.sleep(max(0.0, began + 60 - time.monotonic()))
        disk.heal()
        until(lambda: disk.hanging == 0)
        assert node.node.directory_changes.bring_online(directory.name)["replicas"] == (where == "source")
        known = len(writer.acknowledged)
        until(lambda: len(writer.acknowledged) > known + 20)
        node.run()  # as the run that adopts the copy
        assert node.ended().state is MoveState.SWAPPED
    assert lost(node, acknowledged | writer.acknowledged) == []
    node.again()
    assert lost(node, acknowledged | writer.acknowledged) == []


def test_nothing_waits_for_a_file_of_a_hung_disk_that_is_dropped(start: Start) -> None:
    node = start()
    node.fill()
    reach(node, "swap")
    held = [Home(str(node.target.path / "t-0.move")).open("00000000000000000000.log")]
    with undisturbed(node) as other:
        node.target_disk.rules({"hang": True})
        dropped = threading.Thread(target=held.clear, daemon=True)  # as the event loop or the garbage collector would
        dropped.start()
        dropped.join(10)
        assert not dropped.is_alive(), "it waits for the close"
        until(lambda: node.target_disk.hanging > 0, what="the file is closed apart")
        served_on(node, [other], "other disks are served")
        node.target_disk.heal()


#: More producers of the moving partition than its directory has threads for appends.
PRODUCERS = 6
NEIGHBOURS = ("near-1", "near-2")
#: The call in which the target hangs, by what the move does there.
HUNG_CALLS: dict[str, dict[str, Any]] = {
    "copy": {"ops": ["write"], "path": r"/t-0\.move/.*\.log$"},
    "flush": {"ops": ["fsync", "fdatasync"], "path": r"/t-0\.move/.*\.log$"},
    "marker": {"ops": ["rename"], "path": r"/t-0\.move/"},
    "new name": {"ops": ["rename"], "path": r"/t-0\.move$"},
    "everything": {},
}


@pytest.mark.parametrize("call", HUNG_CALLS)
def test_producers_on_the_source_disk_are_served_while_the_target_hangs(start: Start, call: str) -> None:
    node = start()  # only the test takes the target offline
    for topic in NEIGHBOURS:
        node.place(topic, node.paths[1])
    node.fill()
    moving = [Writer(node, "t", name=f"t-{number}") for number in range(PRODUCERS)]
    near = {topic: Writer(node, topic) for topic in NEIGHBOURS}
    with ExitStack() as writing:
        writing.enter_context(undisturbed(node))
        for writer in (*moving, *near.values()):
            writing.enter_context(writer)
        until(lambda: all(len(writer.acknowledged) > 5 for writer in (*moving, *near.values())))
        reach(node, "copy" if call == "copy" else "swap")
        node.target_disk.rules(HUNG_CALLS[call] | {"hang": True})
        goes_on = threading.Thread(target=go_on, args=(node, "swap"))
        goes_on.start()
        until(lambda: node.target_disk.hanging > 0, what="the move hangs in its target")

        served_on(node, list(near.values()), "partitions on the source disk are served")
        assert node.target.online and node.target_disk.hanging > 0

        node.target.fail("it hangs")
        served_on(node, [*moving, *near.values()], "all partitions on the source disk are served")
        goes_on.join(30)
        assert not goes_on.is_alive(), "a move never ended"
        status = node.status()
        assert status is not None and status.state is MoveState.FAILED and status.error == "LogDirOffline"
        assert node.source.online and node.replica.directory is node.source
    # The timeout of each produce request may end before the swap is taken back.
    assert {error for writer in moving for error in writer.errors} <= {ErrorCode.REQUEST_TIMED_OUT}
    assert [writer.errors for writer in near.values()] == [[], []]
    acknowledged = {offset: value for writer in moving for offset, value in writer.acknowledged.items()}
    assert len(acknowledged) == sum(len(writer.acknowledged) for writer in moving), "an offset was given twice"
    with tally("faults injected through FUSE") as counted:
        counted.count += 1
    node.again()
    assert lost(node, acknowledged) == []
    assert [lost(node, writer.acknowledged, topic) for topic, writer in near.items()] == [[], []]


def served_on(node: FaultyNode, writers: list[Writer], what: str) -> None:
    """Wait until each writer has twenty more records acknowledged; a failure says what every thread waits for."""
    known = [len(writer.acknowledged) for writer in writers]
    with node.stacks_on(AssertionError):
        until(lambda: all(len(w.acknowledged) > old + 20 for w, old in zip(writers, known, strict=True)), 20, what)
