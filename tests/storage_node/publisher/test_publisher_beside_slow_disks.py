"""A directory that takes its time over an image keeps no partition in others from its role, nor the next image."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_node.directories.directory import BACKGROUND_THREADS, IMAGE_THREADS, LogDirectory
from storage_node.errors import RequestRefused, UnknownTopicOrPartition
from storage_node.model.ids import TopicPartition
from storage_node.model.image import ClusterImage
from storage_node.node import Node
from storage_node.publisher.creation import Creation
from tests.support.nodes.node_harness import make_config, make_dirs, until
from tests.support.nodes.static_image import TOPIC_ID, image, row

PORTS = {1: 9, 2: 9, 3: 9}  # nobody listens there
HERE, GOES, NEW = (TopicPartition("t", number) for number in range(3))
SOON = 0.2


def told(version: int, *, goes: bool = False, epoch: int = 1, new: bool = False) -> ClusterImage:
    """Partition 0 stays, at this leader epoch; partition 1 goes to other nodes; partition 2 comes."""
    rows = [
        row([2, 1], leader=2, epoch=epoch, partition_epoch=version),
        row([2, 3] if goes else [2, 1], leader=2, epoch=1 + goes, partition_epoch=version, partition=1),
    ]
    if new:
        rows.append(row([2, 1], leader=2, partition=2))
    return image(version, rows, PORTS)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(make_config(make_dirs(tmp_path, 2), 1, 0))
    made.start()
    made.apply_images([told(1).encode()])
    assert made.replicas.served[HERE].directory is not made.replicas.served[GOES].directory
    yield made
    made.stop()


@pytest.fixture
def slow(node: Node) -> Iterator[threading.Event]:
    """What the directory of the partition that goes does first, until it is set."""
    release = threading.Event()
    for _ in range(IMAGE_THREADS):
        node.replicas.served[GOES].directory.for_image(release.wait, 60)
    yield release
    release.set()


def epoch(node: Node) -> int:
    """The leader epoch of the partition that stays."""
    return node.replicas.served[HERE].leader_epoch


def left(node: Node) -> list[str]:
    """The folders of the partition that goes."""
    return [path.name for each in node.dirs.directories for path in each.path.glob("t-1*") if path.name == "t-1"]


def test_next_images_are_applied_meanwhile(node: Node, slow: threading.Event) -> None:
    for version, goes in enumerate((True, True, True), start=2):
        began = time.monotonic()
        assert node.apply_images([told(version, goes=goes, epoch=version).encode()], SOON) == (1, version)
        assert time.monotonic() - began < 30 * SOON
        assert (epoch(node), node.metadata.image.version) == (version, version)
        place = node.replica_fetchers.following(HERE)
        assert place is not None and place.leader == 2
    assert GOES not in node.replicas.served and left(node) == ["t-1"]
    slow.set()
    until(lambda: not left(node), what="the directory has come up to it")
    assert node.apply_images([told(5, goes=True, epoch=5).encode()]) == (1, 5) and epoch(node) == 5


def test_deleted_topic_takes_no_records_meanwhile(node: Node, slow: threading.Event) -> None:
    node.apply_images([told(2, goes=True).encode()], SOON)
    old = node.replicas.served[HERE]
    again = image(3, [row([2, 1], leader=2)], PORTS, topic_id="B" * 22, gone={TOPIC_ID: "t"})
    node.apply_images([again.encode()], SOON)
    assert node.metadata.image.version == 3 and node.replicas.served[HERE] is old
    with pytest.raises(UnknownTopicOrPartition):
        old.check_usable()


def test_what_comes_later_is_made_after_it(node: Node, slow: threading.Event) -> None:
    node.apply_images([told(2, goes=True).encode()], SOON)
    node.apply_images([told(3, goes=True, new=True).encode()], SOON)
    assert NEW not in node.replicas.served and node.metadata.image.version == 3
    slow.set()
    until(lambda: NEW in node.replicas.served, what="it is made")
    until(lambda: node.replica_fetchers.following(NEW) is not None, what="it is fetched")


def test_without_patience_all_is_done_at_the_end(node: Node, slow: threading.Event) -> None:
    threading.Timer(SOON, slow.set).start()
    node.apply_images([told(2, goes=True, new=True).encode()])
    assert not left(node) and node.replica_fetchers.following(NEW) is not None


def test_node_that_stops_begins_nothing_more(node: Node, slow: threading.Event) -> None:
    node.apply_images([told(2, goes=True).encode()], SOON)
    node.apply_images([told(3, goes=True, new=True).encode()], SOON)
    threading.Timer(SOON, slow.set).start()
    node.metadata_publisher.stop()
    assert NEW not in node.replicas.served and not left(node)


def test_what_failed_is_done_with_the_next_image_or_the_same_one_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RequestRefused("for once")

    with monkeypatch.context() as patch:
        patch.setattr(Creation, "create", fails)
        with pytest.raises(RequestRefused):
            node.apply_images([told(2, new=True).encode()], 30)
    assert NEW not in node.replicas.served
    assert node.apply_images([told(2, new=True).encode()], 30) == (1, 2)
    assert NEW in node.replicas.served


def test_hundreds_of_moves_that_are_to_begin_in_a_directory_are_not_waited_for(node: Node) -> None:
    release = threading.Event()
    directory: LogDirectory = node.replicas.served[GOES].directory
    try:
        for _ in range(2 * BACKGROUND_THREADS):
            directory.background(release.wait, 60)
        node.apply_images([told(2, goes=True, new=True).encode()], 30)
        assert not left(node) and NEW in node.replicas.served
        assert node.dirs.images.flush(30), "and both have the image"
    finally:
        release.set()
