"""Texts of plans on a worker's disk: durable, named by what they hold, and never trusted."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from activities.plans import store as stores
from activities.plans.store import NotStored, PlanStore
from workflows.model.plans.running.packing import digest


def test_text_is_found_by_another_worker_of_the_folder(tmp_path: Path) -> None:
    name = PlanStore(tmp_path / "plans").put("plan ☃\r\n")
    assert name == digest("plan ☃\r\n")
    assert [path.name for path in (tmp_path / "plans").iterdir()] == [name]


@pytest.mark.parametrize("text", ["", "plan\n", "two\r\nlines\r", "☃"])
def test_text_comes_back_from_the_disk_as_it_was(tmp_path: Path, text: str) -> None:
    name = PlanStore(tmp_path).put(text)
    assert PlanStore(tmp_path).get(name) == text


@pytest.mark.parametrize("name", ["", "x", "../" + "0" * 61, "0" * 63, "0" * 64 + "\n", "A" * 64, "/etc/passwd"])
def test_name_that_is_no_sha256_reads_no_file(tmp_path: Path, name: str) -> None:
    for call in (PlanStore(tmp_path).get, PlanStore(tmp_path).path):
        with pytest.raises(NotStored, match="is not the sha256 of a text"):
            call(name)


def test_damaged_file_counts_as_not_stored_and_is_replaced(tmp_path: Path) -> None:
    name = PlanStore(tmp_path).put("plan")
    (tmp_path / name).write_text("another")
    with pytest.raises(NotStored, match="is damaged"):
        PlanStore(tmp_path).get(name)
    PlanStore(tmp_path).put("plan")
    assert PlanStore(tmp_path).get(name) == "plan"


def test_unknown_text_is_not_stored(tmp_path: Path) -> None:
    with pytest.raises(NotStored, match="No such file"):
        PlanStore(tmp_path).get("0" * 64)


def test_same_text_may_be_stored_by_several_threads_at_once(tmp_path: Path) -> None:
    store = PlanStore(tmp_path)
    text = "x" * 100_000
    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(store.put, [text] * 32)) == {digest(text)}
    assert [path.name for path in tmp_path.iterdir()] == [digest(text)], "no temporary file is left"


def test_write_that_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(stores.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        PlanStore(tmp_path).put("plan")
    assert list(tmp_path.iterdir()) == []


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "CACHED_CHARACTERS", 10)
    store = PlanStore(tmp_path)
    names = [store.put(letter * 6) for letter in "abc"]
    assert list(store._cached) == names[-1:]
    assert [store.get(name)[0] for name in names] == ["a", "b", "c"]


def test_text_that_is_too_large_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "LARGEST_TEXT", 3)
    with pytest.raises(ValueError, match="has 4 bytes, but must have at most 3"):
        PlanStore(tmp_path).put("plan")
    assert list(tmp_path.iterdir()) == [] and stat.S_ISDIR(tmp_path.stat().st_mode)
