"""New replicas when a directory fails while they are made: another one takes them, and never do two count."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from storage_node.errors import MetadataIOError
from storage_node.lifecycle import start_up
from storage_node.log.batches.batch import build_batch
from storage_node.log.config import LogConfig
from storage_node.model.assignment import Assignment
from storage_node.model.ids import TopicPartition
from storage_node.model.image import ClusterImage
from storage_node.model.metadata import PartitionImage, TopicImage
from storage_node.partitions.producer_bounds import OpenedLogs
from storage_node.replicas.boot import apply
from storage_node.replicas.boot.actions import BootPlan
from tests.support.io_faults import Faults
from tests.support.nodes.node_harness import Harness, until
from tests.support.wire import Client

TPS = [TopicPartition("t", part) for part in range(6)]


def folders(harness: Harness) -> dict[str, list[str]]:
    return {name: [disk for disk in harness.paths if (Path(disk) / name).exists()] for name in map(str, TPS)}


@pytest.mark.conformance(79)
@pytest.mark.parametrize("which", ["*", "[345]"], ids=["at once", "after one was made"])
def test_what_a_failing_directory_does_not_take_another_one_takes(harness: Harness, faults: Faults, which: str) -> None:
    bad = harness.paths[1]
    rule = faults.fail("open", f"{bad}/t-{which}/*.log", errno.EIO)
    harness.create_topic("t", len(TPS))
    until(lambda: len(harness.node.replicas.served) == len(TPS))
    assert rule.hits and [d.name for d in harness.node.dirs.online()] == [p for p in harness.paths if p != bad]
    client = Client(harness)
    assert bool(list(Path(bad).glob("t-*/*.log"))) is (which != "*"), "what is left there of a replica"
    for part in range(len(TPS)):
        assert client.produce("t", part, build_batch([b"value %d" % part])).error == 0
    client.close()
    harness.settle()
    places = {part: harness.directory_of("t", part) for part in range(len(TPS))}
    for tp in TPS:
        row = harness.controller.image.partition(tp)
        assert row is not None and row.directory_of(1) == harness.node.dirs.by_path(places[tp.partition]).id
    # The disk is back, with whatever had been made there.
    faults.clear()
    harness.restart(clean=False)
    until(lambda: all(len(found) == 1 for found in folders(harness).values()), what="one replica each")
    client = Client(harness)
    for part, disk in places.items():
        assert harness.directory_of("t", part) == disk
        assert b"value %d" % part in client.fetch("t", part, 0)[0].records
    client.close()


def test_start_without_the_directory_that_failed_serves_what_was_made_elsewhere(
    harness: Harness, faults: Faults
) -> None:
    bad = Path(harness.paths[1])
    faults.fail("open", f"{bad}/t-[345]/*.log", errno.EIO)
    harness.node.housekeeping.stop()  # the controller never hears where they are
    harness.create_topic("t", len(TPS))
    until(lambda: len(harness.node.replicas.served) == len(TPS))
    harness.stop(clean=False)
    faults.clear()
    bad.rename(bad.with_name("pulled-out"))
    harness.node = harness._new(0)
    harness.start()
    assert sorted(harness.node.replicas.served) == TPS


@pytest.mark.conformance(101)
@pytest.mark.parametrize("leader", [1, 2], ids=["leader", "follower"])
def test_replica_that_no_directory_takes_is_offline(harness: Harness, faults: Faults, leader: int) -> None:
    for disk in harness.paths[1:]:
        harness.node.dirs.by_path(disk).fail("I/O error")
    harness.node.halt = lambda _: None  # all are gone then, which ends a node
    faults.fail("mkdir", f"{harness.paths[0]}/t-*", errno.EIO)
    row = PartitionImage(0, Assignment((1, 2)), directories=("", ""), generations=(0, 0), isr=(1, 2), leader=leader)
    harness.controller.change(topics={"t": TopicImage("t", "T" * 22, {}, (row,))})
    assert harness.node.partition(TPS[0]) is None
    # Followers are made after the image is answered.
    until(lambda: TPS[0] in harness.node.replicas.offline)
    assert harness.paths[0] in harness.node.replicas.offline[TPS[0]]


def test_disk_that_fails_again_at_start_does_not_block_replicas_created_elsewhere(
    harness: Harness, faults: Faults
) -> None:
    bad = harness.paths[1]
    faults.fail("rename", f"{bad}/t-*/leader-epoch-checkpoint*", errno.EIO)
    harness.create_topic("t", len(TPS))
    until(lambda: len(harness.node.replicas.served) == len(TPS))
    assert list(Path(bad).glob("t-*/*.log")), "older copies are left there"
    harness.settle()
    faults.clear()
    rule = faults.fail("rename", f"{bad}/t-*/partition.move*", errno.EIO)
    harness.restart(clean=False)
    assert rule.hits, "the start wants to put the older copies aside"
    assert not harness.node.dirs.by_path(bad).online
    assert sorted(harness.node.replicas.served) == TPS and not harness.node.replicas.offline


def test_every_replica_that_a_failed_directory_concerns_is_decided_again(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever meets the error second finds the directory offline already."""
    dirs, good, bad = harness.node.dirs, harness.paths[0], harness.paths[1]

    def fails(*_: object) -> None:
        raise MetadataIOError(bad, "writing a marker") from OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(apply, "apply", fails)
    offsets = start_up.Offsets({}, {}, {}, clean=False)
    applied, logs = threading.Event(), OpenedLogs(len(TPS))
    common = dirs.by_path(good), offsets, ClusterImage(), 1, LogConfig(), dirs, applied, logs, False
    opened = [start_up._open(BootPlan(tp, (), "online"), *common) for tp in TPS]
    assert all(each.again for each in opened)
    assert dirs.by_path(good).online and not dirs.by_path(bad).online
