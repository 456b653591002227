"""The topic ids in the metadata on a stopped broker's own disks."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ops.disks import scanning, topic_ids
from ops.disks.verdict import Kind, verdict
from storage_node.directories import partition_metadata
from storage_node.log.batches.batch import build_batch
from tests.support.nodes.kafka_folders import GOLDEN
from tests.support.nodes.node_harness import running
from tests.support.stopped_disks import OTHER_TOPIC_ID


@pytest.fixture
def kafka(tmp_path: Path) -> list[str]:
    """The folders of a broker of Apache Kafka 4.3.1; with its two partitions of `orders`."""
    shutil.copytree(GOLDEN, tmp_path / "kafka")
    return [str(path) for path in sorted((tmp_path / "kafka").iterdir()) if path.is_dir()]


def test_known_reads_the_metadata_log_of_apache_kafka(kafka: list[str]) -> None:
    found = scanning.look(kafka)
    (copy,) = (copy for directory in found for copy in directory.copies if str(copy.tp) == "orders-0")
    assert topic_ids.known(found)["orders"] == copy.topic_id
    assert verdict(scanning.read_logs(found), node_id=None, metadata=kafka[0], topics=topic_ids.known(found)).clean


def test_verdict_compares_with_the_metadata_where_no_replica_agrees(kafka: list[str]) -> None:
    for path in kafka:
        for folder in Path(path).glob("orders-*"):
            (folder / partition_metadata.FILE).write_bytes(partition_metadata.encode(OTHER_TOPIC_ID))
    found = scanning.look(kafka)
    problems = verdict(found, node_id=None, metadata=kafka[0], topics=topic_ids.known(found)).problems
    assert [problem.kind for problem in problems] == [Kind.TOPIC_ID, Kind.TOPIC_ID]
    assert all("metadata on this broker's disks" in problem.says for problem in problems)
    (unknown, _) = verdict(found, node_id=None, metadata=kafka[0], topics={"another": OTHER_TOPIC_ID}).problems
    assert unknown.note and "no such topic" in unknown.says


def test_known_reads_the_image_of_a_storage_node(tmp_path: Path) -> None:
    with running(tmp_path, dirs=2) as harness:
        harness.create_topic("orders")
        harness.settle()
        harness.stop()
        found = scanning.look(harness.paths)
        ids = {copy.topic_id for directory in found for copy in directory.copies}
        assert topic_ids.known(found) == {"orders": ids.pop()}
        harness.node = harness._new(0)
        harness.start()


@pytest.mark.parametrize(
    "value",
    [b"", b"\x01", b"\x01\x02\x00\x05ab", b"\x01\x09\x00short", b"\xff" * 20, b"\x01\x02\x00\x03\xff\xff" + bytes(17)],
)
def test_known_of_a_damaged_metadata_log_is_empty(kafka: list[str], value: bytes) -> None:
    folder = Path(kafka[0]) / "__cluster_metadata-0"
    for path in folder.glob("*.checkpoint"):
        path.unlink()
    (folder / f"{0:020d}.log").write_bytes(build_batch([value]))
    assert topic_ids.known(scanning.look(kafka)) == {}
    assert topic_ids.known([replace(each, folders=()) for each in scanning.look(kafka)]) == {}
