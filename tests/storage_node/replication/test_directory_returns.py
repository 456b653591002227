"""A directory that returns while the controller does not know of its failure: nothing that was acknowledged is lost."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_node.directories import reopening
from storage_node.errors import RequestRefused
from storage_node.model.command_rows import encode
from storage_node.model.commands import FailDirectory
from storage_node.publisher import directory_changes
from tests.support.io_faults import Faults
from tests.support.nodes.memory_cluster import MemoryCluster, running_cluster
from tests.support.nodes.node_harness import until
from tests.support.nodes.replicated import assert_equal, in_sync

COUNT = 40


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MemoryCluster]:
    extra = {"log.dir.health.check.interval.ms": "100", "min.insync.replicas": "2", "replica.fetch.backoff.ms": "200"}
    with running_cluster(tmp_path, extra=extra) as made:
        made.create_topic("t", [[1, 2, 3]])
        made.produce("t", [b"%d" % number for number in range(COUNT)])
        until(lambda: all(made.replica(node, "t").log.log_end_offset == COUNT for node in made.nodes))
        yield made


def loses_half(cluster: MemoryCluster, number: int) -> str:
    """Take the directory of a node's replica away, and put it back without what was not flushed; its path."""
    directory = cluster.replica(number, "t").directory
    away = directory.path.rename(directory.path.with_name("pulled-out"))
    until(lambda: not directory.online)
    segment = away / "t-0" / "00000000000000000000.log"
    os.truncate(segment, segment.stat().st_size // 2)
    away.rename(directory.path)
    return str(directory.path)


@pytest.mark.feature("18-20")
@pytest.mark.parametrize("number", [1, 2], ids=["leader", "follower"])
def test_directory_stays_offline_until_the_controller_has_recorded_its_failure(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(directory_changes, "RECORD_PATIENCE", 0.5)
    cluster.controller.cut |= {1, 2, 3}
    path = loses_half(cluster, number)
    node = cluster.nodes[number]
    with pytest.raises(RequestRefused, match="the controller has not recorded yet that it failed"):
        node.directory_changes.bring_online(path)
    assert all(cluster.replica(other, "t").log.log_end_offset == COUNT for other in cluster.nodes if other != number)
    # The controller takes the node out of the in-sync replicas, and another one leads.
    for each in (1, 2, 3):
        cluster.controller.heal(each)
    (failure,) = until(lambda: cluster.controller.failed)
    cluster.controller.it.directory_failed(json.loads(json.dumps(encode(FailDirectory(number, failure)))))
    cluster.controller.spread()
    assert node.directory_changes.bring_online(path)["outcome"] == "reopened"
    in_sync(cluster, "t", [1, 2, 3])
    assert_equal(cluster, "t", 0, [1, 2, 3])
    assert cluster.consume("t", COUNT) == [b"%d" % each for each in range(COUNT)]


def test_append_of_a_follower_that_still_hangs_keeps_the_disk_away(
    cluster: MemoryCluster, faults: Faults, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were it to end later, it would write beside the new log."""
    monkeypatch.setattr(reopening, "_DRAINING", 0.2)
    node, directory = cluster.nodes[2], cluster.replica(2, "t").directory
    rule = faults.hang("pwritev", f"{directory.path}/t-0/*.log")
    producer = cluster.producer()
    producer.produce("t", b"more", partition=0)
    until(lambda: rule.hits)
    directory.fail("it hangs")
    (failure,) = until(lambda: cluster.controller.failed)
    cluster.controller.it.directory_failed(json.loads(json.dumps(encode(FailDirectory(2, failure)))))
    cluster.controller.spread()
    with pytest.raises(RequestRefused, match="operations from before its failure still wait for the disk"):
        node.directory_changes.bring_online(directory.name)
    faults.clear()
    until(lambda: not directory.running)
    assert node.directory_changes.bring_online(directory.name)["outcome"] == "reopened"
    in_sync(cluster, "t", [1, 2, 3])
    assert producer.flush(30) == 0
    until(lambda: cluster.replica(2, "t").log.log_end_offset == COUNT + 1)
    assert_equal(cluster, "t", 0, [1, 2, 3])
