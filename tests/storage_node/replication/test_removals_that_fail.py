"""A replica whose folder cannot be deleted when the metadata takes it from a node: it is deleted later, not for ever
kept.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_node import failpoints
from storage_node.errors import RequestRefused, StorageError
from storage_node.lifecycle import housekeeping
from storage_node.model.command_rows import encode
from storage_node.model.commands import AlterReassignments, FailDirectory, Reassign
from storage_node.model.ids import TopicPartition
from storage_node.node import Node
from storage_node.replicas import retirement
from tests.support.nodes.memory_cluster import MemoryCluster, running_cluster
from tests.support.nodes.node_harness import until
from tests.support.nodes.replicated import in_sync

TP = TopicPartition("t", 0)
COUNT = 40


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryCluster]:
    monkeypatch.setattr(housekeeping, "REMOVALS_EVERY", 0.2)
    extra = {"log.flush.offset.checkpoint.interval.ms": "200", "file.delete.delay.ms": "100"}
    with running_cluster(tmp_path, nodes=2, extra=extra) as made:
        yield made


def replicated(cluster: MemoryCluster) -> Node:
    """A topic that node 2 leads and node 1 follows; node 1."""
    cluster.create_topic("t", [[2, 1]])
    cluster.produce("t", [b"%d" % number for number in range(COUNT)])
    until(lambda: cluster.replica(1, "t").log.log_end_offset == COUNT)
    return cluster.nodes[1]


def goes_offline_alone(cluster: MemoryCluster) -> Node:
    """The replica of node 1, because of a file of it (KIP-18); its disk is good."""
    node = replicated(cluster)
    node.replicas.set_offline({TP: "a file of it cannot be read"})
    until(lambda: cluster.controller.partition("t").isr == (2,))
    return node


def reassigned(cluster: MemoryCluster, node: int) -> None:
    """Away from node 1, to that node."""
    (response,) = cluster.controller.submit(
        cluster.nodes[2], json.loads(json.dumps(encode(AlterReassignments((Reassign(TP, (node,)),)))))
    )
    assert response.get("error") is None, response
    until(lambda: cluster.controller.partition("t").replicas == (node,))
    cluster.controller.spread()


def deleted(cluster: MemoryCluster) -> None:
    admin = cluster.admin()
    admin.delete_topics(["t"])["t"].result(10)
    cluster.controller.spread()


def folders(node: Node) -> list[str]:
    """The folders of the partition in the node's directories."""
    return [path.name for directory in node.dirs.directories for path in directory.path.glob("t-0*")]


@pytest.mark.feature("18-07")
@pytest.mark.parametrize("restarted", [False, True], ids=["at once", "after a start that cannot open it"])
def test_replica_that_is_offline_alone_is_deleted_once_other_nodes_hold_it(
    cluster: MemoryCluster, restarted: bool
) -> None:
    node = goes_offline_alone(cluster)
    if restarted:
        (path,) = [path for directory in node.dirs.directories for path in directory.path.glob("t-0")]
        cluster.stop(1)
        (path / "partition.move").mkdir()
        (path / "00000000000000000000.log").unlink()
        (path / "00000000000000000000.log").mkdir()
        node = cluster.start(1)
        until(lambda: TP in node.replicas.offline)
    reassigned(cluster, 2)
    until(lambda: folders(node) == [])
    assert node.replicas.offline == {}


def test_new_topic_of_the_name_of_a_deleted_one_that_was_offline_gets_a_replica(cluster: MemoryCluster) -> None:
    node = goes_offline_alone(cluster)
    deleted(cluster)
    until(lambda: "t-0" not in folders(node))
    cluster.create_topic("t", [[2, 1]])
    in_sync(cluster, "t", [1, 2])


@pytest.fixture
def immutable(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Folders of node 1 cannot be renamed until the event is set."""
    usable = threading.Event()
    genuine = retirement.rename_new
    root = cluster.nodes[1].dirs.directories[0].path.parent

    def rename(source: Path, target: Path) -> None:
        if not usable.is_set() and source.name == "t-0" and source.is_relative_to(root):
            raise PermissionError(1, "Operation not permitted")
        genuine(source, target)

    monkeypatch.setattr(retirement, "rename_new", rename)
    return usable


def pending(node: Node) -> bool:
    return "its folder could not be deleted yet" in node.replicas.offline.get(TP, "")


@pytest.mark.parametrize("then", ["reassigned", "reassigned back", "created again", "created again, unopened"])
def test_folder_that_cannot_be_renamed_is_deleted_when_it_can(
    cluster: MemoryCluster, immutable: threading.Event, then: str
) -> None:
    node = replicated(cluster)
    if then == "created again, unopened":
        node.replicas.set_offline({TP: "a file of it cannot be read"})
        node.replicas.retired.clear()  # as after a start that cannot open it
    if then.startswith("created again"):
        deleted(cluster)
        until(lambda: pending(node))
        cluster.create_topic("t", [[2, 1]])
    else:
        reassigned(cluster, 2)
        until(lambda: pending(node))
    if then == "reassigned back":
        cluster.controller.submit(
            cluster.nodes[2], json.loads(json.dumps(encode(AlterReassignments((Reassign(TP, (2, 1)),)))))
        )
        cluster.controller.spread()
        with pytest.raises(RequestRefused, match="is still to be deleted"):
            node.metadata_publisher.reopen(TP)
    assert folders(node) == ["t-0"] and all(directory.online for directory in node.dirs.directories)
    assert pending(node)
    immutable.set()
    if then == "reassigned":
        until(lambda: folders(node) == [] and node.replicas.offline == {})
        return
    until(lambda: cluster.replica(1, "t") is not None)
    in_sync(cluster, "t", [1, 2])
    assert cluster.replica(1, "t").log.log_end_offset == (COUNT if then == "reassigned back" else 0)
    assert node.replicas.doomed == frozenset()


def test_replica_whose_disk_fails_before_it_could_be_deleted_is_deleted_when_the_disk_is_back(
    cluster: MemoryCluster, immutable: threading.Event
) -> None:
    node = replicated(cluster)
    directory = cluster.replica(1, "t").directory
    reassigned(cluster, 2)
    until(lambda: pending(node))
    directory.fail("pulled out")
    until(lambda: TP not in node.replicas.doomed)
    (failure,) = until(lambda: cluster.controller.failed)
    cluster.controller.it.directory_failed(json.loads(json.dumps(encode(FailDirectory(1, failure)))))
    cluster.controller.spread()
    immutable.set()
    assert node.directory_changes.bring_online(directory.name)["outcome"] == "reopened"
    until(lambda: folders(node) == [] and node.replicas.offline == {})


@pytest.mark.parametrize("restarted", [False, True])
def test_replica_whose_swap_hangs_is_deleted_when_it_ends_or_by_the_next_start(
    cluster: MemoryCluster, restarted: bool
) -> None:
    cluster.create_topic("t", [[1]])
    cluster.produce("t", [b"%d" % number for number in range(COUNT)])
    node = cluster.nodes[1]
    engine, partition = node.engine, cluster.replica(1, "t")
    target = next(each for each in node.dirs.directories if each is not partition.directory)
    claim = engine.create(TP, target.name, owner="run").claim
    engine.start_copy(TP, claim)
    until(lambda: engine.statuses()[0].state == "caught_up")
    arrived, hangs = threading.Event(), threading.Event()

    def hang() -> None:
        arrived.set()
        hangs.wait(60)

    def swaps() -> None:
        with contextlib.suppress(RequestRefused, StorageError):
            engine.swap(TP, claim)

    with failpoints.active({"swap.after_target_renamed": hang}):
        swap = threading.Thread(target=swaps, daemon=True)
        swap.start()
        assert arrived.wait(10)
        target.fail("it did not respond within 30 s: the disk hangs")
        reassigned(cluster, 2)
        until(lambda: TP in node.replicas.offline)
        assert (partition.directory.path / "t-0").exists()
        hangs.set()
        swap.join(10)
    if restarted:
        cluster.stop(1, clean=False)
        node = cluster.start(1)
        cluster.controller.spread()
        until(lambda: folders(node) == [])
    else:
        until(lambda: list(partition.directory.path.glob("t-0*")) == [] and node.replicas.offline == {})
