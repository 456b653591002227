"""A replica: epochs, both copies, waiters."""

from __future__ import annotations

import errno
import gc
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from storage_node.directories.directory import LogDirectory
from storage_node.errors import (
    LogAppendError,
    LogDirectoryOffline,
    NotEnoughReplicas,
    NotEnoughSpace,
    NotLeaderOrFollower,
    OffsetOutOfRange,
    OutOfOrderSequence,
    RequestRefused,
    UnknownProducer,
    UnknownTopicOrPartition,
)
from storage_node.log.batches.batch import build_batch
from storage_node.log.config import LogConfig
from storage_node.log.log import Log
from storage_node.model.error_codes import ErrorCode
from storage_node.model.ids import TopicPartition
from storage_node.move.future import FutureLog
from storage_node.offset_lookup import EARLIEST, LATEST, MAX_TIMESTAMP
from storage_node.partitions.partition import WAKE, Partition
from tests.support.io_faults import Faults
from tests.support.nodes.leading import lead

TP = TopicPartition("t", 0)


@pytest.fixture
def partition(tmp_path: Path) -> Iterator[Partition]:
    first, second = tmp_path / "a", tmp_path / "b"
    for path in (first, second):
        path.mkdir()
    directory = LogDirectory(first, "A")
    log = Log.open(first / "t-0", TP, LogConfig(segment_bytes=500), directory=str(first))
    made = Partition(TP, "A" * 22, log, directory, leader_epoch=3)
    made.future = FutureLog.open(second / "t-0.move", TP, LogConfig(segment_bytes=500), directory=str(second))
    yield made
    made.log.close()
    if made.future is not None:
        made.future.close()
    directory.pool.shutdown()


def fill(partition: Partition, count: int = 10, copied: int = 0) -> None:
    for number in range(count):
        partition.append(build_batch([b"%d" % number * 50], timestamp=1000 * number))
    assert partition.future is not None
    position = 0
    while position < copied:
        data = partition.log.read(position, 1)
        partition.future.log.append_copied(data.data)
        position = data.next_offset


def test_appends_carry_the_leader_epoch_and_move_the_high_watermark(partition: Partition) -> None:
    fill(partition, 3)
    assert partition.high_watermark == 3
    assert partition.log.latest_epoch == 3
    assert partition.find_offset(LATEST).offset == 3
    assert partition.find_offset(EARLIEST).offset == 0 and partition.find_offset(EARLIEST).leader_epoch == 3
    assert partition.find_offset(MAX_TIMESTAMP).offset == 2
    assert partition.find_offset(1500).offset == 2
    assert partition.find_offset(99_999).offset == -1


@pytest.mark.parametrize(("epoch", "code"), [(2, 74), (4, 75)])
def test_other_epochs_are_refused(partition: Partition, epoch: int, code: int) -> None:
    fill(partition, 1)
    assert partition.fetch(0, 1000, leader_epoch=3).data
    for attempt in (lambda: partition.fetch(0, 1000, leader_epoch=epoch), lambda: partition.find_offset(-1, epoch)):
        with pytest.raises(RequestRefused) as error:
            attempt()
        assert error.value.code == code


def test_older_epoch_changes_nothing_and_a_follower_refuses(partition: Partition) -> None:
    lead(partition, 2, False)
    fill(partition, 1)
    lead(partition, 4, False)
    with pytest.raises(NotLeaderOrFollower):
        partition.append(build_batch([b"x"]))
    with pytest.raises(NotLeaderOrFollower):
        partition.fetch(0, 100)


@pytest.mark.conformance(59)
@pytest.mark.feature("113-19")
@pytest.mark.parametrize("copied", [0, 4, 8, 10])
def test_deleted_records_go_from_both_copies(partition: Partition, copied: int) -> None:
    fill(partition, 10, copied)
    assert partition.delete_records(7) == 7
    future = partition.future
    assert future is not None
    assert future.log_start_offset == 7
    assert future.log_end_offset == max(7, copied)
    with pytest.raises(OffsetOutOfRange):
        partition.delete_records(11)
    with pytest.raises(OffsetOutOfRange):
        partition.delete_records(-2)
    assert partition.delete_records(-1) == 10


@pytest.mark.conformance(60)
@pytest.mark.feature("113-19")
@pytest.mark.parametrize("copied", [2, 10])
def test_retention_shortens_both_copies(partition: Partition, copied: int) -> None:
    fill(partition, 10, copied)
    partition.configure(LogConfig(segment_bytes=500, retention_ms=60_000))
    assert partition.delete_old_segments(10**12) > 0
    future = partition.future
    assert future is not None
    assert future.log_start_offset == partition.log.log_start_offset > 2
    assert future.config.retention_ms == 60_000


def behind(partition: Partition, role: str, high_watermark: int) -> None:
    """A replicated partition of ten records, of which the others, or the leader, are known to have only so many."""
    lead(partition, 4, replicas=(1, 2))
    fill(partition)
    if role == "leader":
        replicate(partition, high_watermark)
    else:
        lead(partition, 5, leads=False, replicas=(1, 2))
        partition.append_as_follower(b"", 5, high_watermark, 0)
    assert partition.high_watermark == high_watermark and partition.log.log_end_offset == 10


def replicate(partition: Partition, offset: int) -> None:
    """The follower has everything before this offset."""
    assert partition.leading is not None
    partition.leading.fetched(2, offset, 0, time.monotonic(), 1)


@pytest.mark.parametrize("role", ["leader", "follower"])
@pytest.mark.parametrize("high_watermark", [0, 6, 9])
def test_retention_deletes_nothing_from_the_high_watermark_on(
    partition: Partition, role: str, high_watermark: int
) -> None:
    """The next leader may have something else there, and the follower that lacks it could not fetch it any more."""
    behind(partition, role, high_watermark)
    partition.configure(LogConfig(segment_bytes=500, retention_ms=0))
    bases = [segment.base_offset for segment in partition.log.segments]
    assert len(bases) == 3
    kept = max(base for base in bases if base <= high_watermark)
    assert partition.delete_old_segments(10**12) == bases.index(kept)
    assert partition.log.log_start_offset == kept and partition.log.log_end_offset == 10
    if role == "leader":
        replicate(partition, 10)
        partition.delete_old_segments(10**12)
        assert partition.log.log_start_offset == 10, "what all have goes"


def test_records_beyond_the_high_watermark_cannot_be_deleted(partition: Partition) -> None:
    behind(partition, "leader", 6)
    for offset in (10, 7):
        with pytest.raises(OffsetOutOfRange) as caught:
            partition.delete_records(offset)
        assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert partition.log.log_start_offset == 0
    assert partition.delete_records(-1) == 6
    replicate(partition, 10)
    assert partition.delete_records(10) == 10


@pytest.mark.conformance(58)
@pytest.mark.feature("113-19")
def test_truncation_cuts_both_copies(partition: Partition) -> None:
    fill(partition, 10, 8)
    partition.truncate_to(9)
    assert partition.future is not None and partition.future.log_end_offset == 8
    partition.truncate_to(4)
    assert partition.log.log_end_offset == partition.future.log_end_offset == 4


def test_waiters_are_called_with_new_bytes_and_for_state_changes(partition: Partition) -> None:
    seen: list[int] = []
    partition.add_waiter(seen.append)
    data = build_batch([b"x"])
    partition.append(data)
    lead(partition, 9, True)
    lead(partition, 9, True)
    partition.remove_waiter(seen.append)
    partition.append(data)
    assert seen == [len(data), WAKE]


def test_waiter_added_while_others_are_called_is_kept(partition: Partition) -> None:
    """Another thread may run whenever memory is asked for; here it does each time."""
    told: list[int] = []

    def another(phase: str, _: object) -> None:
        for to_end in (True, False):
            partition.add_waiter(lambda size: told.append(size), to_end=to_end)

    for _ in range(30):
        another("", None)
    thresholds = gc.get_threshold()
    gc.callbacks.append(another)
    gc.set_threshold(1)
    try:
        for number in range(10):
            partition.append(build_batch([b"%d" % number]))
        partition.wake(1)
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(another)
    assert len(told) > 300 and partition.log.log_end_offset == 10


def test_duplicate_batch_wakes_no_waiter(partition: Partition) -> None:
    data = build_batch([b"x"], producer_id=5, producer_epoch=0, base_sequence=0)
    partition.append(data)
    seen: list[int] = []
    partition.add_waiter(seen.append)
    assert partition.append(data).duplicate
    assert seen == []


@pytest.mark.conformance(52)
def test_swap_is_not_noticed_by_a_reader(partition: Partition, tmp_path: Path) -> None:
    fill(partition, 10, 10)
    old, future = partition.log, partition.future
    assert future is not None
    other = LogDirectory(tmp_path / "b", "B")
    seen: list[int] = []
    partition.add_waiter(seen.append)
    with partition.lock:
        partition.swapped(future.log, other, 8)
    old.close()
    assert partition.future is None and partition.generation == 8 and partition.directory is other
    assert partition.fetch(5, 10_000).base_offset == 5
    before = len(seen)
    assert partition.append(build_batch([b"x"])).base_offset == 10
    assert len(seen) == before + 1, "who waited before the swap is told what comes after it"
    other.pool.shutdown()


@pytest.mark.conformance(96)
def test_offline_and_deleted_replicas_say_so(partition: Partition) -> None:
    fill(partition, 1)
    partition.take_offline("I/O error")
    for attempt in (lambda: partition.append(build_batch([b"x"])), lambda: partition.fetch(0, 10)):
        with pytest.raises(LogDirectoryOffline):
            attempt()
    assert partition.delete_old_segments(10**15) == 0
    partition.delete()
    with pytest.raises(UnknownTopicOrPartition):
        partition.fetch(0, 10)


def sent(sequence: int) -> bytes:
    return build_batch([b"value"], producer_id=7, producer_epoch=0, base_sequence=sequence)


class TooFew:
    isr, least_in_sync, enough_in_sync = (1,), 2, False


@pytest.mark.parametrize("why", ["another node leads", "too few are in sync", "it is too large"])
def test_what_a_new_producer_sent_behind_a_refused_batch_does_not_overtake_it(partition: Partition, why: str) -> None:
    config = partition.log.config
    if why == "another node leads":
        lead(partition, 4, leads=False)
    elif why == "too few are in sync":
        partition.leading = TooFew()  # type: ignore[assignment]
    else:
        partition.configure(replace(config, max_message_bytes=10))
    with pytest.raises(RequestRefused):
        partition.append_for_all(sent(0))
    partition.leading = None
    partition.configure(config)
    lead(partition, 5)
    with pytest.raises(OutOfOrderSequence):
        partition.append_for_all(sent(1))
    assert [partition.append_for_all(sent(sequence))[0].base_offset for sequence in (0, 1)] == [0, 1]


@pytest.mark.parametrize("refused_before", [False, True], ids=["at its first try", "at its second"])
@pytest.mark.parametrize(("error", "raised"), [(errno.ENOSPC, NotEnoughSpace), (errno.EINTR, LogAppendError)])
def test_nor_one_that_the_disk_did_not_take(
    partition: Partition, faults: Faults, refused_before: bool, error: int, raised: type[Exception]
) -> None:
    if refused_before:
        partition.leading = TooFew()  # type: ignore[assignment]
        with pytest.raises(NotEnoughReplicas):
            partition.append_for_all(sent(0))
        partition.leading = None
    rule = faults.fail("pwritev", "*.log", error)
    with pytest.raises(raised):
        partition.append_for_all(sent(0))
    assert rule.hits
    faults.clear()
    with pytest.raises(OutOfOrderSequence):
        partition.append_for_all(sent(1))
    assert [partition.append_for_all(sent(sequence))[0].base_offset for sequence in (0, 1)] == [0, 1]


@pytest.mark.parametrize("there", ["replicated", "produced"])
def test_refused_batch_that_came_by_another_way_is_not_waited_for(partition: Partition, there: str) -> None:
    lead(partition, 4, leads=False)
    with pytest.raises(NotLeaderOrFollower):
        partition.append_for_all(sent(0))
    if there == "replicated":
        partition.append_as_follower(sent(0), 4, 1, 0)
        lead(partition, 5)
    else:
        lead(partition, 5)
        partition.append_for_all(sent(0))
    # The log forgets a producer that is silent for long; a leader elected lately has it begin a new epoch then.
    partition.log.producers.expire(2**62, 0)
    with pytest.raises(UnknownProducer):
        partition.append_for_all(sent(1))
    again = build_batch([b"0"], producer_id=7, producer_epoch=1, base_sequence=0)
    assert partition.append_for_all(again)[0].base_offset == 1
