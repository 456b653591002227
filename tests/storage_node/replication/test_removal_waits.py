"""How long a directory may take to apply an image: a disk that hangs keeps nobody, a slow one is not given up."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from storage_node.directories import health
from storage_node.directories.directory import LogDirectory
from storage_node.errors import LogDirectoryOffline
from storage_node.node import Node
from storage_node.removal import ROUNDS, Removal

TIMEOUT = 0.1
"""log.dir.failure.timeout.ms, in seconds."""


@pytest.fixture
def removal() -> Removal:
    return Removal(cast(Node, SimpleNamespace(config=SimpleNamespace(log_dir_failure_timeout_ms=TIMEOUT * 1000))))


@pytest.fixture
def let_go() -> Iterator[threading.Event]:
    """What the job waits for."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[LogDirectory]:
    made = LogDirectory(tmp_path, "A")
    yield made
    made.close()


@pytest.fixture
def busy(directory: LogDirectory) -> Iterator[None]:
    """The directory finishes one job after the other."""
    stop = threading.Event()

    def more() -> None:
        while not stop.wait(TIMEOUT / 10) and directory.online:
            directory.background(int).result()

    thread = threading.Thread(target=more)
    thread.start()
    yield
    stop.set()
    thread.join()


@pytest.mark.usefixtures("busy")
def test_a_disk_that_finishes_other_jobs_meanwhile_gets_more_time(
    removal: Removal, directory: LogDirectory, let_go: threading.Event
) -> None:
    threading.Timer(3.5 * TIMEOUT, let_go.set).start()
    assert removal.result(directory.background(let_go.wait, 60), directory) is True
    assert directory.online


def test_one_that_finishes_nothing_hangs(removal: Removal, directory: LogDirectory, let_go: threading.Event) -> None:
    with pytest.raises(LogDirectoryOffline):
        removal.result(directory.background(let_go.wait, 60), directory)
    assert directory.failure == f"applying a cluster image there did not end within {TIMEOUT:g} s: the disk hangs"


@pytest.mark.usefixtures("busy")
def test_one_that_does_not_answer_hangs_although_reads_go_on(
    removal: Removal, directory: LogDirectory, let_go: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "probe", lambda *_: let_go.wait(60))
    with pytest.raises(LogDirectoryOffline):
        removal.result(directory.background(let_go.wait, 60), directory)
    assert f"within {TIMEOUT:g} s" in str(directory.failure)


@pytest.mark.usefixtures("busy")
def test_one_call_that_hangs_in_a_disk_that_answers_is_given_up_in_the_end(
    removal: Removal, directory: LogDirectory, let_go: threading.Event
) -> None:
    with pytest.raises(LogDirectoryOffline):
        removal.result(cast(Any, directory.background(let_go.wait, 60)), directory)
    assert f"within {ROUNDS * TIMEOUT:g} s" in str(directory.failure)
