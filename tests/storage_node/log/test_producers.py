"""Idempotent producers: accepted, duplicate and rejected batches, also over restarts; the snapshots' bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage_node.errors import InvalidProducerEpoch, OutOfOrderSequence
from storage_node.log import Appended, Log
from storage_node.log.files import Home
from storage_node.log.producers.state import MAX_SEQUENCE, AppendedBatch, Producer, ProducerState
from storage_node.model.error_codes import ErrorCode

from .logs import SMALL, batch, crashed, files, open_log, produced


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return open_log(tmp_path / "topic-0")


GOLDEN = bytes.fromhex(
    "0001"  # version
    "7756e965"  # CRC-32C of what follows
    "00000001"  # producers
    "00000000000003e9"  # producer id
    "0002"  # epoch
    "0000000b"  # last sequence
    "0000000000000063"  # last offset
    "00000003"  # offset delta
    "0000018bcfe56800"  # timestamp
    "ffffffff"  # coordinator epoch
    "ffffffffffffffff"  # first offset of the transaction
)


def test_golden_snapshot() -> None:
    state = ProducerState({1001: Producer(2, (AppendedBatch(11, 99, 3, 1_700_000_000_000),), 1_700_000_000_000)})
    assert state.encode().hex() == GOLDEN.hex()
    assert ProducerState.decode(GOLDEN).producers == state.producers
    assert ProducerState.decode(ProducerState().encode()).producers == {}


EARLIER = bytes.fromhex(
    "00000000000003e9"  # producer id
    "00000007"  # last sequence
    "000000000000005f"  # last offset
    "00000001"  # offset delta
    "0000018bcfe567ff"  # timestamp
)


def test_batches_before_the_last_follow_behind_kafkas_part() -> None:
    batches = AppendedBatch(7, 95, 1, 1_699_999_999_999), AppendedBatch(11, 99, 3, 1_700_000_000_000)
    state = ProducerState({1001: Producer(2, batches, 1_700_000_000_000)})
    written = state.encode()
    assert written[6:] == GOLDEN[6:] + EARLIER
    assert ProducerState.decode(written).producers == state.producers


@pytest.mark.parametrize("remembered", [1, 2, 5])
def test_damaged_snapshot_is_rejected(remembered: int) -> None:
    batches = tuple(AppendedBatch(n, 10 + n, 0, 1_700_000_000_000) for n in range(remembered))
    content = ProducerState({1001: Producer(2, batches, 1_700_000_000_000)}).encode()
    assert ProducerState.decode(content).producers[1001].batches == batches
    for position in range(len(content)):
        bad = bytearray(content)
        bad[position] ^= 1
        with pytest.raises(ValueError):
            ProducerState.decode(bytes(bad))
        with pytest.raises(ValueError):
            ProducerState.decode(content[:position])


def test_duplicates_of_the_last_five_batches_return_their_offsets(log: Log) -> None:
    first = [log.append_as_leader(produced(7, 2 * n, 2), 0) for n in range(8)]
    for n in range(3, 8):
        again = log.append_as_leader(produced(7, 2 * n, 2), 0)
        assert again == Appended(first[n].base_offset, first[n].last_offset, duplicate=True)
    with pytest.raises(OutOfOrderSequence):
        log.append_as_leader(produced(7, 4, 2), 0)
    assert log.log_end_offset == 16


def test_other_producers_do_not_matter(log: Log) -> None:
    log.append_as_leader(produced(1, 0), 0)
    log.append_as_leader(produced(2, 0), 0)
    log.append_as_leader(batch(1), 0)
    assert log.append_as_leader(produced(1, 1), 0).base_offset == 3
    assert log.append_as_leader(produced(2, 0), 0) == Appended(1, 1, duplicate=True)


@pytest.mark.parametrize(("sequence", "epoch"), [(4, 1), (9, 1), (2, 1), (5, 2)])
def test_gaps_and_duplicates_with_other_borders_are_rejected(log: Log, sequence: int, epoch: int) -> None:
    log.append_as_leader(produced(7, 0, 3, epoch=1), 0)
    with pytest.raises(OutOfOrderSequence) as refused:
        log.append_as_leader(produced(7, sequence, 1, epoch=epoch), 0)
    assert refused.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.log_end_offset == 3
    assert log.append_as_leader(produced(7, 3, 1, epoch=1), 0).base_offset == 3


def test_new_epoch_begins_at_zero_and_ends_the_old_one(log: Log) -> None:
    log.append_as_leader(produced(7, 0, 3, epoch=1), 0)
    log.append_as_leader(produced(7, 0, 3, epoch=2), 0)
    with pytest.raises(InvalidProducerEpoch) as refused:
        log.append_as_leader(produced(7, 3, 1, epoch=1), 0)
    assert refused.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    assert log.append_as_leader(produced(7, 0, 3, epoch=2), 0) == Appended(3, 5, duplicate=True)


def test_unknown_producer_may_start_with_any_sequence(log: Log) -> None:
    assert log.append_as_leader(produced(7, 500, 2, epoch=4), 0).base_offset == 0
    assert log.append_as_leader(produced(7, 502, 1, epoch=4), 0).base_offset == 2


def test_sequences_wrap_after_the_largest_int(log: Log) -> None:
    log.append_as_leader(produced(7, MAX_SEQUENCE - 1, 3), 0)
    assert log.append_as_leader(produced(7, 1, 1), 0).base_offset == 3
    assert log.append_as_leader(produced(7, MAX_SEQUENCE - 1, 3), 0) == Appended(0, 2, duplicate=True)
    log.append_as_leader(produced(7, 2, 1), 0)
    with pytest.raises(OutOfOrderSequence):
        log.append_as_leader(produced(7, MAX_SEQUENCE, 2), 0)
    log.append_as_leader(produced(8, MAX_SEQUENCE, 1), 0)
    assert log.append_as_leader(produced(8, 0, 1), 0).base_offset == 6


@pytest.mark.parametrize("clean", [True, False])
def test_producers_are_known_after_a_restart(tmp_path: Path, clean: bool) -> None:
    log = open_log(tmp_path / "topic-0")
    for n in range(60):
        log.append_as_leader(produced(7, n), 0)
    assert len(log.segments) > 2
    log.close(clean)
    log = open_log(tmp_path / "topic-0", clean=clean)
    assert log.append_as_leader(produced(7, 59), 0) == Appended(59, 59, duplicate=True)
    with pytest.raises(OutOfOrderSequence):
        log.append_as_leader(produced(7, 61), 0)
    assert log.append_as_leader(produced(7, 60), 0).base_offset == 60


def test_all_five_are_known_after_a_crash_also_right_after_a_roll(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0")
    n = 0
    while len(log.segments) < 4:
        log.append_as_leader(produced(7, n), 0)
        n += 1
    log.flush()
    again = open_log(crashed(log, tmp_path / "crashed-0"), recovery_point=log.recovery_point)
    for back in range(1, 6):
        assert again.append_as_leader(produced(7, n - back), 0).duplicate


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_all_five_are_known_also_many_segments_after_them(tmp_path: Path, clean: bool) -> None:
    """A producer that lost its responses with the leader resends everything in flight, many segments later."""
    log = open_log(tmp_path / "topic-0")
    for n in range(7):
        log.append_as_leader(produced(7, 3 * n, 3), 0)
    while len(log.segments) < 8:
        log.append_as_leader(batch(2, 300), 0)
    log.flush()
    recovery_point = log.recovery_point
    if clean:
        log.close(True)
        again = open_log(log.path, clean=True)
    else:
        again = open_log(crashed(log, tmp_path / "crashed-0"), recovery_point=recovery_point)
    for n in range(2, 7):
        assert again.append_as_leader(produced(7, 3 * n, 3), 0) == Appended(3 * n, 3 * n + 2, duplicate=True)
    assert again.producers.producers == log.producers.producers


def test_every_roll_writes_a_snapshot_and_recovery_skips_a_damaged_one(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0")
    for n in range(80):
        log.append_as_leader(produced(7, n), 0)
    log.close(True)
    bases = [f"{s.base_offset:020d}.snapshot" for s in log.segments[1:]]
    assert sorted(files(log.path, ".snapshot")) == sorted([*bases, f"{80:020d}.snapshot"])
    for name in files(log.path, ".snapshot"):
        (log.path / name).write_bytes(b"\0" * 40)
    log = open_log(tmp_path / "topic-0", clean=True)
    assert log.append_as_leader(produced(7, 76), 0).duplicate
    assert log.append_as_leader(produced(7, 80), 0).base_offset == 80


def test_truncation_keeps_that_producers_were_forgotten(log: Log) -> None:
    for producer in range(3):
        log.append_as_leader(produced(producer, 0), 0)
    log.forget_producers(1)
    log.truncate_to(2)
    assert log.producers.has_forgotten


def test_truncation_restores_the_producer_state(tmp_path: Path) -> None:
    log = open_log(tmp_path / "topic-0")
    for n in range(80):
        log.append_as_leader(produced(7, n), 0)
    log.truncate_to(33)
    assert log.append_as_leader(produced(7, 32), 0).duplicate
    assert log.append_as_leader(produced(7, 33), 0).base_offset == 33
    log.truncate_fully(33)
    assert log.append_as_leader(produced(7, 900), 0).base_offset == 33


def test_copy_takes_over_the_producer_state(log: Log, tmp_path: Path) -> None:
    for n in range(7):
        log.append_as_leader(produced(7, n), 0)
    copy = open_log(tmp_path / "copy-0")
    copy.append_copied(log.read(0, 1 << 20).data)
    assert copy.producers.producers == log.producers.producers
    assert copy.append_as_leader(produced(7, 2), 0).duplicate


def test_snapshot_beyond_the_log_end_is_removed_durably_at_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other records may get its offset: after a power loss it would acknowledge batches that were never appended."""
    log = open_log(tmp_path / "topic-0")
    for n in range(10):
        log.append_as_leader(produced(7, n), 0)
    log.flush()
    path = crashed(log, tmp_path / "crashed-0")
    (path / f"{12:020d}.snapshot").write_bytes(log.producers.encode())
    seen: list[str] = []
    unlink, sync = Home.unlink, Home.sync
    monkeypatch.setattr(Home, "unlink", lambda home, name: (seen.append(name), unlink(home, name))[1])
    monkeypatch.setattr(Home, "sync", lambda home: (seen.append("synced"), sync(home))[1])
    open_log(path, recovery_point=log.recovery_point)
    assert seen == [f"{12:020d}.snapshot", "synced"]


def test_adopted_producers_are_in_the_last_two_snapshots(tmp_path: Path) -> None:
    """Produces wait for these flushes, so their number must not grow with the segments."""
    source, copy = open_log(tmp_path / "source-0"), open_log(tmp_path / "copy-0")
    source.append_as_leader(produced(7, 0), 0)
    gone = source.producers
    while len(copy.segments) < 8:
        copy.append_as_leader(batch(2, 300), 0)
    before = files(copy.path, ".snapshot")
    copy.adopt_producers(gone)
    after = files(copy.path, ".snapshot")
    changed = [name for name in after if after[name] != before[name]]
    assert changed == sorted(after)[-2:]
    assert all(7 in ProducerState.decode(after[name]).producers for name in changed)
    again = open_log(crashed(copy, tmp_path / "crashed-0"), recovery_point=copy.recovery_point)
    assert again.producers.get(7) == gone.get(7)
    # The snapshot does not cover later batches: after a truncation to it, the producer resends them.
    last = int(sorted(after)[-1][:20])
    late = ProducerState({8: Producer(0, (AppendedBatch(0, last, 0, 1),), 1)})
    copy.adopt_producers(late)
    assert all(8 not in ProducerState.decode(data).producers for data in files(copy.path, ".snapshot").values())


def test_idle_producer_expires_by_the_nodes_clock(log: Log) -> None:
    day = SMALL.producer_id_expiration_ms
    log.append_as_leader(produced(7, 5, timestamp=0), 0, now_ms=10 * day)
    log.delete_old_segments(11 * day - 1)
    assert log.append_as_leader(produced(7, 5), 0, now_ms=11 * day).duplicate
    log.delete_old_segments(12 * day)
    assert log.append_as_leader(produced(7, 90), 0).base_offset == 1
