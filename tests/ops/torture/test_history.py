"""Events survive the history file, and folders are read from disk."""

from __future__ import annotations

from pathlib import Path

from ops.torture import disk
from ops.torture.history import INFO, OK, POLL, SEND, Event, Recorder, read
from storage_node.log.batches.batch import build_batch

SENT = Event("p", SEND, "orders", 1, OK, 5, 9, 100, "p-1", 42)
POLLED = Event("c", POLL, "orders", 1, OK, 6, 8, 101, records=((41, "p-0"), (42, "p-1")))
OPEN = Event("p", SEND, "orders", 0, INFO, 7, 9, 102, "p-2", error="_TIMED_OUT", sound=False)


def test_events_survive_the_file(tmp_path: Path) -> None:
    with Recorder(tmp_path / "deep" / "one.jsonl") as recorder:
        for event in (SENT, POLLED, OPEN):
            recorder.note(event)
    assert list(read([tmp_path / "deep" / "one.jsonl"])) == [SENT, POLLED, OPEN]


def segment(folder: Path, *batches: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / f"{0:020d}.log"
    file.write_bytes(b"".join(batches))
    return file


def batch(base: int, *values: str) -> bytes:
    return build_batch([f"{value} {'x' * 30}".encode() for value in values], base_offset=base)


def test_scan_has_every_record_of_the_segments(tmp_path: Path) -> None:
    segment(tmp_path / "t-0", batch(0, "a", "b"), batch(2, "c"))
    found = disk.scan(1, "/d", tmp_path / "t-0", ("t", 0))
    assert found.records == ((0, "a"), (1, "b"), (2, "c"))
    assert [(b.base, b.last) for b in found.batches] == [(0, 1), (2, 2)]
    assert found.size == len(batch(0, "a", "b")) + len(batch(2, "c"))
    assert not found.problems


def test_flipped_byte_on_the_disk_is_a_problem(tmp_path: Path) -> None:
    good = bytearray(batch(0, "a", "b") + batch(2, "c"))
    good[-3] ^= 1
    segment(tmp_path / "t-0", bytes(good))
    (problem,) = disk.scan(1, "/d", tmp_path / "t-0", ("t", 0)).problems
    assert "offset 2" in problem and "CRC" in problem
