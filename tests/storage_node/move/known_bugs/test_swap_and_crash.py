"""Apache Kafka's bugs around a swap: what is there twice, or under a name that is taken."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from storage_node import failpoints
from storage_node.directories.meta import properties as meta_properties
from storage_node.errors import RequestRefused, StorageError
from storage_node.model.ids import TopicPartition
from storage_node.move.status import MoveState
from storage_node.partitions.partition import Partition
from tests.storage_node.move.harness import TP, SmallNode, batch, eventually, values
from tests.support.nodes.leading import lead
from tests.support.nodes.node_harness import Harness, until

Make = Callable[..., SmallNode]


def test_replica_and_copy_in_one_directory_while_the_other_disk_is_missing(make: Make, tmp_path: Path) -> None:
    # KAFKA-16082: dir1 is missing at the start, the node made `tp` anew in dir2, where the stale `.move` is too.
    node = make()
    node.add()
    node.fill(50)
    node.engine.create(TP, node.path("b"), owner="run")
    node.close()
    (tmp_path / "a" / "t-0").rename(tmp_path / "away")
    (tmp_path / "b" / "t-0").mkdir()
    node = make(missing=frozenset({"id-a"}))
    assert node.dir("b").online
    assert (tmp_path / "b" / "t-0.move").is_dir(), "nothing is removed while a disk is away"
    node.close()
    shutil.rmtree(tmp_path / "b" / "t-0")
    (tmp_path / "away").rename(tmp_path / "a" / "t-0")
    node = make()
    assert node.partitions[TP].directory is node.dir("a") and len(values(node.partitions[TP].log)) == 50


def test_name_that_is_taken_refuses_the_move_and_no_directory_goes_offline(make: Make, tmp_path: Path) -> None:
    # KAFKA-16082: the promotion failed with "exists", and the good directory was marked offline for it.
    node = make()
    partition = node.add()
    node.fill(50)
    (tmp_path / "b" / "t-0").mkdir()
    with pytest.raises(RequestRefused, match="is not a known replica"):
        node.engine.create(TP, node.path("b"))
    assert node.dir("a").online and node.dir("b").online
    assert partition.append(batch(b"x")).base_offset == 50


def test_rename_that_fails_is_not_replaced_by_a_copy(make: Make) -> None:
    # KAFKA-21035: a "fallback to a non-atomic move" hid why the rename failed, and left half of each.
    node = make()
    partition = node.add()
    node.fill(50)
    status = node.engine.create(TP, node.path("b"), owner="run")
    node.engine.start_copy(TP, status.claim)
    assert node.engine.wait(TP, status.claim, 10).state is MoveState.CAUGHT_UP
    with failpoints.active({"swap.after_target_renamed": "raise:EXDEV"}), pytest.raises(StorageError):
        node.engine.swap(TP, status.claim)
    assert not node.dir("b").online and node.listing()["a"] == ["t-0"]
    assert partition.append(batch(b"x")).base_offset == 50 and len(values(partition.log)) == 51


def test_directories_that_get_new_ids_during_a_move(harness: Harness) -> None:
    # KAFKA-16583: after an upgrade the directory of a replica was unknown.
    harness.controller.hold_moves = True
    harness.create_topic("t")
    harness.produce("t", [b"%d" % number for number in range(50)])
    harness.settle()
    source, target = harness.directory_of("t"), harness.other_directory("t")
    harness.node.engine.create(TopicPartition("t", 0), target, owner="run")
    harness.stop(clean=False)
    path = Path(target) / meta_properties.FILE
    lines = [line for line in path.read_text().splitlines() if not line.startswith(("directory.id", "version"))]
    path.write_text("\n".join([*lines, "version=1", ""]))
    harness.node = harness._new(0)
    harness.start()
    assert all(directory.id for directory in harness.node.dirs.directories)
    assert harness.directory_of("t") == source
    assert [int(m.value()) for m in harness.consume("t", 50)] == list(range(50))
    # What the copy's marker says fits no directory any more: it is not promoted, and the move can be ended.
    harness.node.engine.cancel(TopicPartition("t", 0), None, "its directory is another one now")
    until(lambda: not list(Path(target).glob("t-0*")), what="the copy is gone")
    harness.settle()
    image = harness.controller.image.partition(TopicPartition("t", 0))
    assert image is not None and image.directory_of(1) == harness.node.dirs.by_path(source).id


def test_swap_that_the_controller_never_acknowledged_is_reported_again(harness: Harness) -> None:
    # KAFKA-16365, KAFKA-16886: completion callbacks that were lost, early or late.
    harness.create_topic("t")
    harness.settle()
    tp, target = TopicPartition("t", 0), harness.other_directory("t")
    harness.controller.hold_moves = True
    claim = harness.node.engine.create(tp, target, owner="run").claim
    harness.controller.away = True
    harness.node.engine.start_copy(tp, claim)
    assert harness.node.engine.wait(tp, claim, 10).state is MoveState.CAUGHT_UP
    until(lambda: harness.node.engine.swap(tp, claim).outcome == "swapped")
    harness.node.directories_changed()
    assert harness.directory_of("t") == target, "the swap itself waits for nobody"
    harness.produce("t", [b"x"])
    before = harness.controller.image.partition(tp)
    assert before is not None and before.directory_of(1) != harness.node.dirs.by_path(target).id
    harness.controller.away = False
    until(lambda: harness.controller.image.partition(tp).directory_of(1) == harness.node.dirs.by_path(target).id)
    assert harness.node.engine.swap(tp, claim).outcome == "swapped", "asked for again, late"


def test_target_that_fails_before_the_swap_never_gets_into_the_metadata(harness: Harness) -> None:
    # KAFKA-16297: the new directory was acknowledged first and never reverted when it failed before the promotion.
    harness.create_topic("t")
    harness.settle()
    tp, source, target = TopicPartition("t", 0), harness.directory_of("t"), harness.other_directory("t")
    harness.controller.hold_moves = True
    claim = harness.node.engine.create(tp, target, owner="run").claim
    harness.node.engine.start_copy(tp, claim)
    assert harness.node.engine.wait(tp, claim, 10).state is MoveState.CAUGHT_UP
    harness.node.dirs.by_path(target).fail("the disk died")
    with pytest.raises((StorageError, RequestRefused)):
        harness.node.engine.swap(tp, claim)
    harness.settle()
    row = harness.controller.image.partition(tp)
    assert row is not None and row.directory_of(1) == harness.node.dirs.by_path(source).id
    assert not [row for row in harness.controller.assigned if row.directory_id == harness.node.dirs.by_path(target).id]
    harness.produce("t", [b"x"])


@pytest.mark.conformance(38)
def test_leadership_changes_and_status_is_queried_at_every_step(make: Make) -> None:
    # KAFKA-9594, KAFKA-6949, KAFKA-9750, KAFKA-9654.
    points = [name for name in failpoints.registered() if name.startswith(("create.", "copy.", "swap."))]
    node = make()
    partition = node.add()
    for number, point in enumerate(points):
        where = "b" if number % 2 == 0 else "a"
        passed: list[str] = []

        def change(partition: Partition = partition, point: str = point, passed: list[str] = passed) -> None:
            if passed:
                return
            passed.append(point)
            lead(partition, partition.leader_epoch + 1, True)
            node.engine.statuses()
            node.engine.status(TP)
            if point.startswith("copy"):
                partition.append(batch(b"at " + point.encode()))

        node.fill(5)
        with failpoints.active({point: change}):
            node.move(where)
        assert partition.directory is node.dir(where), point
        assert all(directory.online for directory in node.dirs), point
        if passed:
            node.fill(1)
            assert partition.log.latest_epoch == partition.leader_epoch, point
    offsets = partition.log.log_end_offset
    assert len(values(partition.log)) == offsets
    eventually(lambda: all(status.state is not MoveState.FAILED for status in node.engine.statuses()))
