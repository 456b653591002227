"""Disks whose power can be cut: what a machine lacks for one file system costs that one's tests alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.root


def test_without_the_programs_of_one_file_system_the_other_is_tested(
    loop_disk_of: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI", raising=False)
    there = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name in ("mkfs.xfs", "xfs_repair") else there(name))
    loop_disk_of("ext4")
    with pytest.raises(pytest.skip.Exception, match=r"needs mkfs\.xfs, xfs_repair: not installed"):
        loop_disk_of("xfs")
