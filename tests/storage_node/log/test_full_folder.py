"""A disk so full that a folder takes no longer name: what makes room works all the same."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from storage_node.log.batch import build_batch
from storage_node.log.config import LogConfig
from storage_node.log.log import Log
from storage_node.types import TopicPartition

TP = TopicPartition("t", 0)
CONFIG = LogConfig(segment_bytes=2000, file_delete_delay_ms=60_000)


@pytest.mark.parametrize("how", ["retention", "truncation"])
def test_segments_go_at_once_where_they_cannot_be_renamed(
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
