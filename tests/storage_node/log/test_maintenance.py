"""Flushing, truncation, DeleteRecords, retention, renaming, closing, and disks that are full or fail."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from storage_node.errors import (
    LogAppendError,
    LogFlushError,
    LogReadError,
    NotEnoughSpace,
    OffsetOutOfRange,
    RequestRefused,
    StorageError,
)
from storage_node.log import Log, LogConfig, headers
from storage_node.log.retention import SegmentAge, deletable

from .logs import SMALL, all_batches, batch, crashed, files, fill, open_log, produced, read_all


@pytest.fixture
def log(tmp_path: Path) -> Log:
    made = open_log(tmp_path / "topic-0")
    fill(made, 100)
    return made


# Truncation


def test_truncating_at_every_offset(tmp_path: Path) -> None:
    for offset in range(0, 61, 5):
        log = open_log(tmp_path / f"t{offset}-0", replace(SMALL, segment_bytes=800))
        fill(log, 10, epoch=1)
        log.flush()
        fill(log, 10, epoch=2, start_ms=5_000)
        known = all_batches(log)
        log.truncate_to(offset)
        kept = [h for h in known if h.next_offset <= offset]
        assert all_batches(log) == kept
        end = kept[-1].next_offset if kept else 0
        assert log.log_end_offset == end and log.recovery_point == min(30, end)
        assert log.leader_epochs.entries == tuple(e for e in ((1, 0), (2, 30)) if e[1] < end)
        assert log.max_timestamp()[0] == end - 1, "the newest record is the last one"
        fill(log, 10, epoch=3)
        assert log.log_end_offset == end + 30
        whole = read_all(log)
        again = open_log(crashed(log, tmp_path / f"c{offset}-0"), recovery_point=log.recovery_point)
        assert read_all(again) == whole
        log.purge_deleted(2**60)
        log.close(True)
        assert read_all(open_log(log.path, clean=True)) == whole


def test_truncating_beyond_the_end_changes_nothing(log: Log) -> None:
    before = read_all(log)
    log.truncate_to(300)
    log.truncate_to(400)
    assert read_all(log) == before


def test_truncate_fully_restarts_at_another_offset(log: Log) -> None:
    log.truncate_fully(1_000)
    assert (log.log_start_offset, log.log_end_offset, log.recovery_point, log.size) == (1_000, 1_000, 1_000, 0)
    assert log.leader_epochs.entries == ()
    log.append_copied(batch(2, base_offset=1_000))
    assert log.read(1_000, 1_000).next_offset == 1_002
    log.truncate_to(500)
    assert (log.log_start_offset, log.log_end_offset) == (500, 500)


def test_truncated_segment_stays_readable_for_its_holders(log: Log) -> None:
    held = log.segments[-1]
    whole = (log.path / f"{held.base_offset:020d}.log").read_bytes()
    log.truncate_to(held.base_offset - 1)
    assert [h for _, h in held.walk(0, held.size)] == [h for _, h in headers(whole)]
    assert files(log.path, ".log.deleted")
    assert log.purge_deleted(2**60) == 1
    assert not files(log.path, ".deleted")


# DeleteRecords and retention


def test_start_may_lie_inside_a_batch(log: Log) -> None:
    assert log.advance_log_start(100)
    assert not log.advance_log_start(50)
    assert log.read(100, 1).base_offset == 99
    with pytest.raises(OffsetOutOfRange):
        log.read(99, 1)
    with pytest.raises(OffsetOutOfRange):
        log.advance_log_start(301)
    assert log.delete_old_segments(0) > 0
    assert log.log_start_offset == 100
    assert log.segments[0].base_offset <= 99 < log.segments[1].base_offset
    log.close(True)
    again = open_log(log.path, clean=True, log_start_offset=100)
    assert (again.log_start_offset, again.log_end_offset) == (100, 300)


def test_everything_may_be_deleted(log: Log) -> None:
    log.advance_log_start(300)
    log.delete_old_segments(0)
    assert (log.log_start_offset, log.log_end_offset, log.size) == (300, 300, 0)
    assert log.leader_epochs.entries == ((0, 300),)
    log.purge_deleted(2**60)
    assert list(files(log.path, ".log")) == [f"{300:020d}.log"]
    fill(log, 1)
    assert log.read(300, 1_000).next_offset == 303


def test_retention_by_time_counts_from_the_newest_record_of_a_segment(log: Log) -> None:
    log.config = replace(SMALL, retention_ms=5_000)
    second = log.segments[1].base_offset
    newest = log.segments[0].max_timestamp[0]
    assert log.delete_old_segments(newest + 5_000) == 0
    assert log.delete_old_segments(newest + 5_001) == 1
    assert log.log_start_offset == log.segments[0].base_offset == second
    with pytest.raises(OffsetOutOfRange):
        log.read(0, 1)


def test_retention_by_size_keeps_at_least_that_much(log: Log) -> None:
    log.config = replace(SMALL, retention_bytes=5_000)
    log.delete_old_segments(0)
    assert 5_000 <= log.size < 5_000 + SMALL.segment_bytes


def test_retention_stops_at_the_high_watermark(log: Log) -> None:
    log.config = replace(SMALL, retention_bytes=0)
    third = log.segments[2].base_offset
    assert log.delete_old_segments(0, high_watermark=third) == 2
    assert log.log_start_offset == third


def test_deleted_files_go_after_the_delay(log: Log) -> None:
    log.config = replace(SMALL, retention_bytes=5_000, file_delete_delay_ms=1_000)
    count = log.delete_old_segments(10_000)
    assert len(files(log.path, ".log.deleted")) == count > 0
    assert log.purge_deleted(10_999) == 0
    assert log.purge_deleted(11_000) == count
    assert not files(log.path, ".deleted")


@pytest.mark.parametrize(
    ("config", "start", "high_watermark", "count"),
    [
        (LogConfig(retention_ms=-1), 0, 40, 0),
        (LogConfig(retention_ms=500), 0, 40, 2),
        (LogConfig(retention_ms=500), 0, 19, 1),
        (LogConfig(retention_ms=0), 0, 40, 4),
        (LogConfig(retention_ms=-1, retention_bytes=0), 0, 40, 4),
        (LogConfig(retention_ms=-1, retention_bytes=150), 0, 40, 2),
        (LogConfig(retention_ms=-1, retention_bytes=201), 0, 40, 1),
        (LogConfig(retention_ms=-1, retention_bytes=400), 0, 40, 0),
        (LogConfig(retention_ms=-1), 29, 40, 2),
        (LogConfig(retention_ms=-1), 30, 40, 3),
    ],
)
def test_retention_deletes_expired_segments(config: LogConfig, start: int, high_watermark: int, count: int) -> None:
    ages = [SegmentAge(10 * n, 10 * n + 10, 100, 1_000 + 100 * n) for n in range(4)]
    taken = deletable(ages, config, log_start_offset=start, high_watermark=high_watermark, now_ms=1_650)
    assert taken == count
    empty = [*ages[:3], SegmentAge(30, 30, 0, 0)]
    taken = deletable(empty, LogConfig(retention_ms=0), log_start_offset=0, high_watermark=40, now_ms=1_650)
    assert taken == 3, "an empty active segment stays"


# Flushing


def test_flush_advances_the_recovery_point(log: Log) -> None:
    assert log.recovery_point == 0
    log.flush_closed_segments()
    assert log.recovery_point == log.segments[-1].base_offset
    log.flush()
    assert log.recovery_point == 300
    assert len(files(log.path, ".index")[f"{0:020d}.index"]) > 0


def test_flushing_by_count_and_by_time(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0", replace(SMALL, flush_messages=10, flush_ms=1_000), now_ms=0)
    fill(log, 3)
    assert log.recovery_point == 0
    fill(log, 1)
    assert log.recovery_point == 12
    fill(log, 1)
    assert not log.flush_if_due(999)
    assert log.flush_if_due(1_000) and log.recovery_point == 15
    assert not log.flush_if_due(9_000), "nothing is new"


def test_housekeeping_flushes_closed_segments_in_any_case(log: Log) -> None:
    assert log.flush_if_due(2**60 - 1)
    assert log.recovery_point == log.segments[-1].base_offset
    assert not log.flush_if_due(2**60)


def failing(call: Callable[..., Any], code: int, name: str | None = None) -> Callable[..., Any]:
    def fail(*args: Any, **options: Any) -> Any:
        if name is not None and args[0] != name:
            return call(*args, **options)
        raise OSError(code, os.strerror(code))

    return fail


def test_flushing_the_records_alone_leaves_the_rest_to_a_flush(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.flush()
    log.append_as_leader(batch(), 0)
    point, flushed = log.recovery_point, list[int]()
    monkeypatch.setattr(os, "fdatasync", flushed.append)
    log.flush_records()
    assert flushed == [log.segments[-1].file.fd], "the .log, and no index"
    assert log.recovery_point == point, "a start still scans what has no index on disk"
    log.flush()
    assert len(flushed) > 1 and log.recovery_point == log.log_end_offset
    log.append_as_leader(batch(), 0)
    monkeypatch.setattr(os, "fdatasync", failing(os.fdatasync, errno.EIO))
    with pytest.raises(LogFlushError):
        log.flush_records()
    monkeypatch.undo()
    with pytest.raises(LogFlushError, match="failed before"):
        log.flush()


def test_after_a_failed_flush_nothing_counts_as_flushed(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", failing(os.fdatasync, errno.EIO))
        with pytest.raises(LogFlushError) as failed:
            log.flush()
    assert failed.value.directory == str(log.path.parent)
    assert isinstance(failed.value.__cause__, OSError)
    for again in (log.flush, log.flush_closed_segments, lambda: log.close(True)):
        with pytest.raises(LogFlushError):
            again()
    assert log.recovery_point == 0 and log.closed


def test_no_space_at_a_flush_is_a_failed_flush(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fdatasync", failing(os.fdatasync, errno.ENOSPC))
    with pytest.raises(LogFlushError):
        log.flush()


def test_no_space_for_the_indexes_keeps_the_recovery_point_only(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as full:
        full.setattr(os, "pwritev", failing(os.pwritev, errno.ENOSPC))
        log.flush()
        assert log.recovery_point == 0
    log.flush()
    assert log.recovery_point == 300


def test_flushing_and_retention_beside_appends_and_reads(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0", replace(SMALL, retention_bytes=6_000))
    done, wrong = threading.Event(), list[BaseException]()

    def again_and_again(call: Callable[[], object]) -> None:
        try:
            while not done.is_set():
                call()
        except BaseException as error:
            wrong.append(error)

    def consume() -> None:
        with contextlib.suppress(OffsetOutOfRange):
            read_all(log)

    def housekeep() -> None:
        log.flush_if_due(2**60)
        log.purge_deleted(2**60)

    calls = (log.flush, consume, housekeep)
    threads = [threading.Thread(target=again_and_again, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for _ in range(300):
        fill(log, 1)
        log.delete_old_segments(0)
    done.set()
    for thread in threads:
        thread.join(30)
    assert not wrong
    log.flush()
    assert log.recovery_point == log.log_end_offset == 900
    whole = read_all(log)
    again = open_log(crashed(log, tmp_path / "c-0"), recovery_point=900, log_start_offset=log.log_start_offset)
    assert read_all(again) == whole


# Full and failing disks


def test_append_on_full_disk_leaves_the_log_unchanged(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    before = read_all(log)
    real = os.pwritev

    def some(fd: int, buffers: list[Any], at: int) -> int:
        data = bytes(buffers[0])
        if len(data) <= 200:
            raise OSError(errno.ENOSPC, "full")
        return real(fd, [data[:200]], at)

    with monkeypatch.context() as full:
        full.setattr(os, "pwritev", some)
        with pytest.raises(NotEnoughSpace):
            log.append_copied(b"".join(produced(5, n, 3, base_offset=300 + n) for n in (0, 3, 6)))
        with pytest.raises(NotEnoughSpace):
            log.append_copied(batch(3, base_offset=300))
    assert (read_all(log), log.log_end_offset) == (before, 300)
    again = open_log(crashed(log, log.path.parent / "c-0"))
    assert read_all(again) == before
    assert log.append_as_leader(produced(5, 0, 1), 0).base_offset == 300
    assert not log.append_as_leader(produced(5, 1, 1), 0).duplicate


def test_no_space_for_a_new_segment(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def no_new(path: Any, flags: int, *rest: Any, **options: Any) -> int:
        if flags & os.O_CREAT and str(path).endswith(".timeindex"):
            raise OSError(errno.ENOSPC, "full")
        return real(path, flags, *rest, **options)

    with monkeypatch.context() as full:
        full.setattr(os, "open", no_new)
        with pytest.raises(NotEnoughSpace):
            log.roll()
    count = len(log.segments)
    log.roll()
    assert len(log.segments) == count + 1
    fill(log, 1)


def test_errors_name_the_directory_once(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    def told(kind: type[StorageError], call: Callable[[], object]) -> None:
        with pytest.raises(kind) as failed:
            call()
        assert failed.value.directory == str(log.path.parent)
        assert isinstance(failed.value.__cause__, OSError)

    with monkeypatch.context() as broken:
        broken.setattr(os, "pwritev", failing(os.pwritev, errno.EIO))
        told(LogAppendError, lambda: log.append_as_leader(batch(1), 0))
    with monkeypatch.context() as broken:
        broken.setattr(os, "pread", failing(os.pread, errno.EIO))
        told(LogReadError, lambda: log.read(0, 1_000))
        told(LogReadError, lambda: log.offset_for_timestamp(1_000))
        told(LogReadError, lambda: open_log(log.path))
    with monkeypatch.context() as broken:
        broken.setattr(os, "ftruncate", failing(os.ftruncate, errno.EIO))
        told(LogAppendError, lambda: log.truncate_to(100))


# The directory


@pytest.mark.conformance(73)
def test_rename_leaves_everything_usable(log: Log) -> None:
    renamed = log.path.with_name("topic-0.move")
    before = read_all(log)
    log.path.rename(renamed)
    log.relocated(renamed)
    fill(log, 100)
    assert read_all(log).startswith(before)
    log.flush()
    third = renamed.with_name("topic-0")
    renamed.rename(third)
    log.relocated(third)
    log.roll()
    log.close(True)
    assert open_log(third, clean=True).log_end_offset == 600


def test_deleting_removes_the_directory_and_follows_no_link(log: Log) -> None:
    outside = log.path.parent / "outside"
    outside.mkdir()
    (outside / "precious").write_text("here")
    (log.path / "link").symlink_to(outside)
    log.delete()
    log.delete()
    assert not log.path.exists()
    assert (outside / "precious").read_text() == "here"
    log.path.symlink_to(outside)
    with pytest.raises(RequestRefused):
        log.delete()
    with pytest.raises(LogReadError):
        open_log(log.path)
    assert (outside / "precious").exists()


def test_reader_finishes_while_the_log_is_closed(log: Log) -> None:
    held = log.segments[0].file
    log.close(False)
    assert os.pread(held.fd, 8, 0) == bytes(8)


def test_topic_configs_are_read() -> None:
    defaults = LogConfig(retention_ms=5)
    config = LogConfig.from_topic(
        {"segment.bytes": "2048", "retention.bytes": " 10 ", "message.timestamp.type": "LogAppendTime", "x.y": "?"},
        defaults,
    )
    assert config == replace(defaults, segment_bytes=2_048, retention_bytes=10, message_timestamp_type="LogAppendTime")
    for wrong in (
        {"segment.bytes": "many"}, {"segment.bytes": "1"}, {"retention.ms": "-2"}, {"cleanup.policy": "compact"},
        {"message.timestamp.type": "Mine"}, {"segment.bytes": str(2**31)},
    ):  # fmt: skip
        with pytest.raises(RequestRefused) as refused:
            LogConfig.from_topic(wrong, defaults)
        assert refused.value.code == 40
