"""A health check reads from the disk what it has written there, not from the system's cache."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from storage_node.directories import probing
from storage_node.directories.io_faults import evidence_of
from storage_node.errors import MetadataIOError
from storage_node.model.evidence import Verdict
from tests.faults.disk import Disk, SmallDisk, needs_fuse
from tests.support.needs import needs_root


@pytest.mark.fuse
@needs_fuse
@pytest.mark.feature("18-17")
def test_health_check_meets_the_errors_of_a_disk_that_only_fails_to_read(disks: tuple[Disk, Disk]) -> None:
    disk = disks[0]
    folder = disk.path / "probed"
    folder.mkdir()
    probing.probe(folder)
    disk.rules({"ops": ("read",), "errno": errno.EIO})
    with pytest.raises(MetadataIOError) as failed:
        probing.probe(folder)
    found = evidence_of(failed.value, 1.5)
    assert (found.verdict, found.errno, found.time) == (Verdict.DISK, "EIO", 1.5)
    disk.heal()
    probing.probe(folder)


@pytest.mark.root
@needs_root
def test_what_a_health_check_reads_is_not_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SmallDisk(tmp_path, "disk", 16)
    cached: list[bool] = []

    def look(fd: int) -> None:
        try:
            os.preadv(fd, [bytearray(1)], 0, os.RWF_NOWAIT)
            cached.append(True)
        except BlockingIOError:
            cached.append(False)

    def looking(call: Any) -> Any:
        def looked(fd: int, *more: Any) -> Any:
            look(fd)
            return call(fd, *more)

        return looked

    try:
        monkeypatch.setattr(os, "posix_fadvise", looking(os.posix_fadvise))
        monkeypatch.setattr(os, "pread", looking(os.pread))
        probing.probe(disk.path)
    finally:
        monkeypatch.undo()
        disk.close()
    assert cached == [True, False], "before it is dropped from the cache, and when it is read"
