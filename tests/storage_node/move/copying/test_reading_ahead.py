"""Several reads are under way while a block is written: they end in any order, and what is left behind harms nobody."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from storage_node.errors import LogReadError
from storage_node.log.config import LogConfig
from storage_node.move import throttle
from storage_node.move.copying import blocks, probe
from storage_node.move.copying.copier import Copier
from storage_node.move.future import open_copy
from storage_node.move.moving import OpenMove
from storage_node.move.throttle import RateLimiter
from tests.storage_node.move.harness import TP, SmallNode, batch, values

CONFIG = LogConfig(segment_bytes=100_000, index_interval_bytes=2_000, file_delete_delay_ms=60_000)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[SmallNode]:
    made = SmallNode(tmp_path, config=CONFIG)
    made.add()
    yield made
    made.close()


def stepping(node: SmallNode, reads: Executor | None) -> tuple[Copier, OpenMove]:
    """A copier that works when it is told to, and a move that is made and opened."""
    node.engine.create(TP, node.path("b"))
    (move,) = node.engine._registry.all()
    copier = Copier(RateLimiter(None), ThreadPoolExecutor(1), lambda _: None, reads)
    opened = move.open(open_copy(move.path, move.partition.log, move.target.name))
    move.partition.future = opened.future
    return copier, opened


def copy_all(copier: Copier, opened: OpenMove) -> None:
    while copier.step(opened):
        pass
    copier.leave(opened)


class LastFirst(Executor):
    """Begins with what was handed over last, once there are several, or when a result is waited for."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Future[Any], Callable[[], Any]]] = []
        self.most = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done = _Lazy(self.run)
        self.waiting.append((done, lambda: fn(*args, **kwargs)))
        self.most = max(self.most, len(self.waiting))
        return done

    def run(self) -> None:
        while self.waiting:
            done, work = self.waiting.pop()
            if not done.set_running_or_notify_cancel():
                continue
            try:
                done.set_result(work())
            except Exception as error:
                done.set_exception(error)


class _Lazy(Future[Any]):
    def __init__(self, run: Callable[[], None]) -> None:
        super().__init__()
        self._work = run

    def result(self, timeout: float | None = None) -> Any:
        self._work()
        return super().result(timeout)


@pytest.mark.parametrize("chunk", [1_000, 4_096, 30_000])
def test_reads_that_end_in_another_order_are_written_in_theirs(
    node: SmallNode, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(throttle, "MAX_CHUNK", chunk)
    monkeypatch.setattr(blocks, "HOT_TAIL", 0)
    partition = node.partitions[TP]
    for number in range(60):
        partition.append(batch(b"%02d" % number * 2_500))
    reads = LastFirst()
    copier, opened = stepping(node, reads)
    copy_all(copier, opened)
    assert reads.most > 1
    assert values(opened.future) == values(partition.log)
    ours, theirs = ({f.name: f.read_bytes() for f in log.path.glob("*.log")} for log in (opened.future, partition.log))
    assert ours == theirs


def test_what_was_read_ahead_of_a_truncation_and_other_records_is_not_written(
    node: SmallNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throttle, "MAX_CHUNK", 1_100)
    partition = node.partitions[TP]
    for _ in range(20):
        partition.append(batch(b"o" * 1_000))
    with ThreadPoolExecutor(2) as reads:
        copier, opened = stepping(node, reads)
        while opened.future.log_end_offset < 4:
            copier.step(opened)
        assert opened.stream is not None and len(opened.stream._ahead) > 1
        for _, reading in opened.stream._ahead:
            reading.result()
        partition.truncate_to(opened.future.log_end_offset)
        for _ in range(20):
            partition.append(batch(b"n" * 1_000))
        copy_all(copier, opened)
    assert values(opened.future) == values(partition.log)
    assert b"o" * 1_000 in values(opened.future)[0] and b"n" * 1_000 in values(opened.future)[-1]


def test_bytes_behind_the_end_of_the_source_are_nobodys(node: SmallNode) -> None:
    """A batch that is just being appended, or one of which a crash left a part."""
    partition = node.partitions[TP]
    node.fill(20)
    before = values(partition.log)
    (file,) = partition.log.path.glob("*.log")
    with file.open("ab") as torn:
        torn.write(batch(b"x" * 5_000)[:3_000])
    with ThreadPoolExecutor(2) as reads:
        copier, opened = stepping(node, reads)
        copy_all(copier, opened)
    assert values(opened.future) == before
    assert next(opened.move.path.glob("*.log")).stat().st_size == partition.log.size


def test_memory_of_a_read_that_hangs_is_not_given_to_others(node: SmallNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttle, "MAX_CHUNK", 4_096)
    node.fill(100)
    genuine = blocks.Source.read
    let_go, hangs = threading.Event(), threading.Event()
    filled: list[int] = []

    def read(self: blocks.Source, buffer: memoryview, count: int, position: int, **more: Any) -> int:
        if position >= 4_096 * 3:
            hangs.set()
            assert let_go.wait(20)
            filled.append(id(buffer.obj))
        return genuine(self, buffer, count, position, **more)

    monkeypatch.setattr(blocks.Source, "read", read)
    with ThreadPoolExecutor(2) as reads:
        copier, opened = stepping(node, reads)
        for _ in range(2):
            copier.step(opened)
        assert hangs.wait(10)
        copier.leave(opened)
        kept = [copier._buffers.take(4_096) for _ in range(20)]
        let_go.set()
        deadline = time.monotonic() + 10
        while not filled and time.monotonic() < deadline:
            time.sleep(0.01)
    assert filled and not {id(buffer.obj) for buffer in kept} & set(filled)


def test_read_ahead_that_fails_is_an_error_when_its_turn_comes(
    node: SmallNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throttle, "MAX_CHUNK", 4_096)
    node.fill(40)
    genuine = blocks.Source.read

    def read(self: blocks.Source, buffer: memoryview, count: int, position: int, **more: Any) -> int:
        if position >= 4_096 * 3:
            raise OSError(5, "Input/output error")
        return genuine(self, buffer, count, position, **more)

    monkeypatch.setattr(blocks.Source, "read", read)
    with ThreadPoolExecutor(2) as reads:
        copier, opened = stepping(node, reads)
        for _ in range(3):
            assert copier.step(opened) == 4_096
        with pytest.raises(LogReadError):
            copier.step(opened)
        copier.leave(opened)
    assert 0 < opened.future.size <= 4_096 * 3
    assert values(opened.future) == values(node.partitions[TP].log)[: opened.future.log_end_offset]


def test_buffers_fit_again_whatever_sizes_are_requested() -> None:
    buffers = blocks.Buffers()
    sizes = {len(buffers.take(size)) for size in range(16 << 10, 2 << 20, 4096)}
    assert len(sizes) <= 8
    assert all(len(buffers.take(size)) >= size for size in (1, 4096, 4097, 100_000, 8 << 20))


def test_each_write_of_a_copy_is_noted_where_requested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = tmp_path / "writes"
    monkeypatch.setenv(probe.ENVIRONMENT, str(record))
    monkeypatch.setattr(throttle, "MAX_CHUNK", 4_096)
    node = SmallNode(tmp_path / "disks", config=CONFIG)
    try:
        node.add()
        node.fill(30)
        began = time.monotonic()
        node.move("b")
        writes = probe.read(record)
    finally:
        node.close()
    assert sum(count for _, count in writes) == node.partitions[TP].log.size
    assert len(writes) > 5 and all(began <= at <= time.monotonic() for at, _ in writes)
