"""A producer that the log does not know: what it sent behind a batch that was refused does not come before it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from storage_node.errors import OutOfOrderSequence
from storage_node.log import overtaking
from storage_node.log.batch import build_batch
from storage_node.log.overtaking import Overtaking, RefusedEarly
from storage_node.log.producer_state import MAX_SEQUENCE, Producer, ProducerState

NOBODY = ProducerState()


class Clock:
    """The monotonic clock, set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(overtaking, "time", made)
    return made


def sent(sequence: int, producer: int = 7, epoch: int = 0) -> bytes:
    return build_batch([b"value"], producer_id=producer, producer_epoch=epoch, base_sequence=sequence)


def by_the_replica(found: Overtaking, batch: bytes) -> None:
    found.refused(batch, NOBODY)


def before_it_was_asked(found: Overtaking, batch: bytes) -> None:
    early = RefusedEarly()
    early.refused("t", 0, batch)
    note = early.take("t", 0, batch)
    assert note is not None and not early
    found.refused_early(note)


Refuse = Callable[[Overtaking, bytes], None]

either_way = pytest.mark.parametrize("refuse", [by_the_replica, before_it_was_asked])


def refused(found: Overtaking, batch: bytes, known: ProducerState = NOBODY) -> bool:
    try:
        found.check(batch, known)
    except OutOfOrderSequence:
        return True
    return False


@either_way
@pytest.mark.parametrize("sequences", [(0,), (0, 3, 4), (3, 0)])
def test_what_was_sent_behind_it_waits_until_it_is_appended(refuse: Refuse, sequences: tuple[int, ...]) -> None:
    found = Overtaking()
    for sequence in sequences:
        refuse(found, sent(sequence))
    for _ in range(2):
        with pytest.raises(OutOfOrderSequence, match="0 was refused and has not come again"):
            found.check(sent(3), NOBODY)
        assert found.check(sent(0), NOBODY), "it is looked at, and that alone lets nothing pass"
    there = ProducerState({7: Producer(0)})
    found.forget_known(there)
    assert not found.check(sent(3), there) and not refused(found, sent(3)), "the log may forget the producer later"


@either_way
@pytest.mark.parametrize(
    "batch",
    [sent(0), sent(3, producer=8), sent(3, epoch=1), build_batch([b"value"]), b"short"],
    ids=["the same", "another producer", "another epoch", "no producer", "no batch"],
)
def test_everything_else_comes_as_it_is(refuse: Refuse, batch: bytes) -> None:
    found = Overtaking()
    refuse(found, sent(0))
    assert not refused(found, batch)
    assert refused(found, sent(3)), "and takes nothing back"


def test_nothing_was_refused() -> None:
    assert not Overtaking().check(sent(3), NOBODY)


def test_of_a_producer_that_the_log_knows_its_sequences_are_enough() -> None:
    found, known = Overtaking(), ProducerState({7: Producer(0)})
    found.refused(sent(4), known)
    assert not refused(found, sent(9))
    before_it_was_asked(found, sent(4))
    assert not refused(found, sent(9), known)


@either_way
def test_an_older_epoch_says_nothing_of_a_newer_one(refuse: Refuse) -> None:
    found = Overtaking()
    refuse(found, sent(4, epoch=2))
    refuse(found, sent(0, epoch=1))
    assert not refused(found, sent(9, epoch=1)) and refused(found, sent(9, epoch=2))
    found.forget_known(ProducerState({7: Producer(1)}))
    assert refused(found, sent(9, epoch=2))
    refuse(found, sent(0, epoch=3))
    assert not refused(found, sent(9, epoch=2)) and refused(found, sent(9, epoch=3))


@either_way
def test_it_is_forgotten_after_some_minutes_without_the_batch(refuse: Refuse, clock: Clock) -> None:
    found = Overtaking()
    refuse(found, sent(0))
    clock.now += overtaking.KEPT - 1
    refuse(found, sent(0))
    clock.now += overtaking.KEPT - 1
    assert refused(found, sent(3)), "the batch came again, and was refused again"
    clock.now += 2
    assert not refused(found, sent(3)), "what is refused for a note does not keep it"


def test_sequences_start_over() -> None:
    found = Overtaking()
    found.refused(sent(MAX_SEQUENCE), NOBODY)
    assert refused(found, sent(0)) and not refused(found, sent(MAX_SEQUENCE))


def test_a_bounded_number_is_remembered() -> None:
    for refuse in (by_the_replica, before_it_was_asked):
        found = Overtaking()
        for producer in range(overtaking.REMEMBERED + 1):
            refuse(found, sent(0, producer))
        assert not refused(found, sent(3, 0)) and refused(found, sent(3, 1))


def test_before_a_replica_is_asked_each_partition_has_its_own(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overtaking, "REMEMBERED_EARLY", 3)
    early = RefusedEarly()
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
    clock.now += overtaking.KEPT
    assert early.take("t", 1, sent(1)) is None and not early, "nobody came for the others"
