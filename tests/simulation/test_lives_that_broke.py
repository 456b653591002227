"""Lives of a node that random ones were shrunk to, once each had broken a promise; see `test_state_machine`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.node_actions import NodeActions


def a_creation_that_a_disk_did_not_take(life: NodeActions) -> None:
    """The older copy cannot be put aside by the next start: its disk fails again, and that is noticed."""
    life.delete_topic(known=True)
    life.fail("a", "one flush fails", 6)
    life.fail("b", "dead", 0)
    life.fail("a", "one read error", 6)
    life.create_topic()
    if life.node is None:
        life.boot()


def two_topics_of_one_name_leave_copies_of_one_generation(life: NodeActions) -> None:
    """What the second one leaves cannot take the name that what the first one left has already."""
    life.crash_soon(5, False, [])
    life.delete_topic(known=False)
    life.create_topic()
    life.boot()
    for _ in range(8):
        life.tell()
    life.move_all("b", 0, [])
    for _ in range(2):
        life.tell()
    life.fail("a", "one flush fails", 5)
    life.delete_topic(known=False)
    life.create_topic()
    if life.node is None:
        life.boot()


def _a_topic_whose_image_no_disk_keeps(life: NodeActions) -> None:
    life.delete_topic(known=False)
    life.fail("c", "dead", 0)
    life.fail("b", "dead", 0)
    life.create_topic()
    life.delete_topic(known=False)
    life.fail("a", "no space once", 0)
    life.create_topic()


def a_topic_that_the_image_at_the_start_does_not_know(life: NodeActions) -> None:
    """Its replica is served once an image has the topic."""
    _a_topic_whose_image_no_disk_keeps(life)


def a_topic_that_was_deleted_before_an_image_was_kept(life: NodeActions) -> None:
    """Its replica is removed once an image says so."""
    _a_topic_whose_image_no_disk_keeps(life)
    life.delete_topic(known=False)


def a_topic_deleted_while_no_disk_takes_a_word_of_it(life: NodeActions) -> None:
    """What is left of its replica has no reason in its marker, and goes once an image says that the topic is gone."""
    life.stop_moves()
    life.tell()
    life.fill("a", 0)
    life.fail("b", "dead", 0)
    life.fail("c", "dead", 0)
    life.delete_topic(known=True)


def a_topic_deleted_and_created_while_no_disk_takes_a_word_of_it(life: NodeActions) -> None:
    """The same, and a new topic has the name."""
    life.fill("a", 0)
    life.fail("c", "dead", 0)
    life.fail("b", "one flush fails", 1)
    _die_moving(life, 6)
    life.delete_topic(known=False)
    life.create_topic()


def _die_moving(life: NodeActions, steps: int) -> None:
    life.crash_soon(steps, False, [])
    life.go_on("a", [])
    life.machine.crash_at(None)
    if life.node is None:
        life.boot()


def a_copy_killed_while_its_first_segment_was_replaced(life: NodeActions) -> None:
    """Both segments are there, and the copy goes on."""
    for _ in range(5):
        life.go_on("a", [])
    life.produce(2, 2)
    for _ in range(3):
        life.go_on("a", [])
    life.produce(1, 1)
    life.go_on("b", [])
    life.go_on("a", [("delete_records", 1), ("pause", 0)])
    for _ in range(3):
        life.go_on("a", [])
    _die_moving(life, 1)
    _die_moving(life, 17)


@pytest.mark.parametrize(
    "lived",
    [
        a_creation_that_a_disk_did_not_take,
        two_topics_of_one_name_leave_copies_of_one_generation,
        a_topic_that_the_image_at_the_start_does_not_know,
        a_topic_that_was_deleted_before_an_image_was_kept,
        a_topic_deleted_while_no_disk_takes_a_word_of_it,
        a_topic_deleted_and_created_while_no_disk_takes_a_word_of_it,
        a_copy_killed_while_its_first_segment_was_replaced,
    ],
)
def test_no_promise_is_broken(lived: Callable[[NodeActions], None]) -> None:
    life = NodeActions()
    try:
        life.begin(follow=False)
        lived(life)
        life.look()
        life.end()
    finally:
        life.close()
