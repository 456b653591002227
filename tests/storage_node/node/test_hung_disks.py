"""What a thread that a failed disk keeps for ever must not keep: slots, locks, deletions, the node's stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from storage_node.errors import LogDirectoryOffline, RequestTimedOut, StorageError
from storage_node.lifecycle.housekeeping import TICK
from storage_node.log.batches.batch import build_batch
from storage_node.log_hold import Hold, LogHeld
from storage_node.model.ids import TopicPartition
from storage_node.move.status import MoveState
from storage_node.partitions.partition import Partition
from storage_node.replicas import marker as markers
from tests.support.io_faults import Faults, Rule
from tests.support.nodes.node_harness import Harness, running, until
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


def test_copier_that_a_failed_disk_keeps_gives_its_slot_to_others(node: Harness, faults: Faults) -> None:
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


def test_copier_that_comes_back_late_leaves_the_next_move_alone(node: Harness, faults: Faults) -> None:
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
def test_no_caller_waits_for_a_step_that_hangs_in_a_failed_disk(what: str, node: Harness, faults: Faults) -> None:
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


def test_cancel_is_done_while_a_producer_hangs_in_the_source(node: Harness, faults: Faults) -> None:
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


def test_removal_that_hangs_holds_up_no_other_disk(node: Harness, faults: Faults) -> None:
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


def test_stop_waits_for_no_copier_and_notes_the_copies_of_good_disks(node: Harness, faults: Faults) -> None:
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


# A target that hangs while a swap holds the log

#: More producers than the source's directory has threads.
PRODUCERS = 6


def hang_in(step: str, node: Harness, faults: Faults, bad: str, monkeypatch: pytest.MonkeyPatch) -> Rule:
    """Let the swap hang in its target: at the last chunk, at the seal, at the copy's new name."""
    if step == "seal":
        return faults.hang("rename", f"{bad}/t-1.move/*")
    if step == "new name":
        return faults.hang("rename", f"{bad}/t-1.move")
    flush = step == "new name's flush"
    rule = Rule("fsync", bad, 0, hang=True) if flush else Rule("pwritev", f"{bad}/t-1.move/*.log", 0, hang=True)
    genuine = Partition.hold

    def hold(self: Partition, seconds: float) -> Hold | None:
        if not flush:
            self.append(build_batch([b"the last chunk"]))
        faults.rules.append(rule)  # not before: the target's checkpoints are flushed, too
        return genuine(self, seconds)

    monkeypatch.setattr(Partition, "hold", hold)
    return rule


def swapping(node: Harness, claim: int) -> threading.Thread:
    def swap() -> None:
        with pytest.raises(StorageError):
            node.node.engine.swap(TP, claim)

    thread = threading.Thread(target=swap, daemon=True)
    thread.start()
    return thread


def configure(node: Harness, configs: dict[str, str]) -> threading.Thread:
    """Let the controller change the topic's configs, in a thread: the node's answer is waited for."""
    topics = node.controller.image.topics
    change = {"topics": {**topics, "t": replace(topics["t"], configs=configs)}}
    thread = threading.Thread(target=lambda: node.controller.change(**change), daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("step", ["last chunk", "seal", "new name", "new name's flush"])
def test_swap_that_hangs_in_its_target_blocks_nothing_but_its_own_partition(
    step: str, tmp_path: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path, extra=EXTRA) as node:
        node.controller.hold_moves = True
        node.create_topic("t", 9)
        node.settle()
        here, bad, _ = places(node)
        neighbours = [number for number in range(9) if number != 1 and node.directory_of("t", number) == here]
        client = Client(node)
        for partition in (1, *neighbours):
            assert client.produce("t", partition, build_batch([b"before"])).error == 0
        engine, replica = node.node.engine, node.node.partition(TP)
        assert replica is not None and len(neighbours) == 2
        claim = engine.create(TP, bad, owner="me").claim
        engine.start_copy(TP, claim)
        assert engine.wait(TP, claim, PROMPT).state is MoveState.CAUGHT_UP
        rule = hang_in(step, node, faults, bad, monkeypatch)
        swap = swapping(node, claim)
        until(lambda: rule.hits >= 1)
        held = replica.log.log_end_offset
        patient = {"timeout": timedelta(seconds=60)}
        stuck = [Client(node) for _ in range(PRODUCERS)]
        for number, producer in enumerate(stuck):
            data = {"index": 1, "records": build_batch([b"%d" % number])}
            producer.send(0, 10, patient | {"acks": -1, "topic_data": [{"name": "t", "partition_data": [data]}]})
        deleter = Client(node)
        row = {"partition_index": 1, "offset": 1}
        deleter.send(21, 2, patient | {"topics": [{"name": "t", "partitions": [row]}]})

        # Nobody knows yet that the disk hangs.
        time.sleep(0.5)
        assert replica.log.log_end_offset == held
        for partition in neighbours:
            client.socket.settimeout(PROMPT)
            assert client.produce("t", partition, build_batch([b"meanwhile"])).error == 0
        configured = configure(node, {"retention.ms": "1000000"})
        configured.join(PROMPT)
        assert not configured.is_alive() and replica.log.config.retention_ms == 1_000_000
        with pytest.raises(LogHeld):
            replica.delete_old_segments(0)

        # The health check finds out; the swap is taken back.
        node.node.dirs.by_path(bad).fail("it hangs")
        answers = [producer.receive_produce()[1] for producer in stuck]
        assert [row.error for row in answers] == [0] * PRODUCERS
        assert sorted(row.base_offset for row in answers) == list(range(held, held + PRODUCERS))
        assert deleter.receive()[1].topics[0].partitions[0].error_code == 0
        assert replica.log.log_start_offset == 1 and replica.directory.name == here
        assert node.node.dirs.by_path(here).online and node.node.partition(TP) is replica
        # The sealed copy may come back with its disk, and must be the older one then.
        sealed = step != "last chunk"
        assert replica.generation == (2 if sealed else 0)
        on_disk = markers.read(replica.log.path)
        assert replica.log.path.name == "t-1" and on_disk is not None and on_disk.generation == replica.generation
        stored = replica.log.read(held, 1 << 20).data

        # What the disk answers in the end changes nothing any more, nor does its return.
        faults.clear()
        swap.join(PROMPT)
        assert not swap.is_alive()
        assert node.node.partition(TP) is replica and replica.directory.name == here
        assert client.produce("t", 1, build_batch([b"after"])).base_offset == held + PRODUCERS
        for open_client in (client, deleter, *stuck):
            open_client.close()
        node.restart(clean=False)
        again = node.node.partition(TP)
        assert again is not None and again.directory.name == here and again.generation >= replica.generation
        assert again.log.log_end_offset == held + PRODUCERS + 1
        assert again.log.read(held, len(stored)).data == stored


def test_call_that_hangs_alone_in_a_swap_takes_the_target_offline(tmp_path: Path, faults: Faults) -> None:
    hasty = {"log.dir.failure.timeout.ms": "2000", "log.dir.health.check.interval.ms": "100"}
    with running(tmp_path, extra=EXTRA | hasty) as node:
        node.controller.hold_moves = True
        node.create_topic("t", 3)
        node.settle()
        here, bad, _ = places(node)
        engine, replica = node.node.engine, node.node.partition(TP)
        assert replica is not None
        replica.append(build_batch([b"before"]))
        claim = engine.create(TP, bad, owner="me").claim
        engine.start_copy(TP, claim)
        assert engine.wait(TP, claim, PROMPT).state is MoveState.CAUGHT_UP
        rule = faults.hang("rename", f"{bad}/t-1.move/*")  # health checks are answered
        swap = swapping(node, claim)
        until(lambda: rule.hits >= 1)
        assert replica.append(build_batch([b"after"])).base_offset == 1
        assert "the swap of t-1 did not respond within 2 s" in str(node.node.dirs.by_path(bad).failure)
        assert node.node.dirs.by_path(here).online and replica.generation == 2
        faults.clear()
        swap.join(PROMPT)
        assert not swap.is_alive()


@pytest.mark.parametrize("what", ["truncate", "restart", "delete records"])
def test_changes_of_the_replica_do_not_wait_for_a_copy_that_hangs(what: str, node: Harness, faults: Faults) -> None:
    here, bad, _ = places(node)
    engine, replica = node.node.engine, node.node.partition(TP)
    assert replica is not None
    for _ in range(9):
        replica.append(build_batch([b"x" * 1000]))
    claim = engine.create(TP, bad, owner="me").claim
    rule = faults.hang("pwritev", f"{bad}/t-1.move/*.log")
    engine.start_copy(TP, claim)
    until(lambda: rule.hits >= 1)

    def change() -> None:
        match what:
            case "truncate":
                node.node.offset_files.truncate(replica, 5)
            case "restart":
                node.node.offset_files.restart_at(replica, 20)
            case "delete records":
                replica.delete_records(5)

    changing = threading.Thread(target=change, daemon=True)
    changing.start()
    changing.join(PROMPT)
    assert not changing.is_alive(), "it waits for the copy's disk"
    for number in range(3):
        replica.append(build_batch([b"new %d" % number]))
    faults.clear()
    assert engine.wait(TP, claim, PROMPT).state is MoveState.CAUGHT_UP
    until(lambda: engine.swap(TP, claim).outcome == "swapped")
    swapped = node.node.partition(TP)
    assert swapped is not None and swapped.directory.name == bad != here
    start, end = {"truncate": (0, 8), "restart": (20, 23), "delete records": (5, 13)}[what]
    assert (swapped.log.log_start_offset, swapped.log.log_end_offset) == (start, end)
    found = [bytes(value) for offset in range(end - 3, end) for value in [swapped.log.read(offset, 1).data]]
    assert [b"new %d" % number in value for number, value in enumerate(found)] == [True] * 3


def test_checkpoints_that_hang_take_no_thread_from_appends(tmp_path: Path, faults: Faults) -> None:
    every = {
        f"{name}.interval.ms": "100"
        for name in (
            "replica.high.watermark.checkpoint",
            "log.flush.offset.checkpoint",
            "log.flush.start.offset.checkpoint",
        )
    }
    with running(tmp_path, extra=EXTRA | every) as node:
        node.create_topic("t", 3)
        node.settle()
        here = node.directory_of("t", 1)
        client = Client(node)
        client.socket.settimeout(PROMPT)
        # The first append of a leader epoch writes a checkpoint of its own, in the replica's folder.
        assert client.produce("t", 1, build_batch([b"w"])).error == 0
        rule = faults.hang("fsync", f"{here}/*checkpoint*")
        until(lambda: rule.hits >= 1)
        time.sleep(2 * TICK)  # whatever else is due has begun to wait
        assert client.produce("t", 1, build_batch([b"x"])).error == 0
        client.close()
        faults.clear()
