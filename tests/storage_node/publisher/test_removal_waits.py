"""How long a directory may take to apply an image: a hanging disk delays no other, a slow one is not abandoned."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from storage_node.directories import probing
from storage_node.directories.directory import LogDirectory
from storage_node.errors import LogDirectoryOffline
from storage_node.publisher.host import RemovalHost
from storage_node.publisher.removal import ROUNDS, Removal

TIMEOUT = 0.3
"""log.dir.failure.timeout.ms, in seconds."""


@pytest.fixture
def removal() -> Removal:
    return Removal(
        cast(RemovalHost, SimpleNamespace(config=SimpleNamespace(log_dir_failure_timeout_ms=TIMEOUT * 1000)))
    )


@pytest.fixture
def let_go() -> Iterator[threading.Event]:
    """Return the event for which the job waits."""
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
    """Return a switch, "healthy": whether health checks pass at once."""
    found = {"healthy": True}
    monkeypatch.setattr(probing, "probe", lambda *_: found["healthy"] or let_go.wait(60))
    return found


@pytest.mark.usefixtures("probes")
def test_disk_that_passes_health_checks_gets_more_time(
    removal: Removal, directory: LogDirectory, let_go: threading.Event
) -> None:
    threading.Timer((ROUNDS - 0.5) * TIMEOUT, let_go.set).start()
    assert removal.result(directory.background(let_go.wait, 60), directory) is True
    assert directory.online


@pytest.mark.usefixtures("probes")
def test_job_that_comes_on_is_waited_for_however_long_it_takes(removal: Removal, directory: LogDirectory) -> None:
    """As the creation of thousands of replicas on a slow disk does."""
    made: list[int] = []

    def creation() -> str:
        for number in range(2 * ROUNDS):
            made.append(number)
            time.sleep(0.8 * TIMEOUT)
        return "made"

    assert removal.result(directory.background(creation), directory, made.__len__) == "made"
    assert directory.online


def test_disk_that_fails_health_checks_goes_offline(
    removal: Removal, directory: LogDirectory, let_go: threading.Event, probes: dict[str, bool]
) -> None:
    probes["healthy"] = False
    with pytest.raises(LogDirectoryOffline):
        removal.result(directory.background(let_go.wait, 60), directory)
    assert directory.failure == f"applying a cluster image there did not end within {TIMEOUT:g} s: the disk hangs"


@pytest.mark.usefixtures("probes")
def test_disk_that_failed_meanwhile_is_not_waited_for_again(
    removal: Removal, directory: LogDirectory, let_go: threading.Event
) -> None:
    threading.Timer(TIMEOUT / 2, directory.fail, ("pulled",)).start()
    began = time.monotonic()
    with pytest.raises(LogDirectoryOffline):
        removal.result(directory.background(let_go.wait, 60), directory)
    assert directory.failure == "pulled" and time.monotonic() - began < (ROUNDS - 1) * TIMEOUT


@pytest.mark.usefixtures("probes")
def test_jobs_queued_behind_a_hanging_call_cost_no_extra_time(
    removal: Removal, directory: LogDirectory, let_go: threading.Event
) -> None:
    jobs = [directory.background(let_go.wait, 60) for _ in range(500)]
    directory.fail("pulled")
    began = time.monotonic()
    for job in jobs:
        with pytest.raises(LogDirectoryOffline):
            removal.result(job, directory)
    assert time.monotonic() - began < 20 * TIMEOUT


def test_job_finished_before_the_directory_failed_counts(removal: Removal, directory: LogDirectory) -> None:
    job = directory.background(lambda: "made")
    assert job.result(5) == "made"
    directory.fail("pulled")
    assert removal.result(job, directory) == "made"


@pytest.mark.usefixtures("probes")
def test_hanging_call_in_a_healthy_disk_is_abandoned_in_the_end(
    removal: Removal, directory: LogDirectory, let_go: threading.Event
) -> None:
    with pytest.raises(LogDirectoryOffline):
        removal.result(directory.background(let_go.wait, 60), directory)
    assert f"within {ROUNDS * TIMEOUT:g} s" in str(directory.failure)
