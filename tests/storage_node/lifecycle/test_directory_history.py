"""A directory's history outlives the directory, the process, and all disks but one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from storage_node.directories.manager import DirectoryManager
from storage_node.lifecycle.directory_history import FILE, KEPT, NAMED, DirectoryHistory, Event
from storage_node.model.ids import TopicPartition
from tests.support.nodes.node_harness import Harness, make_dirs, replaced, running, until

QUICK = {"log.dir.health.check.interval.ms": "100"}


def events(harness: Harness, path: str) -> list[str]:
    return [entry["event"] for entry in harness.node.directory_changes.history(path)["entries"]]


def kept(paths: list[str]) -> list[int]:
    """The number of entries in each directory's file."""
    files = [Path(path) / FILE for path in paths]
    return [len(json.loads(file.read_bytes())["entries"]) if file.exists() else 0 for file in files]


def test_failure_restart_and_return_are_a_timeline(tmp_path: Path) -> None:
    with running(tmp_path, extra=QUICK) as harness:
        harness.create_topic("t", 3)
        harness.settle()
        bad = harness.directory_of("t", 1)
        others = [path for path in harness.paths if path != bad]
        gone = Path(bad).rename(Path(bad).with_name("pulled-out"))
        until(lambda: not harness.node.dirs.by_path(bad).online)
        until(lambda: [(Path(path) / FILE).exists() for path in others] == [True, True])
        harness.restart()
        assert events(harness, bad) == ["failed"], "a start that finds it as it was adds nothing"
        gone.rename(bad)
        harness.node.directory_changes.bring_online(bad)
        found = harness.node.directory_changes.history(bad)
        failed, online = found["entries"]
        assert (found["state"], failed["event"], online["event"]) == ("online", "failed", "online")
        assert failed["evidence"]["verdict"] == "disk" and failed["evidence"]["operation"] == "reading its identity"
        assert ["t", 1] in failed["replicas"] and failed["count"] == len(failed["replicas"])
        assert set(failed["became"]) == {f"in {bad}"}, "what became of them: they are back"
        assert failed["time"] < online["time"] and online["count"] == failed["count"]
        until(lambda: kept(harness.paths) == [2, 2, 2])
        assert events(harness, others[0]) == []


def test_what_a_start_finds_is_added(tmp_path: Path) -> None:
    with running(tmp_path, extra=QUICK) as harness:
        bad = harness.paths[1]
        harness.stop()
        gone = Path(bad).rename(Path(bad).with_name("pulled-out"))
        harness.node = harness._new(0)
        harness.start()
        assert events(harness, bad) == ["failed"]
        harness.stop()
        gone.rename(bad)
        harness.node = harness._new(0)
        harness.start()
        assert events(harness, bad) == ["failed", "online"]


def test_replaced_and_a_removed_directory_keep_their_past(tmp_path: Path) -> None:
    with running(tmp_path, extra=QUICK) as harness:
        changes, bad, new = harness.node.directory_changes, harness.paths[1], str(tmp_path / "new")
        replaced(bad)
        until(lambda: not harness.node.dirs.by_path(bad).online)
        changes.replace(bad)
        assert events(harness, bad) == ["failed", "replaced"]
        first, second = changes.history(bad)["entries"]
        assert first["directory_id"] != second["directory_id"]
        changes.add(new)
        changes.remove(new)
        assert events(harness, new) == ["added", "removed"]
        assert changes.history(new)["state"] == "removed"


@pytest.fixture
def dirs(tmp_path: Path) -> DirectoryManager:
    return DirectoryManager.open(make_dirs(tmp_path, 2), node_id=1)


def test_newest_file_counts_and_a_damaged_one_is_ignored(dirs: DirectoryManager) -> None:
    first, second = dirs.directories
    history = DirectoryHistory(now=lambda: 5.0)
    history.start(dirs, {})
    history.add(first, Event.SIGN, "slow: a")
    until(lambda: kept([first.name, second.name]) == [1, 1])
    older = (first.path / FILE).read_bytes()
    history.add(first, Event.SIGN, "errors: b")
    until(lambda: kept([first.name, second.name]) == [2, 2])
    (first.path / FILE).write_bytes(older)
    again = DirectoryHistory()
    again.start(dirs, {})
    assert [entry.reason for entry in again.of(first.name)] == ["slow: a", "errors: b"]
    (second.path / FILE).write_bytes(b'{"version": 1, "number": 9, "entries": [{}]}')
    again = DirectoryHistory()
    again.start(dirs, {})
    assert [entry.reason for entry in again.of(first.name)] == ["slow: a"]
    dirs.close()


def test_sign_that_comes_and_goes_is_one_entry_and_displaces_no_failure(dirs: DirectoryManager) -> None:
    first, second = dirs.directories
    clock = iter(range(0, 10**9, 4_000))
    history = DirectoryHistory(now=lambda: 0.0)
    history.start(dirs, {})
    for _ in range(3):
        history.add(first, Event.SIGN, "slow: a")
    assert len(history.of(first.name)) == 1
    history.now = lambda: float(next(clock))
    history.add(second, Event.FAILED, "it died")
    for number in range(2 * KEPT):
        history.add(first, Event.SIGN, f"slow: {number}")
    assert [entry.event for entry in history.of(second.name)] == [Event.FAILED]
    assert len(history.of(first.name)) == KEPT - 1
    dirs.close()


def test_signs_of_a_directory_are_the_first_of_each_kind_since_it_was_taken_into_use(dirs: DirectoryManager) -> None:
    first, second = dirs.directories
    clock = iter(range(0, 10**9, 4_000))
    history = DirectoryHistory(now=lambda: float(next(clock)))
    history.add(first, Event.SIGN, "slow: before it was replaced")
    history.add(first, Event.REPLACED)
    history.add(first, Event.SIGN, "smart: 8 sectors")
    history.add(second, Event.SIGN, "slow: another disk")
    history.add(first, Event.SIGN, "slow: 9 times")
    history.add(first, Event.SIGN, "smart: 16 sectors")
    assert [sign.text for sign in history.signs_of(first)] == ["smart: 8 sectors", "slow: 9 times"]
    assert [sign.time for sign in history.signs_of(first)] == sorted(sign.time for sign in history.signs_of(first))
    history.add(first, Event.FAILED, "it died")
    assert history.signs_of(first) == ()
    dirs.close()


def test_entries_and_names_are_bounded(dirs: DirectoryManager) -> None:
    directory = dirs.directories[0]
    history = DirectoryHistory()
    many = [TopicPartition("t", index) for index in range(NAMED + 5)]
    for number in range(KEPT + 5):
        history.add(directory, Event.SIGN, str(number))
    history.add(directory, Event.FAILED, "at last", held=many)
    history.add(directory, Event.FAILED, "once more", held=many)
    found = history.of(directory.name)
    assert len(found) == KEPT and (found[0].reason, found[-1].reason) == ("6", "at last")
    assert len(found[-1].held) == NAMED and found[-1].count == NAMED + 5
    dirs.close()
