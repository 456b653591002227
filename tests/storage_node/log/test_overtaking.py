"""A producer that the log does not know: what it sent behind a batch that was refused does not come before it."""

from __future__ import annotations

import pytest

from storage_node.errors import OutOfOrderSequence
from storage_node.log import overtaking
from storage_node.log.batch import build_batch
from storage_node.log.overtaking import Overtaking
from storage_node.log.producer_state import Producer, ProducerState

NOBODY = ProducerState()


def sent(sequence: int, producer: int = 7, epoch: int = 0) -> bytes:
    return build_batch([b"value"], producer_id=producer, producer_epoch=epoch, base_sequence=sequence)


def after_refusing(*sequences: int) -> Overtaking:
    found = Overtaking()
    for sequence in sequences:
        found.refused(sent(sequence), NOBODY)
    return found


@pytest.mark.parametrize("refused", [(0,), (0, 3, 4), (3, 0)])
def test_what_was_sent_behind_it_waits_for_it(refused: tuple[int, ...]) -> None:
    found = after_refusing(*refused)
    for _ in range(2):
        with pytest.raises(OutOfOrderSequence, match="0 was refused and has not come again"):
            found.check(sent(3), NOBODY)
    found.check(sent(0), NOBODY)
    found.check(sent(3), ProducerState({7: Producer(0)}))


@pytest.mark.parametrize(
    "batch",
    [sent(0), sent(3, producer=8), sent(3, epoch=1), build_batch([b"value"]), b"short"],
    ids=["the same", "another producer", "another epoch", "no producer", "no batch"],
)
def test_everything_else_comes_as_it_is(batch: bytes) -> None:
    after_refusing(0).check(batch, NOBODY)


def test_nothing_was_refused() -> None:
    Overtaking().check(sent(3), NOBODY)


def test_of_a_producer_that_the_log_knows_its_sequences_are_enough() -> None:
    found, known = Overtaking(), ProducerState({7: Producer(0)})
    found.refused(sent(4), known)
    found.check(sent(9), NOBODY)


def test_a_bounded_number_is_remembered() -> None:
    found = Overtaking()
    for producer in range(overtaking.REMEMBERED + 1):
        found.refused(sent(0, producer), NOBODY)
    found.check(sent(3, 0), NOBODY)
    with pytest.raises(OutOfOrderSequence):
        found.check(sent(3, 1), NOBODY)
