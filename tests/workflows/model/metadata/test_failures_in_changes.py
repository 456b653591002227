"""A directory fails while its partition is reassigned, moved or deleted (KIP-18), in every order of the reports.

Whatever comes first, the partition ends in one of the change's own outcomes, and never with a leader or a member of the
ISR that cannot serve. What a node does to its disks meanwhile: tests/simulation/test_directory_fails_in_a_change.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import permutations
from typing import Any

import pytest

from storage_node.model.ids import NO_LEADER
from tests.support.scale import tally
from tests.workflows.model.metadata.test_replicated_commands import check
from tests.workflows.model.replicated import reassign, replicated, row, with_isr
from tests.workflows.model.support import apply, create, done, registration
from workflows.model.metadata.state import ClusterState

Event = Callable[[ClusterState], ClusterState]


def applied(*commands: dict[str, Any]) -> Event:
    """The state after commands that may be rejected: they may be late."""

    def event(state: ClusterState) -> ClusterState:
        for command in commands:
            state = apply(state, command).state
        return state

    return event


def failed(topic: str, node: int, directory: str, generation: int | None = 0) -> dict[str, Any]:
    """A node's report of a failed directory, with its replica of `t` (None: it held none)."""
    return {
        "do": "directory_failed",
        "node": node,
        "incarnation": f"i{node}",
        "directory": "/a",
        "directory_id": directory,
        "reason": "Input/output error",
        "noticed": 1.5,
        "replicas": [] if generation is None else [["t", topic, [[0, generation]]]],
    }


def placed(topic: str, node: int, directory: str, generation: int = 0) -> dict[str, Any]:
    return {"do": "assign_directories", "node": node, "replicas": [["t", 0, topic, directory, generation]]}


def able(state: ClusterState) -> tuple[int, ...]:
    """The nodes that can serve t-0 now."""
    held = row(state)
    places = zip(held.replicas, held.directories, strict=True)
    return tuple(node for node, directory in places if state.nodes[node].holds(directory))


def join(state: ClusterState) -> ClusterState:
    """The leader takes everybody into the ISR that has caught up, as long as something changes."""
    for _ in range(3):
        if "t" not in state.topics or row(state).leader == NO_LEADER or set(able(state)) == set(row(state).isr):
            break
        state = with_isr(state, able(state))
    return state


def every_order(begin: ClusterState, events: Iterable[Event], at_end: Callable[[ClusterState], None]) -> int:
    """Apply the events in every order, with what always holds checked after each; returns the number of orders."""
    number = 0
    for order in permutations(events):
        state = begin
        for event in order:
            after = event(state)
            if "t" in state.topics and "t" in after.topics and state.topics["t"].id == after.topics["t"].id:
                check(after, row(state), row(after), False)
            state = after
        at_end(state)
        number += 1
    return number


def mended(state: ClusterState) -> ClusterState:
    """Every directory is back: each node registers with all of its directories online."""
    for node in sorted(state.nodes):
        state = done(state, registration(node))
    return join(state)


@pytest.mark.feature("18-11")
@pytest.mark.parametrize("which", ["of the replica that leaves", "of the new replica", "of one that stays"])
def test_reassignment_with_a_failure_ends_complete_cancelled_or_waiting(which: str) -> None:
    node = {"of the replica that leaves": 1, "of the new replica": 4, "of one that stays": 2}[which]
    original, target = (1, 2, 3), (4, 2, 3)
    begin = replicated(original, nodes=4)
    topic = begin.topics["t"].id
    for each in original:
        begin = done(begin, placed(topic, each, f"d{each}"))
    bad = f"d{node}"
    offline = registration(node, online=False)
    lost = {"lost": [["t", 0, topic, bad, 0]]}
    events = [
        applied(reassign((0, target))),
        applied(placed(topic, 4, "d4")),
        join,
        applied(failed(topic, node, bad)),
        applied(offline | lost),
        applied(reassign((0, None))),
    ]

    def at_end(state: ClusterState) -> None:
        held = row(state)
        assert held.leader in able(state), "two of three can serve"
        # (A replica that is added after the failure is made in another directory: it is nowhere yet.)
        assert held.directory_of(node) != bad or node not in held.isr
        if held.assignment.reassigning:
            missing = set(target) - set(held.isr)
            assert missing and missing <= {4, node}, "it waits for a replica that cannot serve, or has not joined"
        else:
            assert held.replicas in (original, target), "complete, or cancelled"
        state = mended(state)
        held = row(state)
        assert not held.assignment.reassigning and set(held.isr) == set(held.replicas)
        assert held.replicas in (original, target)

    with tally("orders of failures in reassignments, moves and deletions") as counted:
        counted.count += every_order(begin, events, at_end)
        # The directory fails, and returns before the end.
        counted.count += every_order(
            begin, [*events[:4], applied(registration(node)), events[5]], at_end_mended(target)
        )


def at_end_mended(target: tuple[int, ...]) -> Callable[[ClusterState], None]:
    def at_end(state: ClusterState) -> None:
        held = row(mended(state))
        assert not held.assignment.reassigning and held.replicas in ((1, 2, 3), target)
        assert set(held.isr) == set(held.replicas)

    return at_end


@pytest.mark.feature("18-11")
def test_move_with_a_failure_ends_in_its_source_or_its_target() -> None:
    """Node 1 moves its replica from `d1` to `e1`, generation 1; reports of both may come late, and in any order."""
    begin = replicated((1, 2), nodes=2)
    topic = begin.topics["t"].id
    begin = done(done(begin, placed(topic, 1, "d1")), placed(topic, 2, "d2"))
    raised = {"do": "raise_generations", "node": 1, "replicas": [["t", 0, topic, "d1", 0]]}
    swapped = placed(topic, 1, "e1", 1)

    def known(state: ClusterState) -> tuple[str, int]:
        held = row(state)
        place = held.replicas.index(1)
        return held.directories[place], held.generations[place]

    def without_the_swap(state: ClusterState) -> None:
        assert known(state) == ("d1", 1) and able(state) == (2,) and row(state).leader == 2
        assert able(mended(state)) == (1, 2), "the source has come back"

    def with_the_swap(state: ClusterState) -> None:
        # The failure that the source's directory has after the swap does not concern the replica.
        assert known(state) == ("e1", 1) and set(able(state)) == {1, 2}
        assert row(state).leader in (1, 2) and row(join(state)).isr == (1, 2)

    def in_the_target(state: ClusterState) -> None:
        assert known(state) == ("e1", 1) and able(state) == (2,)
        assert able(mended(state)) == (1, 2)

    late = applied(placed(topic, 1, "d1", 0))
    source_fails, target_fails = applied(failed(topic, 1, "d1", 0)), applied(failed(topic, 1, "e1", 1))
    with tally("orders of failures in reassignments, moves and deletions") as counted:
        counted.count += every_order(begin, [applied(raised), source_fails, late, join], without_the_swap)
        counted.count += every_order(
            begin, [applied(raised), applied(swapped), source_fails, late, join], with_the_swap
        )
        counted.count += every_order(
            begin, [applied(raised), applied(swapped), target_fails, late, join, source_fails], in_the_target
        )


@pytest.mark.feature("18-11")
@pytest.mark.parametrize("again", [False, True])
def test_deletion_with_a_failure_leaves_nothing_and_a_new_topic_of_the_name_unharmed(again: bool) -> None:
    begin = replicated((1, 2), nodes=3)
    topic = begin.topics["t"].id
    begin = done(done(begin, placed(topic, 1, "d1")), placed(topic, 2, "d2"))
    delete = {"do": "delete_topics", "names": ["t"]}
    renewed = [create("t", assignment=[[1, 2]])] if again else []
    lost = {"lost": [["t", 0, topic, "d1", 1]], "assigned": [["t", 0, topic, "e1", 2]]}
    events = [
        applied(delete, *renewed),
        applied(failed(topic, 1, "d1", 1)),
        applied(registration(1, online=False) | lost),
        applied(placed(topic, 1, "e1", 3)),
        applied(reassign((0, (2, 3)))),
    ]

    def at_end(state: ClusterState) -> None:
        assert ("t" in state.topics) is again
        assert [each.online for each in state.nodes[1].directories if each.id == "d1"] == [False]
        if not again:
            return
        held = row(state)
        assert state.topics["t"].id != topic
        assert all(place == "" for place in held.directories) and set(held.generations) == {0}, "it has nothing of it"
        assert held.leader in (1, 2), "its replicas are nowhere yet, so that no directory's failure concerns them"

    with tally("orders of failures in reassignments, moves and deletions") as counted:
        counted.count += every_order(begin, events, at_end)
