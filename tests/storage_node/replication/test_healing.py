"""The replicas of a failed log directory are made again in the node's other directories; the old copies lose."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from storage_node.directories.directory import LogDirectory
from storage_node.errors import RequestTimedOut
from storage_node.lifecycle.directory_history import Event
from storage_node.model.assignment import Assignment
from storage_node.model.command_rows import encode
from storage_node.model.commands import FailDirectory
from storage_node.model.ids import NO_LEADER, TopicPartition
from storage_node.model.metadata import PartitionImage
from storage_node.node import Node
from storage_node.replicas import marker as markers
from storage_node.replication.following import Kind
from storage_node.replication.healing import KEPT_FREE, MissingDirectory, Room, place, why_not
from tests.support.nodes.memory_cluster import MemoryCluster, running_cluster
from tests.support.nodes.node_harness import until
from tests.support.nodes.replicated import assert_equal, in_sync

TP = TopicPartition("t", 0)
COUNT = 40
ROW = PartitionImage(0, Assignment((1, 2, 3)), directories=("a", "x", "y"), generations=(4, 0, 0), isr=(2, 3), leader=2)
GONE = MissingDirectory("a", "/disks/a", recorded=True, seconds=700.0)


def reason(row: PartitionImage = ROW, *missing: MissingDirectory, registered: bool = True, delay: float = 600.0) -> str:
    return why_not(row, 1, registered=registered, missing=missing or (GONE,), delay=delay)


@pytest.mark.feature("18-13")
def test_replica_out_of_the_isr_under_another_leader_is_made_again_after_the_delay() -> None:
    assert reason() == ""
    assert reason(replace(ROW, isr=(2,))) == ""
    assert reason(ROW, replace(GONE, seconds=600.0)) == ""


@pytest.mark.feature("18-13")
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"delay": -1.0}, "log.dir.heal.delay.ms is off"),
        ({"row": replace(ROW, assignment=Assignment((1,)), isr=(2,))}, "it is the only replica"),
        (
            {"row": replace(ROW, assignment=Assignment((1, 2, 3), removing=(1,), original=(1, 2, 3)))},
            "a reassignment removes it from this node",
        ),
        ({"missing": replace(GONE, recorded=False)}, "does not have log directory /disks/a as failed"),
        ({"missing": MissingDirectory("b", "", False, 0.0)}, "does not have log directory with id b as failed"),
        ({"missing": replace(GONE, seconds=540.0)}, "/disks/a may come back: it is made again in 60 s"),
        ({"row": replace(ROW, isr=(1, 2, 3))}, "once another node leads and this replica is out of the ISR"),
        ({"row": replace(ROW, leader=NO_LEADER)}, "once another node leads"),
        ({"row": replace(ROW, leader=1)}, "once another node leads"),
        ({"row": replace(ROW, isr=(1,), leader=NO_LEADER)}, "it was the last one in sync"),
        ({"registered": False}, "until the controller has registered this start"),
    ],
)
def test_replica_is_not_made_again(given: dict[str, Any], says: str) -> None:
    row, missing = given.pop("row", ROW), given.pop("missing", GONE)
    assert says in reason(row, GONE, missing, **given)


def test_the_last_failure_of_a_known_directory_counts() -> None:
    later = MissingDirectory("b", "/disks/b", recorded=True, seconds=10.0)
    assert "/disks/b may come back" in reason(ROW, GONE, later)


def tp(index: int) -> TopicPartition:
    return TopicPartition("t", index)


def test_replica_finds_its_place_where_there_is_space_for_it_and_a_tenth_more() -> None:
    enough = Room("/b", 0, KEPT_FREE + 1100)
    assert place({TP: 1000}, [enough]) == {TP: "/b"}
    assert place({TP: 1001}, [enough]) == {}
    assert place({TP: 1000}, []) == {}


def test_replica_is_placed_in_the_directory_with_the_fewest_bytes_that_fits() -> None:
    rooms = [
        Room("/b", 0, KEPT_FREE + 10_000, bytes=500),
        Room("/c", 1, KEPT_FREE + 1_500, bytes=100),
        Room("/d", 2, KEPT_FREE, bytes=0),
    ]
    assert place({tp(0): 1000, tp(1): 1000, tp(2): 0}, rooms) == {tp(0): "/c", tp(1): "/b", tp(2): "/d"}


def test_directories_on_one_disk_share_its_space() -> None:
    rooms = [Room("/b", 0, KEPT_FREE + 1_500), Room("/c", 0, KEPT_FREE + 1_500)]
    assert len(place({tp(0): 1000, tp(1): 1000}, rooms)) == 1


# On nodes


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[MemoryCluster]:
    extra = {
        "log.dir.health.check.interval.ms": "100",
        "log.dir.heal.delay.ms": "3600000",
        "replica.fetch.backoff.ms": "200",
    }
    with running_cluster(tmp_path, 2, extra=extra) as made:
        made.create_topic("t", [[1, 2]])
        made.produce("t", values(0))
        in_sync(made, "t", [1, 2])
        until(lambda: all(made.controller.partition("t").directories), what="the metadata has the directories")
        yield made


def values(start: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + COUNT)]


def fail(cluster: MemoryCluster, number: int = 1) -> LogDirectory:
    """Pull the disk with a node's replica, and let the metadata have it."""
    directory: LogDirectory = cluster.replica(number, "t").directory
    directory.path.rename(directory.path.with_name("pulled-out"))
    until(lambda: not directory.online)
    (failure,) = until(lambda: cluster.controller.failed)
    cluster.controller.it.directory_failed(json.loads(json.dumps(encode(FailDirectory(number, failure)))))
    cluster.controller.spread()
    cluster.controller.failed.clear()
    return directory


def put_back(directory: LogDirectory) -> None:
    directory.path.with_name("pulled-out").rename(directory.path)


def passes(node: Node, seconds: float) -> None:
    """Let this time pass for the failures of a node's directories."""
    before = node.failures.now
    node.failures.now = lambda: before() + seconds


@pytest.mark.feature("18-13")
def test_replica_of_a_failed_directory_is_in_sync_again_in_another_one(
    cluster: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    node = cluster.nodes[1]
    bad = fail(cluster)
    cluster.produce("t", values(COUNT))
    assert node.healing.round() == [], "the delay is not over"
    passes(node, 3600)
    assert node.healing.round() == [TP]
    in_sync(cluster, "t", [1, 2])
    assert_equal(cluster, "t", 0, [1, 2])
    served = cluster.replica(1, "t")
    assert served.directory.path != bad.path and served.generation > 0
    row = cluster.controller.partition("t")
    assert (row.directory_of(1), row.leader) == (served.directory.id, 2)
    logged = "".join(record.getMessage() + "\n" for record in caplog.records)
    assert logged.count(f"log directory {bad.path} has failed: its replicas that another node leads are made") == 1
    assert (
        f"t-0: it is made again in {served.directory.path}, and fetched from node 2, since log directory {bad.path} "
        f"has failed" in logged
    )
    assert [(e.event, e.held) for e in node.history.of(bad.name)][-1] == (Event.REMADE, (TP,))
    assert node.healing.round() == [], "once is enough"
    # The disk returns: what it has of the replica is older, and is set aside.
    put_back(bad)
    until(lambda: node.directory_changes.bring_online(bad.name)["outcome"] == "reopened")
    assert cluster.replica(1, "t") is served and not (bad.path / "t-0").exists()
    in_sync(cluster, "t", [1, 2])
    assert cluster.consume("t", 2 * COUNT) == values(0) + values(COUNT)


def test_disk_that_returns_before_the_delay_is_over_ends_it(cluster: MemoryCluster) -> None:
    node = cluster.nodes[1]
    bad = fail(cluster)
    put_back(bad)
    node.directory_changes.bring_online(bad.name)
    passes(node, 3600)
    assert node.healing.round() == []
    in_sync(cluster, "t", [1, 2])
    served = cluster.replica(1, "t")
    assert (served.directory.path, served.generation) == (bad.path, 0)


def test_nothing_is_made_while_the_metadata_does_not_have_the_failure(cluster: MemoryCluster) -> None:
    node, directory = cluster.nodes[1], cluster.replica(1, "t").directory
    directory.path.rename(directory.path.with_name("pulled-out"))
    until(lambda: not directory.online)
    passes(node, 3600)
    (gone,) = node.failures.missing(node.metadata.image, 1)
    assert (gone.path, gone.recorded) == (directory.name, False) and gone.seconds >= 3600
    assert node.healing.round() == []
    assert cluster.controller.partition("t").directory_of(1) == directory.id


def test_nothing_is_made_without_the_controller(cluster: MemoryCluster) -> None:
    """The metadata has the new directory before anything is on a disk."""
    node = cluster.nodes[1]
    bad = fail(cluster)
    passes(node, 3600)
    cluster.controller.cut.add(1)
    with pytest.raises(Exception, match="away"):
        node.healing.round()
    assert not [path for each in cluster.paths[1] for path in Path(each).glob("t-0")]
    cluster.controller.heal(1)
    assert node.healing.round() == [TP]
    assert cluster.replica(1, "t").directory.path != bad.path


def test_nothing_is_made_without_space_until_there_is_some(
    cluster: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    node = cluster.nodes[1]
    fail(cluster)
    passes(node, 3600)
    sizes = node.healing._sizes
    node.healing._sizes = lambda host, port, tps: dict.fromkeys(tps, 1 << 60)
    assert node.healing.round() == node.healing.round() == []
    told = [record.getMessage() for record in caplog.records if "no log directory has space" in record.getMessage()]
    assert len(told) == 1 and told[0].startswith("t-0: it is not made again"), "it is logged once"
    node.healing._sizes = sizes
    assert node.healing.round() == [TP]


def test_nothing_is_made_while_the_leader_is_silent(cluster: MemoryCluster) -> None:
    node = cluster.nodes[1]
    fail(cluster)
    passes(node, 3600)

    def silent(host: str, port: int, tps: object) -> Any:
        raise TimeoutError("no response")

    sizes = node.healing._sizes
    node.healing._sizes = silent
    assert node.healing.round() == []
    node.healing._sizes = sizes
    assert node.healing.round() == [TP]


def test_new_replica_follows_under_the_throttle_until_it_is_in_sync(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = cluster.nodes[1]
    fail(cluster)
    passes(node, 3600)
    kinds: list[Kind] = []
    follow = node.replica_fetchers.follow

    def noting(tps: Any) -> None:
        tps = list(tps)
        follow(tps)
        kinds.extend(place.kind for each in tps if (place := node.replica_fetchers.following(each)) is not None)

    monkeypatch.setattr(node.replica_fetchers, "follow", noting)
    assert node.healing.round() == [TP]
    assert kinds == [Kind.THROTTLED]
    in_sync(cluster, "t", [1, 2])
    until(lambda: node.metadata.image.partition(TP).isr and 1 in node.metadata.image.partition(TP).isr)
    node.healing.round()
    assert node.quotas.follower.healing == frozenset()


@pytest.mark.feature("18-13")
def test_old_copy_loses_at_a_start_even_if_its_generation_is_the_higher_one(cluster: MemoryCluster) -> None:
    node = cluster.nodes[1]
    bad = fail(cluster)
    passes(node, 3600)
    assert node.healing.round() == [TP]
    in_sync(cluster, "t", [1, 2])
    cluster.produce("t", values(COUNT))
    good = cluster.replica(1, "t").directory.path
    cluster.stop(1)
    put_back(bad)
    markers.write(bad.path / "t-0", markers.Marker("t", 0, generation=9))
    cluster.start(1)
    in_sync(cluster, "t", [1, 2])
    assert cluster.replica(1, "t").directory.path == good and not (bad.path / "t-0").exists()
    assert_equal(cluster, "t", 0, [1, 2])
    assert cluster.consume("t", 2 * COUNT) == values(0) + values(COUNT)


@pytest.mark.feature("18-13")
def test_old_copy_whose_start_does_not_know_of_the_new_one_cannot_join_the_isr(cluster: MemoryCluster) -> None:
    """Only the old disk is there, with the old metadata; the other one has the newer replica."""
    node = cluster.nodes[1]
    bad = fail(cluster)
    passes(node, 3600)
    assert node.healing.round() == [TP]
    in_sync(cluster, "t", [1, 2])
    good = cluster.replica(1, "t").directory.path
    cluster.stop(1)
    put_back(bad)
    away = good.rename(good.with_name("other-pulled-out"))
    node = cluster.start(1)
    cluster.produce("t", values(COUNT))
    until(lambda: TP in node.replicas.offline)
    assert "newer replica is in a log directory that is not online" in node.replicas.offline[TP]
    assert set(cluster.controller.partition("t").isr) == {2}
    cluster.stop(1)
    away.rename(good)
    cluster.start(1)
    in_sync(cluster, "t", [1, 2])
    assert cluster.replica(1, "t").directory.path == good
    assert cluster.consume("t", 2 * COUNT) == values(0) + values(COUNT)


def test_replica_whose_move_cannot_be_cancelled_waits_alone(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A step of its move hangs in the failed directory, say."""
    node = cluster.nodes[1]
    cluster.create_topic("others", [[1, 2], [1, 2]])
    in_sync(cluster, "others", [1, 2])
    bad = cluster.replica(1, "t").directory
    (stuck,) = (tp for tp, each in node.replicas.served.items() if tp.topic == "others" and each.directory is bad)
    until(lambda: cluster.controller.partition(stuck.topic, stuck.partition).directory_of(1) == bad.id)
    fail(cluster)
    passes(node, 3600)
    cancel = node.engine.cancel

    def hangs(tp: TopicPartition, *given: Any) -> Any:
        if tp == stuck:
            raise RequestTimedOut("a step on it hangs")
        return cancel(tp, *given)

    with monkeypatch.context() as patch:
        patch.setattr(node.engine, "cancel", hangs)
        assert node.healing.round() == [TP] and node.healing.round() == []
    row = cluster.controller.partition(stuck.topic, stuck.partition)
    assert row.generation_of(1) == 0, "the metadata has nothing new of it"
    told = [each.getMessage() for each in caplog.records if "its move cannot be cancelled" in each.getMessage()]
    assert len(told) == 1 and "a step on it hangs" in told[0]
    assert node.healing.round() == [stuck]


def reports_only(cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> LogDirectory:
    """Let the metadata have the new directory of the replica, and nothing of it be created; the failed directory."""
    node = cluster.nodes[1]
    bad = fail(cluster)
    passes(node, 3600)
    with monkeypatch.context() as stopped:
        stopped.setattr(node.metadata_publisher, "make_again", lambda tps: [])
        assert node.healing.round() == []
    row = cluster.controller.partition("t")
    assert row.directory_of(1) not in (None, bad.id)
    assert row.generation_of(1) == 1, "a report of the old copy would be refused"
    return bad


def test_replica_that_was_only_reported_is_made_after_a_restart(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = reports_only(cluster, monkeypatch)
    cluster.stop(1, clean=False)
    node = cluster.start(1)
    assert cluster.replica(1, "t") is None
    passes(node, 3600)
    node.healing.round()
    in_sync(cluster, "t", [1, 2])
    served = cluster.replica(1, "t")
    assert served.directory.path != bad.path
    assert cluster.controller.partition("t").directory_of(1) == served.directory.id


@pytest.mark.parametrize("restart", [False, True])
def test_disk_that_returns_before_anything_was_created_is_served(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch, restart: bool
) -> None:
    bad = reports_only(cluster, monkeypatch)
    if restart:
        cluster.stop(1)
    put_back(bad)
    if restart:
        cluster.start(1)
    else:
        cluster.nodes[1].directory_changes.bring_online(bad.name)
    until(lambda: cluster.controller.partition("t").directory_of(1) == bad.id, what="the metadata has it there")
    in_sync(cluster, "t", [1, 2])
    served = cluster.replica(1, "t")
    assert served.directory.path == bad.path
    assert served.generation == cluster.controller.partition("t").generation_of(1)
