"""A `.move` without an activity is asked about after a while, and less and less often."""

from __future__ import annotations

import itertools
from dataclasses import replace

from activities.moves.orphans import GRACE, LONGEST_GRACE, OrphanWatch, orphan
from activities.moves.starter import Orphan
from storage_node.model.ids import TopicPartition
from storage_node.move.status import MoveState, MoveStatus
from storage_node.ports import PlannedMove

TP = TopicPartition("t", 0)
LONE = MoveStatus(TP, MoveState.COPYING, "/a", "/b", claim=3, generation=2, owner="run", bytes_total=9)


def test_move_is_due_after_the_grace_without_an_activity() -> None:
    watch = OrphanWatch()
    nobody = lambda tp: False  # noqa: E731
    assert watch.due([LONE], nobody, 0.0) == []
    assert watch.due([LONE], nobody, GRACE - 0.1) == []
    assert watch.due([LONE], nobody, GRACE) == [LONE]
    assert watch.due([LONE], nobody, GRACE + 1) == []
    assert watch.due([LONE], lambda tp: True, GRACE + 2) == []
    assert watch.due([LONE], nobody, GRACE + 3) == []  # it starts again after somebody was at work
    assert watch.due([LONE], nobody, 2 * GRACE + 3) == []  # and takes longer every time
    assert watch.due([LONE], nobody, 3 * GRACE + 3) == [LONE]


def test_grace_grows_with_every_request() -> None:
    watch, asked, now = OrphanWatch(), [], 0.0
    while now < 400:
        if watch.due([LONE], lambda tp: False, now):
            asked.append(now)
        now += 0.5
    gaps = [after - before for before, after in itertools.pairwise(asked)]
    assert gaps == sorted(gaps) and gaps[-1] == LONGEST_GRACE


def test_moves_that_have_ended_are_left_alone() -> None:
    watch = OrphanWatch()
    ended = [replace(LONE, state=state) for state in (MoveState.SWAPPED, MoveState.CANCELLED, MoveState.SUSPENDED)]
    ended.append(replace(LONE, state=MoveState.FAILED, error="LogDirOffline"))
    for now in (0.0, 100.0, 200.0):
        assert watch.due(ended, lambda tp: False, now) == []


def test_orphan_has_the_move_and_its_last_run() -> None:
    told = orphan(replace(LONE, run_id="r", throttle=5))
    assert told == Orphan(PlannedMove(TP, "/a", "/b", claim=3, generation=2, size=9), "run", "r", 5)
