"""A run's phases as data: what leads where, what comes next, how far it is, how it ends."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_node.model.moves import ABSENCES, Event, Outcome, Phase, StallReason
from tests.support.sla_cases import CASES, SlaCase
from workflows.model.calls import MoveRow, ReplicaMove
from workflows.model.move import moves
from workflows.model.move.moves import MovingReplica
from workflows.model.reports import MoveReport


def replica(phase: Phase = Phase.CREATING, **facts: object) -> MovingReplica:
    asked = MovingReplica.requested(ReplicaMove("t", 0, "/b"))
    return replace(asked, phase=phase, row=replace(asked.row, **facts))  # type: ignore[arg-type]


def answered(outcome: Outcome, **facts: object) -> MoveRow:
    return replace(MoveRow("t", 0, outcome, directory="/b"), **facts)  # type: ignore[arg-type]


#: Phases in which something is still to be done.
OPEN = [phase for phase in Phase if not phase.ended]
#: What a step's row can bring in each phase, beside its outcome.
SPECIAL = {
    Event.FAILED_WITH_COPY: {Phase.CREATING, Phase.COPYING, Phase.SWAPPING},
    Event.TARGET_REJECTED: {Phase.CREATING},
    Event.COPY_REMOVED: {Phase.CANCELLING},
}
#: The outcomes that no step of a phase may have: they are a failure of the node.
UNEXPECTED = {
    Phase.CREATING: {Outcome.BEHIND, Outcome.DELETED},
    Phase.COPYING: {Outcome.CREATED, Outcome.DELETED},
    Phase.SWAPPING: {Outcome.CREATED, Outcome.CAUGHT_UP, Outcome.DELETED},
    Phase.DELETING: set(),
    Phase.CANCELLING: {Outcome.CREATED, Outcome.CAUGHT_UP, Outcome.BEHIND},
}


def test_table_covers_open_phases_only_and_every_outcome_is_an_event() -> None:
    assert {phase for phase, _ in moves.TRANSITIONS} == set(OPEN)
    assert {Event(outcome) for outcome in Outcome} | set(SPECIAL) == {event for event in Event if event.of_step}
    assert set(moves.ORDER) == set(OPEN) == set(moves.STEPS) | {Phase.DELETE_DELAY}
    for event, phases in SPECIAL.items():
        assert {phase for phase, on in moves.TRANSITIONS if on is event} == phases


@pytest.mark.parametrize(("phase", "event"), list(product(Phase, Event)))
def test_on_every_event_in_every_phase_follows_the_table_stays_or_fails(phase: Phase, event: Event) -> None:
    it = replica(phase, outcome=Outcome.SWAPPED if phase.in_place else None)
    row = answered(Outcome(event), message="why") if event in set(Outcome) else None
    after = it.on(event, 100.0, row=row, directory="/c")
    transition = moves.TRANSITIONS.get((phase, event))
    if transition is not None:
        assert after.phase is transition.phase
        assert after == replace(transition.effect(it, moves.Given(100.0, row, "/c")), phase=transition.phase)
    elif not event.of_step:
        assert after == it, "a request or a timer that comes too late changes nothing"
    else:
        assert (after.phase, after.row.outcome, after.row.error) == (Phase.FAILED, "failed", "NodeFailure")
        assert str(event) in after.row.message


@pytest.mark.parametrize(("phase", "outcome"), list(product(moves.STEPS, Outcome)))
def test_after_an_outcome_that_the_step_cannot_have_the_replica_has_failed(phase: Phase, outcome: Outcome) -> None:
    after = replica(phase, outcome=Outcome.SWAPPED if phase.in_place else None).after(answered(outcome), 100.0)
    unexpected = outcome in UNEXPECTED[phase]
    assert unexpected == ((phase, Event(outcome)) not in moves.TRANSITIONS)
    assert (after.row.error == "NodeFailure") == unexpected
    if phase is Phase.DELETING:
        assert after.phase.in_place, "whatever the node reports of the old copy, the move itself is done"


def test_requests_are_accepted_only_before_the_swap() -> None:
    for request in (Event.CANCEL, Event.DROP, Event.RETARGET):
        assert {phase for phase, event in moves.TRANSITIONS if event is request} == {
            phase for phase in Phase if phase.before_swap
        }
    assert [phase for phase, event in moves.TRANSITIONS if event is Event.DELETE_DUE] == [Phase.DELETE_DELAY]


@pytest.mark.parametrize("phase", OPEN)
def test_from_every_phase_an_end_can_be_reached(phase: Phase) -> None:
    reached, frontier = {phase}, [phase]
    while frontier:
        here = frontier.pop()
        after = {then.phase for (of, _), then in moves.TRANSITIONS.items() if of is here}
        frontier += [each for each in after if each not in reached and not each.ended]
        reached |= after
    assert any(each.ended for each in reached)


def test_merged_rows_keep_facts_and_drop_errors_on_success() -> None:
    copied = answered(
        Outcome.CAUGHT_UP, source="/a", bytes_copied=500, seconds_copying=2.0, attempts=2, claim=4, generation=9
    )
    it = replica(Phase.COPYING, error="MovesStopped", message="stopped").after(copied, 0.0)
    it = it.after(answered(Outcome.SWAPPED, seconds_locked=0.01, delete_after=60.0), now=1000.0)
    assert (it.phase, it.due, it.row.bytes_copied, it.row.source, it.row.attempts) == (
        Phase.DELETE_DELAY,
        1060.0,
        500,
        "/a",
        2,
    )
    assert (it.move.claim, it.move.generation, it.row.error) == (4, 9, "")


def test_failure_with_a_removed_copy_stays_a_failure() -> None:
    it = replica(Phase.COPYING).after(answered(Outcome.FAILED, error="TargetFull", message="full"), 0.0)
    assert it.phase == Phase.CANCELLING, "its `.move` may be on a good disk"
    it = it.after(answered(Outcome.CANCELLED), 0.0)
    assert (it.phase, it.row.outcome, it.row.error) == (Phase.FAILED, Outcome.FAILED, "TargetFull")


def test_failed_deletion_of_the_source_keeps_the_move_done() -> None:
    it = replica(Phase.DELETING, outcome=Outcome.SWAPPED).after(answered(Outcome.FAILED, error="LogDirOffline"), 0.0)
    assert (it.phase, it.row.outcome) == (Phase.DONE, Outcome.SWAPPED)


def test_next_phase_is_the_earliest_and_a_cancel_first() -> None:
    phases = [Phase.DELETE_DELAY, Phase.SWAPPING, Phase.COPYING]
    assert moves.next_phase([replica(phase) for phase in phases]) == Phase.COPYING
    assert moves.next_phase([replica(phase) for phase in [*phases, Phase.CANCELLING]]) == Phase.CANCELLING
    assert moves.next_phase([replica(phase) for phase in Phase if phase.ended]) is None


@pytest.mark.parametrize(
    ("outcomes", "status", "error"),
    [
        ([Outcome.DELETED], "completed", ""),
        ([Outcome.IN_PLACE, Outcome.FAILED], "completed", ""),
        ([Outcome.SWAPPED, Outcome.CANCELLED], "completed", ""),
        ([Outcome.CANCELLED, Outcome.CANCELLED], "cancelled", ""),
        ([Outcome.CANCELLED, Outcome.FAILED], "failed", "E1"),
        ([Outcome.FAILED, Outcome.FAILED], "failed", "E0"),
        ([Outcome.SUPERSEDED], "failed", "E0"),
    ],
)
def test_verdict_of_a_run_by_its_rows(outcomes: list[str], status: str, error: str) -> None:
    rows = [answered(outcome, error=f"E{at}", message="why") for at, outcome in enumerate(outcomes)]
    found = moves.verdict(rows)
    assert (found.status, found.error) == (status, error)
    assert status != "failed" or "why" in found.message


LANE = {"open": Phase.COPYING, "failed": Phase.FAILED, "cancelled": Phase.CANCELLED, "superseded": Phase.SUPERSEDED}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_sla_judges_the_lane_by_the_table(case: SlaCase) -> None:
    lane = [replica(LANE.get(outcome, Phase.DONE), error=error) for outcome, error in case.rows]
    now = 100.0 + case.after
    settled = None if ("open", "") in case.rows else now
    # What is settled is judged by its end, however late the query comes.
    found = moves.sla(lane, case.deadline, 100.0, settled, now if settled is None else now + 9999)
    assert found.met is {"yes": True, "no": False}.get(case.lane)
    in_place = settled is not None and any(each.phase.in_place for each in lane)
    assert found.took == (pytest.approx(case.after) if in_place else None)


@given(st.integers(0, 1 << 50), st.integers(0, 1 << 50), st.floats(0, 1e10))
def test_eta_is_a_time_or_unknown(total: int, done: int, rate: float) -> None:
    found = moves.eta(total, done, rate)
    assert found is None or found >= 0
    assert not (total and done >= total) or found == 0


def test_progress_uses_the_live_report_until_the_step_returns() -> None:
    it = replica(Phase.COPYING, bytes_total=1000)
    live = MoveReport(
        "t",
        0,
        state="throttled",
        bytes_total=1000,
        bytes_copied=400,
        bytes_resumed=300,
        rate=60.0,
        attempt=2,
        next_in=10.0,
    )
    found = moves.progress(it.reported(live, 50.0), now=53.0)
    assert (found.bytes_copied, found.bytes_resumed, found.eta_seconds, found.attempt, found.state) == (
        400,  # what was found on disk when the copy went on is part of what it holds
        300,
        10.0,
        2,
        "throttled",
    )
    assert found.report_age == 3.0
    assert moves.progress(it, now=53.0).report_age is None
    assert moves.progress(replica(Phase.DELETE_DELAY, bytes_total=1000), now=0.0).bytes_copied == 1000


def test_progress_keeps_the_last_report_while_the_node_is_unavailable() -> None:
    live = MoveReport("t", 0, state="copying", bytes_total=1000, bytes_copied=400, rate=60.0, next_in=10.0)
    it = replica(Phase.COPYING).reported(live, now=100.0)
    assert not it.silent(since=90.0, now=100.0 + 10 + moves.SILENCE)
    assert it.silent(since=90.0, now=100.0 + 11 + moves.SILENCE)
    assert not it.silent(since=120.0, now=130.0), "a step that was just asked for has its time"
    assert not replace(it, phase=Phase.SWAPPING).silent(since=0.0, now=1e6)
    found = moves.progress(it, now=160.0, waiting_for="node 3")
    assert (found.bytes_copied, found.report_age, found.state) == (400, 60.0, "waiting for node 3")
    assert (found.rate, found.eta_seconds) == (0.0, None)
    assert found.stall == "unavailable"
    # What the dead attempt's last heartbeat said is as good as a report.
    kept = replace(it, row=replace(it.row, bytes_total=1000, bytes_copied=500), live=None)
    assert moves.progress(kept, now=160.0, waiting_for="node 3").bytes_copied == 500


@pytest.mark.parametrize("absence", sorted(ABSENCES))
def test_progress_reports_why_the_node_is_missed(absence: StallReason) -> None:
    it = replica(Phase.COPYING).reported(MoveReport("t", 0, state="copying"), now=100.0)
    found = moves.progress(it, now=160.0, waiting_for="node 3", absence=absence)
    assert found.stall == absence
    words = {"dead": "is dead", "cut_off": "is cut off", "fenced": "is fenced", "unavailable": "has not reported why"}
    assert [name for name, word in words.items() if word in found.stall_message] == [absence]
    assert found.stall_message.endswith("; its last report is 60 s old")


def test_seconds_without_the_node_stay_in_the_row() -> None:
    it = replica(Phase.COPYING, seconds_by_reason={"copying": 5.0}).spent({"dead": 20.0}).spent({"dead": 2.0})
    assert it.row.seconds_by_reason == {"copying": 5.0, "dead": 22.0}
    live = it.reported(MoveReport("t", 0, seconds_by_reason={"copying": 7.0, "dead": 20.0}), 0.0)
    assert moves.progress(live, now=1.0).seconds_by_reason == {"copying": 7.0, "dead": 22.0}
    row = answered(Outcome.CAUGHT_UP, seconds_by_reason={"copying": 9.0})
    assert it.after(row, 0.0).row.seconds_by_reason == {"copying": 9.0, "dead": 22.0}


def test_new_target_counts_its_own_bytes() -> None:
    it = replica(Phase.COPYING, bytes_total=1000, bytes_copied=600, bytes_resumed=100, seconds_copying=3.0)
    aimed = it.on(Event.RETARGET, directory="/c").after(
        answered(Outcome.CREATED, directory="/c", bytes_total=1000), 0.0
    )
    assert (aimed.row.bytes_copied, aimed.row.bytes_resumed, aimed.row.seconds_copying) == (0, 0, 3.0)
