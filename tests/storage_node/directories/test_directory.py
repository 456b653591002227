"""A log directory: online or offline, its threads, its disk."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_node import failpoints
from storage_node.directories import atomic
from storage_node.directories.clean_shutdown import CleanShutdown
from storage_node.directories.directory import LogDirectory
from storage_node.errors import LogAppendError, LogDirectoryOffline, MetadataIOError, StorageError
from storage_node.model.ids import TopicPartition


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[LogDirectory]:
    (tmp_path / "d1").mkdir()
    directory = LogDirectory(tmp_path / "d1", "an-id")
    directory.lock()
    yield directory
    directory.close()


def test_failure_is_latched_and_listeners_called_once(directory: LogDirectory) -> None:
    told: list[tuple[str, str]] = []
    directory.on_failure(lambda d, reason: told.append((d.name, reason)))
    assert directory.online and directory.failure is None
    directory.check_online()
    assert [directory.fail("first"), directory.fail("second")] == [True, False]
    assert told == [(directory.name, "first")] and directory.failure == "first"
    with pytest.raises(LogDirectoryOffline, match="first") as offline:
        directory.check_online()
    assert offline.value.directory == directory.name


def test_late_listener_learns_of_an_earlier_failure(directory: LogDirectory) -> None:
    directory.fail("gone")
    told: list[str] = []
    directory.on_failure(lambda _, reason: told.append(reason))
    assert told == ["gone"]


def test_failing_listener_does_not_affect_others(directory: LogDirectory) -> None:
    told: list[str] = []

    def bad(_directory: LogDirectory, _reason: str) -> None:
        raise RuntimeError("a mistake")

    directory.on_failure(bad)
    directory.on_failure(lambda _, reason: told.append(reason))
    assert directory.fail("gone")
    assert told == ["gone"]


def test_failure_reported_by_many_threads_calls_listeners_once(directory: LogDirectory) -> None:
    told: list[str] = []
    directory.on_failure(lambda _, reason: told.append(reason))
    threads = [threading.Thread(target=directory.fail, args=(f"thread {i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(told) == 1 and directory.failure == told[0]


def fail_with(error: StorageError, cause: OSError | None = None) -> None:
    raise error from cause


def test_work_runs_on_the_directorys_own_threads(directory: LogDirectory) -> None:
    name = directory.submit(lambda: threading.current_thread().name).result(60)
    assert name.startswith("disk-d1")


def test_slow_disk_delays_only_itself(directory: LogDirectory, tmp_path: Path) -> None:
    (tmp_path / "d2").mkdir()
    other = LogDirectory(tmp_path / "d2", "another-id")
    release = threading.Event()
    stuck = [directory.submit(release.wait, 60) for _ in range(8)]
    assert other.submit(lambda: "served").result(60) == "served"
    release.set()
    assert all(future.result(60) for future in stuck)
    other.close()


def test_io_error_in_the_pool_takes_the_directory_offline(directory: LogDirectory) -> None:
    error = LogAppendError(directory.name, "appending to t-0")
    with pytest.raises(LogAppendError):
        directory.submit(fail_with, error, OSError(5, "Input/output error")).result(60)
    assert directory.failure is not None
    assert "appending to t-0" in directory.failure and "Input/output error" in directory.failure
    with pytest.raises(LogDirectoryOffline):
        directory.submit(lambda: None)


def test_another_directorys_error_and_a_full_disk_are_not_its_failure(directory: LogDirectory) -> None:
    with pytest.raises(LogAppendError):
        directory.submit(fail_with, LogAppendError("/elsewhere", "appending")).result(60)
    with failpoints.active({"checkpoint.written": "raise:ENOSPC"}), pytest.raises(StorageError):
        directory.submit(directory.high_watermarks.write, {TopicPartition("t", 0): 1}).result(60)
    assert directory.online
    with failpoints.active({"checkpoint.flushed": "raise:ENOSPC"}), pytest.raises(StorageError):
        directory.submit(directory.high_watermarks.write, {TopicPartition("t", 0): 1}).result(60)
    assert not directory.online


def test_checkpoints_have_kafkas_names(directory: LogDirectory) -> None:
    for checkpoint in (directory.recovery_points, directory.high_watermarks, directory.log_start_offsets):
        checkpoint.write({TopicPartition("t", 0): 1})
    assert {path.name for path in directory.path.glob("*-checkpoint")} == {
        "recovery-point-offset-checkpoint",
        "replication-offset-checkpoint",
        "log-start-offset-checkpoint",
    }


def test_free_space_is_that_of_the_disk(directory: LogDirectory) -> None:
    usage = directory.usage()
    assert 0 <= usage.usable <= usage.total and usage.total > 0


def test_free_space_of_a_missing_directory_raises(directory: LogDirectory, tmp_path: Path) -> None:
    directory.path.rename(tmp_path / "moved")
    with pytest.raises(MetadataIOError):
        directory.usage()


def test_path_that_leads_elsewhere_is_detected(directory: LogDirectory, tmp_path: Path) -> None:
    assert directory.verify()
    directory.path.rename(tmp_path / "unmounted")
    directory.path.mkdir()
    assert not directory.verify()
    assert directory.failure is not None and "no longer leads" in directory.failure
    assert not directory.verify()


def test_clean_stop_is_marked_only_by_a_directory_that_is_online(directory: LogDirectory) -> None:
    directory.mark_clean_shutdown(7)
    assert directory.take_clean_shutdown() == CleanShutdown(True, 7)
    assert directory.take_clean_shutdown() == CleanShutdown(False)
    directory.fail("gone")
    with pytest.raises(LogDirectoryOffline):
        directory.mark_clean_shutdown(7)


def test_names_that_were_found_are_flushed_once(directory: LogDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[object] = []

    def broken(path: object) -> None:
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as patched:
        patched.setattr(atomic, "fsync_dir", broken)
        with pytest.raises(OSError, match="broken"):
            directory.flush_found_names()
    monkeypatch.setattr(atomic, "fsync_dir", flushed.append)
    for _ in range(3):
        directory.flush_found_names()
    assert flushed == [directory.path], "a flush that failed is none"
