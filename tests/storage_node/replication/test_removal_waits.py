"""How long a directory may take to apply an image: a disk that hangs keeps nobody, a slow one is not given up."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from storage_node.directories import health
from storage_node.directories.directory import LogDirectory
from storage_node.errors import LogDirectoryOffline
from storage_node.node import Node
from storage_node.removal import ROUNDS, Removal

TIMEOUT = 0.3
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
def probes(monkeypatch: pytest.MonkeyPatch, let_go: threading.Event) -> dict[str, bool]:
    """Whether health checks are answered at once: "answered"."""
    found = {"answered": True}
    monkeypatch.setattr(health, "probe", lambda *_: found["answered"] or let_go.wait(60))
    return found


@pytest.mark.usefixtures("probes")
def test_a_disk_that_answers_meanwhile_gets_more_time(
    removal: Removal, directory: LogDirectory, let_go: threading.Event
) -> None:
    threading.Timer((ROUNDS - 0.5) * TIMEOUT, let_go.set).start()
    assert removal.result(directory.background(let_go.wait, 60), directory) is True
    assert directory.online


def test_one_that_does_not_answer_hangs(
    removal: Removal, directory: LogDirectory, let_go: threading.Event, probes: dict[str, bool]
) -> None:
    probes["answered"] = False
    with pytest.raises(LogDirectoryOffline):
        removal.result(directory.background(let_go.wait, 60), directory)
    assert directory.failure == f"applying a cluster image there did not end within {TIMEOUT:g} s: the disk hangs"


@pytest.mark.usefixtures("probes")
def test_one_that_failed_meanwhile_is_not_waited_for_again(
    removal: Removal, directory: LogDirectory, let_go: threading.Event
) -> None:
    threading.Timer(TIMEOUT / 2, directory.fail, ("pulled",)).start()
    began = time.monotonic()
    with pytest.raises(LogDirectoryOffline):
        removal.result(directory.background(let_go.wait, 60), directory)
    assert directory.failure == "pulled" and time.monotonic() - began < (ROUNDS - 1) * TIMEOUT


@pytest.mark.usefixtures("probes")
def test_what_stands_behind_a_call_that_hangs_costs_no_time_of_its_own(
    removal: Removal, directory: LogDirectory, let_go: threading.Event
) -> None:
    jobs = [directory.background(let_go.wait, 60) for _ in range(500)]
    directory.fail("pulled")
    began = time.monotonic()
    for job in jobs:
        with pytest.raises(LogDirectoryOffline):
            removal.result(job, directory)
    assert time.monotonic() - began < 20 * TIMEOUT


def test_what_ended_before_its_directory_failed_counts(removal: Removal, directory: LogDirectory) -> None:
    job = directory.background(lambda: "made")
    assert job.result(5) == "made"
    directory.fail("pulled")
    assert removal.result(job, directory) == "made"


@pytest.mark.usefixtures("probes")
def test_one_call_that_hangs_in_a_disk_that_answers_is_given_up_in_the_end(
    removal: Removal, directory: LogDirectory, let_go: threading.Event
) -> None:
    with pytest.raises(LogDirectoryOffline):
        removal.result(directory.background(let_go.wait, 60), directory)
    assert f"within {ROUNDS * TIMEOUT:g} s" in str(directory.failure)
