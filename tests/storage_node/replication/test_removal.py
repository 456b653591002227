"""Replicas that the metadata takes away from a node go from its disks; nothing else does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_node.metadata import ClusterImage
from storage_node.node import Node
from storage_node.partition import Partition
from storage_node.types import TopicPartition
from tests.support.node_harness import make_config, make_dirs, until
from tests.support.static_image import TOPIC_ID, image, row

TP = TopicPartition("t", 0)
#: Nobody listens there: what is followed does not come on.
PORTS = {1: 9, 2: 9, 3: 9}
OURS = row([1, 2], leader=2, partition_epoch=5)


class Nodes:
    """Node 1, stopped and started on the same disks."""

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
        """What there is of partitions, whatever it is called."""
        return sorted(entry.name for path in self.paths for entry in Path(path).iterdir() if entry.name[:2] == "t-")


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    made = Nodes(tmp_path)
    yield made
    made.stop()


def told(node: Node, what: ClusterImage) -> None:
    assert node.apply_images([what.encode()]) == what.age


def replica(node: Node) -> Partition | None:
    return node.replicas.served.get(TP)


@pytest.mark.feature("455-23")
def test_a_replica_that_the_metadata_takes_away_is_deleted(nodes: Nodes) -> None:
    node = nodes.start()
    told(node, image(1, [OURS], PORTS))
    assert nodes.folders() == ["t-0"]
    told(node, image(2, [row([2, 3], leader=2, partition_epoch=6)], PORTS))
    # The answer means that it is done: no start takes it for a replica any more.
    assert replica(node) is None and [name for name in nodes.folders() if not name.endswith(".delete")] == []
    until(lambda: not nodes.folders(), what="its files are removed after file.delete.delay.ms")
    assert node.fetchers.following(TP) is None


def test_it_may_come_back_at_once(nodes: Nodes) -> None:
    node = nodes.start()
    told(node, image(1, [OURS], PORTS))
    told(node, image(2, [row([2, 3], leader=2, partition_epoch=6)], PORTS))
    told(node, image(3, [row([2, 3, 1], leader=2, partition_epoch=7, isr=[2, 3])], PORTS))
    assert replica(node) is not None and "t-0" in nodes.folders()
    until(lambda: nodes.folders() == ["t-0"], what="the old one is gone")
    told(node, image(4, [row([2, 3], leader=2, partition_epoch=8)], PORTS))
    until(lambda: not nodes.folders(), what="this one goes as well")


def test_nothing_goes_by_metadata_from_before_it_came(nodes: Nodes) -> None:
    """Restored from a backup, say: the newest image, but with an older epoch of the partition."""
    node = nodes.start()
    told(node, image(1, [OURS], PORTS))
    for epoch in (4, 5):
        told(node, image(epoch, [row([2, 3], leader=2, partition_epoch=epoch)], PORTS, generation=2))
        assert replica(node) is not None and nodes.folders() == ["t-0"]
    nodes.stop()
    node = nodes.start()
    assert replica(node) is not None and nodes.folders() == ["t-0"]


def test_nothing_goes_for_being_unknown(nodes: Nodes) -> None:
    node = nodes.start()
    told(node, image(1, [OURS], PORTS))
    told(node, image(2, [], PORTS))
    told(node, image(3, [row([2, 3], leader=2, partition_epoch=9)], PORTS, topic_id="BAAAAAAAAAAAAAAAAAAAAg"))
    assert nodes.folders() == ["t-0"]
    nodes.stop()
    nodes.start()
    assert nodes.folders() == ["t-0"]


@pytest.mark.parametrize("clean", [True, False])
def test_a_node_that_was_down_deletes_it_when_it_learns(nodes: Nodes, clean: bool) -> None:
    told(nodes.start(), image(1, [OURS], PORTS))
    nodes.stop(clean)
    node = nodes.start()
    assert replica(node) is not None
    told(node, image(2, [row([2, 3], leader=2, partition_epoch=6)], PORTS))
    until(lambda: not nodes.folders(), what="it is gone")


@pytest.mark.parametrize("clean", [True, False])
def test_one_in_a_directory_that_was_away_goes_at_the_start_that_sees_it_again(nodes: Nodes, clean: bool) -> None:
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


def test_a_crash_between_the_image_and_the_deletion_is_made_good_by_the_start(nodes: Nodes) -> None:
    node = nodes.start()
    told(node, image(1, [OURS], PORTS))
    # The image is on the disks, and that was all.
    later = image(2, [row([2, 3], leader=2, partition_epoch=6)], PORTS)
    node.dirs.images.save(later.encode(), later.generation, later.version)
    nodes.stop(clean=False)
    node = nodes.start()
    assert replica(node) is None
    until(lambda: not nodes.folders(), what="it is gone")


def test_its_move_between_disks_ends_with_it(nodes: Nodes) -> None:
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
    """The path of the directory in which a copy is left: it was offline when the replica itself went elsewhere."""
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
def test_a_copy_whose_directory_was_away_goes_at_the_start_that_sees_it_again(nodes: Nodes, clean: bool) -> None:
    left_alone(nodes)
    nodes.stop(clean)
    node = nodes.start()
    assert TP not in node.replicas.offline
    until(lambda: not nodes.folders(), what="it is gone")
    told(node, image(3, [row([2, 3, 1], leader=2, partition_epoch=7, isr=[2, 3])], PORTS))
    assert replica(node) is not None and nodes.folders() == ["t-0"]


@pytest.mark.parametrize("moved", [False, True])
def test_a_replica_that_came_back_is_newer_than_the_one_on_a_disk_that_was_away(nodes: Nodes, moved: bool) -> None:
    """Served in its place, the old one would take acknowledged records with it."""
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


def test_such_a_copy_goes_when_a_node_learns_of_it_that_has_no_newer_image(nodes: Nodes) -> None:
    """Only the directory that was away is there: its image is from before."""
    other = left_alone(nodes)
    nodes.stop()
    node = nodes.start([other])
    assert TP in node.replicas.offline and nodes.folders() == ["t-0.move"]
    told(node, image(2, [row([2, 3], leader=2, partition_epoch=6)], PORTS))
    assert TP not in node.replicas.offline
    until(lambda: not nodes.folders(), what="it is gone")


def test_such_a_copy_stays_by_metadata_from_before_it_was_made(nodes: Nodes) -> None:
    """Restored from a backup, say: it may be the last there is."""
    left_alone(nodes)
    assert nodes.node is not None
    older = image(9, [row([2, 3], leader=2, partition_epoch=5)], PORTS, generation=2)
    nodes.node.dirs.images.save(older.encode(), older.generation, older.version)
    nodes.stop()
    node = nodes.start()
    assert TP in node.replicas.offline and nodes.folders() == ["t-0.move"]


def test_a_deleted_topic_goes_from_a_node_that_was_down(nodes: Nodes) -> None:
    told(nodes.start(), image(1, [OURS], PORTS))
    nodes.stop()
    node = nodes.start()
    told(node, image(2, [], PORTS, gone={TOPIC_ID: "t"}))
    until(lambda: not nodes.folders(), what="it is gone")
