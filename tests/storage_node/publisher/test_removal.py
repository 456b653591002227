"""A node deletes the replicas that the metadata reassigns to other nodes, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_node.model.ids import TopicPartition
from storage_node.model.image import ClusterImage
from storage_node.node import Node
from storage_node.partitions.partition import Partition
from tests.support.nodes.node_harness import make_config, make_dirs, until
from tests.support.nodes.static_image import TOPIC_ID, image, row

TP = TopicPartition("t", 0)
#: No process listens on these ports, so that followers make no progress.
PORTS = {1: 9, 2: 9, 3: 9}
OURS = row([1, 2], leader=2, partition_epoch=5)


class Nodes:
    """Node 1, stopped and restarted on the same disks."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.paths = make_dirs(root, 2)
        self.node: Node | None = None

    def start(self, paths: list[str] | None = None) -> Node:
        self.node = Node(make_config(paths or self.paths, 1, 0, {"file.delete.delay.ms": "300"}))
        self.node.start()
        return self.node

    def stop(self, clean: bool = True) -> None:
        if self.node is not None:
            self.node.stop(clean)
            self.node = None

    def folders(self) -> list[str]:
        """Return all folders of partitions, whatever their suffix."""
        return sorted(entry.name for path in self.paths for entry in Path(path).iterdir() if entry.name[:2] == "t-")


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path)
    yield made
    made.stop()


def told(node: Node, what: ClusterImage) -> None:
    assert node.apply_images([what.encode()]) == what.pair


def replica(node: Node) -> Partition | None:
    return node.replicas.served.get(TP)


@pytest.mark.feature("455-23")
def test_replica_reassigned_to_other_nodes_is_deleted(nodes: Nodes) -> None:
    node = nodes.start()
    told(node, image(1, [OURS], PORTS))
    assert nodes.folders() == ["t-0"]
    told(node, image(2, [row([2, 3], leader=2, partition_epoch=6)], PORTS))
    # The response confirms the removal: no later start finds a replica there.
    assert replica(node) is None and [name for name in nodes.folders() if not name.endswith(".delete")] == []
    until(lambda: not nodes.folders(), what="its files are removed after file.delete.delay.ms")
    assert node.replica_fetchers.following(TP) is None


def test_deleted_replica_may_be_assigned_again_at_once(nodes: Nodes) -> None:
    node = nodes.start()
    told(node, image(1, [OURS], PORTS))
    told(node, image(2, [row([2, 3], leader=2, partition_epoch=6)], PORTS))
    told(node, image(3, [row([2, 3, 1], leader=2, partition_epoch=7, isr=[2, 3])], PORTS))
    assert replica(node) is not None and "t-0" in nodes.folders()
    until(lambda: nodes.folders() == ["t-0"], what="the old one is gone")
    told(node, image(4, [row([2, 3], leader=2, partition_epoch=8)], PORTS))
    until(lambda: not nodes.folders(), what="this one is deleted as well")


def test_older_metadata_deletes_no_replica(nodes: Nodes) -> None:
    """Such metadata may be restored from a backup: the newest image, but with an older partition epoch."""
    node = nodes.start()
    told(node, image(1, [OURS], PORTS))
    for epoch in (4, 5):
        told(node, image(epoch, [row([2, 3], leader=2, partition_epoch=epoch)], PORTS, generation=2))
        assert replica(node) is not None and nodes.folders() == ["t-0"]
    nodes.stop()
    node = nodes.start()
    assert replica(node) is not None and nodes.folders() == ["t-0"]


def test_unknown_replica_is_not_deleted(nodes: Nodes) -> None:
    node = nodes.start()
    told(node, image(1, [OURS], PORTS))
    told(node, image(2, [], PORTS))
    told(node, image(3, [row([2, 3], leader=2, partition_epoch=9)], PORTS, topic_id="BAAAAAAAAAAAAAAAAAAAAg"))
    assert nodes.folders() == ["t-0"]
    nodes.stop()
    nodes.start()
    assert nodes.folders() == ["t-0"]


@pytest.mark.parametrize("clean", [True, False])
def test_restarted_node_deletes_the_replica_by_the_image(nodes: Nodes, clean: bool) -> None:
    told(nodes.start(), image(1, [OURS], PORTS))
    nodes.stop(clean)
    node = nodes.start()
    assert replica(node) is not None
    told(node, image(2, [row([2, 3], leader=2, partition_epoch=6)], PORTS))
    until(lambda: not nodes.folders(), what="it is gone")


@pytest.mark.parametrize("clean", [True, False])
def test_replica_in_a_returning_directory_is_deleted_at_start(nodes: Nodes, clean: bool) -> None:
    node = nodes.start()
    told(node, image(1, [OURS], PORTS))
    served = replica(node)
    assert served is not None
    served.directory.fail("pulled")
    told(node, image(2, [row([2, 3], leader=2, partition_epoch=6)], PORTS))
    assert nodes.folders() == ["t-0"] and TP not in node.replicas.offline
    nodes.stop(clean)
    node = nodes.start()
    assert replica(node) is None
    until(lambda: not nodes.folders(), what="it is gone")


def test_start_after_a_crash_before_the_deletion_completes_it(nodes: Nodes) -> None:
    node = nodes.start()
    told(node, image(1, [OURS], PORTS))
    # The image is on the disks, but the replica is not deleted yet.
    later = image(2, [row([2, 3], leader=2, partition_epoch=6)], PORTS)
    node.dirs.images.save(later.encode(), later.cluster_generation, later.version)
    nodes.stop(clean=False)
    node = nodes.start()
    assert replica(node) is None
    until(lambda: not nodes.folders(), what="it is gone")


def test_deletion_ends_the_replicas_move(nodes: Nodes) -> None:
    node = nodes.start()
    told(node, image(1, [OURS], PORTS, broker={"replica.alter.log.dirs.io.max.bytes.per.second": "1"}))
    served = replica(node)
    assert served is not None
    other = next(path for path in nodes.paths if path != served.directory.name)
    node.engine.create(TP, other)
    assert nodes.folders() == ["t-0", "t-0.move"]
    told(node, image(2, [row([2, 3], leader=2, partition_epoch=6)], PORTS))
    assert [name for name in nodes.folders() if not name.endswith(".delete")] == []
    until(lambda: not nodes.folders(), what="both are gone")


def left_alone(nodes: Nodes) -> str:
    """Leave a copy in a directory that was offline when the replica was reassigned; return the directory's path."""
    node = nodes.start()
    told(node, image(1, [OURS], PORTS))
    served = replica(node)
    assert served is not None
    other = next(path for path in nodes.paths if path != served.directory.name)
    node.engine.create(TP, other)
    target = node.dirs.by_path(other)
    assert target is not None
    target.fail("pulled")
    told(node, image(2, [row([2, 3], leader=2, partition_epoch=6)], PORTS))
    until(lambda: nodes.folders() == ["t-0.move"], what="the replica itself is gone")
    return other


@pytest.mark.parametrize("clean", [True, False])
def test_copy_in_a_returning_directory_is_deleted_at_start(nodes: Nodes, clean: bool) -> None:
    left_alone(nodes)
    nodes.stop(clean)
    node = nodes.start()
    assert TP not in node.replicas.offline
    until(lambda: not nodes.folders(), what="it is gone")
    told(node, image(3, [row([2, 3, 1], leader=2, partition_epoch=7, isr=[2, 3])], PORTS))
    assert replica(node) is not None and nodes.folders() == ["t-0"]


@pytest.mark.parametrize("moved", [False, True])
def test_replica_assigned_again_supersedes_the_one_on_a_returning_disk(nodes: Nodes, moved: bool) -> None:
    """Serving the old one in its place would lose acknowledged records."""
    node = nodes.start()
    told(node, image(1, [OURS], PORTS))
    served = replica(node)
    assert served is not None
    if moved:
        other = next(path for path in nodes.paths if path != served.directory.name)
        claim = node.engine.create(TP, other).claim
        node.engine.start_copy(TP, claim)
        node.engine.wait(TP, claim, 30)
        until(lambda: node.engine.swap(TP, claim).outcome == "swapped")
        until(lambda: nodes.folders() == ["t-0"], what="its source is gone")
    old = served.directory
    old.fail("pulled")
    told(node, image(2, [row([2, 3], leader=2, partition_epoch=6)], PORTS))
    told(node, image(3, [row([2, 3, 1], leader=2, partition_epoch=8, isr=[2, 3])], PORTS))
    again = replica(node)
    assert again is not None and again.directory is not old
    nodes.stop()
    node = nodes.start()
    found = replica(node)
    assert found is not None and found.directory.name == again.directory.name
    until(lambda: nodes.folders() == ["t-0"], what="the old one is gone")


def test_copy_is_deleted_by_the_image_if_the_disk_has_an_older_one(nodes: Nodes) -> None:
    """Only the directory that was offline is present: its image is from before the reassignment."""
    other = left_alone(nodes)
    nodes.stop()
    node = nodes.start([other])
    assert TP in node.replicas.offline and nodes.folders() == ["t-0.move"]
    told(node, image(2, [row([2, 3], leader=2, partition_epoch=6)], PORTS))
    assert TP not in node.replicas.offline
    until(lambda: not nodes.folders(), what="it is gone")


def test_copy_is_kept_under_metadata_older_than_it(nodes: Nodes) -> None:
    """Such metadata may be restored from a backup: this may be the last replica."""
    left_alone(nodes)
    assert nodes.node is not None
    older = image(9, [row([2, 3], leader=2, partition_epoch=5)], PORTS, generation=2)
    nodes.node.dirs.images.save(older.encode(), older.cluster_generation, older.version)
    nodes.stop()
    node = nodes.start()
    assert TP in node.replicas.offline and nodes.folders() == ["t-0.move"]


def test_restarted_node_deletes_a_deleted_topic(nodes: Nodes) -> None:
    told(nodes.start(), image(1, [OURS], PORTS))
    nodes.stop()
    node = nodes.start()
    told(node, image(2, [], PORTS, gone={TOPIC_ID: "t"}))
    until(lambda: not nodes.folders(), what="it is gone")
