"""Health checks find failed and hanging disks even without traffic."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_node import failpoints
from storage_node.directories import health, probing
from storage_node.directories.directory import LogDirectory
from storage_node.errors import MetadataIOError, StorageError
from storage_node.model.evidence import Verdict
from tests.support.io_faults import Faults
from tests.support.nodes.node_harness import until


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
    """With a deadline that no disk here misses under load, unless the test sets one."""
    made = health.Watch(two, interval=0.02, deadline=getattr(request, "param", 60.0))
    made.start()
    yield made
    made.stop()


@pytest.mark.feature("18-17")
def test_dead_disk_without_traffic_is_found(two: list[LogDirectory], watch: health.Watch, faults: Faults) -> None:
    bad, good = two
    rule = faults.fail("fsync", f"{bad.path}/*", errno.EIO)
    until(lambda: not bad.online)
    assert good.online and rule.hits == 1, "a flush that failed is not tried again"
    assert bad.failure == f"the health check failed on log directory {bad.path}: Input/output error"


@pytest.mark.feature("18-17")
@pytest.mark.parametrize(
    ("call", "code", "verdict"),
    [
        ("fsync", errno.EIO, Verdict.DISK),
        ("pread", errno.EIO, Verdict.DISK),
        ("write", errno.EROFS, Verdict.READ_ONLY),
        ("open", errno.EACCES, Verdict.DISK),
        ("fsync", errno.ENOSPC, Verdict.FULL),
    ],
)
def test_failed_health_check_is_kept_as_evidence(
    two: list[LogDirectory], watch: health.Watch, faults: Faults, call: str, code: int, verdict: Verdict
) -> None:
    bad, good = two
    rule = faults.fail(call, f"{bad.path}/*", code)
    until(lambda: not bad.online)
    found = bad.evidence
    assert found is not None and rule.hits == 1
    assert (found.verdict, found.operation, found.errno) == (verdict, "the health check", errno.errorcode[code])
    assert found.path.startswith(str(bad.path)) and abs(found.time - time.time()) < 60
    assert good.online and good.evidence is None


def test_disk_that_returns_other_bytes_than_were_written_fails_its_health_check(
    two: list[LogDirectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = two[0]
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, count, position: real(fd, count, position)[::-1])
    assert bad.check("an error") and not bad.online
    assert "the disk returns other bytes from position" in str(bad.failure)
    monkeypatch.setattr(os, "pread", lambda fd, count, position: real(fd, count, position)[:7])
    assert two[1].check("an error")
    assert "the disk returns 7 bytes where" in str(two[1].failure)


@pytest.mark.parametrize("watch", [1.0], indirect=True)
def test_hanging_disk_goes_offline_without_delaying_others(
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
    assert "did not respond within 1 s" in str(bad.failure) and good.online
    assert bad.evidence is not None and bad.evidence.verdict is Verdict.HUNG
    faults.clear()  # otherwise the teardown would wait for the hanging call


def test_call_that_hangs_alone_is_found(two: list[LogDirectory]) -> None:
    bad, good = two
    asked = [(bad, "the swap of t-0", time.monotonic())]
    watch = health.Watch(two, interval=600.0, deadline=1.0, asked=lambda: asked)
    watch.start()
    until(lambda: not bad.online)
    watch.stop()
    assert "the swap of t-0 did not respond within 1 s" in str(bad.failure) and good.online


def test_slow_disk_stays_online(two: list[LogDirectory], watch: health.Watch, faults: Faults) -> None:
    slow = two[0]
    rule = faults.hang("fsync", f"{slow.path}/*")
    until(lambda: rule.hits == 1)
    faults.clear()  # well before the deadline
    asked = faults.fail("unlink", f"{slow.path}/nothing", errno.EIO)
    until(lambda: not (slow.path / probing.FILE).exists())
    assert slow.online and asked.hits == 0


def test_suspended_process_takes_no_disk_offline(
    two: list[LogDirectory], watch: health.Watch, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process or its machine is suspended in the middle of a health check while the clock advances."""
    rule = faults.hang("fsync", f"{two[0].path}/*")
    until(lambda: rule.hits == 1)
    real, looks = time.monotonic, 0

    def an_hour_later() -> float:
        nonlocal looks
        looks += threading.current_thread().name == "health-clock"
        return real() + 3600

    monkeypatch.setattr(health.time, "monotonic", an_hour_later)
    until(lambda: looks >= 2)
    faults.clear()  # the disk responds from now on
    until(lambda: not (two[0].path / probing.FILE).exists())
    assert two[0].online and two[1].online


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EMFILE, errno.EDQUOT])
def test_full_disk_passes_and_so_does_a_process_without_descriptors(
    two: list[LogDirectory], watch: health.Watch, faults: Faults, code: int
) -> None:
    rule = faults.fail("open", f"{two[0].path}/*", code)
    until(lambda: rule.hits >= 3)
    assert two[0].online


def test_no_space_at_the_flush_does_not_pass(two: list[LogDirectory], watch: health.Watch, faults: Faults) -> None:
    faults.fail("fsync", f"{two[0].path}/*", errno.ENOSPC)
    until(lambda: not two[0].online)


def test_nothing_is_left_behind(two: list[LogDirectory]) -> None:
    probing.probe(two[0].path)
    assert not list(two[0].path.iterdir())
    (two[0].path / probing.FILE).mkdir()
    with pytest.raises(MetadataIOError):
        probing.probe(two[0].path, name=probing.FILE)


def test_check_that_has_hung_and_another_one_do_not_read_each_others_bytes(two: list[LogDirectory]) -> None:
    written, resumed = threading.Event(), threading.Event()
    failed: list[StorageError] = []

    def hang() -> None:
        if threading.current_thread() is hung:
            written.set()
            resumed.wait(30)

    def check() -> None:
        try:
            probing.probe(two[0].path)
        except StorageError as error:
            failed.append(error)

    hung = threading.Thread(target=check)
    with failpoints.active({"health.written": hang}):
        hung.start()
        assert written.wait(10)
        assert not two[0].check("a file is missing")
        resumed.set()
        hung.join(10)
    assert not failed and two[0].online and not list(two[0].path.iterdir())


def test_silent_probes_directories_side_by_side(two: list[LogDirectory], faults: Faults) -> None:
    bad, good = two
    faults.hang("fsync", f"{bad.path}/*")
    assert health.silent([bad, good], 1.5) == [bad]
    assert good.online


def test_suspended_process_does_not_count_as_waiting_for_probes(
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
    faults.clear()  # the disk responds from now on
    asking.join(30)
    assert found == [[]]
