"""Storage errors: one hierarchy, by what failed, and each names its log or its file."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from storage_node.directories.checkpoints import OffsetCheckpoint
from storage_node.directories.directory import LogDirectory
from storage_node.directories.io_faults import reason_of
from storage_node.errors import CheckpointIOError, LogAppendError, LogReadError, RequestRefused, StorageError
from storage_node.log.files import Region
from storage_node.protocol.network.sending import FilePart
from tests.storage_node.log.logs import TP, batch, fill, open_log
from tests.support.io_faults import Faults


@pytest.mark.feature("18-03")
def test_log_append_and_log_read_errors_name_the_log(tmp_path: Path, faults: Faults) -> None:
    log = open_log(tmp_path / "topic-0")
    fill(log, 3)
    faults.fail("pwritev", f"{log.path}/*.log", errno.EIO)
    with pytest.raises(LogAppendError) as append:
        log.append_as_leader(batch(), 0)
    faults.clear()
    faults.fail("pread", f"{log.path}/*.log", errno.EIO)
    with pytest.raises(LogReadError) as read:
        log.read(0, 1000)
    for error, doing in ((append.value, "appending to"), (read.value, "reading")):
        assert isinstance(error, StorageError) and error.directory == str(tmp_path)
        assert reason_of(error) == f"{doing} the log of {TP} failed on log directory {tmp_path}: Input/output error"


@pytest.mark.feature("18-03", "18-18")
def test_log_read_error_on_the_send_path_names_the_log(tmp_path: Path, faults: Faults) -> None:
    log, directory = open_log(tmp_path / "topic-0"), LogDirectory(tmp_path, "an-id")
    fill(log, 100)
    found = log.read(0, 1 << 20, at_once=100)
    assert isinstance(found.region, Region) and len(found.data) < len(found.region)
    part = FilePart(found.data, found.region, TP, directory)
    part.give_up()
    faults.fail("pread", f"{log.path}/*.log", errno.EIO)
    with pytest.raises(LogReadError) as read:
        part.read_on().result(10)
    faults.clear()
    assert f"the log of {TP}" in str(read.value) and read.value.directory == str(tmp_path)
    assert not directory.online and directory.failure == reason_of(read.value)
    directory.close()


@pytest.mark.feature("18-03")
@pytest.mark.parametrize("call", ["read", "write"])
def test_high_watermark_io_error_names_the_file(tmp_path: Path, call: str) -> None:
    checkpoint = OffsetCheckpoint(tmp_path, "replication-offset-checkpoint")
    checkpoint.path.mkdir()
    with pytest.raises(CheckpointIOError) as failed:
        checkpoint.read() if call == "read" else checkpoint.write({TP: 1})
    assert isinstance(failed.value, StorageError) and failed.value.directory == str(tmp_path)
    assert "replication-offset-checkpoint" in str(failed.value)


@pytest.mark.feature("18-03")
def test_kinds_of_storage_errors_are_beside_each_other() -> None:
    """What handles one kind does not handle another, and what a request is refused with is no storage error."""
    kinds = [LogAppendError, LogReadError, CheckpointIOError]
    for kind in kinds:
        assert issubclass(kind, StorageError) and not issubclass(kind, RequestRefused)
        assert [other for other in kinds if issubclass(kind, other)] == [kind]
