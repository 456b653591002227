"""Logs keep few files open: a closed file is reopened on use, by its present name, and must be the same file."""

from __future__ import annotations

import ast
import errno
import gc
import os
import resource
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from storage_node import descriptors
from storage_node.directories.io_faults import Fault, fault_of
from storage_node.errors import LogAppendError, LogFlushError, LogReadError, RequestRefused
from storage_node.log import Log, LogClosed, LogConfig
from storage_node.log import open_files as kept
from storage_node.log.segment import file_name
from tests.storage_node.log.logs import all_batches, batch, fill, open_log, read_all
from tests.support.scale import scaled, tally

FEW = 8
TINY = LogConfig(segment_bytes=300, index_interval_bytes=100, retention_ms=-1, file_delete_delay_ms=1_000)


def open_now(folder: Path) -> list[str]:
    """Return the files below a folder that this process has open."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            name = str(entry.readlink())
        except FileNotFoundError:
            continue
        if name.startswith(f"{folder}/"):
            found.append(name)
    return found


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most eight files per directory are kept open."""
    monkeypatch.setattr(descriptors, "most_kept_open", lambda: 0)


@pytest.fixture
def no_descriptor(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """While the list is not empty, no file can be opened."""
    on: list[bool] = []
    genuine = os.open

    def opened(*arguments: object, **options: object) -> int:
        if on:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return genuine(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", opened)
    yield on
    on.clear()


def let_go(log: Log) -> None:
    """Close what the log keeps open, as if other logs had been used since."""
    for holder in (log._home, *log.segments):
        if (handle := holder.kept_open()) is not None:
            holder.let_go(handle)
            del handle


@pytest.fixture
def log(tmp_path: Path, few: None) -> Iterator[Log]:
    made = open_log(tmp_path / "topic-0", TINY)
    fill(made, 200)
    assert len(made.segments) > 4 * FEW
    yield made
    made.close()


def test_sealed_segments_are_not_opened_at_a_start(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0", TINY)
    fill(log, 200)
    log.close()
    del log
    again = open_log(tmp_path / "topic-0", TINY, clean=True)
    assert len(again.segments) > 30
    active = again.path / f"{again.segments[-1].base_offset:020d}.log"
    assert sorted(open_now(tmp_path)) == [str(again.path), str(active)]
    assert again.size == sum(file.stat().st_size for file in again.path.glob("*.log"))


def test_idle_replica_holds_one_descriptor(tmp_path: Path) -> None:
    logs = [open_log(tmp_path / f"topic-{number}") for number in range(300)]
    for each in logs:
        each.append_as_leader(batch(), 0)
        each.flush()
    assert len(open_now(tmp_path)) <= len(logs) + kept.FOLDERS


def test_few_files_stay_open_whatever_is_read_and_appended(log: Log, tmp_path: Path) -> None:
    assert len(open_now(tmp_path)) <= 2 * FEW
    before = all_batches(log)
    fill(log, 30)
    after = all_batches(log)
    assert after[: len(before)] == before and len(after) == len(before) + 30
    assert len(open_now(tmp_path)) <= 2 * FEW
    log.flush()
    assert log.recovery_point == log.log_end_offset
    assert len(open_now(tmp_path)) <= 2 * FEW


def test_logs_of_two_directories_do_not_close_each_others_files(tmp_path: Path, few: None) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    idle = open_log(tmp_path / "a" / "topic-0")
    idle.append_as_leader(batch(), 0)
    file = idle.segments[-1].kept_open()
    busy = open_log(tmp_path / "b" / "topic-0", TINY)
    fill(busy, 200)
    read_all(busy)
    assert idle.segments[-1].kept_open() is file is not None


def test_what_is_used_stays_open(log: Log) -> None:
    active = log.segments[-1]
    for segment in log.segments[:-1]:
        log.read(log.log_end_offset - 1, 1)
        log.read(segment.base_offset, 1)
        assert active.kept_open() is not None


def test_replicas_of_ten_segments_open_under_a_low_limit(tmp_path: Path) -> None:
    """20,000 of them under a limit of 4,096, and in `make test` as many of them for each descriptor."""
    config, limit = LogConfig(segment_bytes=100), scaled(250, 4096)
    count = limit * 20_000 // 4096
    first = open_log(tmp_path / "topic-0", config)
    fill(first, 10, count=1)
    first.close()
    for number in range(1, count):
        shutil.copytree(tmp_path / "topic-0", tmp_path / f"topic-{number}")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # (The tests before have left some open.)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + limit, hard))
    try:
        with tally("replicas of ten segments opened under a low limit") as opened:
            logs = [open_log(tmp_path / f"topic-{number}", config, clean=number % 2 == 0) for number in range(count)]
            assert all(len(each.segments) >= 10 for each in logs)
            for each in logs:
                assert len(all_batches(each)) == 10
                fill(each, 1)
                each.close()
                opened.count += 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# Names


def test_renamed_log_is_found(log: Log, tmp_path: Path) -> None:
    before = read_all(log)
    let_go(log)
    (tmp_path / "topic-0").rename(tmp_path / "topic-0.move")
    log.relocated(tmp_path / "topic-0.move")
    assert read_all(log) == before
    let_go(log)
    (tmp_path / "topic-0.move").rename(tmp_path / "topic-0")  # and `relocated` was not called
    assert read_all(log) == before
    fill(log, 30)
    log.relocated(tmp_path / "topic-0")


def test_another_log_that_has_taken_the_name_is_not_opened(log: Log, tmp_path: Path) -> None:
    before = read_all(log)
    let_go(log)
    (tmp_path / "topic-0").rename(tmp_path / "topic-0.delete")
    other = open_log(tmp_path / "topic-0", TINY)
    other.append_as_leader(batch(1, 5), 0)
    assert read_all(log) == before
    other.close()


@pytest.mark.parametrize("how", ("symlink", "replaced", "gone"))
def test_another_file_that_has_taken_the_name_is_not_opened(log: Log, tmp_path: Path, how: str) -> None:
    log.flush()
    let_go(log)
    file = log.path / f"{0:020d}.log"
    outside = file.rename(tmp_path / "outside")
    if how == "symlink":
        file.symlink_to(outside)
    elif how == "replaced":
        file.write_bytes(outside.read_bytes())
    with pytest.raises((RequestRefused, LogReadError)) as refused:
        log.read(0, 1000)
    if isinstance(refused.value, LogReadError):
        assert fault_of(refused.value) is Fault.FILE
    last = log.segments[-1].base_offset
    assert log.read(last, 1000).base_offset == last


# Cutting and deleting


def test_closed_segment_is_truncated(log: Log, tmp_path: Path) -> None:
    offset = log.segments[5].base_offset + 3
    before = [header for header in all_batches(log) if header.next_offset <= offset]
    let_go(log)
    log.truncate_to(offset)
    assert all_batches(log) == before
    log.close()
    again = open_log(tmp_path / "topic-0", TINY, clean=True)
    assert all_batches(again) == before


def test_reader_keeps_the_file_that_is_deleted_during_its_read(tmp_path: Path, few: None) -> None:
    log = open_log(tmp_path / "topic-0", TINY)
    fill(log, 200)
    first = log.segments[0]
    region = log.read(0, 1000).region
    assert region is not None
    expected = region.read(0, len(region))
    log.advance_log_start(log.segments[3].base_offset)
    let_go(log)
    assert log.delete_old_segments(0) == 3
    assert first.removed and region.read(0, len(region)) == expected, "renamed"
    assert first.find(1, first.size)[1] is not None, "who began before reads on by the new name"
    log.purge_deleted(1_000)
    with pytest.raises(LogClosed):
        first.find(1, first.size)
    assert region.read(0, len(region)) == expected, "its file is open"


def test_slow_readers_do_not_keep_more_files_open_than_may_be(log: Log, tmp_path: Path) -> None:
    regions = [log.read(segment.base_offset, 1000).region for segment in log.segments]
    assert len(open_now(tmp_path)) <= 3 * FEW
    for region, segment in zip(regions, log.segments, strict=True):
        assert region is not None
        assert region.read(0, 8) == segment.base_offset.to_bytes(8, "big")


def test_closed_log_opens_nothing(log: Log) -> None:
    segment = log.segments[0]
    log.close()
    with pytest.raises(LogClosed):
        segment.find(0, segment.size)


def test_readers_beside_files_that_close(log: Log) -> None:
    expected = read_all(log)
    wrong: list[object] = []

    def read() -> None:
        try:
            for _ in range(3):
                if read_all(log) != expected:
                    wrong.append("other bytes")
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# No descriptor left (KAFKA-16082)


def test_handle_released_during_a_call_stays_open_until_its_end(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the descriptor may be another file's: another log would be listed, flushed or written."""
    home, name = log._home, file_name(log.segments[0].base_offset, ".log")
    seen: list[str] = []

    def letting_go(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if home.kept_open() is not None:
                home.let_go(home.kept_open())  # type: ignore[arg-type]
                gc.collect()
                seen.append(real.__name__)
            return real(*arguments, **options)

        return call

    names = home.names()
    with monkeypatch.context() as patched:
        for function in ("listdir", "stat", "fsync", "open", "rename", "unlink"):
            patched.setattr(os, function, letting_go(getattr(os, function)))
        assert home.names() == names and home.exists(name) and home.look(name).st_size > 0
        home.sync()
        assert home.open(name).fd > 0
        assert not home.rename("not there", "either")
        home.unlink("not there")
    assert seen == ["listdir", "stat", "stat", "fsync", "open", "rename", "unlink"]


def test_no_code_reads_fd_from_a_handle_without_holding_it() -> None:
    """In `a.file.fd` and `a.open().fd` the handle may be closed before the number is used."""
    found: list[str] = []
    for path in sorted((Path(__file__).parents[3] / "storage_node").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr == "fd":
                held = isinstance(node.value, ast.Name) or (
                    isinstance(node.value, ast.Attribute)
                    and node.value.attr.startswith("_")
                    and isinstance(node.value.value, ast.Name)
                )
                if not held:
                    found.append(f"{path.name}:{node.lineno}: {ast.unparse(node)}")
    assert found == []


def test_lack_of_descriptors_does_not_fail_the_disk(log: Log, no_descriptor: list[bool]) -> None:
    log.flush()
    let_go(log)
    end = log.log_end_offset
    no_descriptor.append(True)
    with pytest.raises(LogReadError) as read:
        log.read(0, 1000)
    with pytest.raises(LogAppendError) as appended:
        log.append_as_leader(batch(), 0)
    assert {fault_of(read.value), fault_of(appended.value)} == {Fault.STEP}
    no_descriptor.clear()
    assert log.log_end_offset == end
    assert log.read(0, 1000).data
    assert log.append_as_leader(batch(), 0).base_offset == end


def test_flush_without_descriptor_is_done_by_the_next_one(log: Log, no_descriptor: list[bool]) -> None:
    let_go(log)
    before = log.recovery_point
    no_descriptor.append(True)
    for _ in range(2):
        with pytest.raises(LogFlushError) as flushed:
            log.flush()
        assert fault_of(flushed.value) is Fault.STEP
    assert log.recovery_point == before
    no_descriptor.clear()
    log.flush()
    assert log.recovery_point == log.log_end_offset
    assert not any(segment.dirty for segment in log.segments)
