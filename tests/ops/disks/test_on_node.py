"""The disks of a stopped storage node: a duplicate that its start cannot decide, and an offline move."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.cli import main as cli
from storage_node.directories.meta import properties as meta_properties
from storage_node.model.ids import TopicPartition
from storage_node.replicas import marker as markers
from tests.support.nodes.node_harness import Harness, running, until

TP = TopicPartition("orders", 0)
VALUES = [b"%06d" % number + b"x" * 500 for number in range(400)]


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    """A node with a replica, and its server.properties for the commands."""
    with running(tmp_path, dirs=2) as made:
        made.create_topic("orders", configs={"segment.bytes": "65536"})
        made.produce("orders", VALUES)
        made.settle()
        yield made


def rehome(harness: Harness, *arguments: str) -> int:
    config = Path(harness.paths[0]).parent / "server.properties"
    config.write_text(f"node.id=1\nlog.dirs={','.join(harness.paths)}\n")
    return cli.run(["storage", *arguments, "-c", str(config)])


def values(harness: Harness, count: int) -> list[bytes]:
    return [message.value() for message in harness.consume("orders", count)]


def test_replica_in_two_directories_is_offline_until_it_is_repaired(harness: Harness) -> None:
    where, other = harness.directory_of("orders"), harness.other_directory("orders")
    assert rehome(harness, "check") == 2  # it runs
    harness.stop()
    shutil.copytree(Path(where) / "orders-0", Path(other) / "orders-0")
    harness.node = harness._new(0)
    harness.start()
    assert harness.node.partition(TP) is None
    harness.stop()
    assert rehome(harness, "check") == 1
    assert rehome(harness, "repair", "--yes") == 0
    assert rehome(harness, "check") == 0
    harness.node = harness._new(0)
    harness.start()
    assert values(harness, len(VALUES)) == VALUES


def test_offline_move_is_served_from_its_new_directory(harness: Harness) -> None:
    where, other = harness.directory_of("orders"), harness.other_directory("orders")
    harness.stop()
    assert rehome(harness, "check") == 0
    arguments = ("move", "--offline", "--replica", "orders-0", "--to", other)
    assert rehome(harness, *arguments) == 0
    assert rehome(harness, "check") == 0
    harness.node = harness._new(0)
    harness.start()
    until(lambda: harness.node.partition(TP) is not None)
    assert harness.directory_of("orders") == other
    assert values(harness, len(VALUES)) == VALUES
    harness.produce("orders", [b"and on"])
    harness.settle()
    moved_to = meta_properties.read(other)
    assert moved_to is not None
    assert harness.controller.image.topics["orders"].partitions[0].directories == (moved_to.directory_id,)
    found = markers.read(Path(other) / "orders-0")
    assert found is not None and found.generation == 1
    # The source turns up again as it was, as after a disk that was away: it is older.
    harness.stop()
    (aside,) = Path(where).glob("orders-0.*-stray/orders-0")
    shutil.copytree(aside, Path(where) / "orders-0")
    harness.node = harness._new(0)
    harness.start()
    assert harness.directory_of("orders") == other
    assert values(harness, len(VALUES) + 1) == [*VALUES, b"and on"]
