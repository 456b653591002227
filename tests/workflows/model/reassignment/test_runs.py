"""Decisions of a run of reassignments: what becomes of a partition, who deletes, how the run ends, what it is given."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_node.model.assignment import Assignment
from storage_node.model.fields import BadField
from storage_node.model.moves import StallReason
from storage_node.model.reassignments import ReassignmentPhase, ReplicaOutcome
from workflows.model import messages
from workflows.model.calls import ReplicaRow
from workflows.model.controller.run_requests import nodes_of
from workflows.model.metadata.outcome import Reassigned
from workflows.model.phases import Phases
from workflows.model.reassignment import runs
from workflows.model.reassignment.progress import NodeReports, eta
from workflows.model.reassignment.progress import of_run as progress_of_run
from workflows.model.reassignment.request import change_row, groups, made_by_controller, parse, read_change, summary
from workflows.model.reassignment.runs import PartitionRun, PartitionView, judge
from workflows.model.reports import ReplicaReport
from workflows.model.run_progress import ReassignmentProgress

CHANGE = Reassigned("t", "id", 0, (1, 2), (2, 3), (3,), (1,), "me")


def standing(held: Assignment, isr: tuple[int, ...] = ()) -> PartitionView:
    return PartitionView("t", 0, "id", held.replicas, held.adding, held.removing, held.original, isr, 1)


def part(**more: Any) -> PartitionRun:
    return replace(PartitionRun("t", 0, (2, 3), ("any", "any")).begun(CHANGE), **more)


NODES = st.lists(st.integers(1, 5), min_size=1, max_size=4, unique=True).map(tuple)


@given(original=NODES, target=NODES, later=NODES, cancelled=st.booleans())
def test_judge_returns_the_outcome_by_the_metadata(
    original: tuple[int, ...], target: tuple[int, ...], later: tuple[int, ...], cancelled: bool
) -> None:
    before = Assignment(original)
    asked = before.reassign(target)
    expected = None if asked.reassigning else ReplicaOutcome.JOINED
    assert judge("id", target, original, standing(asked)) == expected
    done = asked.complete(asked.replicas)
    if done is not None:
        assert judge("id", target, original, standing(done)) == ReplicaOutcome.JOINED
    if cancelled and asked.reassigning:
        assert judge("id", target, original, standing(asked.cancel())) == ReplicaOutcome.CANCELLED
    after = asked.reassign(later)
    if later != target:
        known = (ReplicaOutcome.SUPERSEDED, ReplicaOutcome.CANCELLED)
        found = judge("id", target, original, standing(after))
        assert found in known
        # Back to the original set by another target is what a cancel makes, too.
        assert (found == ReplicaOutcome.CANCELLED) == (not after.reassigning and set(later) == set(original))
    assert judge("another", target, original, standing(asked)) == ReplicaOutcome.GONE
    assert judge("id", target, original, None) == ReplicaOutcome.GONE


def of_run(
    parts: list[PartitionRun], phase: ReassignmentPhase, waiting: list[str], now: float, silent: dict[int, StallReason]
) -> ReassignmentProgress:
    phases = Phases()
    phases.enter(phase, 0.0)
    return progress_of_run(
        parts, phases, waiting, now, silent, workflow_id="w", started=0.0, cancelling=False, throttles={}
    )


def test_removed_nodes_must_delete_their_data() -> None:
    assert part().to_clear == ()
    row = ReplicaRow("t", 0, 3, ReplicaOutcome.JOINED, replicas=[2, 3])
    assert part().after(row, 5.0).to_clear == (1,)
    assert part().after(replace(row, outcome=ReplicaOutcome.CANCELLED, replicas=[1, 2]), 5.0).to_clear == (3,)
    # A later target that wants node 3 as well, and has node 1 until its end.
    assert part().after(replace(row, outcome=ReplicaOutcome.SUPERSEDED, replicas=[3, 4, 1, 2]), 5.0).to_clear == ()
    assert part().after(replace(row, outcome=ReplicaOutcome.GONE, replicas=[]), 5.0).to_clear == ()


def test_first_verdict_of_a_partition_stays() -> None:
    done = part().after(ReplicaRow("t", 0, 3, ReplicaOutcome.JOINED, replicas=[2, 3]), 5.0)
    assert done.judged(None).outcome == "done"
    assert done.after(ReplicaRow("t", 0, 2, ReplicaOutcome.SUPERSEDED, replicas=[4]), 6.0).replicas == (2, 3)
    assert done.failed("X", "y").outcome == "done"
    gone = part().judged(None)
    assert (gone.outcome, gone.error) == ("failed", "TopicDeleted") and "deleted" in gone.message


def test_facts_add_up_over_steps_and_reports() -> None:
    one = ReplicaRow(
        "t", 0, 3, ReplicaOutcome.JOINED, "/a", [2, 3], bytes_copied=10, seconds_catching_up=2.0, attempts=1
    )
    merged = runs.merge(one, ReplicaRow("t", 0, 3, ReplicaOutcome.DELETED, seconds_deleting=0.5, attempts=2))
    assert (merged.directory, merged.bytes_copied, merged.seconds_catching_up) == ("/a", 10, 2.0)
    assert (merged.seconds_deleting, merged.attempts, merged.outcome) == (0.5, 2, ReplicaOutcome.DELETED)
    live = ReplicaReport("t", 0, 3, "catching_up", bytes_copied=4, bytes_total=8)
    row = part().reported(live, 1.0).row()
    assert (row.bytes_copied, row.bytes_total) == (4, 8), "what was reported last, where a step has no end"
    assert runs.read_rows([asdict(one), {"topic": "t"}, 3, {**asdict(one), "partition": 1, "new": 2}]).keys() == {
        ("t", 0),
        ("t", 1),
    }


def test_verdict_of_a_run_by_its_partitions() -> None:
    done, cancelled = part(verdict=ReplicaOutcome.JOINED), part(verdict=ReplicaOutcome.CANCELLED)
    failed = part().failed("TopicDeleted", "it is gone")
    superseded = part(verdict=ReplicaOutcome.SUPERSEDED)
    assert runs.verdict([done, failed, cancelled]).status == "completed"
    assert runs.verdict([cancelled, cancelled]).status == "cancelled"
    assert runs.verdict([superseded]).status == "completed"
    found = runs.verdict([failed, failed])
    assert (found.status, found.error) == ("failed", "TopicDeleted") and "it is gone" in found.message
    assert runs.verdict([done], [done.key]).error == "DirectoryNotReached"


def test_progress_sums_partitions_and_names_silent_nodes() -> None:
    live = ReplicaReport("t", 0, 3, "catching_up", bytes_copied=25, bytes_total=100, rate=5.0)
    other = replace(part(), partition=1).reported(replace(live, bytes_copied=50, state="in_sync"), 2.0)
    node_reports = NodeReports()
    node_reports.requested = {3: 100.0, 4: 100.0}
    node_reports.note(3, 130.0, 20.0)
    assert node_reports.silent(160.0) == [4] and node_reports.silent(166.0) == [3, 4]
    found = of_run([part().reported(live, 2.0), other], ReassignmentPhase.CATCHING_UP, ["node 4"], 3.0, {})
    assert (found.bytes_total, found.bytes_copied, found.rate) == (200, 75, 10.0)
    first, second = found.partitions
    assert (first.eta_seconds, first.original, first.target, first.removing) == (15.0, [1, 2], [2, 3], [1])
    assert (first.by, second.by) == ("me", "me")
    assert second.eta_seconds is None and first.nodes[0].report_age == 1.0
    assert found.waiting_for == "node 4"


@pytest.mark.parametrize(
    ("state", "total", "copied", "expected"),
    [
        ("catching_up", 100, 25, 15.0),
        # Its leader has not reported its size yet, or has got more since.
        ("catching_up", 100, 100, None),
        ("catching_up", 0, 0, None),
        ("in_sync", 100, 100, 0.0),
    ],
)
def test_eta_of_a_replica_not_in_sync_is_never_zero(
    state: str, total: int, copied: int, expected: float | None
) -> None:
    assert eta(state, total, copied, 5.0) == expected


def test_progress_reports_a_silent_node_with_the_reason() -> None:
    live = ReplicaReport("t", 0, 3, "catching_up", bytes_copied=25, bytes_total=100, rate=5.0)
    found = of_run([part().reported(live, 2.0)], ReassignmentPhase.CATCHING_UP, ["node 3"], 3.0, {3: StallReason.DEAD})
    ((row,),) = (each.nodes for each in found.partitions)
    assert (row.state, row.rate, row.eta_seconds) == ("dead", 0.0, None)
    assert found.partitions[0].message == row.message
    assert row.message.startswith("node 3 is dead: its address refuses connections")
    ended = part(verdict=ReplicaOutcome.JOINED).reported(replace(live, state="in_sync"), 2.0)
    (shown,) = of_run([ended], ReassignmentPhase.VERIFYING, [], 3.0, {3: StallReason.DEAD}).partitions
    assert shown.nodes[0].state == "in_sync"


def test_response_has_the_absence_of_its_partitions_nodes() -> None:
    read = messages.answered(
        {"request": 1, "rows": [["t", 0, "id", [1, 2], [3], [1], [1, 2], [2], 2]], "absent": [[3, "dead"]]}
    )
    assert read["absent"] == {3: StallReason.DEAD} and nodes_of(read) == {1, 2, 3}
    assert messages.answered({"request": 1, "absent": [[3, "of a later version"]]})["absent"] == {
        3: StallReason.UNAVAILABLE
    }
    with pytest.raises(BadField):
        messages.answered({"request": 1, "absent": [[3]]})


def test_controllers_parameter_is_parsed_unchanged() -> None:
    assert read_change(change_row(CHANGE)) == CHANGE
    request = parse(made_by_controller([CHANGE], (2, 7)))
    assert request.made and request.pair == (2, 7)
    assert request.parts == (part(),)
    assert part().followed_at == (3,) and part(adding=()).followed_at == (2,)


def test_parameter_may_be_one_partition_a_list_or_kafkas_json() -> None:
    one = {"topic": "t", "partition": 0, "replicas": [2, 3], "log_dirs": ["any", "/b"]}
    forms: list[Any] = [one, [one], {"version": 1, "partitions": [one]}, '{"version": 1, "partitions": []}']
    for form in forms[:3]:
        request = parse(form)
        assert not request.made and request.parts[0].preferred_dirs == {3: "/b"}
    with pytest.raises(BadField, match=r"\$.partitions is empty"):
        parse(forms[3])


def test_sla_of_kafkas_json_is_read_and_checked() -> None:
    plan = {"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [2, 3]}]}
    assert parse(plan | {"sla_seconds": 90}).sla_seconds == 90.0 and parse(plan).sla_seconds is None
    for bad in (0, -1, True, "60", None, 10**9):
        with pytest.raises(BadField, match=r"^\$.sla_seconds must be a number of seconds above 0"):
            parse(plan | {"sla_seconds": bad})
    with pytest.raises(BadField, match="sla_seconds"):
        parse([plan["partitions"][0] | {"sla_seconds": 90}])  # type: ignore[index]


def test_changes_are_grouped_in_order_and_summarised() -> None:
    many = [replace(CHANGE, partition=at) for at in range(120)]
    assert [group[0].partition for group in groups(list(reversed(many)))] == [0, 50, 100]
    assert summary(many[:3]) == "t-0: 1,2 -> 2,3 and 2 more, requested by me"
