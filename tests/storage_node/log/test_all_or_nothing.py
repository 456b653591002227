"""Appends of several batches and truncations are atomic, and reach the disk in an order that recovery handles."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from storage_node import failpoints
from storage_node.errors import LogAppendError, LogFlushError, NotEnoughSpace, RequestRefused, StorageError
from storage_node.log import Log, headers
from storage_node.log.leader_epochs import FILE_NAME
from storage_node.log.segment import Segment
from tests.support.io_faults import Faults

from .logs import SMALL, all_batches, batch, fill, open_log, produced, read_all


def several(log: Log, count: int, epoch: int = 0) -> bytes:
    """Return batches as a leader sends them, several segments long, with a producer id of their own."""
    found = bytearray()
    at = log.log_end_offset
    for number in range(count):
        one = bytearray(produced(7, 3 * number, 3, size=150))
        one[0:8] = (at + 3 * number).to_bytes(8, "big")
        one[12:16] = epoch.to_bytes(4, "big")
        found += one
    return bytes(found)


def state(log: Log) -> tuple[Any, ...]:
    """Return all state that a reader or the next append can observe."""
    return (
        log.log_start_offset,
        log.log_end_offset,
        log.size,
        read_all(log),
        log.leader_epochs,
        dict(log.producers.producers),
        [(segment.base_offset, segment.size) for segment in log.segments],
        sorted(entry.name for entry in log.path.iterdir() if entry.suffix in (".log", ".index", ".timeindex")),
    )


@pytest.mark.parametrize("epoch", [0, 4], ids=["the same epoch", "a new epoch"])
@pytest.mark.parametrize("filled", [0, 5])
@pytest.mark.parametrize(("call", "number"), [("pwritev", 2), ("pwritev", 3), ("open", 2)])
@pytest.mark.parametrize(("error", "raised"), [(errno.ENOSPC, NotEnoughSpace), (errno.EIO, LogAppendError)])
def test_append_failing_after_a_roll_leaves_the_log_unchanged(
    call: str,
    number: int,
    error: int,
    raised: type[Exception],
    filled: int,
    epoch: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = open_log(tmp_path / "topic-0")
    fill(log, filled)
    before, genuine, calls = state(log), getattr(os, call), 0

    def failing(what: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        name = what if call == "open" else Path(f"/proc/self/fd/{what}").readlink()
        if str(name).endswith(".log") and (call != "open" or args[0] & os.O_CREAT):
            calls += 1
            # A write is repeated once after EIO.
            if calls == number or (call == "pwritev" and error == errno.EIO and calls == number + 1):
                raise OSError(error, os.strerror(error))
        return genuine(what, *args, **kwargs)

    records = several(log, 30, epoch)
    with monkeypatch.context() as patched, pytest.raises(raised):
        patched.setattr(os, call, failing)
        log.append_copied(records)
    assert calls in (number, number + 1), "the append has several parts"
    after = state(log)
    assert after[:4] == before[:4] and after[5:] == before[5:]
    # An epoch elected before the failure may remain; it begins at the log end.
    assert after[4].truncated_from_end(log.log_end_offset) == before[4].truncated_from_end(log.log_end_offset)

    log.append_copied(records)
    assert len(all_batches(log)) == filled + 30 and log.producers.producers[7].batches[-1].last_sequence == 89
    log.close(clean=False)
    again = open_log(tmp_path / "topic-0")
    assert read_all(again) == read_all(again) and len(all_batches(again)) == filled + 30
    assert again.latest_epoch == epoch
    again.close()


@pytest.mark.parametrize("point", ["log.create_after_log", "log.roll_after_producers", "log.roll_after_segment"])
def test_append_with_failing_roll_leaves_the_records_unchanged(point: str, tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0")
    with failpoints.active({point: "raise"}), pytest.raises(LogAppendError):
        fill(log, 100)
    kept = read_all(log)
    assert log.log_end_offset == 3 * len(all_batches(log)) > 0
    fill(log, 5)
    assert len(log.segments) == 2 and read_all(log).startswith(kept)
    found = read_all(log)
    log.close(clean=False)
    again = open_log(tmp_path / "topic-0")
    assert read_all(again) == found
    again.close()


@pytest.mark.parametrize("point", failpoints.registered("log.flush_"))
def test_flush_that_fails_at_any_step_promises_nothing_then_or_later(point: str, tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0")
    fill(log, 30)
    assert len(log.segments) > 1
    with failpoints.active({point: "raise"}), pytest.raises(LogFlushError):
        log.flush()
    with pytest.raises(LogFlushError, match="a flush failed before"):
        log.flush()
    assert log.recovery_point == 0
    log.close(clean=False)


def test_append_that_cannot_be_cut_back_fails_the_directory_and_rejects_later_appends(
    tmp_path: Path, faults: Faults
) -> None:
    log = open_log(tmp_path / "topic-0")
    fill(log, 5)
    end = log.log_end_offset
    records = several(log, 30)
    faults.fail("ftruncate", f"{log.path}/{0:020d}.log", errno.EIO)
    genuine = Segment.append

    def append(self: Segment, *args: Any) -> None:
        if self.base_offset:
            raise OSError(errno.ENOSPC, "full")
        genuine(self, *args)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Segment, "append", append)
        with pytest.raises(LogAppendError, match="cutting off") as told:
            log.append_copied(records)
    assert not isinstance(told.value.__cause__, OSError)  # so that it counts as a failed disk, whatever the errno
    faults.clear()
    with pytest.raises(StorageError):
        log.append_as_leader(batch(), 0)
    assert log.log_end_offset == end and len(read_all(log)) > 0


def test_readers_see_an_append_of_several_segments_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path / "topic-0")
    fill(log, 1)
    seen: list[int] = []
    genuine = Segment.append

    def append(self: Segment, *args: Any) -> None:
        seen.append(log.log_end_offset)
        genuine(self, *args)

    monkeypatch.setattr(Segment, "append", append)
    log.append_copied(several(log, 30))
    assert len(seen) > 2 and set(seen) == {3} and log.log_end_offset == 93
    log.close()


@pytest.mark.parametrize("whole", [False, True], ids=["a part", "all"])
def test_truncation_is_on_disk_before_the_epochs_of_its_records_are_forgotten(
    whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a power loss would leave records of an unknown epoch, which no later truncation could remove."""
    log = open_log(tmp_path / "topic-0")
    fill(log, 60)
    fill(log, 60, epoch=3)
    log.flush()
    steps: list[str] = []

    def noting(call: str) -> None:
        genuine = getattr(os, call)

        def wrapped(what: Any, *args: Any, **kwargs: Any) -> Any:
            name = what if isinstance(what, str) else Path(f"/proc/self/fd/{what}").readlink()
            steps.append(f"{call} {Path(name).name}")
            return genuine(what, *args, **kwargs)

        monkeypatch.setattr(os, call, wrapped)

    for call in ("ftruncate", "fdatasync", "fsync", "rename"):
        noting(call)
    if whole:
        log.truncate_fully(500)
    else:
        log.truncate_to(100)
    epochs = steps.index(f"rename {FILE_NAME}.tmp")
    removed = max(n for n, step in enumerate(steps) if step.startswith("rename 0") and ".log" in step)
    assert removed < steps.index("fsync topic-0") < epochs
    if not whole:
        cut = next(n for n, step in enumerate(steps) if step.startswith("ftruncate") and ".log" in step)
        flushed = next(n for n, step in enumerate(steps) if step.startswith("fdatasync") and ".log" in step)
        assert removed < steps.index("fsync topic-0") < cut < flushed < epochs
    log.close()


def test_copied_appends_do_not_add_up_all_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = open_log(tmp_path / "topic-0", SMALL)
    fill(log, 400)
    assert len(log.segments) > 15
    log.append_copied(several(log, 1))  # this append may roll
    assert log.size == sum(len(entry.read_bytes()) for entry in log.path.glob("*.log"))
    asked = 0
    sealed = {id(segment) for segment in log.segments[:-1]}

    class Watched:
        def __get__(self, segment: Any, _: Any) -> int:
            nonlocal asked
            asked += id(segment) in sealed
            return int(segment.__dict__["size"])

        def __set__(self, segment: Any, value: int) -> None:
            segment.__dict__["size"] = value

    one = several(log, 1)
    monkeypatch.setattr(Segment, "size", Watched(), raising=False)
    log.append_copied(one)
    assert asked == 0 and len(list(headers(one))) == 1
    monkeypatch.undo()
    log.close()


def test_size_follows_rolls_truncation_retention_and_restarts(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0")

    def right() -> bool:
        return log.size == sum(entry.stat().st_size for entry in log.path.glob("*.log"))

    fill(log, 100)
    assert right()
    log.roll()
    assert right()
    log.truncate_to(150)
    assert right()
    log.advance_log_start(90)
    assert log.delete_old_segments(10**12) > 0 and right()
    fill(log, 10)
    assert right()
    log.truncate_fully(1000)
    assert log.size == 0 and right()
    with pytest.raises(RequestRefused):
        log.append_copied(batch())  # its first batch begins below the log end
    log.close()
