"""Apache Kafka's bugs where a flush, a rename and a removal of the same files meet."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from storage_node.log.batches.batch import build_batch
from storage_node.log.config import LogConfig
from storage_node.log.log import Log, LogClosed
from storage_node.model.moves import MoveState
from tests.storage_node.move.harness import TP, SmallNode, batch, eventually, values
from tests.support.nodes.leading import lead

Make = Callable[..., SmallNode]

CONFIG = LogConfig(segment_bytes=5_000, file_delete_delay_ms=0)


@contextmanager
def hammering(*works: Callable[[], object]) -> Iterator[list[BaseException]]:
    """Each work is done again and again in a thread of its own; what they raise is collected."""
    stop, problems = threading.Event(), []  # type: ignore[var-annotated]

    def run(work: Callable[[], object]) -> None:
        while not stop.is_set():
            try:
                work()
                stop.wait(0.002)
            except LogClosed:
                continue  # told that the log is another one now: the next round takes that
            except BaseException as error:
                problems.append(error)
                return

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield problems
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_flushes_during_moves_and_deletions_hurt_no_directory(make: Make) -> None:
    # KAFKA-15391, KAFKA-15572, KAFKA-17727, KAFKA-19571, KAFKA-6624: NoSuchFile took a healthy directory offline.
    node = make(config=CONFIG)
    partition = node.add()
    node.fill(30)

    def flush_copy() -> None:
        copy = partition.future
        if copy is not None:
            copy.flush()
            copy.log.flush_closed_segments()

    works = (
        lambda: partition.tidy(10**15),
        lambda: partition.flush_if_due(10**15),
        lambda: partition.log.flush(),
        flush_copy,
    )
    with hammering(*works) as problems:
        for number in range(8):
            node.fill(3)
            node.move("ba"[number % 2])
    assert problems == []
    assert node.dir("a").online and node.dir("b").online
    assert len(values(partition.log)) == 30 + 8 * 3
    # Swallowed or not: what was flushed under the old name is flushed under the new one.
    partition.log.flush()
    assert partition.log.recovery_point == partition.log.log_end_offset
    with hammering(*works[:2]) as problems:
        partition.delete()
        node.engine.discard(TP)
        eventually(lambda: node.listing() == {"a": [], "b": []})
    assert problems == [] and node.dir("a").online and node.dir("b").online


def test_many_deleters_of_one_copy(make: Make) -> None:
    # KAFKA-13403: the recursive deletion met retention's, and the broker went down.
    node = make(config=CONFIG)
    partition = node.add()
    for _ in range(3):
        node.fill(20)
        where = "b" if partition.directory is node.dir("a") else "a"
        old = partition.log
        works = [lambda: node.engine.delete_now_if_due(TP)] * 3
        with hammering(*works, lambda old=old: old.purge_deleted(10**15)) as problems:  # type: ignore[misc]
            partition.log.delete_old_segments(0)
            node.move(where)
            eventually(lambda: node.engine.delete_now_if_due(TP) == 0.0)
        assert problems == []
    assert node.dir("a").online and node.dir("b").online
    assert sorted(name for names in node.listing().values() for name in names) == ["t-0"]


def test_files_removed_late_are_never_newer_ones_of_the_same_name(tmp_path: Path) -> None:
    # KAFKA-12964: the deletion that was scheduled before a truncation took the new segment.
    log = Log.open(tmp_path / "t-0", TP, CONFIG, directory=str(tmp_path))
    for _ in range(3):
        for number in range(10):
            log.append_as_leader(build_batch([b"%d" % number + b"x" * 1000]), 0)
        log.truncate_fully(0)
    for number in range(10):
        log.append_as_leader(build_batch([b"last %d" % number]), 0)
    log.truncate_to(5)
    log.append_as_leader(build_batch([b"in place of the fifth"]), 0)
    assert log.purge_deleted(10**15) > 0
    log.flush()
    log.close()
    again = Log.open(tmp_path / "t-0", TP, CONFIG, directory=str(tmp_path), recovery_point=0)
    assert again.log_end_offset == 6 and len(values(again)) == 6
    assert not list((tmp_path / "t-0").glob("*.deleted"))
    again.close()


def test_segments_that_went_from_the_copy_just_before_the_swap(make: Make) -> None:
    # KAFKA-16424: the removal was scheduled under the copy's old path and failed after the rename.
    node = make(config=LogConfig(segment_bytes=5_000, file_delete_delay_ms=50))
    partition = node.add()
    node.fill(60)
    claim = node.engine.create(TP, node.path("b"), owner="run").claim
    node.engine.start_copy(TP, claim)
    assert node.engine.wait(TP, claim, 10).state is MoveState.CAUGHT_UP
    partition.delete_records(30)
    assert partition.delete_old_segments(0) > 0
    partition.truncate_to(50)
    copy = partition.future
    assert copy is not None
    copy.apply_deferred()
    assert copy.log.delete_old_segments(0) >= 0
    assert list(copy.path.glob("*.deleted"))
    node.finish(claim)
    assert partition.log is copy.log
    partition.tidy(10**15)
    assert not list(partition.log.path.glob("*.deleted")) and node.dir("b").online
    assert partition.append(batch(b"x")).base_offset == 50
    assert (partition.log.log_start_offset, partition.log.log_end_offset) == (30, 51)


@pytest.mark.conformance(10, 60)
def test_retention_continues_however_a_move_ends(make: Make) -> None:
    # KAFKA-16709, KAFKA-15082, KAFKA-16114, KAFKA-14824: paused for the move, and never let go again.
    node = make(config=LogConfig(segment_bytes=5_000, file_delete_delay_ms=0, retention_bytes=10_000), names="abc")
    partition = node.add()

    def retained() -> None:
        node.fill(40)
        assert partition.delete_old_segments(10**13) > 0
        assert partition.log.size < 20_000

    retained()
    node.move("b")
    retained()
    claim = node.engine.create(TP, node.path("a"), owner="run").claim
    retained()  # while it is under way, for both copies
    assert partition.future is not None and partition.future.log_start_offset == partition.log.log_start_offset
    lead(partition, 7, True)
    retained()
    node.engine.cancel(TP, claim)
    retained()
    claim = node.engine.create(TP, node.path("c"), owner="run").claim
    node.dir("c").fail("the disk died")
    status = node.engine.status(TP)
    assert status is not None and status.state is MoveState.FAILED
    retained()
