"""log.dirs is rewritten in a server.properties, and the rest of the file stays as it was."""

from __future__ import annotations

from pathlib import Path

import javaproperties
import pytest

from storage_node.config.log_dirs_file import set_log_dirs, with_log_dirs

FILES = [
    ("log.dirs=/a\n", "log.dirs=/a,/b\n"),
    ("# disks\nnode.id=1\nlog.dirs = /a\nport=1\n", "# disks\nnode.id=1\nlog.dirs=/a,/b\nport=1\n"),
    ("log.dir=/old\nlog.dirs: /a\n", "log.dirs=/a,/b\n"),
    ("log.dirs=/a,\\\n  /c\nnode.id=1\n", "log.dirs=/a,/b\nnode.id=1\n"),
    ("log.dirs.more=/x\n#log.dirs=/y\n", "log.dirs.more=/x\n#log.dirs=/y\nlog.dirs=/a,/b\n"),
    ("", "log.dirs=/a,/b\n"),
    ("node.id=1\r\nlog.dirs=/a\r\n", "node.id=1\nlog.dirs=/a,/b\n"),
]


@pytest.mark.parametrize(("before", "after"), FILES)
def test_only_log_dirs_changes(before: str, after: str, tmp_path: Path) -> None:
    assert with_log_dirs(before, "/a,/b") == after
    assert javaproperties.loads(after)["log.dirs"] == "/a,/b"
    file = tmp_path / "server.properties"
    file.write_text(before)
    set_log_dirs(file, "/a,/b")
    assert file.read_text() == after


def test_other_bytes_of_the_file_and_its_permissions_stay(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    others = "# Å in UTF-8\n".encode() + "broker.rack=Åre\x85\x0c in Latin-1\n".encode("latin-1")
    for mode in (0o600, 0o640):
        file.write_bytes(others + b"log.dirs=/a\n")
        file.chmod(mode)
        set_log_dirs(file, "/a,/b")
        assert file.read_bytes() == others + b"log.dirs=/a,/b\n"
        assert file.stat().st_mode & 0o777 == mode
