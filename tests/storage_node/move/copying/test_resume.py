"""A copy that is gone on with after a stop or a crash checks no more of itself than it must."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from storage_node import failpoints
from storage_node.directories import checkpoints
from storage_node.log.batches.batch import headers
from storage_node.log.config import LogConfig
from storage_node.move.copying import copier
from storage_node.move.future import FLUSHED, FutureLog
from tests.storage_node.move.harness import TP, SmallNode, batch, eventually, values

CONFIG = LogConfig(segment_bytes=50_000, file_delete_delay_ms=0)


def half_copied(root: Path) -> tuple[SmallNode, int]:
    """A node with a copy that has a good part of its source; answers the claim too."""
    node = SmallNode(root, config=CONFIG)
    node.add()
    node.fill(600)
    status = node.engine.create(TP, node.path("b"), owner="run", throttle=2_000_000)

    def enough() -> bool:
        return node.engine.statuses()[0].bytes_copied > 200_000

    # The copier itself sees to it that it gets no further, however late it is paused.
    with failpoints.active({"copy.after_chunk": lambda: enough() and node.engine.set_node_rate(1)}):
        node.engine.start_copy(TP, status.claim, 2_000_000)
        eventually(enough)
        node.engine.pause_copy(TP, status.claim)
    node.engine.set_node_rate(None)
    return node, status.claim


def copy_of(node: SmallNode) -> FutureLog:
    eventually(lambda: node.partitions[TP].future is not None)
    future = node.partitions[TP].future
    assert isinstance(future, FutureLog)
    return future


@pytest.mark.feature("113-21")
def test_after_a_clean_stop_nothing_is_checked_again(tmp_path: Path) -> None:
    node, claim = half_copied(tmp_path)
    size = copy_of(node).size
    node.engine.close(clean=True)
    node.close()
    again = SmallNode(tmp_path, config=CONFIG)
    future = copy_of(again)
    assert size > 200_000 and future.log.recovered_bytes < 10_000
    again.finish(claim)
    assert len(values(again.partitions[TP].log)) == 600
    assert not (tmp_path / "b" / "t-0" / FLUSHED).exists()
    again.close()


def test_after_a_crash_only_what_was_not_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copier, "NOTE_INTERVAL", 60_000)
    node, claim = half_copied(tmp_path)
    size = copy_of(node).size
    node.close()
    again = SmallNode(tmp_path, config=CONFIG)
    future = copy_of(again)
    assert 0 < future.log.recovered_bytes < size - 50_000
    again.finish(claim)
    assert len(values(again.partitions[TP].log)) == 600
    again.close()


def test_copy_that_waits_after_a_start_is_as_long_as_it_was(tmp_path: Path) -> None:
    node, _ = half_copied(tmp_path)
    size = copy_of(node).size
    node.engine.stop_moves()
    node.close()
    again = SmallNode(tmp_path, config=CONFIG)
    (status,) = again.engine.statuses()
    assert (status.bytes_copied, status.bytes_resumed) == (size, 0), "nothing was checked yet"
    assert status.bytes_total > size
    again.close()


def test_without_a_note_and_with_a_bad_one_all_is_checked(tmp_path: Path) -> None:
    node, claim = half_copied(tmp_path)
    size = copy_of(node).size
    node.engine.close(clean=True)
    node.close()
    (tmp_path / "b" / "t-0.move" / FLUSHED).write_bytes(b"\xff not a checkpoint")
    again = SmallNode(tmp_path, config=CONFIG)
    assert copy_of(again).log.recovered_bytes >= size
    again.finish(claim)
    assert len(values(again.partitions[TP].log)) == 600
    again.close()


def test_copy_that_is_cut_is_noted_as_cut_before_it_grows(tmp_path: Path) -> None:
    node, claim = half_copied(tmp_path)
    future, partition = copy_of(node), node.partitions[TP]
    future.flush()
    future.note_flushed()
    note = tmp_path / "b" / "t-0.move" / FLUSHED
    assert checkpoints.decode(note.read_bytes()) == {TP: future.log_end_offset}
    partition.truncate_to(30)
    future.apply_deferred()  # as the copier does before it writes
    assert checkpoints.decode(note.read_bytes()) == {TP: 30}
    for number in range(100):
        partition.append(batch(b"other %d" % number * 100))
    partition.delete_records(80)
    future.apply_deferred()
    assert checkpoints.decode(note.read_bytes()) == {TP: 80}
    node.finish(claim)
    assert partition.directory is node.dir("b") and partition.log.log_start_offset == 80
    node.close()


@pytest.mark.conformance(51)
@pytest.mark.parametrize("left", [0, 1])
@pytest.mark.parametrize("gaps", [False, True], ids=["whole source", "source with gaps"])
def test_segment_that_a_power_loss_took_from_the_copy_is_copied_again(tmp_path: Path, left: int, gaps: bool) -> None:
    """Segments are flushed in no order while they are copied: a later one may be there, and an earlier one not."""
    node, claim = half_copied(tmp_path)
    node.close()
    move = tmp_path / "b" / "t-0.move"
    middle = sorted(move.glob("*.log"))[2]
    first = next(header.length for _, header in headers(middle.read_bytes()))
    os.truncate(middle, left * first)
    (move / FLUSHED).unlink(missing_ok=True)
    if gaps:
        sparse = sorted((tmp_path / "a" / "t-0").glob("*.log"))[1]
        whole = sparse.read_bytes()
        sizes = [header.length for _, header in headers(whole)]
        # Without its second batch, as after a compaction elsewhere; in the copy, too.
        for file in (sparse, move / sparse.name):
            file.write_bytes(whole[: sizes[0]] + whole[sizes[0] + sizes[1] :])
            for index in (file.with_suffix(".index"), file.with_suffix(".timeindex")):
                index.unlink(missing_ok=True)
    again = SmallNode(tmp_path, config=CONFIG)
    again.finish(claim)
    assert len(values(again.partitions[TP].log)) == 600 - gaps
    again.close()
