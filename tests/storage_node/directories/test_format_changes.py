"""A format writes all or nothing, keeps ids, supports version 1 and a separate metadata directory."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from storage_node import failpoints
from storage_node.directories import atomic, formatting
from storage_node.directories.errors import DirectoryInUse, StartRefused
from storage_node.directories.formatting import format_directories, prepare
from storage_node.directories.manager import DirectoryManager
from storage_node.directories.meta import properties as meta_properties
from storage_node.directories.meta.properties import MetaProperties
from storage_node.errors import MetadataIOError

CLUSTER = "5MJQ_nGJQHGp6zHzbJCZhg"


@pytest.fixture
def dirs(tmp_path: Path) -> list[Path]:
    return [tmp_path / "data" / name for name in ("d1", "d2", "d3")]


def tree(folder: Path) -> dict[str, bytes | None]:
    """Return everything below a folder: files with their content, folders with None."""
    return {str(p): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


def read(path: Path) -> MetaProperties:
    found = meta_properties.read(path)
    assert found is not None
    return found


@pytest.mark.conformance(135, 136)
@pytest.mark.feature("858-03")
@pytest.mark.parametrize("point", ["start", "written", "flushed", "renamed", "done"])
@pytest.mark.parametrize("nth", [1, 2, 4, 5])
def test_format_that_fails_leaves_nothing_behind(dirs: list[Path], tmp_path: Path, point: str, nth: int) -> None:
    dirs[1].mkdir(parents=True)
    before = tree(tmp_path)
    with failpoints.active({f"meta_properties.{point}": f"raise@{nth}"}), pytest.raises(StartRefused) as refused:
        format_directories(dirs, CLUSTER, 1, fresh=True)
    assert "Error while writing meta.properties file " in str(refused.value)
    assert "nothing was formatted" in str(refused.value)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_format_that_fails_puts_the_old_files_back(dirs: list[Path], tmp_path: Path, nth: int) -> None:
    for index, path in enumerate(dirs[:2]):
        path.mkdir(parents=True)
        text = f"#\n#Fri Nov 20 10:00:00 UTC 2026\nversion={index}\ncluster.id={CLUSTER}\n"
        (path / "meta.properties").write_text(text + ("broker.id=1\n" if index == 0 else "node.id=1\n"))
    before = tree(tmp_path)
    with failpoints.active({"meta_properties.done": f"raise@{nth}"}), pytest.raises(StartRefused):
        format_directories(dirs, CLUSTER, 1)
    assert tree(tmp_path) == before
    format_directories(dirs, CLUSTER, 1)
    assert {read(path).version for path in dirs} == {2}


FORMAT = """
import sys
from storage_node.directories.formatting import format_directories
format_directories(sys.argv[2:], sys.argv[1], 1, fresh=True)
"""


@pytest.mark.parametrize("point", ["flushed", "renamed"])
@pytest.mark.parametrize("nth", [1, 2, 4, 5])
def test_format_that_is_killed_is_finished_by_the_next(dirs: list[Path], point: str, nth: int) -> None:
    environ = {**os.environ, "REHOME_FAILPOINTS": f"meta_properties.{point}=kill@{nth}"}
    arguments = [sys.executable, "-c", FORMAT, CLUSTER, *map(str, dirs)]
    assert subprocess.run(arguments, env=environ, timeout=60).returncode == -signal.SIGKILL
    kept = {str(path): meta_properties.read(path) for path in dirs}
    done = dict(format_directories(dirs, CLUSTER, 1).ids)
    assert all(done[path] == found.directory_id for path, found in kept.items() if found is not None)
    assert {frozenset(read(path).directory_ids) for path in dirs} == {frozenset(done.values())}
    assert {entry.name for path in dirs for entry in path.iterdir()} <= {"meta.properties"}
    prepared = prepare(dirs, node_id=1)
    formatting._release(prepared.locks)
    assert prepared.decision.writes == ()


def test_directory_that_cannot_be_made(dirs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path | str) -> None:
        if str(path).endswith("d3"):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        made(path)

    made = atomic.make_directory
    monkeypatch.setattr(formatting.atomic, "make_directory", refuse)
    with pytest.raises(StartRefused, match=r"d3: Error while writing meta.properties file .*Read-only file system"):
        format_directories(dirs, CLUSTER, 1)
    assert tree(tmp_path) == {}


def test_directory_that_may_not_be_written(dirs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in dirs:
        path.mkdir(parents=True)
    allowed = os.access
    monkeypatch.setattr(
        formatting.os, "access", lambda path, mode: not str(path).endswith("d2") and allowed(path, mode)
    )
    before = tree(tmp_path)
    with pytest.raises(StartRefused, match=r"d2: I/O error trying to read log directory .*it is not writable"):
        format_directories(dirs, CLUSTER, 1)
    assert tree(tmp_path) == before


def test_running_node_is_left_alone_and_what_was_made_is_removed(dirs: list[Path], tmp_path: Path) -> None:
    format_directories(dirs[1:2], CLUSTER, 1)
    prepared = prepare(dirs[1:2], node_id=1)
    before = tree(tmp_path)
    with pytest.raises(DirectoryInUse):
        format_directories(dirs, CLUSTER, 1)
    assert tree(tmp_path) == before
    formatting._release(prepared.locks)


def test_file_that_cannot_be_restored_is_logged(
    dirs: list[Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(path: Path) -> bool:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(formatting.atomic, "remove", broken)
    with failpoints.active({"meta_properties.start": "raise@2"}), pytest.raises(StartRefused):
        format_directories(dirs, CLUSTER, 1)
    assert f"restoring {dirs[0]}/meta.properties failed" in caplog.text
    monkeypatch.undo()
    # As after a crash in between, the next format continues with the existing id.
    kept = read(dirs[0]).directory_id
    assert dict(format_directories(dirs, CLUSTER, 1).ids)[str(dirs[0])] == kept


@pytest.mark.conformance(130, 132)
@pytest.mark.feature("858-02", "858-04")
def test_format_writes_only_outdated_files(dirs: list[Path]) -> None:
    first = format_directories(dirs[:2], CLUSTER, 1)
    stamps = [(path / "meta.properties").stat().st_ino for path in dirs[:2]]
    again = format_directories(dirs[:2], CLUSTER, 1)
    assert again.formatted == again.rewritten == () and again.ids == first.ids
    assert [(path / "meta.properties").stat().st_ino for path in dirs[:2]] == stamps
    more = format_directories(dirs, CLUSTER, 1)
    assert more.formatted == (str(dirs[2]),) and more.rewritten == tuple(map(str, dirs[:2]))
    assert more.ids[:2] == first.ids
    assert {frozenset(read(path).directory_ids) for path in dirs} == {frozenset(dict(more.ids).values())}


@pytest.mark.feature("858-04", "858-07")
def test_format_writes_version_1_and_a_start_upgrades_it(dirs: list[Path]) -> None:
    ids = format_directories(dirs, CLUSTER, 1).ids
    back = format_directories(dirs, CLUSTER, 1, version=1)
    assert back.ids == ids and back.rewritten == tuple(map(str, dirs))
    for path, id in ids:
        lines = (Path(path) / "meta.properties").read_text().splitlines()
        assert {"version=1", f"cluster.id={CLUSTER}", "node.id=1", f"directory.id={id}"} < set(lines)
        assert set(read(Path(path)).directory_ids) == set(dict(ids).values())
    manager = DirectoryManager.open(dirs, node_id=1)
    manager.close()
    assert [(d.name, d.id) for d in manager.directories] == list(ids)
    assert {read(path).version for path in dirs} == {2}


def test_kafkas_metadata_log_is_not_a_replica(dirs: list[Path]) -> None:
    for path in dirs:
        path.mkdir(parents=True)
        (path / "bootstrap.checkpoint").write_bytes(b"x")
        (path / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":7}')
    (dirs[0] / "__cluster_metadata-0").mkdir()
    (dirs[0] / "__cluster_metadata-0" / "00000000000000000000.log").write_bytes(b"x")
    assert format_directories(dirs, CLUSTER, 1).formatted == tuple(map(str, dirs))
    (dirs[0] / "meta.properties").unlink()
    (dirs[0] / "orders-0").mkdir()
    with pytest.raises(StartRefused, match=f"{dirs[0]} may be a disk that is not mounted"):
        format_directories(dirs, CLUSTER, 1)
    with pytest.raises(StartRefused, match="holds replicas"):
        format_directories(dirs[:1], CLUSTER, 1)


@pytest.mark.conformance(139, 142)
@pytest.mark.feature("858-01", "858-05", "858-06")
def test_metadata_directory_beside_log_dirs(dirs: list[Path], tmp_path: Path) -> None:
    beside = tmp_path / "m"
    done = format_directories(dirs[:2], CLUSTER, 1, metadata=str(beside))
    assert done.metadata == str(beside) and len(done.formatted) == 3
    every = frozenset(dict(done.ids).values())
    assert len(every) == 3
    assert {frozenset(read(path).directory_ids) for path in (*dirs[:2], beside)} == {every}
    manager = DirectoryManager.open(dirs[:2], node_id=1, metadata=str(beside))
    try:
        assert [d.path for d in manager.directories] == dirs[:2]
        assert manager.missing_ids() == frozenset()
        with pytest.raises(DirectoryInUse):
            prepare([beside], node_id=1)
    finally:
        manager.close()
    assert [p.name for p in beside.iterdir()] == ["meta.properties"]
    (beside / "meta.properties").unlink()
    with pytest.raises(StartRefused, match=f"{beside} may be a disk that is not mounted"):
        DirectoryManager.open(dirs[:2], node_id=1, metadata=str(beside))
    beside.rmdir()
    with pytest.raises(StartRefused, match=r"m: the metadata directory \(metadata.log.dir\) does not exist; mount"):
        DirectoryManager.open(dirs[:2], node_id=1, metadata=str(beside))


def test_io_error_on_the_metadata_directory_beside_refuses_the_start(
    dirs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = tmp_path / "m"
    format_directories(dirs[:1], CLUSTER, 1, metadata=str(beside))
    real = meta_properties.read

    def failing(directory: Path | str) -> MetaProperties | None:
        if str(directory) == str(beside):
            raise MetadataIOError(str(directory), "reading") from OSError(errno.EIO, os.strerror(errno.EIO))
        return real(directory)

    monkeypatch.setattr(formatting.meta_properties, "read", failing)
    with pytest.raises(StartRefused, match=r"m: the metadata directory .*cannot be used \(.*Input/output error"):
        DirectoryManager.open(dirs[:1], node_id=1, metadata=str(beside))
    monkeypatch.undo()
    DirectoryManager.open(dirs[:1], node_id=1, metadata=str(beside)).close()
