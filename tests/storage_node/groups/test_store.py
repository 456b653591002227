"""Groups on disk: acknowledged entries survive any crash, and the files stay bounded."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_node import failpoints
from storage_node.directories.directory import LogDirectory
from storage_node.errors import StorageError
from storage_node.groups import copies as copies_module
from storage_node.groups.copies import GroupCopy
from storage_node.groups.frames import frame, scan
from storage_node.groups.offsets import Entry, GroupsState, Offset, entries_of, offset_row
from storage_node.groups.store import SNAPSHOT, TAIL, GroupStore
from tests.support.scale import scaled


def commit(group: str, offset: int, topic: str = "t", partition: int = 0, stamp: int = 0) -> Entry:
    return ["o", group, [offset_row(topic, partition, Offset(offset, 3, "m", stamp, f"id-{topic}"))]]


ROW: list[Any] = [7, "consumer", "range", "a", [["a", None, "c", "/h", 10000, 30000, "", ""]]]


@pytest.fixture
def opened() -> Iterator[list[GroupStore]]:
    stores: list[GroupStore] = []
    yield stores
    for one in stores:
        one.close()
        for directory in one._online():
            directory.pool.shutdown()


def store_of(directories: list[LogDirectory], smallest_tail: int = 1 << 20) -> GroupStore:
    return GroupStore(lambda: [each for each in directories if each.online], smallest_tail)


def load(opened: list[GroupStore], *paths: Path, smallest_tail: int = 1 << 20) -> GroupStore:
    for path in paths:
        path.mkdir(exist_ok=True)
    directories = [LogDirectory(path, path.name) for path in paths]
    made = store_of(directories, smallest_tail)
    made.load()
    opened.append(made)
    return made


def put(store: GroupStore, *entries: Entry) -> list[BaseException | None]:
    """Put all entries at once and wait for them; returns each one's error."""
    done = [threading.Event() for _ in entries]
    results: list[BaseException | None] = [None] * len(entries)
    for index, entry in enumerate(entries):

        def finished(error: BaseException | None, index: int = index) -> None:
            results[index] = error
            done[index].set()

        store.put(entry, finished)
    assert all(event.wait(10) for event in done)
    return results


def contents(state: GroupsState) -> dict[str, Any]:
    return {name: (dict(data.offsets), data.row) for name, data in state.groups.items()}


SCRIPT: list[Entry] = [
    commit("g", 1),
    commit("h", 5, "u", 2),
    ["g", "g", ROW],
    commit("g", 2),
    commit("g", 3, "u"),
    ["x", "h", [["u", 2]]],
    ["a", "k", None, [offset_row("t", 0, Offset(9, -1, "", 5, "id-t"))]],
    ["s", 4],
    commit("h", 6),
    ["t", ["id-u"]],
    ["d", "k"],
    commit("\N{GREEK SMALL LETTER GAMMA}", 8),
]


def test_store_loads_the_entries_that_were_written(tmp_path: Path, opened: list[GroupStore]) -> None:
    store = load(opened, tmp_path / "d")
    assert put(store, *SCRIPT) == [None] * len(SCRIPT)
    found = contents(store.state)
    assert {(name, key): one.offset for name, (offsets, _) in found.items() for key, one in offsets.items()} == {
        ("g", ("t", 0)): 2,
        ("h", ("t", 0)): 6,
        ("\N{GREEK SMALL LETTER GAMMA}", ("t", 0)): 8,
    }
    assert found["g"][1] == ROW
    store.close()
    again = load(opened, tmp_path / "d")
    assert contents(again.state) == found and again.state.settled == 4


def test_crash_at_any_byte_of_the_tail(tmp_path: Path, opened: list[GroupStore]) -> None:
    """With any part of the tail on disk: its whole entries are loaded, and later ones are not lost."""
    store = load(opened, tmp_path / "d")
    ends, states = [0], [contents(GroupsState())]
    for entry in SCRIPT:
        put(store, entry)
        ends.append((tmp_path / "d" / TAIL).stat().st_size)
        states.append(contents(store.state))
    store.close()
    whole = (tmp_path / "d" / TAIL).read_bytes()
    for cut in range(0, len(whole) + 1, scaled(7, 1)):
        folder = tmp_path / "cut"
        folder.mkdir()
        (folder / TAIL).write_bytes(whole[:cut] + bytes(cut % 3 * 5))
        expected = states[sum(end <= cut for end in ends) - 1]
        torn = load(opened, folder)
        assert contents(torn.state) == expected, cut
        put(torn, commit("after", 1))
        torn.close()
        again = load(opened, folder)
        assert again.state.groups["after"].offsets[("t", 0)].offset == 1, "an entry after a torn one would be lost"
        del again.state.groups["after"]
        assert contents(again.state) == expected
        again.close()
        shutil.rmtree(folder)


class _Crash(BaseException):
    pass


STEPS = ("written", "flushed", "renamed", "done", "cut")


@pytest.mark.parametrize("step", STEPS)
def test_crash_between_the_steps_of_a_snapshot(
    tmp_path: Path, opened: list[GroupStore], step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = load(opened, tmp_path / "d", smallest_tail=600)
    kept: dict[str, Any] = {}

    def crash() -> None:
        """Copy the files, as the next start would find them."""
        for name in (SNAPSHOT, TAIL):
            path = tmp_path / "d" / name
            if path.exists():
                shutil.copy(path, tmp_path / name)
        kept.update(contents(store.state))

    if step == "cut":
        real = GroupCopy._cut

        def cut(self: GroupCopy) -> None:
            if not kept and (tmp_path / "d" / SNAPSHOT).exists():
                crash()
            real(self)

        monkeypatch.setattr(GroupCopy, "_cut", cut)
        acts: dict[str, Any] = {}
    else:
        acts = {f"atomic.{step}": lambda: None if kept else crash()}
    put(store, *SCRIPT)
    with failpoints.active(acts):
        for number in range(20):
            put(store, commit("g", 100 + number))
            if kept:
                break
    assert kept, "no snapshot was written"
    store.close()
    folder = tmp_path / "after"
    folder.mkdir()
    for name in (SNAPSHOT, TAIL):
        if (tmp_path / name).exists():
            shutil.copy(tmp_path / name, folder / name)
    for _ in range(2):
        again = load(opened, folder, smallest_tail=600)
        assert contents(again.state) == kept
        put(again, ["s", 4])
        again.close()


def test_files_are_bounded(tmp_path: Path, opened: list[GroupStore]) -> None:
    store = load(opened, tmp_path / "d", smallest_tail=2000)
    for number in range(400):
        put(store, commit(f"g{number % 5}", number))
    assert (tmp_path / "d" / TAIL).stat().st_size <= 2000 + 200
    assert (tmp_path / "d" / SNAPSHOT).stat().st_size < 2000
    store.close()
    again = load(opened, tmp_path / "d")
    assert sorted(one.offset for data in again.state.groups.values() for one in data.offsets.values()) == list(
        range(395, 400)
    )


def test_many_commits_share_a_flush(tmp_path: Path, opened: list[GroupStore], monkeypatch: pytest.MonkeyPatch) -> None:
    store = load(opened, tmp_path / "d")
    flushed, first, go_on = [0], threading.Event(), threading.Event()
    real = os.fdatasync

    def slow(fd: int) -> None:
        flushed[0] += 1
        first.set()
        assert go_on.wait(10)
        real(fd)

    monkeypatch.setattr(copies_module.os, "fdatasync", slow)
    done: list[BaseException | None] = []
    store.put(commit("g", 0), done.append)
    assert first.wait(10)
    for number in range(1, 101):
        store.put(commit("g", number), done.append)
    assert not done, "nothing is acknowledged before its flush"
    go_on.set()
    assert put(store, commit("g", 101)) == [None]
    assert done == [None] * 101
    assert flushed[0] <= 3


def test_flush_that_fails_takes_the_directory_offline(
    tmp_path: Path, opened: list[GroupStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = load(opened, tmp_path / "d")
    put(store, commit("g", 1))

    def fails(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(copies_module.os, "fdatasync", fails)
    (error,) = put(store, commit("g", 2))
    assert error is not None and "flushing consumer-groups.tail" in str(error)
    assert not any(copy.directory.online for copy in store._copies.values())
    assert store.state.groups["g"].offsets[("t", 0)].offset == 1, "the state has only entries on disk"
    monkeypatch.undo()
    assert put(store, commit("g", 3)) != [None]


def test_full_disk_rejects_entries_until_there_is_room(
    tmp_path: Path, opened: list[GroupStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = load(opened, tmp_path / "d")
    put(store, commit("g", 1))
    real = os.write

    def part(fd: int, data: Any) -> int:
        if len(data) > 10:
            return real(fd, data[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(copies_module.os, "write", part)
    assert put(store, commit("g", 2)) != [None]
    monkeypatch.undo()
    assert all(copy.directory.online for copy in store._copies.values())
    assert put(store, commit("g", 3)) == [None]
    store.close()
    assert load(opened, tmp_path / "d").state.groups["g"].offsets[("t", 0)].offset == 3


def committing(path: Path, recorded: Path, points: str) -> None:
    """A process that commits one offset after the other, and records each acknowledged one."""
    failpoints.configure({"REHOME_FAILPOINTS": points})
    store = store_of([LogDirectory(path, "d")])
    store.load()
    with recorded.open("ab", buffering=0) as file:
        for offset in range(1, 20):
            assert put(store, commit("g", offset)) == [None]
            file.write(b"%d\n" % offset)


@pytest.mark.parametrize("point", failpoints.registered("groups."))
def test_killed_while_offsets_are_committed(point: str, tmp_path: Path, opened: list[GroupStore]) -> None:
    recorded = tmp_path / "recorded"
    (tmp_path / "d").mkdir()
    process = multiprocessing.get_context("forkserver").Process(
        target=committing, args=(tmp_path / "d", recorded, f"{point}=kill@7")
    )
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    acknowledged = int(recorded.read_text().split()[-1])
    store = load(opened, tmp_path / "d")
    # The unacknowledged offset may be on disk; each start continues from the last one on disk.
    assert store.state.groups["g"].offsets["t", 0].offset in (acknowledged, acknowledged + 1)
    assert acknowledged == 6
    assert put(store, commit("g", 30)) == [None]
    store.close()
    assert load(opened, tmp_path / "d").state.groups["g"].offsets["t", 0].offset == 30


def test_no_space_reported_by_a_flush_is_a_failed_flush(tmp_path: Path, opened: list[GroupStore]) -> None:
    """Also by the flush of the directory at the start."""
    (tmp_path / "d").mkdir()
    directory = LogDirectory(tmp_path / "d", "d")
    store = store_of([directory])
    opened.append(store)
    with failpoints.active({"atomic.fsync_dir": "raise:ENOSPC"}), pytest.raises(StorageError):
        store.load()
    assert not directory.online


def test_another_metadata_directory_takes_over(tmp_path: Path, opened: list[GroupStore]) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    first = load(opened, one, two)
    put(first, commit("g", 1), commit("h", 7))
    first.close()
    second = load(opened, two, one)
    assert second.state.groups["g"].offsets[("t", 0)].offset == 1
    put(second, commit("g", 2))
    second.close()
    for paths in ((two,), (one, two)):
        found = load(opened, *paths).state.groups
        assert {name: data.offsets["t", 0].offset for name, data in found.items()} == {"g": 2, "h": 7}


def test_damaged_entry_loses_no_other(
    tmp_path: Path, opened: list[GroupStore], caplog: pytest.LogCaptureFixture
) -> None:
    store = load(opened, tmp_path / "d")
    put(store, commit("a", 1))
    middle = (tmp_path / "d" / TAIL).stat().st_size
    put(store, commit("b", 2))
    put(store, commit("c", 3))
    store.close()
    data = bytearray((tmp_path / "d" / TAIL).read_bytes())
    data[middle + 30] ^= 1
    (tmp_path / "d" / TAIL).write_bytes(data)
    again = load(opened, tmp_path / "d")
    assert set(again.state.groups) == {"a", "c"}
    assert "1 of 3 entries are damaged" in caplog.text


@pytest.mark.parametrize("damage", ["cut", "bit", "empty", "foreign"])
def test_damaged_snapshot_is_kept_aside(
    tmp_path: Path, opened: list[GroupStore], damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = load(opened, tmp_path / "d", smallest_tail=100)
    put(store, commit("a", 1))
    put(store, commit("b", 2))
    put(store, commit("c", 3))
    store.close()
    path = tmp_path / "d" / SNAPSHOT
    data = bytearray(path.read_bytes())
    if damage == "bit":
        data[-40] ^= 4
    (path).write_bytes({"cut": data[:-10], "bit": data, "empty": b"", "foreign": b"what is this\n"}[damage])
    again = load(opened, tmp_path / "d")
    assert "consumer-groups is damaged" in caplog.text
    assert (tmp_path / "d" / "consumer-groups.damaged").exists()
    assert put(again, commit("later", 4)) == [None]


def test_entries_after_close_are_rejected(tmp_path: Path, opened: list[GroupStore]) -> None:
    store = load(opened, tmp_path / "d")
    store.close()
    (error,) = put(store, commit("g", 1))
    assert error is not None


def test_later_commit_wins_in_two_copies_of_a_group() -> None:
    state = GroupsState()
    state.apply(commit("g", 10, stamp=100))
    for offset, stamp, holds in ((5, 50, 10), (20, 200, 20), (6, 60, 20)):
        state.apply(["a", "g", ROW, [offset_row("t", 0, Offset(offset, 0, "", stamp, "id"))]])
        assert state.groups["g"].offsets[("t", 0)].offset == holds
    assert state.groups["g"].row == ROW


def test_invalid_frames_are_skipped() -> None:
    good = frame(1, ["s", 1])
    for data in (b"", bytes(100), good[:-1], b"\xff" * 50, good[:4] + b"\0\0\0\0" + good[8:]):
        assert scan(data).entries == []
    found = scan(good + bytes(64))
    assert (found.entries, found.end) == ([(1, ["s", 1])], len(good))


NAMES = st.sampled_from(["a", "b", "c"])
ENTRIES = st.one_of(
    st.builds(
        lambda g, n, t, p: commit(g, n, t, p), NAMES, st.integers(0, 99), st.sampled_from("tu"), st.integers(0, 2)
    ),
    st.builds(lambda g, t, p: ["x", g, [[t, p]]], NAMES, st.sampled_from("tu"), st.integers(0, 2)),
    st.builds(lambda g, row: ["g", g, row], NAMES, st.sampled_from([None, ROW])),
    st.builds(lambda g: ["d", g], NAMES),
    st.builds(lambda t: ["t", [f"id-{t}"]], st.sampled_from("tu")),
    st.builds(lambda n: ["s", n], st.integers(0, 5)),
)


@settings(max_examples=scaled(60, 3000), deadline=None)
@given(st.lists(ENTRIES, max_size=30), st.randoms(use_true_random=False))
def test_state_is_the_same_after_its_own_entries(script: list[Entry], rng: random.Random) -> None:
    """A snapshot's entries create the state, and applying all of them again does not change it."""
    state = GroupsState()
    for entry in script:
        state.apply(entry)
    again = GroupsState()
    for entry in state.entries():
        again.apply(entry)
    assert (contents(again), again.settled) == (contents(state), state.settled)
    for entry in script[rng.randrange(len(script) + 1) :]:
        again.apply(entry)
    assert (contents(again), again.settled) == (contents(state), state.settled)
    for name, data in state.groups.items():
        assert all(entry[1] == name for entry in entries_of(name, data))
