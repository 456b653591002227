"""A run's phases as data: what leads where, what comes next, how far it is, how it ends."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflows.model import calls, moves
from workflows.model.absence import Absence
from workflows.model.calls import MoveRow, ReplicaMove
from workflows.model.moves import Replica

OUTCOMES = [
    calls.CREATED,
    calls.CAUGHT_UP,
    calls.BEHIND,
    calls.SWAPPED,
    calls.DELETED,
    calls.IN_PLACE,
    calls.DROPPED,
    calls.FAILED,
    calls.SUPERSEDED,
]


def replica(phase: str = moves.CREATING, **facts: object) -> Replica:
    asked = Replica.asked(ReplicaMove("t", 0, "/b"))
    return replace(asked, phase=phase, row=replace(asked.row, **facts))  # type: ignore[arg-type]


def answered(outcome: str, **facts: object) -> MoveRow:
    return replace(MoveRow("t", 0, outcome, directory="/b"), **facts)  # type: ignore[arg-type]


def test_the_table_is_closed() -> None:
    for (phase, outcome), then in moves.TRANSITIONS.items():
        assert phase in moves.UNDER_WAY and outcome in OUTCOMES
        assert then in moves.UNDER_WAY + moves.ENDS
    assert set(moves.STEPS) | {moves.WAITING} == set(moves.UNDER_WAY)


@pytest.mark.parametrize(("phase", "outcome"), list(product(moves.STEPS, OUTCOMES)))
def test_every_answer_in_every_phase_leads_somewhere_defined(phase: str, outcome: str) -> None:
    after = replica(phase).after(answered(outcome, message="why"), now=100.0)
    expected = moves.TRANSITIONS.get((phase, outcome))
    in_place = phase == moves.DELETING  # whatever the node says, the move itself is done
    assert after.phase == (expected or (moves.DONE if in_place else moves.FAILED))
    if expected is None and not in_place:
        assert (after.row.outcome, after.row.error) == (calls.FAILED, "NodeFailure")


@pytest.mark.parametrize("phase", moves.STEPS)
def test_from_every_phase_an_end_can_be_reached(phase: str) -> None:
    reached, frontier = {phase}, [phase]
    while frontier:
        here = frontier.pop()
        after = {then for (of, _), then in moves.TRANSITIONS.items() if of == here}
        after |= {moves.DELETING} if here == moves.WAITING else set()
        frontier += [each for each in after if each not in reached and each in moves.UNDER_WAY]
        reached |= after
    assert reached & set(moves.ENDS)


def test_facts_are_never_lost_and_an_error_goes_with_success() -> None:
    copied = answered(
        calls.CAUGHT_UP, source="/a", bytes_copied=500, seconds_copying=2.0, attempts=2, claim=4, generation=9
    )
    it = replica(moves.COPYING, error="MovesStopped", message="stopped").after(copied, 0.0)
    it = it.after(answered(calls.SWAPPED, seconds_locked=0.01, delete_after=60.0), now=1000.0)
    assert (it.phase, it.due, it.row.bytes_copied, it.row.source, it.row.attempts) == (
        moves.WAITING,
        1060.0,
        500,
        "/a",
        2,
    )
    assert (it.move.claim, it.move.generation, it.row.error) == (4, 9, "")


def test_a_failure_that_had_to_be_cleaned_up_stays_a_failure() -> None:
    it = replica(moves.COPYING).after(answered(calls.FAILED, error="TargetFull", message="full"), 0.0)
    assert it.phase == moves.FAILED
    it = it.to(moves.CANCELLING).after(answered(calls.DROPPED), 0.0)
    assert (it.phase, it.row.outcome, it.row.error) == (moves.FAILED, calls.FAILED, "TargetFull")


def test_what_goes_wrong_with_the_old_copy_does_not_undo_the_move() -> None:
    it = replica(moves.DELETING, outcome=calls.SWAPPED).after(answered(calls.FAILED, error="LogDirOffline"), 0.0)
    assert (it.phase, it.row.outcome) == (moves.DONE, calls.SWAPPED)


def test_the_earliest_phase_comes_next_and_a_cancel_first() -> None:
    phases = [moves.WAITING, moves.SWAPPING, moves.COPYING]
    assert moves.next_phase([replica(phase) for phase in phases]) == moves.COPYING
    assert moves.next_phase([replica(phase) for phase in [*phases, moves.CANCELLING]]) == moves.CANCELLING
    assert moves.next_phase([replica(phase) for phase in moves.ENDS]) is None


@pytest.mark.parametrize(
    ("outcomes", "status", "error"),
    [
        ([calls.DELETED], "completed", ""),
        ([calls.IN_PLACE, calls.FAILED], "completed", ""),
        ([calls.SWAPPED, calls.DROPPED], "completed", ""),
        ([calls.DROPPED, calls.DROPPED], "cancelled", ""),
        ([calls.DROPPED, calls.FAILED], "failed", "E1"),
        ([calls.FAILED, calls.FAILED], "failed", "E0"),
        ([calls.SUPERSEDED], "failed", "E0"),
    ],
)
def test_how_a_run_ends(outcomes: list[str], status: str, error: str) -> None:
    rows = [answered(outcome, error=f"E{at}", message="why") for at, outcome in enumerate(outcomes)]
    found = moves.verdict(rows)
    assert (found.status, found.error) == (status, error)
    assert status != "failed" or "why" in found.message


@pytest.mark.parametrize(
    ("seconds", "in_place", "now", "met"),
    [
        (None, 5.0, 9.0, None),
        (10.0, 10.0, 99.0, True),
        (10.0, 10.1, 99.0, False),
        (10.0, None, 9.0, None),
        (10.0, None, 11.0, False),
    ],
)
def test_the_sla(seconds: float | None, in_place: float | None, now: float, met: bool | None) -> None:
    found = moves.sla(seconds, 100.0, None if in_place is None else 100.0 + in_place, 100.0 + now)
    assert found["met"] is met
    assert found["took"] == (None if in_place is None else pytest.approx(in_place))


@given(st.integers(0, 1 << 50), st.integers(0, 1 << 50), st.floats(0, 1e10))
def test_the_eta_is_a_time_or_unknown(total: int, done: int, rate: float) -> None:
    found = moves.eta(total, done, rate)
    assert found is None or found >= 0
    assert not (total and done >= total) or found == 0


def test_progress_takes_the_live_copy_until_the_step_has_answered() -> None:
    it = replica(moves.COPYING, bytes_total=1000)
    live = {
        "state": "throttled",
        "bytes_total": 1000,
        "bytes_copied": 400,
        "bytes_resumed": 300,
        "rate": 60.0,
        "attempt": 2,
        "next_in": 10.0,
    }
    found = moves.progress(it.reported(live, 50.0), now=53.0)
    assert (found["bytes_copied"], found["bytes_resumed"], found["eta_seconds"], found["attempt"], found["state"]) == (
        400,  # what was found on disk when the copy went on is part of what it holds
        300,
        10.0,
        2,
        "throttled",
    )
    assert found["report_age"] == 3.0
    assert moves.progress(it, now=53.0)["report_age"] is None
    assert moves.progress(replica(moves.WAITING, bytes_total=1000), now=0.0)["bytes_copied"] == 1000


def test_while_the_node_is_away_the_last_report_stands() -> None:
    live = {"state": "copying", "bytes_total": 1000, "bytes_copied": 400, "rate": 60.0, "next_in": 10.0}
    it = replica(moves.COPYING).reported(live, now=100.0)
    assert not it.silent(since=90.0, now=100.0 + 10 + moves.SILENCE)
    assert it.silent(since=90.0, now=100.0 + 11 + moves.SILENCE)
    assert not it.silent(since=120.0, now=130.0), "a step that was just asked for has its time"
    assert not replace(it, phase=moves.SWAPPING).silent(since=0.0, now=1e6)
    found = moves.progress(it, now=160.0, waiting_for="node 3")
    assert (found["bytes_copied"], found["report_age"], found["state"]) == (400, 60.0, "waiting for node 3")
    assert (found["rate"], found["eta_seconds"]) == (0.0, None)
    assert found["stall"] == "away"
    # What the dead attempt's last heartbeat said is as good as a report.
    kept = replace(it, row=replace(it.row, bytes_total=1000, bytes_copied=500), live=None)
    assert moves.progress(kept, now=160.0, waiting_for="node 3")["bytes_copied"] == 500


@pytest.mark.parametrize("absence", list(Absence))
def test_progress_reports_why_the_node_is_missed(absence: Absence) -> None:
    it = replica(moves.COPYING).reported({"state": "copying"}, now=100.0)
    found = moves.progress(it, now=160.0, waiting_for="node 3", absence=absence)
    assert found["stall"] == absence
    words = {"dead": "is dead", "cut_off": "is cut off", "fenced": "is fenced", "away": "has not reported why"}
    assert [name for name, word in words.items() if word in found["stall_message"]] == [absence]
    assert found["stall_message"].endswith("; it was last heard of 60 s ago")


def test_seconds_without_the_node_stay_in_the_row() -> None:
    it = replica(moves.COPYING, seconds_by_reason={"copying": 5.0}).spent({"dead": 20.0}).spent({"dead": 2.0})
    assert it.row.seconds_by_reason == {"copying": 5.0, "dead": 22.0}
    live = it.reported({"seconds_by_reason": {"copying": 7.0, "dead": 20.0}}, 0.0)
    assert moves.progress(live, now=1.0)["seconds_by_reason"] == {"copying": 7.0, "dead": 22.0}
    row = answered(calls.CAUGHT_UP, seconds_by_reason={"copying": 9.0})
    assert it.after(row, 0.0).row.seconds_by_reason == {"copying": 9.0, "dead": 22.0}


def test_a_new_target_counts_its_own_bytes() -> None:
    it = replica(moves.COPYING, bytes_total=1000, bytes_copied=600, bytes_resumed=100, seconds_copying=3.0)
    aimed = it.aimed_at("/c").after(answered(calls.CREATED, directory="/c", bytes_total=1000), 0.0)
    assert (aimed.row.bytes_copied, aimed.row.bytes_resumed, aimed.row.seconds_copying) == (0, 0, 3.0)
