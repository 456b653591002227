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
]


@pytest.mark.parametrize(("before", "after"), FILES)
def test_only_log_dirs_changes(before: str, after: str, tmp_path: Path) -> None:
    assert with_log_dirs(before, "/a,/b") == after
    assert javaproperties.loads(after)["log.dirs"] == "/a,/b"
    file = tmp_path / "server.properties"
    file.write_text(before)
    set_log_dirs(file, "/a,/b")
    assert file.read_text() == after
