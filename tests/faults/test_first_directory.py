"""The first of log.dirs is a directory like the others: groups, preferences and new replicas go on without it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from storage_node.directories.formatting import format_directories
from storage_node.model.ids import TopicPartition
from tests.faults.disk import Disk, needs_fuse
from tests.faults.node import HANGS, SETTINGS
from tests.support.group_calls import commit, fetch
from tests.support.nodes.local_controller import LocalController
from tests.support.nodes.node_harness import CLUSTER_ID, Harness, until
from tests.support.wire import Client

pytestmark = [pytest.mark.fuse, needs_fuse]

EIO = {"ops": ("write", "read", "open", "create", "fsync", "rename", "mkdir", "readdir", "getattr"), "errno": errno.EIO}


class _Node(Harness):
    """A node whose first directory is on a faulty disk."""

    def __init__(self, disk: Disk, root: Path) -> None:
        self.paths = [str(disk.path / "first"), str(root / "second"), str(root / "third")]
        for path in self.paths:
            Path(path).mkdir()
        format_directories(self.paths, cluster_id=CLUSTER_ID, node_id=1)
        self.node_id, self.extra = 1, {**SETTINGS, **HANGS}
        self.controller = LocalController(CLUSTER_ID)
        self.node = self._new(0)
        self.start()

    def offset(self) -> int:
        """What the group has committed, as a client reads it."""
        until(lambda: self.node.groups.loaded)
        client = Client(self)
        try:
            return int(fetch(self, client, "g", {"t": [0]})[1][0][2])
        finally:
            client.close()

    def commit(self, offset: int) -> None:
        until(lambda: self.node.groups.loaded)
        client = Client(self)
        try:
            assert commit(self, client, "g", {("t", 0): offset}) == [0]
        finally:
            client.close()


@contextmanager
def running(disk: Disk, root: Path) -> Iterator[_Node]:
    node = _Node(disk, root)
    try:
        yield node
    finally:
        disk.heal()
        node.close()


@pytest.mark.feature("18-01", "18-05")
def test_node_goes_on_without_its_first_directory(disks: tuple[Disk, Disk], tmp_path: Path) -> None:
    disk = disks[0]
    with running(disk, tmp_path) as harness:
        halted: list[str] = []
        harness.node.halt = halted.append
        harness.create_topic("t", 3)
        harness.commit(5)
        disk.rules(EIO)
        until(lambda: not harness.node.dirs.directories[0].online)
        harness.commit(6)
        harness.node.preferred_log_dirs.remember(
            [(TopicPartition("u", 0), harness.node.dirs.by_path(harness.paths[2]))]
        )
        harness.restart(clean=False)
        harness.node.halt = halted.append
        assert not harness.node.dirs.directories[0].online, "the disk is as bad at the start"
        assert harness.offset() == 6
        harness.create_topic("u", 1)
        assert harness.directory_of("u") == harness.paths[2]
        harness.commit(7)
        harness.stop()
        disk.heal()
        harness.node = harness._new(0)
        harness.start()
        assert harness.node.dirs.directories[0].online
        assert harness.offset() == 7, "what the returned disk holds is older"
        until(lambda: {partition.partition for partition in harness.node.replicas.served} >= {0, 1, 2})
        assert halted == []
