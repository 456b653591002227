"""A copy is its source byte for byte, segment by segment, whatever pieces it was written in."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from storage_node import failpoints
from storage_node.log import blocks as log_blocks
from storage_node.log.batches.batch import build_batch
from storage_node.log.config import LogConfig
from storage_node.log.log import Log
from storage_node.move import throttle
from storage_node.move.copying import blocks
from storage_node.move.copying.copier import Copier, CorruptSource
from storage_node.move.future import FutureLog, open_copy
from storage_node.move.moving import OpenMove
from storage_node.move.throttle import RateLimiter
from storage_node.partitions.partition import Partition
from tests.storage_node.move.harness import TP, SmallNode, batch, values

CONFIG = LogConfig(segment_bytes=100_000, index_interval_bytes=2_000, file_delete_delay_ms=60_000)


class Inline(Executor):
    """Reads at once, and so ahead of what is written, without a thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


@pytest.fixture
def node(tmp_path: Path) -> Iterator[SmallNode]:
    made = SmallNode(tmp_path, config=CONFIG)
    made.add()
    yield made
    made.close()


def fill_variously(partition: Partition) -> None:
    """Segments of batches of all sizes, from two producers and none, under several epochs, times that go back."""
    sequences = {7: 0, 8: 0}
    for number in range(150):
        partition.leader_epoch = number // 40
        producer = (-1, 7, 8, 7)[number % 4]
        size = (50, 1_500, 9_000, 300, 20_000, 4_096)[number % 6]
        known = producer >= 0
        partition.append(
            build_batch(
                [os.urandom(size), b"second"],
                timestamp=1_700_000_000_000 + (number * 37) % 100 * 1000,
                producer_id=producer,
                producer_epoch=0 if known else -1,
                base_sequence=sequences[producer] if known else -1,
            )
        )
        if known:
            sequences[producer] += 2


def data_files(path: Path) -> dict[str, bytes]:
    suffixes = (".log", ".index", ".timeindex", ".snapshot")
    return {file.name: file.read_bytes() for file in path.iterdir() if file.suffix in suffixes}


@pytest.mark.parametrize("chunk", [97, 4_096, 30_000, 1 << 20])
@pytest.mark.parametrize("rate", [1 << 40, None])
def test_files_lookups_epochs_and_producers_are_those_of_the_source(
    node: SmallNode, monkeypatch: pytest.MonkeyPatch, chunk: int, rate: int | None
) -> None:
    monkeypatch.setattr(throttle, "MAX_CHUNK", chunk)
    monkeypatch.setattr(blocks, "HOT_TAIL", 0)
    monkeypatch.setattr(blocks, "WINDOW", 8_192)
    node.engine.set_node_rate(rate)
    partition = node.partitions[TP]
    fill_variously(partition)
    source = partition.log
    assert len(source.segments) > 5
    node.move("b")
    copy = partition.log
    assert copy is not source
    for log in (source, copy):
        log.settle()
    # The source's snapshots of segments' beginnings, and the one of its end.
    assert data_files(copy.path) == data_files(source.path)
    assert copy.leader_epochs == source.leader_epochs
    assert copy.producers.producers == source.producers.producers
    for offset in range(source.log_end_offset):
        assert copy.read(offset, 1) == source.read(offset, 1)
    for second in range(100):
        at = 1_700_000_000_000 + second * 1000
        assert copy.offset_for_timestamp(at) == source.offset_for_timestamp(at)


def stepping(node: SmallNode, reads: Executor | None = None) -> tuple[Copier, OpenMove]:
    """A copier that works when it is told to, and a move that is made and opened."""
    node.engine.create(TP, node.path("b"))
    (move,) = node.engine._registry.all()
    copier = Copier(RateLimiter(None), Inline(), lambda _: None, reads)
    opened = move.open(open_copy(move.path, move.partition.log, move.target.name))
    move.partition.future = opened.future
    return copier, opened


def end_of(path: Path, config: LogConfig) -> FutureLog:
    """What a start after a crash finds in the copy."""
    return FutureLog.open(path, TP, config, directory=str(path.parent))


def test_batch_that_is_not_whole_is_nowhere_to_be_seen_and_a_start_cuts_it_off(
    node: SmallNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throttle, "MAX_CHUNK", 1_000)
    partition = node.partitions[TP]
    for number in range(6):
        partition.append(batch(b"%d" % number * 5_300))
    copier, opened = stepping(node)
    torn = 0
    while copier.step(opened):
        future = opened.future
        assert values(future) == values(partition.log)[: future.log_end_offset]
        (file,) = opened.move.path.glob("*.log")
        if file.stat().st_size <= future.size:
            continue
        torn += 1
        crashed = tmp_path / f"crashed-{torn}"
        shutil.copytree(opened.move.path, crashed)
        found = end_of(crashed, CONFIG)
        assert (found.log_end_offset, found.size) == (future.log_end_offset, future.size)
        found.close(clean=False)
    assert torn > 20
    copier.leave(opened)
    assert values(opened.future) == values(partition.log)


def test_stopped_copy_ends_with_a_whole_batch_and_resumes_from_there(
    node: SmallNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throttle, "MAX_CHUNK", 1_000)
    partition = node.partitions[TP]
    for number in range(4):
        partition.append(batch(b"%d" % number * 5_300))
    copier, opened = stepping(node)
    (file,) = [*opened.move.path.glob("*.log")] or [opened.move.path / f"{0:020d}.log"]
    left = 0
    while copier.step(opened):
        if file.stat().st_size > opened.future.size and left < 7:
            left += 1
            copier.leave(opened)
            assert file.stat().st_size == opened.future.size
            for _ in range(left):
                copier.step(opened)
    copier.leave(opened)
    assert left == 7 and values(opened.future) == values(partition.log)
    assert file.read_bytes() == next(partition.log.path.glob("*.log")).read_bytes()


def test_what_was_read_before_a_truncation_is_not_written_after_it(
    node: SmallNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the copy does not reach so far yet, and the offsets go on as if nothing had happened."""
    monkeypatch.setattr(throttle, "MAX_CHUNK", 1_100)
    partition = node.partitions[TP]
    for _ in range(10):
        partition.append(batch(b"o" * 1_000))
    copier, opened = stepping(node, Inline())
    while opened.future.log_end_offset < 4:
        copier.step(opened)
    at = opened.future.log_end_offset
    partition.truncate_to(at)  # what lies behind has been read ahead
    partition.leader_epoch = 1
    for _ in range(10):
        partition.append(batch(b"n" * 1_000))
    while copier.step(opened):
        pass
    copier.leave(opened)
    assert values(opened.future) == values(partition.log)
    assert opened.future.leader_epochs == partition.log.leader_epochs


def test_truncation_in_the_middle_of_a_batch_that_is_being_read_is_no_damage(
    node: SmallNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throttle, "MAX_CHUNK", 2_000)
    partition = node.partitions[TP]
    for _ in range(5):
        partition.append(batch(b"o" * 5_000))
    copier, opened = stepping(node)
    copier.step(opened)  # less than half of the first batch
    source = partition.log
    # As a truncation looks before the copy has heard of it.
    source.truncate_to(0)
    for _ in range(5):
        partition.append(batch(b"n" * 5_000))
    while copier.step(opened):
        pass
    copier.leave(opened)
    assert values(opened.future) == values(source)


def test_damaged_batch_is_named_by_file_and_offset(node: SmallNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttle, "MAX_CHUNK", 3_000)
    partition = node.partitions[TP]
    for _ in range(40):
        partition.append(batch(b"o" * 5_000))
    log = partition.log
    assert len(log.segments) > 1
    damaged = log.segments[1]
    with (log.path / f"{damaged.base_offset:020d}.log").open("r+b") as file:
        file.seek(2 * 5_080 + 3_000)
        file.write(b"!")
    copier, opened = stepping(node)
    with pytest.raises(CorruptSource) as refused:
        while copier.step(opened):
            pass
    copier.leave(opened)
    offset = damaged.base_offset + 2
    assert f"{log.path / f'{damaged.base_offset:020d}.log'} at offset {offset}" in str(refused.value)
    assert opened.future.log_end_offset == offset


def test_full_disk_leaves_whole_batches(node: SmallNode, monkeypatch: pytest.MonkeyPatch) -> None:
    partition = node.partitions[TP]
    for _ in range(10):
        partition.append(batch(b"o" * 5_000))
    monkeypatch.setattr(throttle, "MAX_CHUNK", 3_000)
    copier, opened = stepping(node)
    for _ in range(5):
        copier.step(opened)
    end, size = opened.future.log_end_offset, opened.future.size
    genuine = log_blocks.write_all

    def full(fd: int, data: memoryview, position: int) -> None:
        genuine(fd, data[: len(data) // 2], position)
        raise blocks_no_room()

    with monkeypatch.context() as patched:
        patched.setattr(log_blocks, "write_all", full)
        with pytest.raises(Exception, match="no space left"):
            copier.step(opened)
    copier.leave(opened)
    (file,) = opened.move.path.glob("*.log")
    assert (opened.future.log_end_offset, opened.future.size, file.stat().st_size) == (end, size, size)
    while copier.step(opened):
        pass
    copier.leave(opened)
    assert values(opened.future) == values(partition.log)


def blocks_no_room() -> OSError:
    from storage_node.directories.atomic import NoRoom

    return NoRoom(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_chunks_of_all_movers_pass_the_failpoint(node: SmallNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttle, "MAX_CHUNK", 4_096)
    partition = node.partitions[TP]
    node.fill(50)
    passed: list[int] = []
    with failpoints.active({"copy.after_chunk": lambda: passed.append(1)}):
        node.move("b")
    assert len(passed) >= 10 and isinstance(partition.log, Log)
