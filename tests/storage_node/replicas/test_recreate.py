"""A topic is deleted and made anew under the same name: nothing of the old one may touch the new one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from storage_node.model.ids import TopicPartition
from storage_node.model.image import ClusterImage
from storage_node.partitions.partition import Partition
from storage_node.replicas.marker import Reason
from tests.support.nodes.node_harness import Harness, running, until

TP = TopicPartition("t", 0)


def served(harness: Harness) -> Partition:
    partition = harness.node.partition(TP)
    assert partition is not None
    return partition


def numbered(count: int, word: bytes = b"") -> list[bytes]:
    return [b"%s %d" % (word, number) for number in range(count)]


def checkpointed(harness: Harness) -> None:
    """What the node writes once a minute."""
    for directory in harness.node.dirs.online():
        harness.node.offset_files.write_all(directory)


def recreate_in_one_image(harness: Harness, new_id: str = "B" * 21 + "A") -> None:
    """Deleted and made anew, and the node learns both at once."""
    controller = harness.controller
    old = controller.image.topics["t"]
    rows = tuple(replace(row, directories=("",), generations=(0,), leader_epoch=0) for row in old.partitions)
    new = replace(old, id=new_id, partitions=rows)
    controller.change(topics={**controller.image.topics, "t": new}, gone={**controller.image.gone, old.id: "t"})


@pytest.mark.parametrize("at_once", [False, True])
def test_offsets_of_the_old_topic_do_not_hide_records_of_the_new_one(tmp_path: Path, at_once: bool) -> None:
    with running(tmp_path, dirs=1) as harness:
        harness.create_topic("t")
        harness.produce("t", numbered(100, b"old"))
        served(harness).delete_records(60)
        checkpointed(harness)
        harness.settle()
        if at_once:
            recreate_in_one_image(harness)
        else:
            harness.delete_topic("t")
            harness.create_topic("t")
        harness.produce("t", numbered(10, b"new"))
        harness.restart(clean=False)  # as after a kill: nothing is written that was not before
        log = served(harness).log
        assert (log.log_start_offset, log.log_end_offset) == (0, 10)
        assert [message.value() for message in harness.consume("t", 10)] == numbered(10, b"new")


@pytest.mark.conformance(65, 103)
def test_topic_deleted_while_its_disk_was_missing_leaves_no_copy_to_its_successor(tmp_path: Path) -> None:
    with running(tmp_path, dirs=2, extra={"replica.alter.log.dirs.io.max.bytes.per.second": "50000"}) as harness:
        harness.controller.hold_moves = True
        harness.create_topic("t")
        harness.produce("t", numbered(100, b"old" * 100))
        harness.settle()
        source, target = harness.directory_of("t"), harness.other_directory("t")
        engine = harness.node.engine
        status = engine.create(TP, target, owner="run")
        engine.start_copy(TP, status.claim)
        until(lambda: engine.statuses()[0].bytes_copied > 0)
        harness.node.dirs.by_path(source).fail("the disk died")
        harness.delete_topic("t")
        until(lambda: not list(Path(target).glob("t-0.move")), what="the copy goes with the topic")
        assert engine.statuses() == []
        harness.create_topic("t")
        harness.produce("t", numbered(10, b"new"))
        assert harness.directory_of("t") == target
        assert engine.status(TP) is None
        harness.restart()
        # The disk is back, and what it holds of the old topic goes.
        assert [message.value() for message in harness.consume("t", 10)] == numbered(10, b"new")
        until(lambda: not list(Path(source).glob("t-0*")))


@pytest.mark.conformance(102)
def test_replica_whose_disk_is_missing_is_created_for_a_new_topic_of_the_same_image(tmp_path: Path) -> None:
    with running(tmp_path, dirs=2) as harness:
        harness.create_topic("t")
        harness.settle()
        harness.node.dirs.by_path(harness.directory_of("t")).fail("the disk died")
        assert TP in harness.node.replicas.offline
        recreate_in_one_image(harness)
        until(lambda: harness.node.partition(TP) is not None)
        harness.produce("t", numbered(3))


@pytest.mark.parametrize("marked", [False, True], ids=["whole", "its deletion had begun"])
def test_what_a_start_finds_of_a_deleted_topic_beside_its_successor_goes(tmp_path: Path, marked: bool) -> None:
    with running(tmp_path, dirs=2) as harness:
        harness.create_topic("t")
        harness.produce("t", numbered(50, b"old"))
        harness.settle()
        old_path, old_id = served(harness).log.path, served(harness).topic_id
        target = harness.other_directory("t")
        engine = harness.node.engine
        claim = engine.create(TP, target, owner="run").claim
        engine.start_copy(TP, claim)
        until(lambda: engine.statuses()[0].state == "caught_up")
        image: ClusterImage = harness.controller.image
        # Deleted and made anew while this node was away; the new replica is put where the old copy stands.
        harness.stop(clean=False)
        rows = (replace(image.topics["t"].partitions[0], directories=("",), generations=(0,)),)
        new = replace(image.topics["t"], id="N" * 21 + "A", partitions=rows)
        harness.controller.image = replace(
            image, topics={"t": new}, gone={**image.gone, old_id: "t"}, version=image.version + 1
        )
        if marked:
            from storage_node.replicas import marker as markers

            found = markers.read(old_path)
            assert found is not None
            markers.write(old_path, replace(found, state=markers.State.DELETED, reason=Reason.TOPIC))
        harness.node = harness._new(0)
        harness.start()
        until(lambda: harness.node.partition(TP) is not None)
        assert served(harness).topic_id == "N" * 21 + "A" and served(harness).log.log_end_offset == 0
        harness.produce("t", numbered(5, b"new"))
        assert harness.node.engine.statuses() == []
        harness.restart(clean=False)
        assert [message.value() for message in harness.consume("t", 5)] == numbered(5, b"new")
        until(lambda: [p.name for d in harness.paths for p in Path(d).glob("t-0*")] == ["t-0"])


def test_what_a_start_finds_of_a_deleted_topic_is_kept_as_long_as_configured(tmp_path: Path) -> None:
    """The node died when it knew that the topic is gone, and had not begun with this replica of it."""
    with running(tmp_path, dirs=2, extra={"file.delete.delay.ms": "100"}) as harness:
        harness.create_topic("t")
        harness.produce("t", numbered(5))
        harness.settle()
        image: ClusterImage = harness.controller.image
        gone = replace(image, topics={}, gone={image.topics["t"].id: "t"}, version=image.version + 1)
        harness.node.dirs.images.save(gone.encode(), gone.cluster_generation, gone.version)
        harness.stop(clean=False)
        harness.controller.image = gone
        harness.node = harness._new(0)
        harness.start()
        until(lambda: not [p for d in harness.paths for p in Path(d).glob("t-0*")])
