"""A start meets a directory that hangs: it is offline with the reason, the others are served."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage_node import node as node_module
from storage_node.directories import health
from storage_node.directories.errors import StartRefused
from storage_node.log.batches.batch import build_batch
from storage_node.model.ids import TopicPartition
from storage_node.replicas.boot import scan as scanning
from tests.support.io_faults import Faults
from tests.support.nodes.node_harness import Harness, running, until
from tests.support.wire import Client

HASTY = {"log.dir.failure.timeout.ms": "1000", "log.dir.health.check.interval.ms": "200"}
#: Seconds for a start beside a disk that hangs, which it does for a minute.
PROMPT = 20.0


@pytest.fixture
def stopped(tmp_path: Path, faults: Faults) -> Iterator[Harness]:
    """A node with a replica in each directory, stopped by a crash; it is for the test to start."""
    with running(tmp_path, extra=HASTY) as harness:
        harness.create_topic("t", 3)
        client = Client(harness)
        for partition in range(3):
            assert client.produce("t", partition, build_batch([b"x"])).error == 0
        client.close()
        harness.settle()
        harness.stop(clean=False)
        harness.node = harness._new(0)
        yield harness
        faults.clear()


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """All disks answered when they were asked before the start."""
    monkeypatch.setattr(health, "unanswering", lambda *_: [])


def in_directory(harness: Harness, path: str) -> TopicPartition:
    """The replica whose folder is there."""
    (name,) = [entry.name for entry in Path(path).glob("t-?")]
    return TopicPartition("t", int(name[-1]))


def check(harness: Harness, bad: str, lost: TopicPartition) -> None:
    """One directory is offline with its replica, the others take records."""
    directory = harness.node.dirs.by_path(bad)
    assert not directory.online and "did not respond within 1 s" in (directory.failure or "")
    assert lost in harness.node.replicas.offline and "hangs" in harness.node.replicas.offline[lost]
    client = Client(harness)
    assert client.produce("t", lost.partition, build_batch([b"y"])).error == 56
    for tp in harness.node.replicas.served:
        assert client.produce("t", tp.partition, build_batch([b"y"])).base_offset == 1
    assert len(harness.node.replicas.served) == 2
    client.close()


@pytest.mark.parametrize("call", ["stat", "open", "fsync"])
def test_directory_that_hangs_when_the_node_starts(call: str, stopped: Harness, faults: Faults) -> None:
    bad = stopped.paths[1]
    lost = in_directory(stopped, bad)
    faults.hang(call, f"{bad}*")
    began = time.monotonic()
    stopped.start()
    assert time.monotonic() - began < PROMPT
    check(stopped, bad, lost)
    until(lambda: stopped.controller.failed, what="the controller is told")
    faults.clear()
    stopped.restart()
    assert len(stopped.node.replicas.served) == 3, "the next start serves it again"


def test_directory_that_begins_to_hang_while_its_logs_are_opened(
    stopped: Harness, faults: Faults, answered: None
) -> None:
    bad = stopped.paths[2]
    lost = in_directory(stopped, bad)
    # Its other files answer; the health check finds it out.
    rule = faults.hang("open", f"{bad}/{lost}/*.log")
    faults.hang("fsync", f"{bad}/health-check*")
    began = time.monotonic()
    stopped.start()
    assert time.monotonic() - began < PROMPT and rule.hits
    check(stopped, bad, lost)


def test_node_starts_without_its_first_directory_but_not_without_all(stopped: Harness, faults: Faults) -> None:
    first = stopped.paths[0]
    faults.hang("open", f"{first}/*")
    stopped.start()
    assert "did not respond within 1 s" in str(stopped.node.dirs.by_path(first).failure)
    stopped.stop()
    for path in stopped.paths[1:]:
        faults.hang("open", f"{path}/*")
    stopped.node = stopped._new(0)
    with pytest.raises(StartRefused, match="did not respond within 1 s when the node started"):
        stopped.start()
    faults.clear()
    stopped.start()


def test_start_that_hangs_in_a_disk_itself_ends_the_node(
    stopped: Harness, faults: Faults, answered: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_module, "START_PATIENCE", 1.0)
    bad = stopped.paths[1]
    rule = faults.hang("open", f"{bad}/t-*/partition.move")
    faults.hang("fsync", f"{bad}/health-check*")
    said: list[str] = []

    def halt(sentence: str) -> None:
        said.append(sentence)
        faults.clear()

    stopped.node.halt = halt
    stopped.start()
    assert rule.hits and len(said) == 1
    assert said[0].startswith("node 1 stops: its start hangs in log directory ") and bad in said[0]
    assert "start the node again" in said[0]


def test_older_copy_that_cannot_be_put_aside_since_its_disk_hangs_holds_up_its_replica_alone(
    tmp_path: Path, faults: Faults, answered: None
) -> None:
    with running(tmp_path, extra=HASTY) as harness:
        bad = harness.paths[1]
        faults.fail("rename", f"{bad}/t-*/leader-epoch-checkpoint*", errno.EIO)
        harness.create_topic("t", 6)
        until(lambda: len(harness.node.replicas.served) == 6)
        harness.settle()
        older = {TopicPartition("t", int(path.name[-1])) for path in Path(bad).glob("t-?") if list(path.glob("*.log"))}
        assert older
        faults.clear()
        harness.stop(clean=False)
        rule = faults.hang("rename", f"{bad}/t-*/partition.move*")
        faults.hang("fsync", f"{bad}/health-check*")
        harness.node = harness._new(0)
        starting = threading.Thread(target=harness.node.start, daemon=True)
        starting.start()
        starting.join(45.0)  # less than the minute for which the disk hangs
        alive, node = starting.is_alive(), harness.node
        offline = dict(node.replicas.offline)
        faults.clear()
        starting.join()
        assert rule.hits and not alive
        # One for each thread that hangs; what waited behind those was decided without the disk.
        assert offline.keys() <= older and all("hangs" in why for why in offline.values())
        assert len(node.replicas.served) + len(offline) == 6 and node.replicas.served
        node.stop()
        harness.node = harness._new(0)
        harness.start()
        assert len(harness.node.replicas.served) == 6


def test_start_waits_alone_for_the_disks_that_it_looks_at_again(
    harness: Harness, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that hangs then ends the node, with its sentence."""
    bad = harness.paths[1]
    faults.fail("rename", f"{bad}/t-*/leader-epoch-checkpoint*", errno.EIO)
    harness.create_topic("t", 6)
    until(lambda: len(harness.node.replicas.served) == 6)
    harness.settle()
    faults.clear()
    faults.fail("rename", f"{bad}/t-*/partition.move*", errno.EIO)
    patient: list[bool] = []
    real = scanning.scan

    def scan(*arguments: Any) -> scanning.Scan:
        patient.append(harness.node._patient.is_set())
        return real(*arguments)

    monkeypatch.setattr(scanning, "scan", scan)
    harness.restart(clean=False)
    assert patient == [False, False]
    assert len(harness.node.replicas.served) == 6
