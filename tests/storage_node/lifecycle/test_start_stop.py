"""Starting and stopping a node: clean, killed, refused."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from storage_node import node as node_module
from storage_node.directories.errors import StartRefused
from storage_node.model.ids import TopicPartition
from storage_node.node import Node
from tests.support.nodes.local_controller import LocalController
from tests.support.nodes.node_harness import CLUSTER_ID, Harness, make_config, make_dirs, running

PARTITIONS = 500


def test_500_partitions_stop_and_start_in_five_seconds_and_nothing_is_scanned(tmp_path: Path) -> None:
    with running(tmp_path) as harness:
        harness.create_topic("t", PARTITIONS)
        producer = harness.producer()
        for partition in range(PARTITIONS):
            producer.produce("t", b"x" * 100, partition=partition)
        assert producer.flush(30) == 0
        del producer
        took: list[float] = []
        while not took or (took[-1] >= 5 and len(took) < 3):  # a machine that is busy or stands still shows less
            begun = time.monotonic()
            harness.restart()
            took.append(time.monotonic() - begun)
        assert min(took) < 5
        assert harness.node.recovered_bytes == 0
        assert len(harness.node.replicas.served) == PARTITIONS
        assert all(part.log.log_end_offset == 1 for part in harness.node.replicas.served.values())


@pytest.mark.conformance(78, 115, 117)
def test_new_replicas_spread_over_the_directories(harness: Harness) -> None:
    harness.create_topic("t", 30)
    counts = [sum(harness.directory_of("t", part) == path for part in range(30)) for path in harness.paths]
    assert counts == [10, 10, 10]
    harness.settle()
    told = {(row.partition, row.directory_id) for row in harness.controller.assigned}
    for part in range(30):
        replica = harness.node.partition(TopicPartition("t", part))
        assert replica is not None
        assert (replica.tp, replica.directory.id) in told


def test_records_that_a_killed_node_acknowledged_exist(harness: Harness) -> None:
    harness.create_topic("t", 3)
    for partition in range(3):
        harness.produce("t", [b"%d" % i for i in range(100)], partition)
    harness.restart(clean=False)
    assert harness.node.recovered_bytes > 0
    for partition in range(3):
        assert [m.value() for m in harness.consume("t", 100, partition)] == [b"%d" % i for i in range(100)]


@pytest.mark.conformance(89)
def test_clean_marker_goes_before_anything_else(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    harness.start()
    harness.create_topic("t")
    harness.stop()
    markers = [Path(path) / ".kafka_cleanshutdown" for path in harness.paths]
    assert all(json.loads(marker.read_text())["brokerEpoch"] == 1 for marker in markers)
    harness.node = harness._new(0)
    harness.start()
    assert not any(marker.exists() for marker in markers)
    harness.close()


@pytest.mark.conformance(90)
def test_start_that_is_ended_while_it_recovers_leaves_no_word_of_a_clean_stop(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.create_topic("t", 3)
    harness.produce("t", [b"x"] * 5)
    harness.stop()
    markers = [Path(path) / ".kafka_cleanshutdown" for path in harness.paths]
    assert all(marker.exists() for marker in markers)
    original = node_module.start_up

    def ended(*arguments: Any) -> Any:
        original(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(node_module, "start_up", ended)
    harness.node = harness._new(0)
    with pytest.raises(KeyboardInterrupt):
        harness.node.start()
    harness.node.stop()
    assert not any(marker.exists() for marker in markers)
    monkeypatch.undo()
    harness.node = harness._new(0)
    harness.start()
    assert harness.node.recovered_bytes > 0 and len(harness.consume("t", 5)) == 5


def test_node_serves_from_its_own_image_without_a_controller(tmp_path: Path) -> None:
    with running(tmp_path) as harness:
        harness.create_topic("t")
        harness.produce("t", [b"x"] * 5)
        harness.stop()
        harness.controller.away = True
        harness.node = Node(make_config(harness.paths), None)
        harness.node.start()
        assert harness.node.metadata.image.version > 0
        harness.produce("t", [b"y"] * 5)
        assert len(harness.consume("t", 10)) == 10
        registration = harness.node.registration()
        assert registration.image and registration.known_version == harness.node.metadata.image.version


def test_second_node_on_the_same_directories_is_refused(harness: Harness) -> None:
    other = Node(make_config(harness.paths), None)
    with pytest.raises(StartRefused, match="in use"):
        other.start()
    harness.create_topic("t")
    harness.produce("t", [b"unharmed"])


def test_busy_port_is_refused_and_nothing_stays_locked(harness: Harness, tmp_path: Path) -> None:
    dirs = make_dirs(tmp_path / "other", 1, node=2)
    other = Node(make_config(dirs, 2, port=harness.node.port), None)
    with pytest.raises(OSError, match="in use"):
        other.start()
    again = Node(make_config(dirs, 2), None)
    again.start()
    again.stop()


@pytest.mark.feature("858-14")
def test_directories_that_were_never_formatted_are_refused(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    with pytest.raises(StartRefused, match="format"):
        Node(make_config([str(tmp_path / "d")]), None).start()


def test_stop_twice_and_a_stop_before_a_start_do_nothing(tmp_path: Path) -> None:
    node = Node(make_config(make_dirs(tmp_path, 1)), LocalController(CLUSTER_ID))
    node.stop()
    node.start()
    node.stop()
    node.stop()


def test_deleted_topic_is_gone_for_good(harness: Harness) -> None:
    harness.create_topic("t", 3)
    harness.produce("t", [b"old"])
    harness.delete_topic("t")
    assert not harness.node.replicas.served
    harness.create_topic("t", 3)
    harness.produce("t", [b"new"])
    assert [m.value() for m in harness.consume("t", 1)] == [b"new"]
    harness.restart()
    assert [m.value() for m in harness.consume("t", 1)] == [b"new"]


def test_topic_deleted_while_the_node_was_down_goes_at_the_start(harness: Harness) -> None:
    harness.create_topic("t", 2)
    harness.produce("t", [b"x"])
    harness.stop()
    asyncio.run(harness.controller.delete_topics(["t"], timeout=5))
    harness.node = harness._new(0)
    harness.start()
    assert not harness.node.replicas.served
    assert not [path for d in harness.paths for path in Path(d).glob("t-[01]")]
