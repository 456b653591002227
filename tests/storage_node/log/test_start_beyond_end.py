"""A log start offset beyond the log's end: a file is wrong, and no record goes for it without a line that says so."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from storage_node.errors import LogStartBeyondEnd
from storage_node.log.config import LogConfig
from storage_node.log.leader_epochs import LeaderEpochs
from tests.storage_node.log.logs import fill, open_log, read_all

WRONG = 999_999


def filled(path: Path, *, clean: bool = True) -> bytes:
    """A closed log of several segments; returns its batches."""
    log = open_log(path)
    fill(log, 40)
    assert len(log.segments) > 1
    data = read_all(log)
    log.close(clean=clean)
    return data


def names(path: Path) -> list[str]:
    return sorted(file.name for file in path.iterdir())


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("source", ["checkpoint", "seal"])
def test_open_with_start_beyond_end_removes_nothing(tmp_path: Path, clean: bool, source: str) -> None:
    path = tmp_path / "t-0"
    data = filled(path, clean=clean)
    before = names(path)
    wrong = {"log_start_offset": WRONG} if source == "checkpoint" else {"sealed_start": (WRONG, 0)}
    with pytest.raises(LogStartBeyondEnd) as raised:
        open_log(path, clean=clean, **wrong)  # type: ignore[arg-type]
    assert raised.value.start == WRONG and names(path) == before
    size = sum(file.stat().st_size for file in path.glob("*.log"))
    for part in ("offset 120", str(WRONG), f"{size} bytes", str(path)):
        assert part in raised.value.message
    assert read_all(open_log(path)) == data


def test_open_to_refetch_begins_empty_at_zero_and_says_what_it_removes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "t-0"
    filled(path)
    size = sum(file.stat().st_size for file in path.glob("*.log"))
    log = open_log(path, clean=True, log_start_offset=WRONG, refetch=True)
    assert (log.log_start_offset, log.log_end_offset, log.size) == (0, 0, 0)
    assert log.leader_epochs == LeaderEpochs()
    (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    for part in ("topic-0", "offset 120", str(WRONG), f"{size} bytes", str(path)):
        assert part in line
    fill(log, 2)
    log.close()
    assert open_log(path).log_end_offset == 6


def test_open_of_empty_log_begins_at_its_start(tmp_path: Path) -> None:
    open_log(tmp_path / "t-0").close()
    log = open_log(tmp_path / "t-0", clean=True, log_start_offset=7)
    assert (log.log_start_offset, log.log_end_offset) == (7, 7)


def test_deletions_are_logged_with_their_reason(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log = open_log(tmp_path / "t-0", LogConfig(segment_bytes=2_000, retention_ms=-1, file_delete_delay_ms=60_000))
    fill(log, 40)
    second = log.segments[1].base_offset
    size = log.segments[0].size
    log.advance_log_start(second)
    assert log.delete_old_segments(now_ms=0) == 1
    assert f"topic-0: deleting 1 segments, offsets 0 to {second}, {size} bytes: they are below the log start" in (
        caplog.text
    )
    log.config = LogConfig(segment_bytes=2_000, retention_ms=0)
    log.delete_old_segments(now_ms=10_000)
    assert "bytes: by retention.ms or retention.bytes" in caplog.text
    log.close()
    open_log(tmp_path / "t-0", clean=True)
    assert "segments from offset 0 on" in caplog.text and "were deleted before this start" in caplog.text


def test_recovery_names_the_replica_and_the_bytes_that_it_cuts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "t-0"
    filled(path, clean=False)
    first, *later = sorted(path.glob("*.log"))
    first.write_bytes(first.read_bytes()[:-9])
    sizes = [file.stat().st_size for file in later]
    open_log(path)
    lines = [record.getMessage() for record in caplog.records]
    assert all(str(path) in line for line in lines)
    assert all(any(f"{size} bytes" in line for line in lines) for size in sizes)
