"""A disk so full that a directory has no room for a longer name: deletions and truncations still work."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from storage_node.directories.atomic import NoRoom
from storage_node.log.batches.batch import build_batch
from storage_node.log.config import LogConfig
from storage_node.log.log import Log
from storage_node.log.segment import Segment
from storage_node.log.segments import LogSegments
from storage_node.model.ids import TopicPartition

TP = TopicPartition("t", 0)
CONFIG = LogConfig(segment_bytes=2000, file_delete_delay_ms=60_000)


@pytest.mark.parametrize("how", ["retention", "truncation"])
def test_segments_that_cannot_be_renamed_are_deleted_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    log = Log.open(tmp_path / "t-0", TP, CONFIG, directory=str(tmp_path))
    for number in range(20):
        log.append_as_leader(build_batch([b"%d" % number + b"x" * 500]), 0)
    read_before = log.segments[0]
    real = os.rename

    def rename(source: str, target: str, **kwargs: int) -> None:
        if target.endswith(".deleted"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), source)
        real(source, target, **kwargs)

    monkeypatch.setattr(os, "rename", rename)
    files = len(list((tmp_path / "t-0").glob("*.log")))
    if how == "retention":
        log.advance_log_start(10)
        gone = log.delete_old_segments(0)
        assert gone > 2 and read_before.header_at(0).base_offset == 0, "who reads it has it open"
        assert (log.log_start_offset, log.log_end_offset) == (10, 20)
    else:
        log.truncate_to(10)
        gone = files - len(log.segments)
        assert gone > 2 and log.log_end_offset == 10
    assert len(list((tmp_path / "t-0").glob("*.log"))) == files - gone
    log.purge_deleted(10**15)
    log.close()
    again = Log.open(tmp_path / "t-0", TP, CONFIG, directory=str(tmp_path), log_start_offset=log.log_start_offset)
    assert (again.log_start_offset, again.log_end_offset) == ((10, 20) if how == "retention" else (0, 10))
    again.close()


def test_failed_replacement_of_a_leftover_segment_leaves_a_log_that_can_be_truncated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process killed while it replaced an empty segment leaves both segments behind."""
    path = tmp_path / "t-0"
    log = Log.open(path, TP, CONFIG, directory=str(tmp_path))
    for number in range(3):
        log.append_as_leader(build_batch([b"%d" % number]), 0)
    log.close()
    for base in (5, 9):
        (path / f"{base:020d}.log").touch()
    log = Log.open(path, TP, CONFIG, directory=str(tmp_path), clean=True)
    assert [segment.base_offset for segment in log.segments] == [0, 5, 9]

    def full(*_: object) -> Segment:
        raise NoRoom(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched, pytest.raises(NoRoom):
        patched.setattr(LogSegments, "create", full)
        log._segments.replace_active(5, 0)
    log.truncate_to(6)
    assert [segment.base_offset for segment in log.segments] == [0]
    assert log.read(0, 1 << 20).data and log.log_end_offset == 6
