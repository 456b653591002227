"""What a copy through the page cache leaves in memory, and how much of it may wait for a flush."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_node.log.files import Handle
from storage_node.log.segment import LOG, file_name
from storage_node.move.copying import blocks
from storage_node.move.copying.flusher import INTERVAL, MOST, waiting
from tests.storage_node.move.harness import TP, SmallNode, batch, values
from tests.support.needs import reason

WINDOW = 256 << 10
PAGES = 64 << 10


@pytest.fixture
def node(tmp_path: Path) -> Iterator[SmallNode]:
    made = SmallNode(tmp_path)
    made.add()
    yield made
    made.close()


class GivenBack:
    """Records which windows of a file are given back to the system, whatever the page cache holds."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.windows: list[int] = []
        self._inode = path.stat().st_ino
        self._really = os.posix_fadvise
        monkeypatch.setattr(os, "posix_fadvise", self._advise)

    def _advise(self, fd: int, offset: int, length: int, advice: int) -> None:
        if advice == os.POSIX_FADV_DONTNEED and os.fstat(fd).st_ino == self._inode:
            assert offset % WINDOW == 0 and length == WINDOW
            self.windows.append(offset // WINDOW)
        self._really(fd, offset, length, advice)


@pytest.mark.parametrize("rate", [1 << 40, None])
def test_copy_gives_back_what_it_brought_into_memory_and_nothing_else(
    node: SmallNode, monkeypatch: pytest.MonkeyPatch, rate: int | None
) -> None:
    node.engine.set_node_rate(rate)
    monkeypatch.setattr(blocks, "WINDOW", WINDOW)
    monkeypatch.setattr("storage_node.move.copying.stream.WINDOW", WINDOW)
    monkeypatch.setattr(blocks, "HOT_TAIL", 0)
    monkeypatch.setattr("storage_node.move.copying.stream.HOT_TAIL", 0)
    # A consumer has brought the second window into memory. (What else the machine does changes the real page cache.)
    monkeypatch.setattr(blocks, "_in_memory", lambda file, position: position // WINDOW == 1)
    partition = node.partitions[TP]
    for number in range(64):
        partition.append(batch(b"%02d" % number * 32_000))
    before = values(partition.log)
    first = partition.log.segments[0]
    count = first.size // WINDOW
    assert count >= 3
    given_back = GivenBack(partition.log.path / file_name(first.base_offset, LOG), monkeypatch)
    node.move("b")
    assert values(partition.log) == before
    whole = [window for window in given_back.windows if window < count]
    assert whole == [window for window in range(count) if window != 1]


def test_bytes_are_in_memory_once_they_were_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(PAGES))
    file = Handle(os.open(path, os.O_RDONLY))
    os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_RANDOM)
    os.pread(file.fd, PAGES, 0)
    assert blocks._in_memory(file, PAGES // 2)
    os.fdatasync(file.fd)
    os.posix_fadvise(file.fd, 0, 0, os.POSIX_FADV_DONTNEED)
    if blocks._in_memory(file, PAGES // 2):
        pytest.skip(reason("a disk below TMPDIR", "this file system keeps all of its files in memory"))


def test_what_may_wait_for_a_flush_is_what_the_disk_takes_in_a_moment() -> None:
    assert waiting(32 << 20, 10.0) == INTERVAL  # a slow disk: no backlog for a seal or a cancel to wait for
    assert INTERVAL < waiting(32 << 20, 0.1) < MOST
    assert waiting(32 << 20, 0.0) == MOST
