"""The timelines of recorded runs: what people read, and what holds for every history.

With REHOME_RECORD=1 in the environment the texts are written again.
"""

from __future__ import annotations

import os
from datetime import UTC

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHistory

from ops.cli.show import text
from ops.cli.show.timeline import Kind, Pending, Row, State, Timeline, merged, now, timeline
from tests.workflows.conftest import HISTORIES, read_history

TEXTS = HISTORIES.parent / "timelines"
RECORDED = sorted(path.name.removesuffix(".json.gz") for path in HISTORIES.glob("*.json.gz"))
SHOWN = [
    "directory-failure-waits",
    "move-cancel-mid-copy",
    "move-node-timeout-then-resume",
    "move-pause-resume",
    "plan-lane-brokers",
    "plan-paused",
    "plan-refused",
    "plan-rolled-back",
    "reassign-cancel-refused",
    "reassign-throttled",
]


def history(name: str) -> WorkflowHistory:
    return read_history(HISTORIES / f"{name}.json.gz")


def of(name: str) -> Timeline:
    found = history(name)
    return timeline(found.workflow_id, [found.events])


@pytest.mark.parametrize("name", SHOWN)
def test_text_of_a_recorded_run(name: str) -> None:
    path = TEXTS / f"{name}.txt"
    shown = "\n".join(text.lines(of(name), UTC)) + "\n"
    if os.environ.get("REHOME_RECORD"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(shown)
    assert shown == path.read_text()


def test_every_text_is_compared() -> None:
    assert sorted(path.stem for path in TEXTS.iterdir()) == SHOWN


@pytest.mark.parametrize("name", RECORDED)
def test_every_recorded_run_has_a_timeline(name: str) -> None:
    events, found = history(name).events, of(name)
    assert found.type and found.started == pytest.approx(events[0].event_time.ToMicroseconds() / 1e6, abs=0.001)
    assert found.started_by
    assert (found.outcome == "") == (found.ended is None)
    assert [row.at for row in found.rows] == sorted(row.at for row in found.rows)
    scheduled = sum(event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED for event in events)
    assert sum(row.count for row in found.rows if row.kind is Kind.STEP) == scheduled
    for row in found.rows:
        assert (row.seconds is None) == (row.state is State.OPEN)
    if found.outcome == "completed":
        assert not [row for row in found.rows if row.state is State.OPEN and row.kind is Kind.STEP]
    assert found.as_json()["version"] == 1


@pytest.mark.parametrize("name", [name for name in RECORDED if name.startswith(("move-", "reassign-", "plan-"))])
def test_open_run_shows_its_steps_and_what_it_waits_for(name: str) -> None:
    """A history that is cut anywhere has a timeline; a step that has not ended is open, with the server's attempt."""
    events = history(name).events
    for length in range(1, len(events)):
        found = timeline("id", [events[:length]], [Pending("copy", 3, "DiskFull: no space", "1.0 MB of 2.0 MB")])
        assert found.outcome == "" and found.ended is None and found.now
        open_copy = [row for row in found.rows if row.name == "copy" and row.state is State.OPEN]
        for row in open_copy:
            assert (row.attempts, row.failure) == (3, "DiskFull: no space")
            assert "1.0 MB of 2.0 MB, attempt 3 (the last one failed: DiskFull: no space)" in found.now


def test_phases_of_an_open_move_are_those_of_its_steps() -> None:
    found, cut = of("move-happy"), history("move-happy").events
    begun = [n for n, event in enumerate(cut) if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED][-1]
    opened = timeline("id", [cut[: begun + 1]])
    assert [each.name for each in opened.phases] == [each.name for each in found.phases]
    assert opened.phases[-1].seconds is None and found.phases[-1].seconds is not None


def test_chain_is_one_timeline() -> None:
    events = history("move-happy").events
    found = timeline("id", [events[:-1], events])
    assert found.started == of("move-happy").started and found.outcome == "completed"
    with pytest.raises(ValueError, match="the history of id is empty"):
        timeline("id", [])


def step(at: float, name: str = "follow", state: State = State.DONE, failure: str = "") -> Row:
    return Row(at, None if state is State.OPEN else 1.0, Kind.STEP, name, "", state, 1, failure)


def test_repeated_steps_are_one_row_unless_one_failed() -> None:
    rows = [step(0), step(1), step(2, failure="x"), step(3), step(4, "other"), step(5, "other", State.OPEN)]
    assert [(row.name, row.count, row.seconds) for row in merged(rows)] == [
        ("follow", 2, 2.0),
        ("follow", 1, 1.0),
        ("follow", 1, 1.0),
        ("other", 1, 1.0),
        ("other", 1, None),
    ]


def test_paused_run_says_so() -> None:
    updates = [Row(0, 0.0, Kind.UPDATE, "pause"), Row(1, 0.0, Kind.UPDATE, "resume")]
    assert now(updates[:1]) == "paused; waits for a message or its next step"
    assert now(updates) == "waits for a message or its next step"


def test_long_timeline_is_cut_on_a_terminal() -> None:
    rows = [step(number, f"step-{number}") for number in range(100)]
    shown = text.lines(Timeline("id", "", "T", 0.0, None, "x", "", "", "y", rows=rows), UTC)
    assert any("20 rows are left out; --json has all" in line for line in shown)
    assert "step-19" in shown[22] and "step-99" in shown[-3]
