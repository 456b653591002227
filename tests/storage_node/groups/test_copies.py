"""A copy of the groups in every log directory: any of them but the last may fail, and the newest valid one counts."""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_node import failpoints
from storage_node.directories import atomic
from storage_node.directories.directory import LogDirectory
from storage_node.errors import StorageError
from storage_node.groups import store as store_module
from storage_node.groups.copies import SNAPSHOT, TAIL, GroupCopy
from storage_node.groups.store import GroupStore
from tests.storage_node.groups.test_store import commit, contents, put
from tests.support.nodes.node_harness import until
from tests.support.scale import scaled


class Stores:
    """Stores in folders of a test, each closed at its end."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._opened: list[tuple[GroupStore, list[LogDirectory]]] = []

    def open(self, *names: str, smallest_tail: int = 1 << 20) -> GroupStore:
        directories = []
        for name in names:
            (self.root / name).mkdir(exist_ok=True)
            directories.append(LogDirectory(self.root / name, name))
        store = GroupStore(lambda: [each for each in directories if each.online], smallest_tail)
        self._opened.append((store, directories))
        store.load()
        return store

    def directories(self, store: GroupStore) -> list[LogDirectory]:
        return next(directories for one, directories in self._opened if one is store)

    def offset(self, *names: str, group: str = "g") -> int:
        """The offset that a start with these directories has."""
        store = self.open(*names)
        data = store.state.groups.get(group)
        store.close()
        return data.offsets["t", 0].offset if data is not None else -1

    def close(self) -> None:
        for store, directories in self._opened:
            store.close()
            for directory in directories:
                directory.pool.shutdown(wait=directory.online)


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    made = Stores(tmp_path)
    yield made
    made.close()


def rewritten(store: GroupStore) -> bool:
    return all(copy.ready and copy.idle for copy in store._copies.values())


@pytest.mark.parametrize("left", ["a", "b", "c"])
def test_each_directory_alone_has_every_acknowledged_entry(stores: Stores, left: str) -> None:
    store = stores.open("a", "b", "c")
    for offset in range(1, 6):
        assert put(store, commit("g", offset)) == [None]
    store.close()
    assert stores.offset(left) == 5


def test_entries_go_on_after_any_directory_but_the_last_has_failed(stores: Stores) -> None:
    store = stores.open("a", "b", "c")
    directories = stores.directories(store)
    for offset, directory in enumerate(directories, 1):
        assert put(store, commit("g", offset)) == [None]
        directory.fail("pulled out")
    assert put(store, commit("g", 9)) != [None], "no directory is left"
    assert store.state.groups["g"].offsets["t", 0].offset == 3
    assert [stores.offset(name) for name in "abc"] == [1, 2, 3]
    assert stores.offset("a", "b", "c") == 3, "the newest counts"
    assert stores.offset("a") == 3, "and the others were renewed"


def test_what_was_written_without_a_directory_is_newer_than_what_it_holds(stores: Stores) -> None:
    """Also where it holds entries that the others did not have yet."""
    stores.open("a").close()
    ahead = stores.open("a")
    for offset in range(1, 8):
        put(ahead, commit("g", offset))
    ahead.close()
    behind = stores.open("b")
    put(behind, commit("g", 50))
    behind.close()
    assert stores.offset("b") == 50
    again = stores.open("b")
    put(again, commit("g", 51))
    again.close()
    assert stores.offset("a", "b") == 51
    assert stores.offset("a") == 51


def committing(paths: list[Path], recorded: Path, points: str) -> None:
    """A process that commits one offset after the other, and records each acknowledged one."""
    failpoints.configure({"REHOME_FAILPOINTS": points})
    directories = [LogDirectory(path, path.name) for path in paths]
    store = GroupStore(lambda: directories)
    store.load()
    with recorded.open("ab", buffering=0) as file:
        for offset in range(1, 20):
            assert put(store, commit("g", offset)) == [None]
            file.write(b"%d\n" % offset)


@pytest.mark.parametrize(("point", "hit"), [("groups.written", 8), ("groups.flushed", 7)])
def test_killed_between_the_copies(point: str, hit: int, stores: Stores) -> None:
    """Whichever copy the crash left behind, either directory alone has what was acknowledged."""
    paths = [stores.root / "a", stores.root / "b"]
    for path in paths:
        path.mkdir()
    recorded = stores.root / "recorded"
    process = multiprocessing.get_context("forkserver").Process(
        target=committing, args=(paths, recorded, f"{point}=kill@{hit}")
    )
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    acknowledged = int(recorded.read_text().split()[-1])
    for path in paths:
        shutil.copytree(path, stores.root / f"alone-{path.name}")
        alone = stores.offset(f"alone-{path.name}")
        assert alone in (acknowledged, acknowledged + 1)
    both = stores.offset("a", "b")
    assert both in (acknowledged, acknowledged + 1)
    assert [stores.offset("a"), stores.offset("b")] == [both, both], "the copies are the same after the start"


def test_commit_is_acknowledged_once_two_directories_have_it(stores: Stores) -> None:
    store = stores.open("a", "b")
    slow = stores.directories(store)[1]
    go_on, done = threading.Event(), threading.Event()
    blocked = [slow.submit(go_on.wait, 30) for _ in range(2)]
    store.put(commit("g", 1), lambda error: done.set())
    assert not done.wait(0.3), "the first alone might fail before the second has it"
    go_on.set()
    assert done.wait(10) and all(each.result(30) for each in blocked)
    assert stores.offset("b") == 1


def test_slow_disk_among_three_delays_no_commit(stores: Stores) -> None:
    store = stores.open("a", "b", "c")
    slow = stores.directories(store)[0]
    go_on = threading.Event()
    blocked = [slow.submit(go_on.wait, 30) for _ in range(2)]
    for offset in range(1, 6):
        assert put(store, commit("g", offset)) == [None]
    assert not any(each.done() for each in blocked), "no commit waited for the slow disk"
    go_on.set()
    assert all(each.result(30) for each in blocked)
    store.close()
    assert stores.offset("a") == 5


def test_disk_that_hangs_beside_one_other_is_left_behind_and_renewed(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "PATIENCE", 0.1)
    monkeypatch.setattr(store_module, "RETRY", 0.1)
    store = stores.open("a", "b")
    hangs = stores.directories(store)[0]
    go_on = threading.Event()
    blocked = [hangs.submit(go_on.wait, 30) for _ in range(2)]
    for offset in range(1, 4):
        assert put(store, commit("g", offset)) == [None]
    assert stores.offset("b") == 3
    go_on.set()
    assert all(each.result(30) for each in blocked)
    until(lambda: rewritten(store))
    store.close()
    assert stores.offset("a") == 3


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EMFILE])
def test_full_disk_is_left_behind_and_renewed(stores: Stores, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    monkeypatch.setattr(store_module, "RETRY", 0.1)
    store = stores.open("a", "b")
    full = stores.directories(store)[0]
    real = GroupCopy._append

    def append(self: GroupCopy, data: bytes) -> None:
        if self.directory is full:
            with atomic.io_errors(self.directory.name, "writing"), atomic.full_is_no_room():
                raise OSError(error, os.strerror(error))
        real(self, data)

    monkeypatch.setattr(GroupCopy, "_append", append)
    assert put(store, commit("g", 1)) == [None]
    until(lambda: rewritten(store))
    assert full.online
    monkeypatch.undo()
    store.close()
    assert stores.offset("a") == 1


def test_directory_that_comes_online_gets_a_copy(stores: Stores) -> None:
    directories: list[LogDirectory] = []
    for name in "ab":
        (stores.root / name).mkdir()
        directories.append(LogDirectory(stores.root / name, name))
    store = GroupStore(lambda: directories[:1])
    store.load()
    put(store, commit("g", 1))
    store._online = lambda: directories
    store.directories_changed()
    until(lambda: len(store._copies) == 2 and rewritten(store))
    put(store, commit("g", 2))
    store.close()
    assert stores.offset("b") == 2


@pytest.mark.parametrize("damage", ["tail", "snapshot"])
def test_damaged_copy_is_not_the_one_that_counts(stores: Stores, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    store = stores.open("a", "b", smallest_tail=200 if damage == "snapshot" else 1 << 20)
    for offset in range(1, 9):
        put(store, commit("g", offset), commit("h", offset))
    until(lambda: rewritten(store))
    store.close()
    for path in (stores.root / "a" / TAIL, stores.root / "a" / SNAPSHOT):
        data = bytearray(path.read_bytes()) if path.exists() else bytearray()
        if data:
            data[40] ^= 1
            path.write_bytes(data)
    assert (stores.offset("a", "b", group="g"), stores.offset("a", "b", group="h")) == (8, 8)
    assert "damaged" not in caplog.text, "the good one was read"
    assert stores.offset("a") == 8, "and replaced the damaged one"


def test_entries_after_a_damaged_newest_copy_come_from_it(stores: Stores) -> None:
    """The base is the newest whole copy; what only the damaged one has is applied to it."""
    store = stores.open("a")
    put(store, commit("g", 1))
    put(store, commit("h", 1))
    store.close()
    shutil.copytree(stores.root / "a", stores.root / "b")
    store = stores.open("a")
    put(store, commit("k", 3))
    store.close()
    path = stores.root / "a" / TAIL
    data = bytearray(path.read_bytes())
    data[30] ^= 1
    path.write_bytes(data)
    both = stores.open("a", "b")
    assert {name: one.offsets["t", 0].offset for name, one in both.state.groups.items()} == {"g": 1, "h": 1, "k": 3}


STEP = st.one_of(
    st.tuples(st.just("commit"), st.integers(0, 2), st.integers(0, 99)),
    st.tuples(st.just("fail"), st.integers(0, 2), st.just(0)),
    st.tuples(st.just("full"), st.integers(0, 2), st.just(0)),
    st.tuples(st.just("start"), st.integers(1, 7), st.just(0)),
)


@settings(max_examples=scaled(25, 600), deadline=None)
@given(st.lists(STEP, max_size=14))
def test_acknowledged_entries_survive_all_directories_but_one(script: list[tuple[str, int, int]]) -> None:
    """Directories fail, fill up and come back with later starts; what was acknowledged is there as long as one of the
    directories that had it is."""
    with tempfile.TemporaryDirectory() as root:
        stores = Stores(Path(root))
        names, expected, full = list("abc"), dict[str, Any](), set[str]()
        real = GroupCopy._append

        def append(self: GroupCopy, data: bytes) -> None:
            if self.directory.id in full:
                with atomic.io_errors(self.directory.name, "writing"), atomic.full_is_no_room():
                    raise OSError(errno.ENOSPC, "No space left on device")
            real(self, data)

        with pytest.MonkeyPatch.context() as patch, contextlib.closing(stores):
            patch.setattr(GroupCopy, "_append", append)
            store = stores.open(*names)
            for step, which, value in script:
                online = [each for each in stores.directories(store) if each.online]
                if step == "commit":
                    ((error),) = put(store, commit(f"g{which}", value))
                    assert (error is None) == any(each.id not in full for each in online) or isinstance(
                        error, StorageError
                    )
                    expected = contents(store.state)
                elif step == "fail" and len(online) > 1:
                    online[which % len(online)].fail("pulled out")
                elif step == "full":
                    full ^= {names[which]}
                elif step == "start":
                    # One of the directories that were online and had room is there.
                    have = [
                        copy.directory.id for copy in store._copies.values() if copy.ready and copy.directory.online
                    ]
                    store.close()
                    bits = {name for bit, name in enumerate(names) if which & 1 << bit}
                    store = stores.open(*sorted(bits | set(have[:1])))
                    assert contents(store.state) == expected
