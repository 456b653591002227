"""What a copy through the page cache leaves in memory, and how much of it may wait for a flush."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_node.log.files import Handle
from storage_node.log.segment import LOG, file_name
from storage_node.move import blocks
from storage_node.move.flusher import INTERVAL, MOST, waiting
from tests.storage_node.move.harness import TP, SmallNode, batch, values
from tests.support.needs import reason

WINDOW = 256 << 10


@pytest.fixture
def node(tmp_path: Path) -> Iterator[SmallNode]:
    made = SmallNode(tmp_path)
    made.add()
    yield made
    made.close()


def in_memory(path: Path, windows: int) -> list[bool]:
    """Of the middle of each window, whether it is in the page cache."""
    file = Handle(os.open(path, os.O_RDONLY))
    os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_RANDOM)
    return [blocks._in_memory(file, number * WINDOW + WINDOW // 2) for number in range(windows)]


def evict(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.fdatasync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


@pytest.mark.parametrize("rate", [1 << 40, None])
def test_what_was_in_memory_stays_there_and_what_the_copy_brought_does_not(
    node: SmallNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rate: int | None
) -> None:
    node.engine.set_node_rate(rate)
    monkeypatch.setattr(blocks, "WINDOW", WINDOW)
    monkeypatch.setattr("storage_node.move.stream.WINDOW", WINDOW)
    monkeypatch.setattr(blocks, "_LOOK_AHEAD", 8)  # the system reads ahead more than all of this file
    monkeypatch.setattr(blocks, "HOT_TAIL", 0)
    monkeypatch.setattr("storage_node.move.stream.HOT_TAIL", 0)
    partition = node.partitions[TP]
    for number in range(64):
        partition.append(batch(b"%02d" % number * 32_000))
    before = values(partition.log)
    first = partition.log.segments[0]
    count = first.size // WINDOW
    assert count >= 3
    path = partition.log.path / file_name(first.base_offset, LOG)
    evict(path)
    if any(in_memory(path, count)):
        pytest.skip(reason("a disk below TMPDIR", "this file system keeps all of its files in memory"))
    evict(path)
    with path.open("rb", buffering=0) as consumer:
        os.posix_fadvise(consumer.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        os.pread(consumer.fileno(), WINDOW, WINDOW)  # the second window
    kept = tmp_path / "kept"
    os.link(path, kept)
    node.move("b")
    assert values(partition.log) == before
    assert in_memory(kept, count) == [number == 1 for number in range(count)]


def test_what_may_wait_for_a_flush_is_what_the_disk_takes_in_a_moment() -> None:
    assert waiting(32 << 20, 10.0) == INTERVAL  # a slow disk: no backlog for a seal or a cancel to wait for
    assert INTERVAL < waiting(32 << 20, 0.1) < MOST
    assert waiting(32 << 20, 0.0) == MOST
