"""All log directories of a node together."""

from __future__ import annotations

import errno
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storage_node.directories import atomic
from storage_node.directories.clean_shutdown import CleanShutdown
from storage_node.directories.errors import DirectoryInUse, StartRefused
from storage_node.directories.formatting import format_directories
from storage_node.directories.manager import DirectoryManager
from storage_node.directories.meta import properties as meta_properties
from storage_node.errors import LogDirectoryOffline, LogDirNotFound, LogFlushError

HEX = "0123456789abcdef" * 2
Open = Callable[..., DirectoryManager]


@pytest.fixture
def dirs(tmp_path: Path) -> list[Path]:
    dirs = [tmp_path / name for name in ("d1", "d2", "d3")]
    format_directories(dirs, "c", 1)
    return dirs


@pytest.fixture
def open_manager(dirs: list[Path]) -> Iterator[Open]:
    opened: list[DirectoryManager] = []

    def open(paths: list[Path] = dirs) -> DirectoryManager:
        opened.append(DirectoryManager.open(paths, node_id=1))
        return opened[-1]

    yield open
    for manager in opened:
        manager.close()


@pytest.mark.conformance(82)
def test_start_takes_all_directories(dirs: list[Path], open_manager: Open) -> None:
    manager = open_manager()
    assert [d.path for d in manager.directories] == dirs and manager.online() == manager.directories
    assert manager.directories[0].path == dirs[0]
    assert (manager.cluster_id, manager.node_id, manager.missing_ids()) == ("c", 1, frozenset())
    for directory in manager.directories:
        assert manager.by_id(directory.id) is directory
        assert (directory.path / ".lock").exists()
    assert manager.by_id("unknown") is None and manager.by_id("") is None
    with pytest.raises(DirectoryInUse):
        open_manager()
    manager.close()
    assert not any((d / ".lock").exists() for d in dirs)
    open_manager()


def test_paths_are_those_of_log_dirs(dirs: list[Path], open_manager: Open, tmp_path: Path) -> None:
    manager = open_manager()
    (tmp_path / "link").symlink_to(dirs[0])
    assert manager.by_path(f"{dirs[1]}/").path == dirs[1]
    for path in (tmp_path / "link", dirs[0] / "t-0", tmp_path, "d1", "", "/"):
        with pytest.raises(LogDirNotFound, match="not a log directory of node 1"):
            manager.by_path(path)


def test_symlink_to_a_directory_is_served_and_its_target_watched(
    tmp_path: Path, dirs: list[Path], open_manager: Open
) -> None:
    link, other = tmp_path / "links" / "crypt", tmp_path / "other"
    other.mkdir()
    link.parent.mkdir()
    link.symlink_to(tmp_path / "d1")
    format_directories([link, *dirs[1:]], "c", 1)
    with pytest.raises(StartRefused, match="are the same directory"):
        open_manager([link, *dirs])
    manager = open_manager([link, *dirs[1:]])
    directory = manager.directories[0]
    assert directory.name == str(link) and directory.online and (dirs[0] / ".lock").exists()
    assert manager.by_path(link) is manager.by_path(dirs[0]) is directory
    with pytest.raises(DirectoryInUse):
        open_manager(dirs)
    assert directory.verify()
    link.unlink()
    link.symlink_to(other)
    assert not directory.verify() and "no longer leads" in (directory.failure or "")
    link.unlink()
    link.symlink_to(dirs[0])
    manager.put(manager.open_again(directory, threads=1, patience=10))
    assert manager.by_path(dirs[0]).online


@pytest.mark.feature("858-08")
def test_directory_in_error_is_offline_and_its_id_missing(dirs: list[Path], open_manager: Open) -> None:
    properties = meta_properties.read(dirs[1])
    (dirs[1] / "meta.properties").write_text("version=77\n")
    manager = open_manager()
    assert properties is not None and manager.missing_ids() == {properties.directory_id}
    bad = manager.by_path(dirs[1])
    assert not bad.online and bad.failure is not None and "unknown version 77" in bad.failure
    told: list[str] = []
    manager.on_failure(lambda d, _: told.append(d.name))
    assert told == [str(dirs[1])]
    manager.directories[2].fail("gone")
    assert told == [str(dirs[1]), str(dirs[2])]
    assert manager.missing_ids() == {properties.directory_id, manager.directories[2].id}


def test_refused_start_leaves_no_lock(dirs: list[Path], open_manager: Open) -> None:
    with pytest.raises(StartRefused):
        DirectoryManager.open(dirs, node_id=2)
    open_manager()


def test_storage_errors_are_handled_in_one_place(dirs: list[Path], open_manager: Open) -> None:
    manager = open_manager()
    assert not manager.handle(LogFlushError("/elsewhere", "flushing"))
    assert manager.handle(LogFlushError(str(dirs[2]), "flushing"))
    assert not manager.handle(LogFlushError(str(dirs[2]), "flushing"))
    assert [d.online for d in manager.directories] == [True, True, False]


def test_clean_shutdown_is_per_directory(dirs: list[Path], open_manager: Open) -> None:
    manager = open_manager()
    manager.directories[0].mark_clean_shutdown(5)
    (dirs[1] / ".kafka_cleanshutdown").mkdir()
    assert manager.take_clean_shutdowns() == {
        str(dirs[0]): CleanShutdown(True, 5),
        str(dirs[1]): CleanShutdown(False),
        str(dirs[2]): CleanShutdown(False),
    }
    assert not manager.directories[1].online


def test_names_are_flushed_in_all_directories_even_if_one_fails(
    dirs: list[Path], open_manager: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = open_manager()
    flushed: list[Path] = []

    def fsync_dir(path: Path) -> None:
        if path == dirs[1]:
            raise OSError(errno.EIO, "broken")
        flushed.append(path)

    monkeypatch.setattr(atomic, "fsync_dir", fsync_dir)
    manager.flush_found_names()
    assert flushed == [dirs[0], dirs[2]]
    assert [directory.online for directory in manager.directories] == [True, False, True]
    assert manager.directories[1].id in manager.missing_ids()


def test_new_replicas_go_where_there_is_least_and_spread(dirs: list[Path], open_manager: Open) -> None:
    manager = open_manager()
    one, two, three = manager.directories
    gib = 1024**3
    assert manager.place([(one, gib), (two, 2 * gib), (three, gib // 2)]) == [three]
    counted = Counter(directory.name for directory in manager.place([], 500))
    assert sorted(counted.values()) == [166, 167, 167]
    three.fail("gone")
    assert {directory for directory in manager.place([(three, 0)], 10)} == {one, two}
    one.fail("gone")
    two.fail("gone")
    with pytest.raises(LogDirectoryOffline):
        manager.place([])


def test_directories_to_be_avoided_get_replicas_only_if_there_are_no_others(open_manager: Open) -> None:
    manager = open_manager()
    one, two, three = manager.directories
    assert set(manager.place([(one, 1024**4)], 10, {two.name, three.name})) == {one}
    assert set(manager.place([], 10, {directory.name for directory in manager.directories})) == {one, two, three}
    one.fail("gone")
    assert set(manager.place([], 10, {two.name, three.name})) == {two, three}


def test_images_are_kept_over_a_restart(dirs: list[Path], open_manager: Open) -> None:
    manager = open_manager()
    manager.images.save("image", 2, 3)
    manager.close()
    stored, problems = open_manager().images.load()
    assert stored is not None and (stored.generation, stored.version, stored.image) == (2, 3, "image")
    assert problems == ()


def test_closing_waits_for_what_is_running(dirs: list[Path], open_manager: Open) -> None:
    manager = open_manager()
    started, done = threading.Event(), []

    def work() -> None:
        started.set()
        done.append(manager.directories[0].usage())

    manager.directories[0].submit(work)
    assert started.wait(60)
    manager.close()
    assert len(done) == 1
