"""What a thread that a failed disk keeps for ever must not keep: slots, locks, deletions, the node's stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_node.errors import LogDirectoryOffline, RequestTimedOut, StorageError
from storage_node.log.batch import build_batch
from storage_node.move.status import MoveState
from storage_node.types import TopicPartition
from tests.support.io_faults import Faults
from tests.support.node_harness import Harness, running, until
from tests.support.wire import Client

TP = TopicPartition("t", 1)
#: One mover, and nobody but the test takes a directory offline.
EXTRA = {
    "num.replica.alter.log.dirs.threads": "1",
    "log.dir.health.check.interval.ms": "600000",
    "file.delete.delay.ms": "0",
}
#: More than the seconds for which a lock is waited for, less than the minute for which a disk hangs.
PROMPT = 15.0


@pytest.fixture
def node(tmp_path: Path, faults: Faults) -> Iterator[Harness]:
    """A node with a record in each of three partitions, one per directory; nobody but the test runs moves."""
    with running(tmp_path, extra=EXTRA) as harness:
        harness.controller.hold_moves = True
        harness.create_topic("t", 3)
        harness.settle()
        client = Client(harness)
        for partition in range(3):
            assert client.produce("t", partition, build_batch([b"x" * 1000])).error == 0
        client.close()
        yield harness
        faults.clear()


def places(node: Harness) -> tuple[str, str, str]:
    """Where the replica is, a target that will hang, and another one; the first directory never hangs."""
    here = node.directory_of("t", 1)
    bad = next(path for path in reversed(node.paths) if path != here)
    other = next(path for path in node.paths if path not in (here, bad))
    return here, bad, other


def stuck_copy(node: Harness, faults: Faults, bad: str) -> int:
    """A copier hangs in the target, which is offline; answers its claim."""
    engine = node.node.engine
    claim = engine.create(TP, bad, owner="me").claim
    rule = faults.hang("pwritev", f"{bad}/t-1.move/*.log")
    engine.start_copy(TP, claim)
    until(lambda: rule.hits >= 1)
    node.node.dirs.by_path(bad).fail("it hangs")
    return claim


def move(node: Harness, tp: TopicPartition, target: str) -> None:
    engine = node.node.engine
    claim = engine.create(tp, target, owner="me").claim
    engine.start_copy(tp, claim)
    assert engine.wait(tp, claim, PROMPT).state is MoveState.CAUGHT_UP
    until(lambda: engine.swap(tp, claim).outcome == "swapped")


def test_a_copier_that_a_failed_disk_keeps_gives_its_slot_to_others(node: Harness, faults: Faults) -> None:
    here, bad, other = places(node)
    stuck_copy(node, faults, bad)
    elsewhere = next(tp for tp in node.node.replicas.served if node.directory_of("t", tp.partition) == other)
    begun = time.monotonic()
    move(node, elsewhere, here)
    assert time.monotonic() - begun < PROMPT
    faults.clear()
    # The one that came back is gone, and nothing of it: one mover is left, which goes on working.
    until(lambda: sum(thread.name.startswith("mover-") for thread in threading.enumerate()) == 1)
    move(node, elsewhere, other)


def test_a_copier_that_comes_back_late_leaves_the_next_move_alone(node: Harness, faults: Faults) -> None:
    _here, bad, other = places(node)
    claim = stuck_copy(node, faults, bad)
    engine = node.node.engine
    engine.cancel(TP, claim)
    claim = engine.create(TP, other, owner="me").claim
    partition = node.node.partition(TP)
    assert partition is not None
    copy = partition.future
    assert copy is not None
    faults.clear()
    until(lambda: node.node.engine._movers._busy == {})
    assert partition.future is copy, "truncations must still reach the copy of the new move"
    engine.start_copy(TP, claim)
    assert engine.wait(TP, claim, PROMPT).state is MoveState.CAUGHT_UP
    until(lambda: engine.swap(TP, claim).outcome == "swapped")
    assert node.directory_of("t", 1) == other


@pytest.mark.parametrize("what", ["cancel", "new target", "swap", "delete", "claim"])
def test_nobody_waits_for_a_step_that_hangs_in_a_failed_disk(what: str, node: Harness, faults: Faults) -> None:
    here, bad, other = places(node)
    engine = node.node.engine
    claim = engine.create(TP, bad, owner="me").claim
    engine.start_copy(TP, claim)
    assert engine.wait(TP, claim, PROMPT).state is MoveState.CAUGHT_UP
    rule = faults.hang("rename", f"{bad}/t-1.move*")  # the seal's marker, written with the partition's lock held

    def swap() -> None:
        with pytest.raises(StorageError):
            engine.swap(TP, claim)

    swapping = threading.Thread(target=swap)
    swapping.start()
    until(lambda: rule.hits >= 1)
    node.node.dirs.by_path(bad).fail("it hangs")
    begun = time.monotonic()
    with pytest.raises((RequestTimedOut, LogDirectoryOffline)):
        match what:
            case "cancel":
                engine.cancel(TP, claim)
            case "new target":
                engine.create(TP, other, owner="me")
            case "swap":
                engine.swap(TP, claim)
            case "delete":
                engine.discard(TP)
            case "claim":
                engine.next_claim(TP)
    assert time.monotonic() - begun < PROMPT
    faults.clear()
    swapping.join(PROMPT)
    assert not swapping.is_alive()
    # The disk answered in the end, which makes no replica of what is on it.
    partition = node.node.partition(TP)
    assert partition is not None and partition.directory.name == here
    assert partition.append(build_batch([b"after"])).base_offset == 1 and partition.generation >= 2


def test_a_cancel_is_done_while_a_producer_hangs_in_the_source(node: Harness, faults: Faults) -> None:
    here, bad, _other = places(node)
    if here == node.paths[0]:
        pytest.skip("the metadata directory")
    engine = node.node.engine
    claim = engine.create(TP, bad, owner="me").claim
    rule = faults.hang("pwritev", f"{here}/t-1/*")
    stuck = Client(node)
    stuck.send_produce("t", 1, build_batch([b"x"]))  # holds the partition's lock
    until(lambda: rule.hits >= 1)
    node.node.dirs.by_path(here).fail("it hangs")
    begun = time.monotonic()
    ended = engine.cancel(TP, claim)
    assert time.monotonic() - begun < PROMPT
    assert ended is not None and ended.state is MoveState.CANCELLED
    until(lambda: not list(Path(bad).glob("t-1.*")), what="the copy goes from the good disk")
    faults.clear()
    stuck.close()


def test_a_removal_that_hangs_holds_up_no_other_disk(node: Harness, faults: Faults) -> None:
    here, bad, other = places(node)
    there = next(tp for tp in node.node.replicas.served if node.directory_of("t", tp.partition) == bad)
    rule = faults.hang("rmdir", f"{bad}/t-{there.partition}.*.delete")
    move(node, there, here)
    until(lambda: rule.hits >= 1)
    elsewhere = next(tp for tp in node.node.replicas.served if node.directory_of("t", tp.partition) == other)
    move(node, elsewhere, here)
    until(lambda: not list(Path(other).glob("*.delete")), PROMPT, "what was left on the good disk is removed")
    node.node.dirs.by_path(bad).fail("it hangs")
    begun = time.monotonic()
    assert node.node.engine.delete_now_if_due(there) > 0, "it is not gone yet"
    assert time.monotonic() - begun < PROMPT
    faults.clear()


def test_moves_are_stopped_although_a_disk_hangs_that_is_to_remember_it(node: Harness, faults: Faults) -> None:
    here, bad, other = places(node)
    engine = node.node.engine
    claim = engine.create(TP, other, owner="me", throttle=1).claim
    engine.start_copy(TP, claim, 1)
    until(lambda: (status := engine.status(TP)) is not None and status.state is not MoveState.QUEUED)
    faults.hang("open", f"{bad}/moves-stopped*")
    telling = threading.Thread(target=engine.stop_moves, daemon=True)
    telling.start()
    assert engine.wait(TP, claim, PROMPT).state is MoveState.STOPPED
    assert engine.moves_stopped
    faults.clear()
    telling.join(PROMPT)
    assert not telling.is_alive() and (Path(here) / "moves-stopped").exists()


def test_a_stop_waits_for_no_copier_and_notes_the_copies_of_good_disks(node: Harness, faults: Faults) -> None:
    here, bad, other = places(node)
    elsewhere = next(tp for tp in node.node.replicas.served if node.directory_of("t", tp.partition) == other)
    engine = node.node.engine
    claim = engine.create(elsewhere, here, owner="me").claim
    engine.start_copy(elsewhere, claim)
    assert engine.wait(elsewhere, claim, PROMPT).state is MoveState.CAUGHT_UP
    stuck_copy(node, faults, bad)
    begun = time.monotonic()
    engine.close(clean=True)
    assert time.monotonic() - begun < PROMPT
    noted = Path(here) / f"t-{elsewhere.partition}.move" / "recovery-point-offset-checkpoint"
    assert noted.read_text().split()[-1] == "1"
    faults.clear()
