"""A start finds a folder of a topic that its image does not have; a newer image explains it to the node that runs."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from storage_node.errors import MetadataIOError
from storage_node.log.batches.batch import build_batch
from storage_node.model.assignment import Assignment
from storage_node.model.ids import TopicPartition
from storage_node.model.image import ClusterImage
from storage_node.model.metadata import PartitionImage, TopicImage
from storage_node.model.packing import pack, unpack
from storage_node.replicas import marker as markers
from storage_node.replicas.marker import Marker
from tests.support.io_faults import Faults
from tests.support.nodes.node_harness import Harness, running, until
from tests.support.wire import Client

#: A directory is given up soon, by who waits for it and nobody else.
EXTRA = {"log.dir.failure.timeout.ms": "1000", "log.dir.health.check.interval.ms": "600000"}
#: Seconds, less than those for which a disk hangs.
BEFORE_IT_ANSWERS = 45.0
OTHER = "Z" * 22
RECORDS = 10


@pytest.fixture
def node(tmp_path: Path, faults: Faults) -> Iterator[Harness]:
    with running(tmp_path, extra=EXTRA) as harness:
        yield harness
        faults.clear()


class Life:
    """The node was killed after the topic was created, and has started with an image that has another topic `t`.

    `tp` is in the second directory, so that the node outlives it; `here` says whether that topic is on this node.
    """

    def __init__(self, node: Harness, *, here: bool = True, before: Callable[[Life], None] = lambda _: None) -> None:
        self.harness = node
        node.create_topic("s", 3)
        node.create_topic("t", 3)
        node.settle()
        self.bad = Path(node.paths[1])
        (self.folder,) = self.bad.glob("t-?")
        self.tp = TopicPartition("t", int(self.folder.name[-1]))
        client = Client(node)
        for number in range(RECORDS):
            assert client.produce("t", self.tp.partition, build_batch([b"%d" % number])).error == 0
        client.close()
        before(self)
        self.topic = node.controller.image.topics["t"]
        away = {"assignment": Assignment((2,)), "isr": (2,), "leader": 2} if not here else {}
        rows = tuple(replace(row, **away) for row in self.rows())
        node.controller.change(
            topics={**node.controller.image.topics, "t": replace(self.topic, id=OTHER, partitions=rows)}
        )
        node.stop(clean=False)
        node.node = node._new(0)
        node.node.start()
        assert "another topic" in self.offline

    def rows(self) -> tuple[PartitionImage, ...]:
        """The controller has not heard where they are."""
        return tuple(replace(row, directories=("",)) for row in self.topic.partitions)

    @property
    def offline(self) -> str:
        return self.harness.node.replicas.offline[self.tp]

    @property
    def image(self) -> ClusterImage:
        return self.harness.node.metadata.image

    def tell(self, **changes: object) -> None:
        """The next image has the topic."""
        rows = tuple(replace(row, **changes) for row in self.rows())
        topics = {**self.image.topics, "t": replace(self.topic, partitions=rows)}
        self.apply(replace(self.image, version=self.image.version + 1, topics=topics))

    def tell_more(self, gone: dict[str, str] | None = None) -> None:
        """The next image says nothing new of topics, but which have gone."""
        row = unpack(self.image.encode())
        news = {"from": self.image.version, "version": self.image.version + 1, "topics": []}
        self.harness.node.apply_images([pack(row | news | {"gone": [[n, i] for i, n in (gone or {}).items()]})])

    def apply(self, image: ClusterImage) -> None:
        assert self.harness.node.apply_images([image.encode()]) == image.pair

    def serves_all(self) -> None:
        client = Client(self.harness)
        number = self.tp.partition
        assert client.produce("t", number, build_batch([b"next"])).base_offset == RECORDS
        assert b"next" in client.fetch("t", number, RECORDS)[0].records
        client.close()
        assert self.places() == [self.bad]

    def places(self) -> list[Path]:
        return [Path(path) for path in self.harness.paths if (Path(path) / str(self.tp)).exists()]


def test_it_is_served_once_its_topic_is_known(node: Harness) -> None:
    life = Life(node)
    life.tell()
    life.serves_all()


def test_nothing_is_made_in_its_place_while_its_directory_is_offline(node: Harness) -> None:
    life = Life(node)
    node.node.dirs.by_path(str(life.bad)).fail("I/O error")
    life.tell()
    assert "another topic" in life.offline and life.places() == [life.bad]
    client = Client(node)
    assert client.produce("t", life.tp.partition, build_batch([b"x"])).error == 56
    client.close()
    node.node.stop(clean=False)
    node.node = node._new(0)
    node.node.start()
    life.serves_all()


def test_nothing_is_made_in_its_place_while_it_cannot_be_found(node: Harness, tmp_path: Path) -> None:
    life = Life(node)
    life.folder.rename(tmp_path / "aside")
    life.tell()
    assert "another topic" in life.offline and life.places() == []
    (tmp_path / "aside").rename(life.folder)
    life.tell_more()
    life.serves_all()


def test_folder_of_another_replica_that_goes_meanwhile_hides_nothing(
    node: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life(node)
    (other,) = life.bad.glob("s-?")
    gone = other.with_name(f"{other.name}.{'0' * 32}.delete")
    real = markers.read

    def read(path: Path) -> Marker | None:
        if path.parent == life.bad and other.exists():
            other.rename(gone)
        return real(path)

    monkeypatch.setattr(markers, "read", read)
    life.tell()
    monkeypatch.undo()
    assert gone.exists()
    gone.rename(other)
    life.serves_all()


def test_look_that_fails_on_a_good_disk_decides_nothing(node: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    life = Life(node)

    def fails(path: Path) -> None:
        raise MetadataIOError(str(path.parent), f"reading {path}") from OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(markers, "read", fails)
    life.tell()
    monkeypatch.undo()
    assert len(node.node.dirs.online()) == 3
    assert "another topic" in life.offline and life.places() == [life.bad]
    life.tell_more()
    life.serves_all()


def test_disk_that_hangs_under_it_holds_up_no_other_image(node: Harness, faults: Faults) -> None:
    life = Life(node)
    rule = faults.hang("open", f"{life.folder}/partition.move")

    def tell() -> None:
        life.tell()
        topic = TopicImage("n", "N" * 22, {}, (replace(life.topic.partitions[0], directories=("",)),))
        life.apply(replace(life.image, version=life.image.version + 1, topics={**life.image.topics, "n": topic}))

    telling = threading.Thread(target=tell, daemon=True)
    telling.start()
    telling.join(BEFORE_IT_ANSWERS)
    assert rule.hits and not telling.is_alive()
    assert TopicPartition("n", 0) in node.node.replicas.served
    assert not node.node.dirs.by_path(str(life.bad)).online
    assert "another topic" in life.offline and life.places() == [life.bad]


def test_what_delete_records_took_stays_deleted(node: Harness) -> None:
    def delete(life: Life) -> None:
        partition = node.node.partition(life.tp)
        assert partition is not None
        partition.delete_records(5)
        node.node.offset_files.write_all(partition.directory)

    life = Life(node, before=delete)
    for directory in node.node.dirs.online():
        for written in ("log_starts", "recovery_points", "high_watermarks", "write_all"):
            getattr(node.node.offset_files, written)(directory)
    life.tell()
    partition = node.node.partition(life.tp)
    assert partition is not None and partition.log.log_start_offset == 5
    life.serves_all()


def test_it_goes_when_its_topic_is_on_other_nodes_since(node: Harness) -> None:
    life = Life(node, here=False)
    life.tell(assignment=Assignment((2,)), isr=(2,), leader=2, partition_epoch=5)
    assert life.tp not in node.node.replicas.served and life.places() == []


def test_topic_that_has_its_name_gets_its_replica_once_it_is_gone(node: Harness) -> None:
    life = Life(node)
    life.tell_more(gone={life.topic.id: "t"})
    found = node.node.partition(life.tp)
    assert found is not None and found.topic_id == OTHER
    until(lambda: len(life.places()) == 1 and found.log.log_end_offset == 0)
