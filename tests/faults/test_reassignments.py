"""A replica is added on another node, and a disk of either node dies at a step of it, under producers.

A reassignment ends once all its target replicas are in sync (KIP-455): while the disk of one is bad it waits, with a
reason that names the disk, and ends once the disk is back, or the replica was created in another directory. What the
controller makes of each order of the reports: tests/workflows/model/metadata/test_failures_in_changes.py.
"""

from __future__ import annotations

import errno
import itertools
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from storage_node.directories.directory import LogDirectory
from storage_node.directories.formatting import format_directories
from storage_node.model.command_rows import encode
from storage_node.model.commands import DirectoryFailed, FailDirectory
from storage_node.model.ids import NO_LEADER, TopicPartition
from storage_node.model.metadata import PartitionImage
from tests.faults.disk import CHANGES, READS, Disk, needs_fuse
from tests.faults.node import PATIENCE
from tests.faults.producing import Producing
from tests.support.nodes.memory_cluster import MemoryCluster, MemoryPort
from tests.support.nodes.node_harness import CLUSTER_ID, until
from tests.support.nodes.replicated import assert_equal, in_sync, settled
from tests.support.scale import FULL, tally

pytestmark = [pytest.mark.fuse, needs_fuse, pytest.mark.timeout(300)]

TP = TopicPartition("t", 0)
LEADER, TARGET = 1, 3
RECORDS, SIZE = 100, 10_000
#: What the target's disk takes in a second, so that the copy lasts for some.
SLOW = {"ops": ("write",), "path": r"/t-0/.*\.log$", "rate": 250_000}
FAULTS: dict[str, dict[str, Any]] = {
    "dies": {"ops": (*CHANGES, *READS), "errno": errno.EIO},
    "turns read-only": {"ops": CHANGES, "errno": errno.EROFS},
    "hangs": {"ops": (*CHANGES, *READS), "hang": True},
}
ENDS, WAITS = "ends", "waits"
#: Whose disk fails, when, and what comes of the reassignment while the disk is still bad.
#:
#: "joining": the leader has asked for an ISR with the new replica; the controller knows of the failure before or after.
#: "alone": the leader's is the only replica, so that nothing goes on without its disk unless the new one has joined.
CASES = {
    ("target", "before the copy"): ENDS,  # in the node's other directory
    ("target", "during the catch-up"): WAITS,
    ("target", "joining, known before"): WAITS,
    ("target", "joining, known after"): ENDS,
    ("leader", "before the copy"): WAITS,
    ("leader", "during the catch-up"): WAITS,
    ("leader", "joining, known before"): WAITS,
    ("leader", "joining, known after"): ENDS,
    ("alone", "before the copy"): WAITS,
    ("alone", "during the catch-up"): WAITS,
    ("alone", "joining, known before"): WAITS,
    ("alone", "joining, known after"): ENDS,
}
CHOSEN = [(*case, fault) for case, fault in itertools.product(CASES, FAULTS) if FULL or fault == "dies"]
_numbers = itertools.count()


class Reports:
    """Reports of failed directories reach the controller when they may."""

    def __init__(self, cluster: MemoryCluster, bad: int) -> None:
        self.may, self.recorded = threading.Event(), threading.Event()
        self.may.set()
        self._cluster, self._bad = cluster, bad

    def take(self, port: MemoryPort, failure: DirectoryFailed, taken: Callable[[], None]) -> None:
        """In the place of a `DirectoryFailure` run."""
        assert port.node is not None and port.node.id == self._bad, "the other disk is slow, and no more"
        threading.Thread(target=self._record, args=(port.node.id, failure, taken), daemon=True).start()

    def _record(self, number: int, failure: DirectoryFailed, taken: Callable[[], None]) -> None:
        self.may.wait(60)
        self._cluster.controller.it.directory_failed(json.loads(json.dumps(encode(FailDirectory(number, failure)))))
        self._cluster.controller.spread()
        self.recorded.set()
        taken()


class Cluster(MemoryCluster):
    """Three nodes; the leader's and the target's second directory are on a faulty disk each, and hold `t`.

    Partition n - 1 of `other` is on the good directory of node n.
    """

    def __init__(self, root: Path, disks: dict[int, Disk]) -> None:
        extra = {
            "log.dir.health.check.interval.ms": "100",
            "log.dir.failure.timeout.ms": f"{PATIENCE * 1000:.0f}",
            "replica.fetch.backoff.ms": "100",
        }
        super().__init__(root, 3, 2, extra)
        self.disks = disks
        name = f"r{next(_numbers)}"
        for number, disk in disks.items():
            self.paths[number] = [str(root / f"good-{number}"), str(disk.path / name)]
            for path in self.paths[number]:
                Path(path).mkdir()
            format_directories(self.paths[number], cluster_id=CLUSTER_ID, node_id=number)

    def fill(self, replicas: list[int]) -> None:
        for number, node in self.nodes.items():
            good, bad = (node.dirs.by_path(path) for path in self.paths[number])
            node.preferred_log_dirs.remember([(TP, bad), (TopicPartition("other", number - 1), good)])
        self.create_topic("t", [replicas], {"segment.bytes": "200000"})
        self.create_topic("other", [[1], [2], [3]])
        self.produce("t", [b"%d:" % number + b"x" * SIZE for number in range(RECORDS)])

    def reassign(self, nodes: list[int]) -> None:
        command = {"do": "alter_reassignments", "partitions": [["t", 0, nodes]], "may_change_factor": True}
        (answer,) = self.controller.submit(self.nodes[2], command)
        assert not answer.get("error"), answer

    def directory(self, number: int) -> LogDirectory:
        """The node's directory on a faulty disk."""
        return self.nodes[number].dirs.by_path(self.paths[number][1])

    @property
    def row(self) -> PartitionImage:
        return self.controller.partition("t")


@pytest.fixture
def cluster(disks: tuple[Disk, Disk], tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path, {LEADER: disks[0], TARGET: disks[1]})
    try:
        for number in made.paths:
            made.start(number)
        yield made
    finally:
        for disk in disks:
            disk.heal()
        made.close()


def asks_to_join(command: dict[str, Any]) -> bool:
    """Whether a leader asks for an ISR with the target in it."""
    if command["do"] != "alter_partitions":
        return False
    return any(TARGET in {member for member, _ in row[5]} for row in command["partitions"] if row[0] == "t")


def at_epoch(command: dict[str, Any], epoch: int) -> bool:
    """Whether a request for an ISR of `t` is made at a partition epoch."""
    return [row[4] for row in command["partitions"] if row[0] == "t"] == [epoch]


@pytest.mark.feature("18-11")
@pytest.mark.parametrize(("side", "step", "fault"), CHOSEN)
def test_reassignment_ends_or_waits_with_a_reason(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, side: str, step: str, fault: str
) -> None:
    bad = TARGET if side == "target" else LEADER
    reports = Reports(cluster, bad)
    monkeypatch.setattr(MemoryPort, "directory_failed", lambda *given: reports.take(*given))
    before = [LEADER] if side == "alone" else [LEADER, 2]
    cluster.fill(before)
    healthy, directory, disk = [0, 1, 2], cluster.directory(bad), cluster.disks[bad]
    joined = threading.Event()

    def fail() -> None:
        disk.rules(FAULTS[fault])

    submit = cluster.controller.submit

    def submit_once_it_has_failed(node: Any, command: dict[str, Any]) -> list[dict[str, Any]]:
        if not asks_to_join(command) or joined.is_set():
            return submit(node, command)
        # The new replica's directory raises the partition epoch too: this request would be refused for that alone.
        until(lambda: cluster.row.directory_of(TARGET), what="the metadata has the directory of the new replica")
        if not at_epoch(command, cluster.row.partition_epoch):
            return submit(node, command)
        joined.set()
        if step == "joining, known after":
            reports.may.clear()
        fail()
        until(lambda: not directory.online, what="the directory goes offline")
        if step == "joining, known before":
            assert reports.recorded.wait(60)
        try:
            return submit(node, command)
        finally:
            reports.may.set()

    with (
        Producing(cluster.bootstrap, "t", [0]) as writing,
        Producing(cluster.bootstrap, "other", healthy) as others,
    ):
        writing.go_on([0], 30)
        others.go_on(healthy, 30)
        if step == "before the copy":
            fail()
            if side != "target":
                assert reports.recorded.wait(60)
        elif step == "during the catch-up":
            cluster.disks[TARGET].rules(SLOW)
        else:
            monkeypatch.setattr(cluster.controller, "submit", submit_once_it_has_failed)
        cluster.reassign([*before, TARGET])
        if step == "during the catch-up":
            until(lambda: (new := cluster.replica(TARGET, "t")) is not None and new.log.log_end_offset > 0)
            assert cluster.row.assignment.adding == (TARGET,)
            fail()
        assert reports.recorded.wait(60), "the metadata has the failure"
        assert directory.failure is not None and not directory.online
        if CASES[side, step] == ENDS:
            until(lambda: not cluster.row.assignment.adding, what="the reassignment ends while the disk is bad")
            assert cluster.row.leader != NO_LEADER
            writing.go_on([0], 60)
        else:
            others.go_on(healthy, 30)
            assert cluster.row.assignment.adding == (TARGET,)
            reason = until(lambda: cluster.nodes[bad].replicas.offline.get(TP), what="there is a reason to wait")
            assert str(directory.path) in reason
            assert cluster.row.leader == {"alone": NO_LEADER, "leader": 2, "target": LEADER}[side]
        there = cluster.row.directory_of(bad) == directory.id
        assert not there or bad not in cluster.row.isr or cluster.row.isr == (bad,), "none in sync is on the bad disk"
        others.go_on(healthy, 30)
        for each in cluster.disks.values():
            each.heal()
        cluster.nodes[bad].directory_changes.bring_online(str(directory.path))
        in_sync(cluster, "t", [*before, TARGET])
        assert cluster.row.assignment.adding == ()
        writing.go_on([0], 60)
        others.go_on(healthy, 30)
    assert writing.failed == [] and others.failed == []
    with tally("faults injected through FUSE") as counted:
        counted.count += 1
    assert settled(cluster, "t", nodes=[*before, TARGET]) > max(writing.acknowledged[0])
    assert_equal(cluster, "t", nodes=[*before, TARGET])
    stored = cluster.consume("t", max(writing.acknowledged[0]) + 1)
    assert {offset: stored[offset] for offset in writing.acknowledged[0]} == writing.acknowledged[0]
    assert len(stored) >= RECORDS and all(stored[number] == b"%d:" % number + b"x" * SIZE for number in range(RECORDS))
    assert cluster.controller.differences == []
