"""Dead and hanging disks are found although nobody writes to them."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_node.directories import health
from storage_node.directories.directory import LogDirectory
from storage_node.errors import MetadataIOError
from tests.support.io_faults import Faults
from tests.support.node_harness import until


@pytest.fixture
def two(tmp_path: Path, faults: Faults) -> Iterator[list[LogDirectory]]:
    made = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        made.append(LogDirectory(tmp_path / name, f"id-{name}"))
    yield made
    faults.clear()
    for directory in made:
        directory.close()


@pytest.fixture
def watch(two: list[LogDirectory], request: pytest.FixtureRequest) -> Iterator[health.Watch]:
    """With a deadline that no disk here misses by itself, however busy it is, unless a test is about that."""
    made = health.Watch(two, interval=0.02, deadline=getattr(request, "param", 60.0))
    made.start()
    yield made
    made.stop()


@pytest.mark.feature("18-17")
def test_a_dead_disk_without_traffic_is_found(two: list[LogDirectory], watch: health.Watch, faults: Faults) -> None:
    bad, good = two
    rule = faults.fail("fsync", f"{bad.path}/*", errno.EIO)
    until(lambda: not bad.online)
    assert good.online and rule.hits == 1, "a flush that failed is not tried again"
    assert bad.failure == f"the health check failed on log directory {bad.path}: Input/output error"


@pytest.mark.parametrize("watch", [1.0], indirect=True)
def test_a_hanging_disk_is_found_and_holds_up_nobody(
    two: list[LogDirectory], watch: health.Watch, faults: Faults
) -> None:
    bad, good = two
    told = threading.Event()
    bad.on_failure(lambda *_: told.set())
    begun = time.monotonic()
    rule = faults.hang("fsync", f"{bad.path}/*")
    until(lambda: rule.hits == 1)
    assert told.wait(30)
    assert time.monotonic() - begun > 0.9
    assert "did not answer within 1 s" in str(bad.failure) and good.online
    faults.clear()  # or else the end would wait for who hangs


def test_a_call_that_hangs_alone_is_found(two: list[LogDirectory]) -> None:
    bad, good = two
    asked = [(bad, "the swap of t-0", time.monotonic())]
    watch = health.Watch(two, interval=600.0, deadline=1.0, asked=lambda: asked)
    watch.start()
    until(lambda: not bad.online)
    watch.stop()
    assert "the swap of t-0 did not answer within 1 s" in str(bad.failure) and good.online


def test_a_slow_disk_is_left_alone(two: list[LogDirectory], watch: health.Watch, faults: Faults) -> None:
    slow = two[0]
    rule = faults.hang("fsync", f"{slow.path}/*")
    until(lambda: rule.hits == 1)
    faults.clear()  # well before the deadline
    asked = faults.fail("unlink", f"{slow.path}/nothing", errno.EIO)
    until(lambda: not (slow.path / health.FILE).exists())
    assert slow.online and asked.hits == 0


def test_a_process_that_stood_still_blames_no_disk(
    two: list[LogDirectory], watch: health.Watch, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped, or paused with its machine, in the middle of a health check: the clock has gone on."""
    rule = faults.hang("fsync", f"{two[0].path}/*")
    until(lambda: rule.hits == 1)
    real, looks = time.monotonic, 0

    def an_hour_later() -> float:
        nonlocal looks
        looks += threading.current_thread().name == "health-clock"
        return real() + 3600

    monkeypatch.setattr(health.time, "monotonic", an_hour_later)
    until(lambda: looks >= 2)
    faults.clear()  # now the disk answers
    until(lambda: not (two[0].path / health.FILE).exists())
    assert two[0].online and two[1].online


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE, errno.EDQUOT])
def test_a_full_disk_passes_and_so_does_a_process_without_descriptors(
    two: list[LogDirectory], watch: health.Watch, faults: Faults, code: int
) -> None:
    rule = faults.fail("open", f"{two[0].path}/*", code)
    until(lambda: rule.hits >= 3)
    assert two[0].online


def test_no_space_at_the_flush_does_not_pass(two: list[LogDirectory], watch: health.Watch, faults: Faults) -> None:
    faults.fail("fsync", f"{two[0].path}/*", errno.ENOSPC)
    until(lambda: not two[0].online)


def test_nothing_is_left_behind(two: list[LogDirectory]) -> None:
    health.probe(two[0].path)
    assert not list(two[0].path.iterdir())
    (two[0].path / health.FILE).mkdir()
    with pytest.raises(MetadataIOError):
        health.probe(two[0].path)


def test_who_is_silent_is_found_out_side_by_side(two: list[LogDirectory], faults: Faults) -> None:
    bad, good = two
    faults.hang("fsync", f"{bad.path}/*")
    assert health.silent([bad, good], 1.5) == [bad]
    assert good.online


def test_a_process_that_stood_still_has_not_waited_for_who_is_asked(
    two: list[LogDirectory], faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = faults.hang("fsync", f"{two[0].path}/*")
    found: list[list[LogDirectory]] = []
    asking = threading.Thread(target=lambda: found.append(health.silent(two, 60.0)))
    asking.start()
    until(lambda: rule.hits == 1)
    real, looks = time.monotonic, 0

    def an_hour_later() -> float:
        nonlocal looks
        looks += threading.current_thread() is asking
        return real() + 3600

    monkeypatch.setattr(health.time, "monotonic", an_hour_later)
    until(lambda: looks >= 2 or found)
    faults.clear()  # now the disk answers
    asking.join(30)
    assert found == [[]]
