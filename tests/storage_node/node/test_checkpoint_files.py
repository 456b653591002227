"""What a node keeps of offsets per directory, however the directories are written in the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage_node.directories.directory import LogDirectory
from storage_node.log.batches.batch import build_batch
from storage_node.model.ids import TopicPartition
from tests.support.nodes.node_harness import Harness, running, until
from tests.support.wire import Client

TOPIC = {"segment.bytes": "2000"}
INSIDE, WHOLE = TopicPartition("t", 0), TopicPartition("t", 1)


def read(directory: LogDirectory) -> tuple[dict[TopicPartition, int], ...]:
    """Recovery points, high watermarks and start offsets, as they stand on the disk."""
    files = (directory.recovery_points, directory.high_watermarks, directory.log_start_offsets)
    return tuple(dict(file.read()) for file in files)


def fill(harness: Harness, partitions: int, count: int) -> None:
    """Some records per partition, two to a segment."""
    client = Client(harness)
    for partition in range(partitions):
        for _ in range(count):
            assert client.produce("t", partition, build_batch([b"x" * 900])).error == 0
    client.close()


def expected(harness: Harness, directory: LogDirectory) -> tuple[dict[TopicPartition, int], ...]:
    held = {partition.tp: partition for partition in harness.node.replicas.in_directory(directory)}
    return (
        {tp: partition.log.recovery_point for tp, partition in held.items()},
        {tp: partition.high_watermark for tp, partition in held.items()},
        {tp: partition.log.log_start_offset for tp, partition in held.items() if tp == INSIDE},
    )


@pytest.mark.conformance(83, 85, 86, 87)
@pytest.mark.parametrize(
    "spelling", [["{}/d0", "{}/d1"], ["{}/d0/", "{}/d1//"], ["d0", "./d1/"]], ids=["plain", "slashes", "relative"]
)
def test_each_directory_has_the_offsets_of_its_own_replicas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelling: list[str]
) -> None:
    harness = Harness(tmp_path, 2)
    home = tmp_path / "node-1"
    monkeypatch.chdir(home)
    harness.paths = [path.format(home) for path in spelling]
    harness.node = harness._new(0)
    harness.start()
    try:
        harness.create_topic("t", 4, TOPIC)
        fill(harness, 4, 8)
        inside, whole = harness.node.replicas.served[INSIDE], harness.node.replicas.served[WHOLE]
        inside.delete_records(inside.log.segments[1].base_offset + 1)  # its first segment begins below that
        inside.delete_old_segments(0)
        whole.delete_records(whole.log.segments[1].base_offset)
        assert whole.delete_old_segments(0) > 0  # its first segment's name says it
        inside.log.flush()
        directories = harness.node.dirs.directories
        assert [directory.name for directory in directories] == [str(home / "d0"), str(home / "d1")]
        for directory in directories:
            harness.node.offset_files.write_all(directory)
            assert read(directory) == expected(harness, directory)
        points = {tp: point for directory in directories for tp, point in read(directory)[0].items()}
        assert len(points) == 4 and points[INSIDE] == 8
        client = Client(harness)
        assert client.produce("t", 2, build_batch([b"x"])).error == 0
        client.close()
        harness.stop()
        marks = {tp: mark for directory in directories for tp, mark in read(directory)[1].items()}
        assert marks == {TopicPartition("t", part): 9 if part == 2 else 8 for part in range(4)}, "written by the stop"
        harness.node = harness._new(0)
        harness.start()
        starts = {tp: part.log.log_start_offset for tp, part in harness.node.replicas.served.items()}
        assert 0 < starts[WHOLE] < starts[INSIDE] and harness.node.recovered_bytes == 0
    finally:
        harness.close()


@pytest.mark.conformance(77)
def test_deletion_without_delay_does_not_hold_up_a_stop(tmp_path: Path) -> None:
    with running(tmp_path, 2, {"file.delete.delay.ms": "0"}) as harness:
        harness.create_topic("t", 20, TOPIC)
        fill(harness, 20, 4)
        for partition in list(harness.node.replicas.served.values()):
            partition.delete_records(3)
            partition.delete_old_segments(0)
        harness.delete_topic("t")
        harness.stop()
        harness.node = harness._new(0)
        harness.start()
        until(lambda: not [path for disk in harness.paths for path in Path(disk).glob("t-*")])
