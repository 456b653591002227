"""Whether a file system is read-only is read from /proc/self/mountinfo, by the mount point that holds the directory."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from storage_node.directories.signs.mounts import is_read_only, read_only_options
from tests.faults.disk import SmallDisk
from tests.support.needs import needs_root

PATH = "/disks/b/kafka"


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (["36 35 8:17 / /disks/b rw,noatime shared:1 - ext4 /dev/sdb1 rw,errors=remount-ro"], set()),
        (["36 35 8:17 / /disks/b rw,noatime shared:1 - ext4 /dev/sdb1 ro,errors=remount-ro"], {"ro"}),
        (["36 35 8:17 / /disks/b rw,noatime - ext4 /dev/sdb1 rw,emergency_ro"], {"emergency_ro"}),
        (["36 35 8:17 / /disks/b ro - xfs /dev/sdb1 rw"], {"ro"}),
        (["36 35 0:29 / / ro - overlay overlay ro"], {"ro"}),
        (["36 35 8:18 / /disks/c ro - xfs /dev/sdc1 ro", "37 35 8:19 / /disks/bb ro - xfs /dev/sdd1 ro"], set()),
        # Mounted again at the same place, and the root behind it.
        (["36 35 8:17 / /disks/b ro - xfs /d ro", "40 35 8:17 / /disks/b rw - xfs /d rw"], set()),
        (["36 35 8:17 / /disks/b rw - xfs /dev/sdb1 rw", "40 35 0:29 / / ro - overlay overlay ro"], set()),
        # The same file system, mounted read-only at another place.
        (["36 35 8:1 / / rw - ext4 /dev/sda1 rw", "40 35 8:1 /conf /etc/conf ro - ext4 /dev/sda1 rw"], set()),
        (["36 35 8:17 / /disks/b ro", "", "nonsense - "], set()),
        ([], set()),
    ],
)
def test_options_of_the_mount_that_holds_the_path_are_read(lines: list[str], found: set[str]) -> None:
    assert read_only_options(lines, PATH) == found


def test_blanks_in_the_name_of_a_mount_point_are_read() -> None:
    assert read_only_options([r"36 35 8:17 / /my\040disk ro - xfs /dev/sdb1 rw"], "/my disk/kafka") == {"ro"}


@pytest.mark.root
@needs_root
def test_remount_is_seen(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path, "disk", 16)
    try:
        assert not is_read_only(str(disk.path))
        subprocess.run(["mount", "-o", "remount,ro", str(disk.path)], check=True)
        assert is_read_only(str(disk.path))
    finally:
        disk.close()
