"""The newest cluster image is kept in every directory, and a start uses the newest valid one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_node import failpoints
from storage_node.directories import image_store
from storage_node.directories.directory import IMAGE_THREADS, LogDirectory
from storage_node.directories.errors import MalformedFile
from storage_node.directories.image_store import ImageStore, StoredImage
from storage_node.errors import LogDirectoryOffline, MetadataIOError


@pytest.fixture
def directories(tmp_path: Path) -> Iterator[list[LogDirectory]]:
    made = []
    for name in ("d1", "d2", "d3"):
        (tmp_path / name).mkdir()
        made.append(LogDirectory(tmp_path / name, name))
    yield made
    for directory in made:
        directory.close()


def put(directory: LogDirectory, generation: int, version: int, image: str) -> None:
    (directory.path / "cluster-image").write_bytes(image_store.encode(StoredImage(generation, version, image)))


def test_saved_image_is_in_every_directory(directories: list[LogDirectory]) -> None:
    store = ImageStore(directories)
    assert store.load() == (None, ())
    store.save("the image", 1, 5)
    assert store.flush(60)
    for directory in directories:
        assert ImageStore([directory]).load() == (StoredImage(1, 5, "the image"), ())


def test_newest_wins_by_generation_then_version(directories: list[LogDirectory]) -> None:
    put(directories[0], 1, 900, "old generation")
    put(directories[1], 2, 7, "newest")
    put(directories[2], 2, 6, "one behind")
    assert ImageStore(directories).load() == (StoredImage(2, 7, "newest"), ())


@pytest.mark.parametrize("damage", ["truncated", "empty", "flipped", "header", "foreign"])
def test_file_that_is_not_valid_is_ignored_and_reported(directories: list[LogDirectory], damage: str) -> None:
    put(directories[0], 3, 3, "newer but damaged")
    put(directories[1], 2, 2, "good")
    file = directories[0].path / "cluster-image"
    data = file.read_bytes()
    file.write_bytes(
        {
            "truncated": data[:-1],
            "empty": b"",
            "flipped": data[:-1] + b"X",
            "header": data.replace(b" 3 3 ", b" 9 3 "),
            "foreign": b"\xff\x00hello",
        }[damage]
    )
    stored, problems = ImageStore(directories).load()
    assert stored == StoredImage(2, 2, "good")
    assert len(problems) == 1 and str(file) in problems[0]
    assert directories[0].online
    with pytest.raises(MalformedFile):
        image_store.decode(file.read_bytes())


def test_unreadable_file_takes_its_directory_offline(directories: list[LogDirectory]) -> None:
    (directories[0].path / "cluster-image").mkdir()
    put(directories[1], 2, 2, "good")
    stored, problems = ImageStore(directories).load()
    assert stored is not None and stored.image == "good" and len(problems) == 1
    assert not directories[0].online


def test_failed_disk_does_not_prevent_saving_to_others(directories: list[LogDirectory]) -> None:
    store = ImageStore(directories)
    directories[0].fail("gone")
    store.save("image", 1, 1)
    assert store.flush(60)
    assert [(d.path / "cluster-image").exists() for d in directories] == [False, True, True]
    for directory in directories:
        directory.fail("gone")
    with pytest.raises(LogDirectoryOffline):
        store.save("image", 1, 2)


def test_io_error_on_the_first_directory_is_an_error(directories: list[LogDirectory]) -> None:
    store = ImageStore(directories[:1])
    with failpoints.active({"cluster_image.flushed": "raise"}), pytest.raises(MetadataIOError):
        store.save("image", 1, 1)
    assert not directories[0].online and store.flush(60)


def test_slow_disk_delays_no_other_and_gets_the_newest_image(directories: list[LogDirectory]) -> None:
    slow = directories[2]
    release = threading.Event()
    blocked = [slow.for_image(release.wait, 60) for _ in range(IMAGE_THREADS)]
    store = ImageStore(directories)
    for version in range(1, 20):
        store.save(f"image {version}", 1, version)
    assert ImageStore(directories[:2]).load()[0] == StoredImage(1, 19, "image 19")
    assert ImageStore([slow]).load() == (None, ())
    assert not store.flush(0)
    release.set()
    assert store.flush(60)
    assert ImageStore([slow]).load()[0] == StoredImage(1, 19, "image 19")
    assert all(future.result(60) for future in blocked)


def test_spread_saves_the_image_in_directories_with_an_older_one(directories: list[LogDirectory]) -> None:
    """So that any directory that is left at the next start has the newest image."""
    put(directories[0], 1, 4, "behind")
    put(directories[1], 1, 5, "newest")
    store = ImageStore(directories)
    stored, _ = store.load()
    assert stored is not None
    untouched = (directories[1].path / "cluster-image").stat().st_ino
    store.spread(stored)
    assert store.flush(60)
    for directory in directories:
        assert ImageStore([directory]).load() == (stored, ())
    assert (directories[1].path / "cluster-image").stat().st_ino == untouched
