"""Batches that a producer without state sent behind a rejected batch are not appended before it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from storage_node.errors import OutOfOrderSequence, RequestRefused, UnknownProducer
from storage_node.log import rejected_first_batches
from storage_node.log.batches.batch import build_batch
from storage_node.log.producers.state import MAX_SEQUENCE, Producer, ProducerState
from storage_node.log.rejected_first_batches import RejectedFirstBatches, ReplicaRejections

NOBODY = ProducerState()


class Clock:
    """A monotonic clock set by the test."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(rejected_first_batches, "time", made)
    return made


def sent(sequence: int, producer: int = 7, epoch: int = 0) -> bytes:
    return build_batch([b"value"], producer_id=producer, producer_epoch=epoch, base_sequence=sequence)


def by_the_replica(found: ReplicaRejections, batch: bytes) -> None:
    found.refused(batch, NOBODY)


def before_it_was_asked(found: ReplicaRejections, batch: bytes) -> None:
    early = RejectedFirstBatches()
    early.refused("t", 0, batch)
    note = early.take("t", 0, batch)
    assert note is not None and not early
    found.refused_early(note)


Refuse = Callable[[ReplicaRejections, bytes], None]

either_way = pytest.mark.parametrize("refuse", [by_the_replica, before_it_was_asked])


def refused(found: ReplicaRejections, batch: bytes, known: ProducerState = NOBODY) -> bool:
    try:
        found.check(batch, known)
    except OutOfOrderSequence:
        return True
    return False


@either_way
@pytest.mark.parametrize("sequences", [(0,), (0, 3, 4), (3, 0)])
def test_batches_behind_a_rejected_one_are_rejected_until_it_is_appended(
    refuse: Refuse, sequences: tuple[int, ...]
) -> None:
    found = ReplicaRejections()
    for sequence in sequences:
        refuse(found, sent(sequence))
    for _ in range(2):
        with pytest.raises(OutOfOrderSequence, match="0 was rejected and has not been sent again"):
            found.check(sent(3), NOBODY)
        assert found.check(sent(0), NOBODY), "the check alone accepts nothing"
    there = ProducerState({7: Producer(0)})
    found.forget_known(there)
    assert not found.check(sent(3), there) and not refused(found, sent(3)), "the log may forget the producer later"


@either_way
@pytest.mark.parametrize(
    "batch",
    [sent(0), sent(3, producer=8), sent(3, epoch=1), build_batch([b"value"]), b"short"],
    ids=["the same", "another producer", "another epoch", "no producer", "no batch"],
)
def test_other_batches_are_accepted(refuse: Refuse, batch: bytes) -> None:
    found = ReplicaRejections()
    refuse(found, sent(0))
    assert not refused(found, batch)
    assert refused(found, sent(3)), "and takes nothing back"


def test_batch_without_earlier_rejection_is_accepted() -> None:
    assert not ReplicaRejections().check(sent(3), NOBODY)


def test_note_is_ignored_if_the_log_has_state_of_the_producer() -> None:
    found, known = ReplicaRejections(), ProducerState({7: Producer(0)})
    found.refused(sent(4), known)
    assert not refused(found, sent(9))
    before_it_was_asked(found, sent(4))
    assert not refused(found, sent(9), known)


@either_way
def test_note_of_an_older_epoch_does_not_affect_a_newer_one(refuse: Refuse) -> None:
    found = ReplicaRejections()
    refuse(found, sent(4, epoch=2))
    refuse(found, sent(0, epoch=1))
    assert not refused(found, sent(9, epoch=1)) and refused(found, sent(9, epoch=2))
    found.forget_known(ProducerState({7: Producer(1)}))
    assert refused(found, sent(9, epoch=2))
    refuse(found, sent(0, epoch=3))
    assert not refused(found, sent(9, epoch=2)) and refused(found, sent(9, epoch=3))


@either_way
def test_note_expires_without_the_batch(refuse: Refuse, clock: Clock) -> None:
    found = ReplicaRejections()
    refuse(found, sent(0))
    clock.now += rejected_first_batches.KEPT - 1
    refuse(found, sent(0))
    clock.now += rejected_first_batches.KEPT - 1
    assert refused(found, sent(3)), "the batch came again, and was refused again"
    clock.now += 2
    assert not refused(found, sent(3)), "what is refused for a note does not keep it"


def test_sequences_start_over() -> None:
    found = ReplicaRejections()
    found.refused(sent(MAX_SEQUENCE), NOBODY)
    assert refused(found, sent(0)) and not refused(found, sent(MAX_SEQUENCE))


def after_an_election(batch: bytes, known: ProducerState = NOBODY, log_start: int = 0) -> type[RequestRefused] | None:
    found = ReplicaRejections()
    found.elected()
    try:
        assert not found.check(batch, known, log_start)
    except (OutOfOrderSequence, UnknownProducer) as error:
        return type(error)
    return None


def having_forgotten() -> ProducerState:
    known = ProducerState({8: Producer(0), 9: Producer(0)})
    assert known.forget(1) == 1
    return known


@pytest.mark.parametrize(
    ("batch", "known", "log_start", "error"),
    [
        (sent(3), NOBODY, 0, OutOfOrderSequence),
        (sent(3), ProducerState({8: Producer(0)}), 0, OutOfOrderSequence),
        (sent(3), NOBODY, 12, UnknownProducer),
        (sent(3), having_forgotten(), 0, UnknownProducer),
        (sent(0), NOBODY, 0, None),
        (sent(0), NOBODY, 12, None),
        (sent(3), ProducerState({7: Producer(0)}), 0, None),
        (build_batch([b"value"]), NOBODY, 0, None),
    ],
    ids=[
        "the first batch is missing",
        "other producers are known",
        "records were deleted",
        "a producer was forgotten",
        "the first batch",
        "the first batch of a new epoch",
        "its sequences decide",
        "no producer",
    ],
)
def test_new_leader_rejects_a_first_batch_that_others_precede(
    batch: bytes, known: ProducerState, log_start: int, error: type[RequestRefused] | None
) -> None:
    assert after_an_election(batch, known, log_start) is error


def test_leader_elected_long_ago_accepts_any_first_sequence(clock: Clock) -> None:
    found = ReplicaRejections()
    found.elected()
    clock.now += rejected_first_batches.UNSETTLED - 1
    assert refused(found, sent(3))
    clock.now += 2
    assert not refused(found, sent(3))
    clock.now -= 2
    assert not refused(found, sent(3)), "the election is settled"


@pytest.mark.parametrize("forget", [lambda known: known.forget(0), lambda known: known.expire(10**15, 1)])
def test_producer_state_records_that_it_has_forgotten(forget: Callable[[ProducerState], int]) -> None:
    known, other = ProducerState({7: Producer(0)}), ProducerState()
    assert not known.has_forgotten and forget(known) == 1 and known.has_forgotten
    other.take_over(known)
    assert other.has_forgotten


def test_number_of_notes_is_bounded() -> None:
    for refuse in (by_the_replica, before_it_was_asked):
        found = ReplicaRejections()
        for producer in range(rejected_first_batches.REMEMBERED + 1):
            refuse(found, sent(0, producer))
        assert not refused(found, sent(3, 0)) and refused(found, sent(3, 1))


def test_early_notes_are_kept_per_partition(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejected_first_batches, "REMEMBERED_EARLY", 3)
    early = RejectedFirstBatches()
    for topic, partition in (("t", 0), ("t", 1), (b"id", 0), ("u", 0)):
        early.refused(topic, partition, sent(0))
    for nothing in (None, b"", build_batch([b"value"])):
        early.refused("t", 9, nothing)
        assert early.take("t", 1, nothing) is None
    assert early.take("t", 0, sent(1)) is None, "only the newest are remembered"
    assert early.take("t", 1, sent(1, producer=8)) is None
    found = early.take("t", 1, sent(1))
    assert found is not None and (found.producer, found.sequence) == (7, 0)
    assert early.take("t", 1, sent(1)) is None and len(early) == 2
    clock.now += rejected_first_batches.KEPT
    assert early.take("t", 1, sent(1)) is None and not early, "the other notes are never taken"
