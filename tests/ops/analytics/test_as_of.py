"""The same histories at another time, and the same run seen more than once."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from temporalio.api.history.v1 import History

from activities.history.files import PartWriter
from activities.history.manifest import CLOSED, RunEntry
from ops.analytics import schema
from ops.analytics.lake.decode import Record, event_name, read_file
from ops.analytics.page import lost
from ops.analytics.silver.histories import latest_histories
from storage_node.model.moves import Outcome
from tests.ops.analytics.bronze import Collected, bronze, collect, events_of, frame
from tests.ops.analytics.conftest import at
from tests.support.runs.histories import CLUSTER, RunBuilder, call, export, moved, rows
from tests.support.runs.sample_runs import cancelled, failed, lane, late, paused, under_way
from workflows.model.calls import COPY, CREATE_MOVE, SWAP, MoveRow, ReplicaMove

pytestmark = pytest.mark.spark


def moving(name: str, topic: str, **more: Any) -> RunBuilder:
    """Return a run that moves `topic`-0."""
    parameter = {"topic": topic, "partition": 0, "node": 1, "directory": "/d2", **more}
    return RunBuilder(f"{CLUSTER}/{name}", f"run-{name}", parameter=parameter)


#: Of moves whose node was missed: the seconds whose reason their runs know.
ABSENCES: tuple[dict[str, float], ...] = (
    {"dead": 12.0}, {"cut_off": 8.0}, {"fenced": 5.0}, {"dead": 3.0, "cut_off": 2.0, "fenced": 1.5}, {},
)  # fmt: skip


def missed(partition: int, **absent: float) -> RunBuilder:
    """A move of 4 s of copying whose node was missed for 20 s after the first of two attempts; why, in seconds."""
    plan = {"topic": "missed", "partition": partition, "node": 1, "directory": "/data/n1/d2"}
    run = RunBuilder(f"rehome/move/1/missed-{partition}/a", f"run-missed-{partition}", parameter=plan)
    argument = call(run, ReplicaMove("missed", partition, "/data/n1/d2", 1))
    beat = MoveRow(
        "missed", partition, Outcome.CREATED, "/data/n1/d1", "/data/n1/d2", 1,
        seconds_copying=1.0, bytes_written=10, seconds_by_reason={"copying": 1.0},
    )  # fmt: skip
    run.activity(CREATE_MOVE, argument, 0.0, 0.0, rows(replace(beat, seconds_copying=0.0, seconds_by_reason={})))
    run.activity_timed_out(COPY, argument, 0.0, 1.0, rows(beat))
    copied = replace(beat, outcome=Outcome.CAUGHT_UP, seconds_copying=4.0, seconds_by_reason={"copying": 4.0})
    run.activity(COPY, argument, 21.0, 24.0, rows(copied), attempt=2)
    run.activity(SWAP, argument, 24.0, 24.0, rows(replace(copied, outcome=Outcome.SWAPPED)))
    done = replace(copied, outcome=Outcome.SWAPPED, seconds_by_reason={"copying": 4.0, **absent})
    return run.complete(24.0, {**rows(done), "phases": []})


def odd_runs() -> list[RunBuilder]:
    """Runs that are not as they should be, or not as they usually are."""
    first = moving("long", "chained", sla_seconds=100)
    first.continue_as_new(50.0, "run-long-2")
    second = RunBuilder(
        f"{CLUSTER}/long", "run-long-2", parameter={"carried": 1}, start=50.0, first_run_id="run-long",
        continued_from="run-long",
    )  # fmt: skip
    text = '[{"topic":"typed","partition":3,"node":2,"directory":"/d2","deadline_seconds":9000}]'
    typed = RunBuilder("by-hand", "run-typed", parameter=text)
    died = moving("died", "died")
    beat = [{"topic": "died", "partition": 0, "outcome": "", "bytes_copied": 77, "seconds_copying": 3.0}]
    died.activity_timed_out(COPY, call(died, ReplicaMove("died", 0, "/d2")), 1.0, 12.0, beat)
    signalled = moving("signalled", "signalled")
    signalled.scheduled(COPY, call(signalled, ReplicaMove("signalled", 0, "/d2")), 1.0)
    signalled.signal("copy_progress", 11.0, [{"topic": "signalled", "partition": 0, "bytes_copied": 55}])
    strange = moving("strange", "strange")
    row = {"topic": "strange", "partition": 0, "outcome": "caught_up", "bytes_copied": "many", "attempts": 2.0}
    strange.activity(COPY, call(strange, ReplicaMove("strange", 0, "/d2")), 1.0, 2.0, {"rows": [row]})
    strange.activity(COPY, call(strange, ReplicaMove("strange", 0, "/d2")), 2.0, 3.0, "not rows at all")
    strange.complete(4.0, {"rows": 5})
    overdue = under_way(sla=60.0)
    absent = [missed(partition, **seconds) for partition, seconds in enumerate(ABSENCES)]
    return [first, second, typed, died, signalled, strange, overdue, lane(), moved("twice", topic="twice"), *absent]


@pytest.fixture(scope="module")
def collected(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Collected:
    folder = tmp_path_factory.mktemp("odd")
    export(folder, *odd_runs(), at=100)
    restored = moving("restored", "twice")
    restored.workflow_id, restored.run_id = f"{CLUSTER}/move/1/twice-0/twice", "run-twice"
    restored.task(0.0)
    restored.terminate(4000.0)
    export(folder, restored, at=4100)
    return collect(*bronze(spark, folder), at(5000))


def test_open_move_past_its_deadline_misses_its_sla(collected: Collected) -> None:
    move = collected.move("payments-4")
    assert (move.outcome, move.open, move.met_sla) == ("open", True, "no")


def test_chain_of_runs_is_one_move(collected: Collected) -> None:
    move = collected.move("chained-0")
    assert (move.outcome, move.met_sla) == ("open", "no")
    assert move.duration_seconds == pytest.approx(5000.0)


def test_parameter_that_is_a_json_string_is_read(collected: Collected) -> None:
    move = collected.move("typed-3")
    assert (move.node, move.directory, move.deadline_seconds, move.met_sla) == (2, "/d2", 9000.0, "not due")


def test_heartbeat_of_a_dead_node_is_kept(collected: Collected) -> None:
    assert collected.move("died-0").bytes_copied == 77
    (execution,) = [row for row in collected.frames.activities.collect() if row.run_id == "run-died"]
    assert (execution.state, execution.failure_type) == ("timed out", "Timeout heartbeat")


def test_progress_signals_report_a_copy_in_progress(collected: Collected) -> None:
    assert collected.move("signalled-0").bytes_copied == 55


def test_unreadable_rows_are_ignored(collected: Collected) -> None:
    assert (collected.move("strange-0").outcome, collected.move("strange-0").bytes_copied) == ("completed", 0)


def test_latest_event_wins_after_a_restored_database(collected: Collected) -> None:
    """The run was exported as it went before the restore, and again as it went on afterwards, with fewer events."""
    assert collected.move("twice-0").outcome == "terminated"


def test_result_of_the_last_step_and_of_the_run_counts_once(collected: Collected) -> None:
    assert [collected.move(f"small-{p}").bytes_copied for p in (0, 1, 2)] == [4_000_000, 0, 0]


def test_seconds_without_a_node_are_split_into_dead_cut_off_and_fenced(collected: Collected) -> None:
    for partition, absent in enumerate(ABSENCES):
        expected = {"copying": 4.0, "unavailable": 20.0 - sum(absent.values()), **absent}
        spent = collected.move(f"missed-{partition}").spent
        assert {name: value for name, value in spent.items() if value} == pytest.approx(expected)
    moves = [move for move in collected.report.moves if move.replica.startswith("missed-")]
    totals = {reason: seconds for reason, seconds, _, _ in lost(moves)}
    assert {name: totals[name] for name in schema.KNOWN_ABSENCES} == pytest.approx(
        {"dead": 15.0, "cut_off": 10.0, "fenced": 6.5}
    )


def test_events_after_as_of_are_ignored(spark: Any, tmp_path: Path) -> None:
    """As of the middle of its copy a move is open, not late, and none of its result is reported."""
    export(tmp_path, late(start=0.0), moved("later", start=500), RunBuilder("rehome", "c", "Cluster"))
    (move,) = collect(*bronze(spark, tmp_path), at(20)).report.moves
    assert (move.outcome, move.met_sla, move.phase, move.bytes_copied) == ("open", "not due", "queued", 0)
    assert move.duration_seconds == pytest.approx(20.0)


RUNS = (moved("a", sla=30.0), moved("b", partition=1, start=5, attempts=2), failed(), cancelled(), lane(), paused())


def snapshots(run: RunBuilder) -> list[History]:
    """The run as exports could have met it on its way, and as it ended."""
    events = run.events
    return [History(events=events[:3]), History(events=events[: len(events) // 2]), run.history()]


def written(folder: Path, pieces: Sequence[tuple[RunBuilder, History]], files: int) -> list[Record]:
    """The pieces, in this order, spread over so many files, and read back."""
    read: list[Record] = []
    for number in range(files):
        writer = PartWriter(folder, folder, CLOSED, f"f{number}", 1 << 20)
        for run, history in list(pieces)[number::files]:
            writer.add(RunEntry(run.workflow_id, run.run_id, run.workflow_type, len(history.events)), history)
        for entry in writer.finish():
            listed = [[run.workflow_id, run.run_id, run.history_length] for run in entry.runs]
            file = {
                "path": str(folder / entry.name), "name": entry.name, "kind": CLOSED, "bytes": entry.bytes,
                "sha256": entry.sha256, "events": entry.events, "sequence": number, "export_id": str(number),
                "taken_at": 0, "namespace": "default", "runs": listed,
            }  # fmt: skip
            read += read_file(file)
    return read


@pytest.mark.timeout(600)
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), files=st.integers(1, 5), copies=st.integers(1, 3))
def test_duplicates_older_snapshots_order_and_files_change_nothing(
    spark: Any, tmp_path_factory: pytest.TempPathFactory, seed: int, files: int, copies: int
) -> None:
    """All tables come from the newest history of each run, so that one is compared."""
    pieces = [(run, history) for run in RUNS for history in snapshots(run) * copies]
    random.Random(seed).shuffle(pieces)
    events = events_of(frame(spark, written(tmp_path_factory.mktemp("many"), pieces, files)))
    found = latest_histories(events, at(600)).select("run_id", "event_id", "event_type").collect()
    assert sorted(map(tuple, found)) == sorted(
        (run.run_id, event.event_id, event_name(event.event_type)) for run in RUNS for event in run.events
    )
