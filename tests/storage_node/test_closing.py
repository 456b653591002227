"""Any thread may drop the last reference to an open file; only those that serve its disk wait for the close."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from storage_node import closing
from storage_node.directories.directory import LogDirectory
from storage_node.log.files import Handle, Home
from tests.support.nodes.node_harness import until


class HungDisk:
    """Every close of a file below `root` waits until `heal`; `closed_by` has the threads' names by file."""

    def __init__(self, root: Path) -> None:
        self.closed_by: dict[str, str] = {}
        self._root = str(root)
        self._healed = threading.Event()
        self._close = os.close

    def close(self, descriptor: int) -> None:
        name = os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115
        if name.startswith(f"{self._root}/"):
            self._healed.wait(30)
            self.closed_by[Path(name).name] = threading.current_thread().name
        self._close(descriptor)

    def heal(self) -> None:
        self._healed.set()


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[LogDirectory]:
    (tmp_path / "d1" / "t-0").mkdir(parents=True)
    directory = LogDirectory(tmp_path / "d1", "id")
    yield directory
    directory.close()


@pytest.fixture
def hung(directory: LogDirectory, monkeypatch: pytest.MonkeyPatch) -> Iterator[HungDisk]:
    disk = HungDisk(directory.path)
    monkeypatch.setattr(os, "close", disk.close)
    yield disk
    disk.heal()


def opened(directory: LogDirectory, name: str) -> Handle:
    return Home(str(directory.path / "t-0")).open(name, os.O_RDWR | os.O_CREAT)


def within(seconds: float, work: Callable[[], object]) -> None:
    """Run `work` on a thread of no disk; fails if it has not returned in time."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "it waits for the disk"


def test_another_thread_does_not_wait_for_the_close(directory: LogDirectory, hung: HungDisk) -> None:
    held = [opened(directory, "a.log")]
    within(5, held.clear)
    assert "a.log" not in hung.closed_by
    hung.heal()
    until(lambda: hung.closed_by.get("a.log") == "closer-d1", 10, "the file is closed")


def test_nor_does_the_garbage_collector(directory: LogDirectory, hung: HungDisk) -> None:
    gc.collect()
    cycle: list[object] = [opened(directory, "a.log")]
    cycle.append(cycle)
    del cycle
    within(5, gc.collect)
    hung.heal()
    until(lambda: hung.closed_by.get("a.log") == "closer-d1", 10, "the file is closed")


def test_thread_of_the_directory_closes_its_file_itself(directory: LogDirectory, hung: HungDisk) -> None:
    hung.heal()
    for submit in (directory.submit, directory.background, directory.for_image, directory.submit_lookup):
        held = [opened(directory, "a.log")]
        submit(held.clear).result(10)
        assert hung.closed_by.pop("a.log").endswith("-d1_0")


def test_thread_of_another_directory_does_not(directory: LogDirectory, hung: HungDisk, tmp_path: Path) -> None:
    other = LogDirectory(tmp_path / "d2", "other", failure="it is not there")
    held = [opened(directory, "a.log")]
    other.pool.submit(held.clear).result(5)
    hung.heal()
    until(lambda: hung.closed_by.get("a.log") == "closer-d1", 10, "the file is closed")
    other.close()


def test_file_outlives_the_object_of_its_directory(tmp_path: Path) -> None:
    (tmp_path / "d1" / "t-0").mkdir(parents=True)
    directory = LogDirectory(tmp_path / "d1", "id")
    handle = opened(directory, "a.log")
    descriptor = handle.fd
    directory.close()
    del directory
    gc.collect()
    del handle
    until(lambda: not os.path.exists(f"/proc/self/fd/{descriptor}"), 10, "the file is closed")  # noqa: PTH110


def test_files_are_closed_in_whatever_order_the_collector_destroys(tmp_path: Path) -> None:
    (tmp_path / "d1" / "t-0").mkdir(parents=True)
    descriptors = []
    for number in range(200):
        directory = LogDirectory(tmp_path / "d1", "id")
        handles = [opened(directory, f"{number}-{each}.log") for each in range(3)]
        descriptors += [handle.fd for handle in handles]
        cycle: list[object] = [directory, *handles] if number % 2 else [*handles, directory]
        cycle.append(cycle)
        directory.close()
        del directory, handles, cycle
    gc.collect()
    own = str(tmp_path)

    def left() -> list[int]:
        found = []
        for each in descriptors:
            with suppress(OSError):  # it is closed meanwhile
                if os.readlink(f"/proc/self/fd/{each}").startswith(own):  # noqa: PTH115
                    found.append(each)
        return found

    until(lambda: not left(), 10, "all files are closed")


def test_thread_ends_with_the_directory(tmp_path: Path) -> None:
    LogDirectory(tmp_path / "brief", "id").close()
    gc.collect()
    until(lambda: not any(t.name == "closer-brief" for t in threading.enumerate()), 10, "the thread ends")


def test_without_a_node_the_caller_closes(tmp_path: Path) -> None:
    assert closing.closer_of(str(tmp_path)) is None
    (tmp_path / "t-0").mkdir()
    handle = Home(str(tmp_path / "t-0")).open("a.log", os.O_RDWR | os.O_CREAT)
    descriptor = handle.fd
    del handle
    assert not os.path.exists(f"/proc/self/fd/{descriptor}")  # noqa: PTH110
