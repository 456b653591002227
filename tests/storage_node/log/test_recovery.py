"""Recovery of a log after a crash keeps everything up to the last whole batch, and nothing else."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_node.errors import CorruptRecord
from storage_node.log import Log, LogConfig
from storage_node.log.batches.batch import headers
from storage_node.log.recovery import scan

from .logs import SMALL, all_batches, batch, batches_in, crashed, files, fill, open_log, produced, read_all

ONE_SEGMENT = replace(SMALL, segment_bytes=1 << 20)


def last_file(path: Path) -> Path:
    return path / max(files(path, ".log"))


def test_clean_stop_needs_no_scan(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0")
    fill(log, 100, epoch=3)
    before = read_all(log)
    log.close(True)
    log = open_log(tmp_path / "topic-0", clean=True)
    assert (log.recovered_bytes, log.log_end_offset, log.recovery_point) == (0, 300, 300)
    assert read_all(log) == before
    assert log.leader_epochs.entries == ((3, 0),)
    fill(log, 1, epoch=3)
    assert log.log_end_offset == 303


def test_empty_log_opens_at_its_start(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0", log_start_offset=42)
    assert (log.log_start_offset, log.log_end_offset, log.recovered_bytes) == (42, 42, 0)
    log.close(True)
    for clean in (True, False):
        log = open_log(tmp_path / "topic-0", clean=clean)
        assert (log.log_start_offset, log.log_end_offset) == (42, 42)
        log.close(clean)


@pytest.mark.feature("113-21")
def test_cut_at_every_byte_of_the_last_batches_leaves_the_whole_batches(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0", ONE_SEGMENT)
    for number in range(6):
        log.append_as_leader(produced(9, number, timestamp=10 * number), 1)
    whole = read_all(log)
    log.close(False)
    borders = [position for position, _ in headers(whole)] + [len(whole)]
    for cut in range(borders[3], len(whole) + 1):
        path = crashed(log, tmp_path / f"cut{cut}-0")
        os.truncate(last_file(path), cut)
        again = open_log(path, ONE_SEGMENT)
        kept = max(border for border in borders if border <= cut)
        assert read_all(again) == whole[:kept]
        assert last_file(path).stat().st_size == kept
        assert again.log_end_offset == borders.index(kept)
        assert again.append_as_leader(produced(9, again.log_end_offset), 1).base_offset == borders.index(kept)
        again.close(False)
        shutil.rmtree(path)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 400)), min_size=1, max_size=25),
    flushed=st.floats(0, 1),
    cut=st.integers(0, 3_000),
    tail=st.sampled_from([b"", bytes(1), bytes(500), b"\xff" * 90, b"garbage" * 30]),
)
def test_after_a_crash_a_prefix_of_whole_batches_is_there(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[tuple[int, int]], flushed: float, cut: int, tail: bytes
) -> None:
    home = tmp_path_factory.mktemp("log")
    log = open_log(home / "t-0")
    for number, (count, size) in enumerate(sizes):
        log.append_as_leader(batch(count, size, timestamp=number), number // 5)
        if number == int(flushed * len(sizes)):
            log.flush()
    written, point = all_batches(log), log.recovery_point
    path = crashed(log, home / "c-0")
    last = last_file(path)
    size = last.stat().st_size
    base = log.segments[-1].base_offset
    durable = sum(h.length for h in written if base <= h.base_offset < point)
    os.truncate(last, max(durable, size - cut))
    with last.open("ab") as file:
        file.write(tail)
    again = open_log(path, recovery_point=point)
    got = all_batches(again)
    assert got == written[: len(got)]
    assert again.log_end_offset == (got[-1].next_offset if got else 0) >= point
    assert again.log_end_offset >= base
    assert again.leader_epochs.truncated_from_end(again.log_end_offset) == log.leader_epochs.truncated_from_end(
        again.log_end_offset
    )
    for offset in range(again.log_end_offset):
        assert batches_in(again.read(offset, 1).data)[0] == next(h for h in got if h.last_offset >= offset)
    log.close(False)
    again.close(False)


def test_rebuilt_indexes_equal_the_written_ones(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0")
    fill(log, 200)
    log.close(True)
    written = {**files(log.path, ".index"), **files(log.path, ".timeindex")}
    assert any(written.values())
    for name in written:
        (log.path / name).unlink()
    log = open_log(tmp_path / "topic-0")
    log.close(True)
    assert {**files(log.path, ".index"), **files(log.path, ".timeindex")} == written


@pytest.mark.parametrize("damage", [b"", b"\1\2\3", bytes(8_000), b"\xff" * 240])
def test_damaged_indexes_are_rebuilt_also_after_a_clean_stop(tmp_path: Path, damage: bytes) -> None:
    log = open_log(tmp_path / "topic-0")
    fill(log, 100)
    whole = read_all(log)
    log.close(True)
    for name in (*files(log.path, ".index"), *files(log.path, ".timeindex")):
        (log.path / name).write_bytes(damage)
    log = open_log(tmp_path / "topic-0", clean=True)
    assert log.log_end_offset == 300
    assert read_all(log, max_bytes=700) == whole
    assert [log.offset_for_timestamp(t) for t in (1_000, 1_501, 1_992)] == [(0, 1_000), (151, 1_501), (299, 1_992)]


def test_only_what_is_beyond_the_recovery_point_is_scanned(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0")
    fill(log, 100)
    log.flush()
    fill(log, 20, start_ms=9_000)
    after = sum(h.length for h in all_batches(log) if h.base_offset >= 300)
    one = all_batches(log)[0].length
    again = open_log(crashed(log, tmp_path / "c-0"), recovery_point=log.recovery_point)
    assert after <= again.recovered_bytes <= after + SMALL.index_interval_bytes + 2 * one
    assert again.recovery_point == 300
    again.flush()
    assert again.recovery_point == again.log_end_offset == 360
    assert read_all(again) == read_all(log)


def test_damaged_batch_ends_the_log_and_later_segments_are_removed(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0")
    fill(log, 100)
    bases = [s.base_offset for s in log.segments]
    path = crashed(log, tmp_path / "c-0")
    second = path / f"{bases[1]:020d}.log"
    with second.open("r+b") as file:
        file.seek(300)
        file.write(b"\xff\xff")
    again = open_log(path)
    assert [s.base_offset for s in again.segments] == bases[:2]
    assert bases[1] < again.log_end_offset < bases[2]
    assert read_all(log).startswith(read_all(again))
    assert len(files(path, ".log.deleted")) == len(bases) - 2
    again.close(True)
    again = open_log(path, clean=True)
    assert not files(path, ".deleted")


def test_gap_between_segments_that_were_scanned_is_no_damage(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0")
    for number in range(60):
        log.append_copied(batch(2, base_offset=10 * number))
    again = open_log(crashed(log, tmp_path / "c-0"))
    assert read_all(again) == read_all(log)


@pytest.mark.parametrize("lost", ["the end of one", "the end of one and all after it", "all of one"])
def test_batches_that_were_lost_at_their_border_end_the_log(tmp_path: Path, lost: str) -> None:
    """A power loss may drop the end of a file at a batch border, and keep the next file's name or all of it."""
    log = open_log(tmp_path / "topic-0")
    fill(log, 60)
    bases = [s.base_offset for s in log.segments]
    path = crashed(log, tmp_path / "c-0")
    short = path / f"{bases[2]:020d}.log"
    last = [position for position, _ in headers(short.read_bytes())][-1]
    os.truncate(short, 0 if lost == "all of one" else last)
    if lost == "the end of one and all after it":
        for base in bases[3:]:
            os.truncate(path / f"{base:020d}.log", 0)
    again = open_log(path, recovery_point=bases[2])
    got = all_batches(again)
    assert got == all_batches(log)[: len(got)]
    assert again.log_end_offset == (bases[2] if lost == "all of one" else got[-1].next_offset) < bases[3]
    assert [s.base_offset for s in again.segments] == bases[:3]
    assert again.append_as_leader(batch(1), 0).base_offset == again.log_end_offset - 1


def test_segments_that_repeat_offsets_are_removed(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0", ONE_SEGMENT)
    fill(log, 10)
    path = crashed(log, tmp_path / "c-0")
    shutil.copy(path / f"{0:020d}.log", path / f"{15:020d}.log")
    again = open_log(path)
    assert (again.log_end_offset, len(again.segments)) == (30, 1)


def test_clean_shutdown_marker_is_ignored_if_the_bytes_contradict_it(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0")
    fill(log, 100)
    log.close(True)
    os.truncate(last_file(log.path), last_file(log.path).stat().st_size - 1)
    log = open_log(tmp_path / "topic-0", clean=True)
    assert log.log_end_offset == 297 and log.recovered_bytes > 0


@pytest.mark.parametrize("clean", [True, False])
def test_sealed_start_holds_until_a_newer_leaders_records_begin_below_it(tmp_path: Path, clean: bool) -> None:
    log = open_log(tmp_path / "topic-0")
    fill(log, 30, epoch=1)
    log.close(True)
    log = open_log(tmp_path / "topic-0", clean=clean, sealed_start=(60, 1))
    assert (log.log_start_offset, log.log_end_offset) == (60, 90), "it has what was deleted"
    log.truncate_to(30)
    fill(log, 4, epoch=2)
    log.close(clean)
    log = open_log(tmp_path / "topic-0", clean=clean, log_start_offset=30, sealed_start=(60, 1))
    assert (log.log_start_offset, log.log_end_offset) == (30, 42), "an unclean election allowed them"
    log.close(clean)


def test_crash_leftovers_are_removed_and_foreign_files_kept(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0")
    fill(log, 10)
    log.close(True)
    ours = [
        f"{5:020d}.log.deleted", f"{5:020d}.index", f"{5:020d}.timeindex", f"{5:020d}.txnindex",
        f"{5:020d}.snapshot.tmp", "leader-epoch-checkpoint.tmp",
    ]  # fmt: skip
    others = ["partition.metadata", "partition.metadata.tmp", "partition.move", "notes.deleted"]
    for name in (*ours, *others):
        (log.path / name).write_bytes(b"x")
    open_log(tmp_path / "topic-0", clean=True)
    left = {entry.name for entry in log.path.iterdir()}
    assert not left & set(ours)
    assert left >= set(others)


@pytest.mark.parametrize("content", [None, b"", b"rubbish\n", b"0\n5\n1 0\n"])
def test_lost_leader_epochs_are_read_from_the_batches(tmp_path: Path, content: bytes | None) -> None:
    log = open_log(tmp_path / "topic-0")
    for epoch in (1, 4, 9):
        fill(log, 40, epoch=epoch)
    expected = log.leader_epochs
    log.close(True)
    file = log.path / "leader-epoch-checkpoint"
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    log = open_log(tmp_path / "topic-0", clean=True)
    assert log.leader_epochs == expected
    assert file.read_bytes() == expected.encode()


def test_epoch_without_records_survives_a_restart(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0")
    fill(log, 2, epoch=1)
    log.assign_leader_epoch(3)
    assert log.leader_epochs.entries == ((1, 0), (3, 6))
    log.close(True)
    assert open_log(tmp_path / "topic-0", clean=True).leader_epochs.entries == ((1, 0), (3, 6))


def test_damage_outside_the_scan_is_reported_by_reads(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0")
    fill(log, 100)
    log.close(True)
    first = log.path / f"{0:020d}.log"
    os.truncate(first, first.stat().st_size - 7)
    log = open_log(tmp_path / "topic-0", clean=True)
    with pytest.raises(CorruptRecord, match=r"00000000000000000000\.log"):
        log.read(log.segments[1].base_offset - 1, 1 << 20)
    assert log.read(0, 100).data, "intact batches are still returned"
    assert log.read(299, 100).data


def test_batches_larger_than_a_chunk_are_scanned(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0", ONE_SEGMENT)
    for size in (10, 3_000, 50_000, 10, 9_000):
        log.append_as_leader(batch(1, size), 0)
    (segment,) = log.segments
    for chunk in (61, 100, 4_096, 60_000):
        assert [header for _, header, _ in scan(segment, 0, chunk=chunk)] == all_batches(log)


def test_large_log_is_opened_fast_after_a_clean_stop(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0", LogConfig())
    data = b"".join(batch(1, 900, base_offset=n) for n in range(20_000))
    log.append_copied(data)
    log.close(True)
    reads = 0
    real = os.pread

    def counted(fd: int, count: int, at: int) -> bytes:
        nonlocal reads
        reads += 1
        return real(fd, count, at)

    os.pread = counted
    try:
        log = open_log(tmp_path / "topic-0", LogConfig(), clean=True)
    finally:
        os.pread = real
    assert isinstance(log, Log) and log.log_end_offset == 20_000
    assert reads < 30
