"""The marker: what is read is exactly what was written, or an error."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_node import failpoints
from storage_node.errors import MetadataIOError
from storage_node.model.ids import TopicPartition
from storage_node.replicas import marker as markers
from storage_node.replicas.marker import Marker, MarkerCorrupt, Reason, State
from tests.simulation.machine import Machine
from tests.simulation.patching import simulated

NUMBERS = st.integers(-1, 2**62)
MARKERS = st.builds(
    Marker,
    topic=st.text("abc._-", min_size=1),
    partition=st.integers(0, 2**31 - 1),
    owner=st.text(),
    run_id=st.text(),
    generation=NUMBERS,
    state=st.sampled_from(State),
    reason=st.sampled_from(["", *Reason]),
    claim=NUMBERS,
    seal_leo=NUMBERS,
    full_name=st.text(),
)


@given(MARKERS)
def test_round_trip(marker: Marker) -> None:
    assert markers.decode(markers.encode(marker), "m") == marker


@given(MARKERS, st.data())
def test_any_changed_byte_is_noticed(marker: Marker, data: st.DataObject) -> None:
    encoded = bytearray(markers.encode(marker))
    at = data.draw(st.integers(0, len(encoded) - 2))
    encoded[at] ^= data.draw(st.integers(1, 127))
    try:
        assert markers.decode(bytes(encoded), "m") == marker  # spaces between the fields carry nothing
    except MarkerCorrupt as error:
        assert "m" in str(error)


def test_on_disk(tmp_path: Path) -> None:
    assert markers.read(tmp_path) is None
    marker = Marker("t", 3, generation=2, state=State.SEALED, claim=7, owner="run")
    markers.write(tmp_path, marker)
    assert markers.read(tmp_path) == marker
    assert marker.tp == TopicPartition("t", 3)
    document = json.loads((tmp_path / "partition.move").read_text())
    assert (document["version"], document["state"], document["topic"]) == (1, "SEALED", "t")


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff", b'{"version": 1, "crc": 1}', b'{"crc": "x"}'])
def test_what_is_no_marker_names_the_file(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "partition.move").write_bytes(content)
    with pytest.raises(MarkerCorrupt, match=r"partition\.move"):
        markers.read(tmp_path)


def test_newer_version_is_not_guessed_at() -> None:
    document = json.loads(markers.encode(Marker("t", 0)))
    document["version"] = 2
    with pytest.raises(MarkerCorrupt):
        markers.decode(json.dumps(document).encode(), "m")


def test_errors_name_the_log_directory(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    folder.mkdir()
    with failpoints.active({"atomic.flushed": "raise"}), pytest.raises(MetadataIOError) as raised:
        markers.write(folder, Marker("t", 0))
    assert raised.value.directory == str(tmp_path)
    assert markers.read(folder) is None


def test_disk_that_is_full_and_then_fails_is_a_failed_disk() -> None:
    machine = Machine("a")
    with simulated(machine):
        path = Path("/sim/a/t-0")
        path.mkdir()
        marker = Marker("t", 0, claim=1)
        markers.write(path, marker)
        machine.disks["a"].fail(errno.ENOSPC, frozenset({"write"}), times=1)
        machine.disks["a"].fail(errno.EIO, frozenset({"stat"}), after=1)
        with pytest.raises(MetadataIOError):
            markers.write_in_any_case(path, marker)
