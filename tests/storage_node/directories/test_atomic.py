"""Small files are replaced atomically."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from storage_node import failpoints
from storage_node.directories import atomic
from storage_node.errors import CheckpointIOError, MetadataIOError

STEPS = ("start", "written", "flushed", "renamed", "done")

PROGRAM = """
import sys
from pathlib import Path
from storage_node.directories import atomic
atomic.write_atomic(Path(sys.argv[1]), b"new" * 1000)
"""


def test_write_atomic_replaces_content_without_leftovers(tmp_path: Path) -> None:
    file = tmp_path / "f"
    atomic.write_atomic(file, b"old")
    atomic.write_atomic(file, b"new")
    assert file.read_bytes() == b"new"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


@pytest.mark.parametrize("step", STEPS)
def test_kill_at_any_step_leaves_the_old_or_the_new_content(tmp_path: Path, step: str) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"old")
    environ = dict(os.environ, REHOME_FAILPOINTS=f"atomic.{step}=kill")
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(file)], env=environ, timeout=60)
    assert done.returncode == -signal.SIGKILL
    renamed = STEPS.index(step) >= STEPS.index("renamed")
    assert file.read_bytes() == (b"new" * 1000 if renamed else b"old")
    atomic.write_atomic(file, b"again")  # the leftovers of a kill do not interfere
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


@pytest.mark.parametrize("step", STEPS[:3])
def test_error_before_the_rename_keeps_the_old_content(tmp_path: Path, step: str) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"old")
    with failpoints.active({f"atomic.{step}": "raise"}), pytest.raises(OSError):
        atomic.write_atomic(file, b"new")
    assert file.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_full_disk_is_distinguished_from_a_failed_flush(tmp_path: Path) -> None:
    for point, full in (("atomic.written", True), ("atomic.flushed", False), ("atomic.fsync_dir", False)):
        with (
            failpoints.active({point: "raise:ENOSPC"}),
            pytest.raises(MetadataIOError) as failed,
            atomic.io_errors(tmp_path, "writing f"),
        ):
            atomic.write_atomic(tmp_path / "f", b"new")
        assert atomic.is_no_room(failed.value) is full


def test_symlink_in_place_of_the_temporary_file_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / "f.tmp").symlink_to(victim)
    with pytest.raises(OSError):
        atomic.write_atomic(tmp_path / "f", b"new")
    assert victim.read_bytes() == b"precious"


def test_errors_carry_the_directory_and_the_cause(tmp_path: Path) -> None:
    with pytest.raises(CheckpointIOError) as failed, atomic.io_errors(tmp_path, "reading f", CheckpointIOError):
        atomic.read_bytes(tmp_path / "f", 10)
    assert failed.value.directory == str(tmp_path)
    assert isinstance(failed.value.__cause__, FileNotFoundError)
    assert f"reading f failed on log directory {tmp_path}" in str(failed.value)


def test_read_bytes_rejects_large_and_irregular_files(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * 11)
    (tmp_path / "link").symlink_to(tmp_path / "large")
    os.mkfifo(tmp_path / "pipe")
    assert atomic.read_bytes(tmp_path / "large", 11) == b"x" * 11
    for name, code in (("large", errno.EFBIG), ("link", errno.ELOOP), ("pipe", errno.EINVAL)):
        with pytest.raises(OSError) as failed:
            atomic.read_bytes(tmp_path / name, 10)
        assert failed.value.errno == code


def test_rename_new_never_replaces(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with pytest.raises(FileExistsError):
        atomic.rename_new(tmp_path / "a", tmp_path / "b")
    with pytest.raises(FileNotFoundError):
        atomic.rename_new(tmp_path / "none", tmp_path / "c")
    atomic.rename_new(tmp_path / "a", tmp_path / "c")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b", "c"]


def test_rename_new_without_the_kernels_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic, "_renameat2", lambda: None)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with pytest.raises(FileExistsError):
        atomic.rename_new(tmp_path / "a", tmp_path / "b")
    atomic.rename_new(tmp_path / "a", tmp_path / "c")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b", "c"]


def test_make_directory_and_remove_are_repeatable(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b" / "c"
    atomic.make_directory(deep)
    atomic.make_directory(deep)
    assert deep.is_dir()
    (deep / "f").touch()
    assert [atomic.remove(deep / "f"), atomic.remove(deep / "f")] == [True, False]
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        atomic.make_directory(tmp_path / "file" / "d")
