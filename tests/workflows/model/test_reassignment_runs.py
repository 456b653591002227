"""Decisions of a run of reassignments: what becomes of a partition, who deletes, how the run ends, what it is given."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workflows.model import calls, messages
from workflows.model import reassignment_runs as runs
from workflows.model.absence import Absence
from workflows.model.assignment import Assignment
from workflows.model.calls import ReplicaRow
from workflows.model.fields import BadField
from workflows.model.outcome import Reassigned
from workflows.model.reassignment_progress import Voices, eta, of_run
from workflows.model.reassignment_request import change_row, groups, made_by_controller, parse, read_change, summary
from workflows.model.reassignment_runs import UNDER_WAY, Part, Standing, judge
from workflows.model.run_requests import nodes_of

CHANGE = Reassigned("t", "id", 0, (1, 2), (2, 3), (3,), (1,), "me")


def standing(held: Assignment, isr: tuple[int, ...] = ()) -> Standing:
    return Standing("t", 0, "id", held.replicas, held.adding, held.removing, held.original, isr, 1)


def part(**more: Any) -> Part:
    return replace(Part("t", 0, (2, 3), ("any", "any")).begun(CHANGE), **more)


NODES = st.lists(st.integers(1, 5), min_size=1, max_size=4, unique=True).map(tuple)


@given(original=NODES, target=NODES, later=NODES, cancelled=st.booleans())
def test_a_change_is_judged_by_what_the_metadata_says(
    original: tuple[int, ...], target: tuple[int, ...], later: tuple[int, ...], cancelled: bool
) -> None:
    before = Assignment(original)
    asked = before.reassign(target)
    expected = UNDER_WAY if asked.reassigning else calls.JOINED
    assert judge("id", target, original, standing(asked)) == expected
    done = asked.complete(asked.replicas)
    if done is not None:
        assert judge("id", target, original, standing(done)) == calls.JOINED
    if cancelled and asked.reassigning:
        assert judge("id", target, original, standing(asked.cancel())) == calls.CANCELLED
    after = asked.reassign(later)
    if later != target:
        known = (calls.SUPERSEDED, calls.CANCELLED)
        found = judge("id", target, original, standing(after))
        assert found in known
        # Back to the original set by another target is what a cancel makes, too.
        assert (found == calls.CANCELLED) == (not after.reassigning and set(later) == set(original))
    assert judge("another", target, original, standing(asked)) == calls.GONE
    assert judge("id", target, original, None) == calls.GONE


def test_who_is_dropped_has_to_delete() -> None:
    assert part().to_clear == ()
    row = ReplicaRow("t", 0, 3, calls.JOINED, replicas=[2, 3])
    assert part().after(row, 5.0).to_clear == (1,)
    assert part().after(replace(row, outcome=calls.CANCELLED, replicas=[1, 2]), 5.0).to_clear == (3,)
    # A later target that wants node 3 as well, and has node 1 until its end.
    assert part().after(replace(row, outcome=calls.SUPERSEDED, replicas=[3, 4, 1, 2]), 5.0).to_clear == ()
    assert part().after(replace(row, outcome=calls.GONE, replicas=[]), 5.0).to_clear == ()


def test_the_first_word_that_ends_a_partition_holds() -> None:
    done = part().after(ReplicaRow("t", 0, 3, calls.JOINED, replicas=[2, 3]), 5.0)
    assert done.judged(None).outcome == "done"
    assert done.after(ReplicaRow("t", 0, 2, calls.SUPERSEDED, replicas=[4]), 6.0).replicas == (2, 3)
    assert done.failed("X", "y").outcome == "done"
    gone = part().judged(None)
    assert (gone.outcome, gone.error) == ("failed", "TopicDeleted") and "deleted" in gone.message


def test_facts_add_up_over_steps_and_reports() -> None:
    one = ReplicaRow("t", 0, 3, calls.JOINED, "/a", [2, 3], bytes_copied=10, seconds_catching_up=2.0, attempts=1)
    merged = runs.merge(one, ReplicaRow("t", 0, 3, calls.DELETED, seconds_deleting=0.5, attempts=2))
    assert (merged.directory, merged.bytes_copied, merged.seconds_catching_up) == ("/a", 10, 2.0)
    assert (merged.seconds_deleting, merged.attempts, merged.outcome) == (0.5, 2, calls.DELETED)
    live = {"node": 3, "bytes_copied": 4, "bytes_total": 8, "state": "catching_up", "unheard_of": 1}
    row = part().reported(live, 1.0).row()
    assert (row["bytes_copied"], row["bytes_total"]) == (4, 8), "what was reported last, where a step has no end"
    assert runs.read_rows([asdict(one), {"topic": "t"}, 3, {**asdict(one), "partition": 1, "new": 2}]).keys() == {
        ("t", 0),
        ("t", 1),
    }


def test_how_a_run_ends() -> None:
    done, cancelled = part(verdict=calls.JOINED), part(verdict=calls.CANCELLED)
    failed = part().failed("TopicDeleted", "it is gone")
    superseded = part(verdict=calls.SUPERSEDED)
    assert runs.verdict([done, failed, cancelled]).status == "completed"
    assert runs.verdict([cancelled, cancelled]).status == "cancelled"
    assert runs.verdict([superseded]).status == "completed"
    found = runs.verdict([failed, failed])
    assert (found.status, found.error) == ("failed", "TopicDeleted") and "it is gone" in found.message
    assert runs.verdict([done], [done.key]).error == "DirectoryNotReached"


def test_progress_sums_up_and_names_who_is_silent() -> None:
    live = {"node": 3, "bytes_copied": 25, "bytes_total": 100, "rate": 5.0, "state": "catching_up"}
    other = replace(part(), partition=1).reported({**live, "bytes_copied": 50, "state": "in_sync"}, 2.0)
    voices = Voices()
    voices.asked = {3: 100.0, 4: 100.0}
    voices.note(3, 130.0, 20.0)
    assert voices.silent(160.0) == [4] and voices.silent(166.0) == [3, 4]
    found = of_run([part().reported(live, 2.0), other], runs.CATCHING_UP, ["node 4"], 3.0, {})
    assert (found["bytes_total"], found["bytes_copied"], found["rate"]) == (200, 75, 10.0)
    first, second = found["partitions"]
    assert (first["eta_seconds"], first["from"], first["to"], first["removing"]) == (15.0, [1, 2], [2, 3], [1])
    assert (first["by"], second["by"]) == ("me", "me")
    assert second["eta_seconds"] is None and first["nodes"][0]["report_age"] == 1.0
    assert found["waiting_for"] == "node 4"


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
def test_a_replica_that_is_not_in_sync_has_something_left(
    state: str, total: int, copied: int, expected: float | None
) -> None:
    assert eta(state, total, copied, 5.0) == expected


def test_progress_reports_a_silent_node_with_the_reason() -> None:
    live = {"node": 3, "bytes_copied": 25, "bytes_total": 100, "rate": 5.0, "state": "catching_up"}
    found = of_run([part().reported(live, 2.0)], runs.CATCHING_UP, ["node 3"], 3.0, {3: Absence.DEAD})
    ((row,),) = (each["nodes"] for each in found["partitions"])
    assert (row["state"], row["rate"], row["eta_seconds"]) == ("dead", 0.0, None)
    assert found["partitions"][0]["message"] == row["message"]
    assert row["message"].startswith("node 3 is dead: its address refuses connections")
    ended = part(verdict=calls.JOINED).reported({**live, "state": "in_sync"}, 2.0)
    assert (
        of_run([ended], runs.VERIFYING, [], 3.0, {3: Absence.DEAD})["partitions"][0]["nodes"][0]["state"] == "in_sync"
    )


def test_answer_names_the_absence_of_nodes_of_its_partitions() -> None:
    read = messages.answered(
        {"request": 1, "rows": [["t", 0, "id", [1, 2], [3], [1], [1, 2], [2], 2]], "absent": [[3, "dead"]]}
    )
    assert read["absent"] == {3: Absence.DEAD} and nodes_of(read) == {1, 2, 3}
    assert messages.answered({"request": 1, "absent": [[3, "of a later version"]]})["absent"] == {3: Absence.AWAY}
    with pytest.raises(BadField):
        messages.answered({"request": 1, "absent": [[3]]})


def test_what_the_controller_gives_comes_back_as_it_was() -> None:
    assert read_change(change_row(CHANGE)) == CHANGE
    request = parse(made_by_controller([CHANGE], (2, 7)))
    assert request.made and request.pair == (2, 7)
    assert request.parts == (part(),)
    assert part().followed_at == (3,) and part(adding=()).followed_at == (2,)


def test_people_may_give_one_a_list_or_kafkas_file() -> None:
    one = {"topic": "t", "partition": 0, "replicas": [2, 3], "log_dirs": ["any", "/b"]}
    forms: list[Any] = [one, [one], {"version": 1, "partitions": [one]}, '{"version": 1, "partitions": []}']
    for form in forms[:3]:
        request = parse(form)
        assert not request.made and request.parts[0].wishes == {3: "/b"}
    with pytest.raises(BadField, match=r"\$.partitions is empty"):
        parse(forms[3])


def test_changes_are_grouped_in_order_and_said_in_a_line() -> None:
    many = [replace(CHANGE, partition=at) for at in range(120)]
    assert [group[0].partition for group in groups(list(reversed(many)))] == [0, 50, 100]
    assert summary(many[:3]) == "t-0: 1,2 -> 2,3 and 2 more, asked for by me"
