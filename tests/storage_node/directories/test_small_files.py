"""partition.metadata and the clean shutdown marker."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage_node import failpoints
from storage_node.directories import clean_shutdown, partition_metadata
from storage_node.directories.clean_shutdown import NOT_CLEAN, CleanShutdown
from storage_node.directories.errors import MalformedPartitionMetadata
from storage_node.errors import MetadataIOError
from tests.simulation.machine import Machine
from tests.simulation.patching import simulated

GOLDEN = Path(__file__).parents[2] / "golden" / "directories"
TOPIC_ID = "P2aL9r4sSqqyt7bC0uierg"


def test_partition_metadata_is_kafkas(tmp_path: Path) -> None:
    golden = (GOLDEN / "partition.metadata").read_bytes()
    assert partition_metadata.read(tmp_path, directory="/d") is None
    partition_metadata.write(tmp_path, TOPIC_ID, directory="/d")
    assert (tmp_path / "partition.metadata").read_bytes() == golden
    assert partition_metadata.read(tmp_path, directory="/d") == TOPIC_ID


def test_empty_partition_metadata_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / "partition.metadata").touch()
    assert partition_metadata.read(tmp_path, directory="/d") is None


@pytest.mark.parametrize(
    "text",
    [
        "version: 1\ntopic_id: " + TOPIC_ID,
        "version: 0\n",
        "version: 0\ntopic_id: short\n",
        "topic_id: " + TOPIC_ID,
        "version: 0\nversion: 0\ntopic_id: " + TOPIC_ID,
        "garbage",
        "\xff\xfe",
    ],
)
def test_malformed_partition_metadata_is_not_the_disks_fault(tmp_path: Path, text: str) -> None:
    (tmp_path / "partition.metadata").write_text(text, encoding="latin-1")
    with pytest.raises(MalformedPartitionMetadata, match=r"partition\.metadata"):
        partition_metadata.read(tmp_path, directory="/d")


def test_unreadable_partition_metadata_names_the_log_directory(tmp_path: Path) -> None:
    (tmp_path / "partition.metadata").mkdir()
    with pytest.raises(MetadataIOError) as failed:
        partition_metadata.read(tmp_path, directory="/d")
    assert failed.value.directory == "/d"
    with pytest.raises(ValueError):
        partition_metadata.encode("too short")


def test_clean_shutdown_marker_is_kafkas_and_counts_once(tmp_path: Path) -> None:
    clean_shutdown.write(tmp_path, 42)
    marker = tmp_path / ".kafka_cleanshutdown"
    assert marker.read_bytes() == (GOLDEN / "kafka_cleanshutdown").read_bytes()
    assert clean_shutdown.take(tmp_path) == CleanShutdown(True, 42)
    assert not marker.exists()
    assert clean_shutdown.take(tmp_path) == NOT_CLEAN


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", CleanShutdown(True)),
        (b'{"version":0}', CleanShutdown(True)),
        (b'{"version":0,"brokerEpoch":"x"}', CleanShutdown(True)),
        (b'{"version":7,"brokerEpoch":1}', NOT_CLEAN),
        (b"[]", NOT_CLEAN),
        (b"\x00\x00", NOT_CLEAN),
    ],
)
def test_other_clean_shutdown_markers(data: bytes, expected: CleanShutdown) -> None:
    assert clean_shutdown.decode(data) == expected


def test_marker_that_cannot_be_removed_does_not_count(tmp_path: Path) -> None:
    clean_shutdown.write(tmp_path, 42)
    with failpoints.active({"clean_shutdown.before_removal": "raise"}), pytest.raises(MetadataIOError):
        clean_shutdown.take(tmp_path)


def test_power_loss_does_not_bring_back_a_marker_that_a_start_has_taken() -> None:
    machine = Machine("a", names_follow=False)
    with simulated(machine):
        clean_shutdown.write("/sim/a", 42)
        machine.disks["a"].sync()
        assert clean_shutdown.take("/sim/a") == CleanShutdown(True, 42)
        for states in list(machine.power_loss_states()):
            machine.restore(states)
            assert clean_shutdown.take("/sim/a") == NOT_CLEAN


@pytest.mark.conformance(89)
@pytest.mark.parametrize(
    ("directories", "epoch"),
    [
        ([CleanShutdown(True, 5), CleanShutdown(True, 5)], 5),
        ([CleanShutdown(True, 5), CleanShutdown(True, 6)], -1),
        ([CleanShutdown(True, 5), NOT_CLEAN], -1),
        ([CleanShutdown(True)], -1),
        ([], -1),
    ],
)
def test_last_epoch_is_known_only_if_all_directories_agree(directories: list[CleanShutdown], epoch: int) -> None:
    assert clean_shutdown.previous_broker_epoch(directories) == epoch
