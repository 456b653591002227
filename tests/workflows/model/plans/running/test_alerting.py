"""When a plan alerts: once for each occurrence, however its condition swings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from storage_node.model.fields import BadField
from workflows.model.plans import options
from workflows.model.plans.problems import PlanProblems
from workflows.model.plans.running import alerting
from workflows.model.plans.running.alerting import QUIET, Advance, Alarms, AlertEvent, AlertRequest

ALERT = AlertRequest(
    "prod", "oncall", "prod/plan/july", "stalled", "prod/plan/july/alert/stalled-1-1", "why", "40%", 5.0
)


@pytest.mark.parametrize(
    ("seen", "sent"),
    [
        ([(at, True) for at in range(0, 9_001, 300)], [1]),
        ([(0, True), (30, False), (60, True)], [1]),
        ([(0, True), (30, False), (30 + QUIET, False), (30 + 2 * QUIET, True)], [1, 2]),
        ([(0, True), (2 * QUIET, True)], [1, 2]),
        ([(0, False)], []),
    ],
    ids=["lasts", "swings", "ends and comes again", "was not looked at meanwhile", "never holds"],
)
def test_alarm_is_due_once_for_each_occurrence(seen: list[tuple[float, bool]], sent: list[int]) -> None:
    alarms = Alarms()
    found = [alarms.due(AlertEvent.STALLED, holds, 1e9 + at) for at, holds in seen]
    assert [each for each in found if each] == sent
    again = Alarms.of(alarms.as_json(), "$")
    assert again == alarms, "a continued run neither repeats nor forgets an alert"


def test_occurrence_that_is_over_for_good_begins_anew_at_once() -> None:
    alarms = Alarms()
    assert alarms.due(AlertEvent.APPROVAL, True, 1e9) == 1 and alarms.due(AlertEvent.APPROVAL, True, 1e9 + 1) == 0
    alarms.over(AlertEvent.APPROVAL)
    assert alarms.due(AlertEvent.APPROVAL, True, 1e9 + 2) == 2
    assert "waits for approval again: why" in alerting.sentence(replace(ALERT, event="approval"))


def test_plan_advances_by_bytes_and_by_ended_moves_and_rests_while_it_may_not_move() -> None:
    advance = Advance()
    assert advance.note(5, 0, 100.0) == 0 and advance.note(5, 0, 160.0) == 60
    assert advance.note(6, 0, 170.0) == 0 and advance.note(6, 1, 180.0) == 0
    assert Advance.of([*advance.mark, advance.since], "$") == advance
    advance.rest()
    assert advance.note(6, 1, 9_000.0) == 0, "a night outside the window is no stall"


@pytest.mark.parametrize("name", ["https://hooks.example/T0/secret", "a b", "ä", "x" * 65, "hooks.example/T0"])
def test_webhook_of_a_plan_is_a_name_and_never_a_url(name: str) -> None:
    with pytest.raises(PlanProblems, match=r"\$\.options\.alerts"):
        options.read({"alerts": name})


def test_parameter_of_an_alert_is_read_strictly() -> None:
    assert alerting.parse(ALERT.as_json()) == ALERT
    for row in ({"event": "bored"}, {"version": 2}, {"url": "https://x"}, {"id": "x" * 2_000}, {"webhook": "http://x"}):
        with pytest.raises(BadField):
            alerting.parse(ALERT.as_json() | row)
    assert alerting.sentence(ALERT) == "rehome: the plan prod/plan/july is stalled: why (40%)"
