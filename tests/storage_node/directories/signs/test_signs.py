"""What a directory shows before it fails: a word for each sign, reported once when it begins."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_node.directories import health, probing
from storage_node.directories.directory import LogDirectory
from storage_node.directories.signs import mounts, repeats, smart
from tests.support.nodes.node_harness import until


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LogDirectory]:
    monkeypatch.setattr(smart, "sign", lambda _: "")  # the disk of this machine
    made = LogDirectory(tmp_path, "id")
    yield made
    made.close()


def repeated(path: Path) -> None:
    """An operation on the directory's disk had to be repeated."""
    fd = os.open(path, os.O_RDONLY)
    try:
        repeats.note(fd)
    finally:
        os.close(fd)


def test_healthy_directory_shows_nothing(directory: LogDirectory) -> None:
    assert directory.signs() == {}


def test_each_sign_has_a_word(directory: LogDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    repeated(directory.path)
    repeated(directory.path)
    monkeypatch.setattr(mounts, "is_read_only", lambda path: path == str(directory.path))
    monkeypatch.setattr(smart, "sign", lambda _: "sda reports: 2 sectors cannot be read")
    for seconds in [0.01] * 20 + [0.5] * 5:
        directory.latency.add(seconds)
    assert directory.signs() == {
        "errors": "2 reads or writes on its disk failed and were repeated",
        "slow": "health checks take 0.50 s, usually 0.010 s",
        "read-only": "its file system is mounted read-only",
        "smart": "sda reports: 2 sectors cannot be read",
    }
    assert directory.online


def test_errors_of_before_a_repair_do_not_count(directory: LogDirectory, tmp_path: Path) -> None:
    repeated(directory.path)
    again = LogDirectory(tmp_path, "id", lock=directory._lock)
    assert again.signs() == {}


def test_sign_is_reported_when_it_begins(directory: LogDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    probes = 0
    real = probing.probe

    def probe(path: Path, **more: str) -> None:
        nonlocal probes
        real(path, **more)
        probes += 1

    monkeypatch.setattr(probing, "probe", probe)
    told: list[str] = []
    watch = health.Watch([directory], 0.02, 60.0, on_sign=lambda _, sign: told.append(sign))
    watch.start()
    try:
        until(lambda: probes >= 2)
        assert told == []
        for _ in range(3):
            repeated(directory.path)
            seen = probes
            until(lambda seen=seen: probes >= seen + 3)  # type: ignore[misc]
    finally:
        watch.stop()
    assert told == ["errors: 1 reads or writes on its disk failed and were repeated"]
