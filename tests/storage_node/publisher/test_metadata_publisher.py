"""Images from the controller: which are applied, and what they make of the replicas."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from storage_node.log.batches.batch import build_batch
from storage_node.model.assignment import Assignment
from storage_node.model.ids import TopicPartition
from storage_node.model.image import BadImage, ClusterImage, decode_whole
from storage_node.model.image_rows import topic_row
from storage_node.model.metadata import PartitionImage, TopicImage
from storage_node.model.packing import pack, unpack
from tests.support.nodes.node_harness import Harness
from tests.support.wire import Client

TP = TopicPartition("t", 0)


def change_partition(harness: Harness, **changes: Any) -> None:
    topic = harness.controller.image.topics["t"]
    changed = replace(topic.partitions[0], **changes)
    harness.controller.change(topics={"t": replace(topic, partitions=(changed,))})


def test_only_newer_images_are_applied(harness: Harness) -> None:
    harness.create_topic("t")
    harness.settle()
    before = harness.node.metadata.image
    old = replace(before, version=before.version - 1, topics={})
    assert harness.node.apply_images([old.encode()]) == before.pair
    assert "t" in harness.node.metadata.image.topics
    lower = replace(before, cluster_generation=0, version=before.version + 100, topics={})
    assert harness.node.apply_images([lower.encode()]) == before.pair
    higher = replace(before, cluster_generation=2, version=1)
    assert harness.node.apply_images([higher.encode()]) == (2, 1)


def test_delta_that_does_not_fit_is_left_for_a_whole_image(harness: Harness) -> None:
    age = harness.node.metadata.image.pair
    row = unpack(replace(ClusterImage(), cluster="c", cluster_generation=age[0], version=age[1] + 9).encode())
    assert harness.node.apply_images([pack(row | {"from": age[1] + 5})]) == age
    assert harness.node.apply_images([pack(row | {"from": age[1], "generation": age[0] + 1})]) == age
    assert harness.node.apply_images([pack(row | {"from": age[1]})]) == (age[0], age[1] + 9)


def test_garbage_is_refused_and_changes_nothing(harness: Harness) -> None:
    age = harness.node.metadata.image.pair
    with pytest.raises(BadImage):
        harness.node.apply_images(["garbage"])
    assert harness.node.metadata.image.pair == age


def with_retention(image: ClusterImage, retention: str) -> ClusterImage:
    """Other metadata at the same version."""
    topic = replace(image.topics["t"], configs={"retention.ms": retention})
    return replace(image, topics={**image.topics, "t": topic})


@pytest.fixture
def ours(harness: Harness) -> ClusterImage:
    """The image of a node that knows other metadata than its controller, and has requested the whole image."""
    harness.create_topic("t")
    harness.settle()
    image = harness.node.metadata.image
    assert harness.node.apply_images([with_retention(image, "77").encode()]) == image.pair
    assert harness.node.metadata.image is image, "not newer"
    assert not harness.node.metadata_check.look(*image.pair, with_retention(image, "77").digest)
    assert harness.node.status()["metadata"]["differs"]
    return image


def retention(harness: Harness) -> int:
    partition = harness.node.partition(TP)
    assert partition is not None
    return partition.log.config.retention_ms


def test_whole_image_that_was_requested_replaces_other_metadata_of_the_same_version(
    harness: Harness, ours: ClusterImage
) -> None:
    theirs = with_retention(ours, "77")
    assert harness.node.apply_images([theirs.encode()]) == ours.pair
    assert harness.node.metadata.image.digest == theirs.digest and retention(harness) == 77
    assert harness.node.metadata_check.look(*ours.pair, theirs.digest)
    assert not harness.node.status()["metadata"]["differs"]
    assert harness.node.apply_images([with_retention(ours, "88").encode()]) == ours.pair
    assert retention(harness) == 77, "requested once, and taken"
    assert harness.node.dirs.images.flush(10)
    stored, _ = harness.node.dirs.images.load()
    assert stored is not None and decode_whole(stored.image).digest == theirs.digest, "it is on disk as well"


def test_whole_image_that_was_requested_may_come_in_parts(harness: Harness, ours: ClusterImage) -> None:
    theirs, (generation, version) = with_retention(ours, "77"), ours.pair
    row = unpack(theirs.encode())
    first = row | {"version": version - 1, "topics": [], "configs": []}
    second = row | {"from": version - 1, "nodes": []}
    assert harness.node.apply_images([pack(first), pack(second)]) == (generation, version)
    assert harness.node.metadata.image.digest == theirs.digest


def test_other_images_are_taken_as_ever_while_a_whole_one_is_expected(harness: Harness, ours: ClusterImage) -> None:
    generation, version = ours.pair
    older = replace(with_retention(ours, "77"), version=version - 1)
    assert harness.node.apply_images([older.encode()]) == ours.pair and retention(harness) != 77
    row = unpack(with_retention(ours, "88").encode())
    delta = row | {"from": version, "version": version + 1}
    assert harness.node.apply_images([pack(delta)]) == (generation, version + 1) and retention(harness) == 88
    assert harness.node.metadata_check.expects_whole
    newer = replace(with_retention(ours, "99"), version=version + 2)
    assert harness.node.apply_images([newer.encode()]) == (generation, version + 2) and retention(harness) == 99
    assert not harness.node.metadata_check.expects_whole


def delta_of(image: ClusterImage, version: int, **rows: Any) -> str:
    """A delta from an image to this version, with these rows alone."""
    empty = {"topics": [], "gone": [], "nodes": [], "configs": [], "partitions": []}
    return pack(unpack(image.encode()) | empty | {"from": image.version, "version": version} | rows)


def partition_row(topic: TopicImage, **changes: Any) -> list[Any]:
    """The row of the topic's first partition, changed."""
    return list(topic_row(replace(topic, partitions=(replace(topic.partitions[0], **changes),)))[3][0])


@pytest.mark.parametrize("fork", ["topic", "partition", "malformed"])
def test_delta_that_builds_on_other_metadata_is_ignored_and_the_whole_image_taken(
    harness: Harness, fork: str, caplog: pytest.LogCaptureFixture
) -> None:
    harness.create_topic("t")
    harness.settle()
    requests: list[None] = []
    harness.node.metadata_check.request_whole = lambda: requests.append(None)
    image = harness.node.metadata.image
    topic = image.topics["t"]
    row = partition_row(topic, partition_epoch=9)
    unknown = {"topic": ["u", [row]], "partition": ["t", [[1, *row[1:]]]], "malformed": ["t", [row[:4]]]}[fork]
    delta = delta_of(image, image.version + 1, partitions=[unknown])
    assert harness.node.apply_images([delta]) == image.pair, "the registration whose reply has it is taken"
    assert harness.node.metadata.image is image
    assert harness.node.status()["metadata"]["differs"] and len(requests) == 1
    assert "the node requests the whole image" in caplog.text
    new = replace(topic.partitions[0], directories=("",))
    other = replace(topic, name="u", id="U" * 22, partitions=(new,))
    theirs = replace(image, version=image.version + 1, topics={**image.topics, "u": other})
    assert harness.node.apply_images([theirs.encode()]) == theirs.pair
    assert harness.node.metadata_check.look(*theirs.pair, theirs.digest)
    assert not harness.node.status()["metadata"]["differs"]
    assert TopicPartition("u", 0) in harness.node.replicas.served


FORKS = {
    "epochs that go back": {"leader_epoch": 5, "partition_epoch": 9},
    "a partition epoch that goes back": {"partition_epoch": 11},
    "two leaders in one epoch": {"leader": 2, "partition_epoch": 13},
}


@pytest.fixture
def led(harness: Harness) -> ClusterImage:
    """The image of a node that leads a partition at leader epoch 7 and partition epoch 12."""
    harness.create_topic("t")
    harness.settle()
    placed = {"assignment": Assignment((1, 2)), "isr": (1, 2), "directories": ("", ""), "generations": (0, 0)}
    change_partition(harness, leader_epoch=7, partition_epoch=12, **placed)
    return harness.node.metadata.image


@pytest.mark.parametrize("changes", FORKS.values(), ids=FORKS)
@pytest.mark.parametrize("how", ["the whole image", "a newer whole image", "a delta"])
def test_image_that_sets_a_partition_back_is_not_taken_and_the_controller_collects(
    harness: Harness, led: ClusterImage, changes: dict[str, Any], how: str
) -> None:
    topic = led.topics["t"]
    theirs = replace(led, topics={"t": replace(topic, partitions=(replace(topic.partitions[0], **changes),))})
    text = theirs.encode()
    if how == "the whole image":
        assert not harness.node.metadata_check.look(*led.pair, theirs.digest)
    elif how == "a newer whole image":
        text = replace(theirs, version=led.version + 1).encode()
    else:
        text = delta_of(led, led.version + 1, partitions=[["t", [partition_row(topic, **changes)]]])
    assert harness.node.apply_images([text]) == led.pair
    assert harness.node.metadata.image is led, "what its replicas go by is what it reports"
    assert harness.node.metadata_check.pair == (led.cluster_generation + 1, 0), "which makes the controller collect"
    status = harness.node.status()["metadata"]
    assert status["differs"] and status["last_difference"]["contradicted"] == "t-0"
    # What it makes of all images has a higher generation, and epochs above those of both.
    merged = replace(topic.partitions[0], leader=2, leader_epoch=8, partition_epoch=14)
    rebuilt = replace(led, cluster_generation=2, version=1, topics={"t": replace(topic, partitions=(merged,))})
    assert harness.node.apply_images([rebuilt.encode()]) == (2, 1)
    partition = harness.node.partition(TP)
    assert partition is not None and (partition.leader, partition.leader_epoch) == (2, 8)
    assert harness.node.metadata_check.look(2, 1, rebuilt.digest)
    assert not harness.node.status()["metadata"]["differs"] and harness.node.metadata_check.pair == (2, 1)


def test_partition_that_lost_its_leader_within_the_epoch_is_not_set_back(harness: Harness, led: ClusterImage) -> None:
    change_partition(harness, leader=-1, partition_epoch=13)
    assert harness.node.metadata.image.pair > led.pair
    change_partition(harness, leader=1, leader_epoch=8, partition_epoch=14)
    assert not harness.node.status()["metadata"]["differs"]


def test_nothing_is_deleted_for_being_unknown(harness: Harness) -> None:
    harness.create_topic("t")
    harness.produce("t", [b"x"])
    harness.settle()
    harness.controller.change(topics={})
    assert TP in harness.node.replicas.served
    topics = harness.controller.image.topics
    harness.restart()
    assert TP in harness.node.replicas.served and not topics


def test_leadership_and_its_epoch_follow_the_image(harness: Harness) -> None:
    harness.create_topic("t")
    harness.settle()
    partition = harness.node.partition(TP)
    assert partition is not None
    change_partition(harness, leader=-1, leader_epoch=4)
    assert not partition.is_leader and partition.leader_epoch == 4
    change_partition(harness, leader=1, leader_epoch=5)
    harness.produce("t", [b"x"])
    assert partition.log.latest_epoch == 5


@pytest.mark.conformance(102)
def test_replica_assigned_to_a_directory_that_lost_it_is_not_created_again(harness: Harness) -> None:
    lost = harness.node.dirs.directories[1].id
    row = PartitionImage(0, Assignment((1,)), directories=(lost,), generations=(0,), isr=(1,), leader=1)
    other = replace(row, index=1, directories=("unknown-directory-id00",))
    topic = TopicImage("t", "T" * 22, {}, (row, other))
    harness.controller.change(topics={"t": topic})
    assert not harness.node.replicas.served
    assert "holds no copy" in harness.node.replicas.offline[TP]
    assert "not online" in harness.node.replicas.offline[TopicPartition("t", 1)]


@pytest.mark.conformance(91, 93)
def test_another_topic_of_the_same_name_does_not_get_the_old_data(harness: Harness) -> None:
    harness.create_topic("t")
    harness.produce("t", [b"old"])
    harness.settle()
    topic = replace(harness.node.metadata.image.topics["t"], id="Z" * 22)
    harness.controller.change(topics={"t": topic})
    assert "another topic" in harness.node.replicas.offline[TP]
    harness.node.stop()
    harness.node = harness._new(0)
    harness.node.start()
    assert "another topic" in harness.node.replicas.offline[TP]


@pytest.mark.conformance(91, 93)
def test_replica_that_the_metadata_has_on_another_node_is_kept_and_serves_no_client(harness: Harness) -> None:
    harness.create_topic("t")
    harness.create_topic("mine")
    harness.produce("t", [b"x"])
    harness.settle()
    harness.stop()
    image = harness.controller.image
    elsewhere = replace(
        image.topics["t"].partitions[0], assignment=Assignment((2,)), isr=(2,), leader=2, leader_epoch=9
    )
    topics = {**image.topics, "t": replace(image.topics["t"], partitions=(elsewhere,))}
    harness.controller.image = replace(image, topics=topics, version=image.version + 1)
    harness.node = harness._new(0)
    harness.start()
    client = Client(harness)
    assert client.produce("t", 0, build_batch([b"y"])).error == client.fetch("t", 0, 0)[0].error == 6
    assert client.produce("mine", 0, build_batch([b"y"])).error == 0
    client.close()
    harness.restart()
    assert [path for disk in harness.paths for path in Path(disk).glob("t-0/*.log") if path.stat().st_size]


def test_topic_configs_reach_the_log(harness: Harness) -> None:
    harness.create_topic("t")
    harness.settle()
    partition = harness.node.partition(TP)
    assert partition is not None
    topic = replace(harness.node.metadata.image.topics["t"], configs={"retention.ms": "1234"})
    harness.controller.change(topics={"t": topic})
    assert partition.log.config.retention_ms == 1234


def test_brokers_configs_reach_the_logs_of_topics_that_a_delta_does_not_name(harness: Harness) -> None:
    harness.create_topic("t")
    harness.settle()
    partition = harness.node.partition(TP)
    assert partition is not None
    generation, version = harness.node.metadata.image.pair
    row = unpack(harness.node.metadata.image.encode())
    for kept, retention in (({"log.retention.ms": "1234"}, 1234), ({}, 604_800_000)):
        delta = {"from": version, "version": version + 1, "topics": [], "gone": [], "configs": [["broker", "", kept]]}
        assert harness.node.apply_images([pack(row | delta)]) == (generation, version + 1)
        assert partition.log.config.retention_ms == retention
        version += 1
