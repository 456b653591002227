"""What the copy takes over of its source: start, end, epochs, producers; under truncation and retention too."""

from __future__ import annotations

import pytest

from storage_node import failpoints
from storage_node.log.batches.batch import build_batch
from storage_node.move.future import FutureLog
from tests.storage_node.move.harness import TP, Make, batch, eventually, values


@pytest.mark.conformance(58)
@pytest.mark.feature("113-19")
def test_what_shortens_the_replica_shortens_the_copy(make: Make) -> None:
    node = make(rate=300_000)
    partition = node.add()
    node.fill(1000)
    status = node.engine.create(TP, node.path("b"))
    node.engine.start_copy(TP, status.claim)
    eventually(lambda: node.engine.statuses()[0].bytes_copied > 100_000)
    assert partition.delete_records(50) == 50
    assert partition.future is not None and partition.future.log_start_offset == 50
    partition.delete_records(900)  # beyond what was copied
    partition.truncate_to(950)
    node.engine.set_node_rate(None)
    node.finish(status.claim)
    log = partition.log
    assert (log.log_start_offset, log.log_end_offset) == (900, 950)
    assert len(values(log)) == 50


@pytest.mark.conformance(62)
def test_log_that_starts_inside_a_batch(make: Make) -> None:
    node = make()
    partition = node.add()
    partition.append(batch(b"x", count=10))
    partition.append(batch(b"y", count=10))
    partition.delete_records(5)
    node.move("b")
    assert (partition.log.log_start_offset, partition.log.log_end_offset) == (5, 20)
    assert partition.log.read(5, 1 << 20).base_offset == 0


def test_producers_and_leader_epochs_move_with_the_data(make: Make) -> None:
    node = make()
    partition = node.add()
    produced = build_batch([b"a", b"b"], producer_id=7, producer_epoch=0, base_sequence=0)
    partition.leader_epoch = 3
    partition.append(produced)
    partition.log.assign_leader_epoch(5)  # elected, nothing written since
    partition.log.append_as_leader(batch(b"z"), 5)
    partition.log.assign_leader_epoch(9)
    node.move("b")
    assert partition.log.latest_epoch == 9
    again = partition.append(produced)
    assert again.duplicate and again.base_offset == 0


def test_empty_partition(make: Make) -> None:
    node = make()
    partition = node.add()
    node.move("b")
    assert partition.append(batch(b"x")).base_offset == 0


@pytest.mark.conformance(51)
def test_other_segments_than_the_source_are_no_matter(make: Make) -> None:
    node = make()
    partition = node.add()
    for _ in range(5):
        node.fill(10)
        partition.log.roll()
    before = values(partition.log)
    node.move("b")
    assert values(partition.log) == before


@pytest.mark.feature("113-19")
def test_truncation_between_reading_and_writing_a_chunk(make: Make) -> None:
    node = make()
    partition = node.add()
    node.fill(100)
    status = node.engine.create(TP, node.path("b"))

    def cut_and_write_anew() -> None:
        if partition.log.latest_epoch == 0:
            partition.truncate_to(40)
            partition.leader_epoch = 1
            node.fill(70)

    with failpoints.active({"copy.after_chunk": cut_and_write_anew}):
        node.engine.start_copy(TP, status.claim)
        node.engine.wait(TP, status.claim, 10)
    node.finish(status.claim)
    assert [h for h in partition.log.leader_epochs.entries] == [(0, 0), (1, 40)]
    assert len(values(partition.log)) == 110


@pytest.mark.parametrize("closed", [False, True])
def test_note_of_a_copy_whose_folder_was_removed_is_dropped_silently(
    make: Make, caplog: pytest.LogCaptureFixture, closed: bool
) -> None:
    """A topic is deleted, or a move cancelled, while the copy's recovery point is about to be written."""
    node = make(rate=300_000)
    partition = node.add()
    node.fill(1000)
    status = node.engine.create(TP, node.path("b"))
    node.engine.start_copy(TP, status.claim)
    eventually(lambda: node.engine.statuses()[0].bytes_copied > 100_000)
    copy = partition.future
    assert isinstance(copy, FutureLog)
    node.engine.cancel(TP, status.claim, "its topic is deleted")
    if closed:
        copy.close(clean=False)
    copy.noted(4711)
    copy.noted(4712)
    assert not caplog.records and not list(copy.path.parent.glob("*.move/*"))
