"""A folder stands where a replica's marker belongs: the replica is reported, nothing else notices, deleting works."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from storage_node.errors import RequestRefused
from storage_node.log.batches.batch import build_batch
from storage_node.model.error_codes import ErrorCode
from storage_node.model.ids import TopicPartition
from storage_node.move.status import MoveState
from storage_node.replicas import marker as markers
from tests.support.nodes.node_harness import Harness, running, until
from tests.support.wire import Client

TP = TopicPartition("t", 1)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Harness]:
    """A node with a record in each of three partitions, one per directory."""
    with running(tmp_path, extra={"file.delete.delay.ms": "0"}) as harness:
        harness.create_topic("t", 3)
        produce(harness, range(3), 0)
        harness.settle()
        yield harness


def produce(harness: Harness, partitions: range | list[int], offset: int) -> None:
    client = Client(harness)
    for partition in partitions:
        until(partial(leads, harness, TopicPartition("t", partition)))
        answer = client.produce("t", partition, build_batch([b"x"]))
        assert (answer.error, answer.base_offset) == (0, offset)
    client.close()


def leads(harness: Harness, tp: TopicPartition) -> bool:
    """Whether the node leads it: after a start the controller elects it again once the replica is reported online."""
    replica = harness.node.replicas.served.get(tp)
    return replica is not None and replica.is_leader


def spoil(folder: Path) -> Path:
    """Put a folder, which is not empty, where the marker belongs."""
    there = folder / markers.NAME
    there.unlink(missing_ok=True)
    there.mkdir()
    (there / "something").write_bytes(b"of somebody's")
    return there


def test_start_reports_the_replica_and_serves_the_others(node: Harness) -> None:
    home = Path(node.directory_of("t", 1))
    node.stop()
    strange = spoil(home / "t-1")
    node.node = node._new(0)
    for _ in range(2):
        node.start()
        assert all(directory.online for directory in node.node.dirs.directories)
        assert str(home / "t-1" / markers.NAME) in node.node.replicas.offline[TP]
        assert (strange / "something").exists(), "it is left alone"
        node.restart()
        node.stop()
        node.node = node._new(0)
    (strange / "something").unlink()
    strange.rmdir()
    node.start()
    produce(node, range(3), 1)


def test_move_is_refused_with_the_file_that_is_in_the_way(node: Harness) -> None:
    home = Path(node.directory_of("t", 1))
    strange = spoil(home / "t-1")
    engine = node.node.engine
    target = node.other_directory("t", 1)
    for ask in (lambda: engine.create(TP, target, owner="me"), lambda: engine.next_claim(TP)):
        with pytest.raises(RequestRefused) as refused:
            ask()
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR and str(strange) in refused.value.message
    assert all(directory.online for directory in node.node.dirs.directories)
    assert not list(Path(target).glob("t-1*")) and (strange / "something").exists()
    produce(node, range(3), 1)


@pytest.mark.parametrize("where", ["source", "copy"])
def test_topic_is_deleted_all_the_same(where: str, node: Harness) -> None:
    home, target = Path(node.directory_of("t", 1)), Path(node.other_directory("t", 1))
    node.controller.hold_moves = True
    node.node.engine.create(TP, str(target), owner="me")
    spoil(home / "t-1" if where == "source" else target / "t-1.move")
    node.delete_topic("t")
    until(lambda: not list(home.glob("t-1*")) and not list(target.glob("t-1*")), what="nothing of it is left")
    assert all(directory.online for directory in node.node.dirs.directories)


def test_copy_is_cancelled_all_the_same(node: Harness) -> None:
    target = Path(node.other_directory("t", 1))
    node.controller.hold_moves = True
    claim = node.node.engine.create(TP, str(target), owner="me").claim
    spoil(target / "t-1.move")
    ended = node.node.engine.cancel(TP, claim)
    assert ended is not None and ended.state is MoveState.CANCELLED
    until(lambda: not list(target.glob("t-1*")))
    produce(node, range(3), 1)


def test_swap_leaves_the_source_as_it_is(node: Harness) -> None:
    home, target = Path(node.directory_of("t", 1)), Path(node.other_directory("t", 1))
    node.controller.hold_moves = True
    engine = node.node.engine
    claim = engine.create(TP, str(target), owner="me").claim
    engine.start_copy(TP, claim)
    assert engine.wait(TP, claim, 10).state is MoveState.CAUGHT_UP
    spoil(home / "t-1")
    assert engine.swap(TP, claim).outcome == "swapped"
    until(lambda: not list(home.glob("t-1*")))
    assert node.directory_of("t", 1) == str(target)
    produce(node, range(3), 1)


def test_copy_that_a_start_finds_is_left_alone(node: Harness) -> None:
    home, target = Path(node.directory_of("t", 1)), Path(node.other_directory("t", 1))
    node.controller.hold_moves = True
    node.node.engine.create(TP, str(target), owner="me")
    node.stop()
    strange = spoil(target / "t-1.move")
    node.node = node._new(0)
    node.start()
    assert node.directory_of("t", 1) == str(home) and strange.is_dir()
    assert all(directory.online for directory in node.node.dirs.directories)
    produce(node, range(3), 1)
