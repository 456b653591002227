"""The same histories at another time, and the same run seen more than once."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from temporalio.api.history.v1 import History

from activities.history.files import PartWriter
from activities.history.manifest import CLOSED, RunEntry
from ops.analytics.source import read_events
from tests.ops.analytics.bronze import Told, bronze, frame, tell
from tests.ops.analytics.conftest import at
from tests.support.histories import CLUSTER, RunBuilder, call, export, moved, rows
from tests.support.sample_runs import cancelled, failed, lane, late, paused, under_way
from workflows.model.calls import COPY, ReplicaMove

pytestmark = pytest.mark.spark


def told_of(spark: Any, folder: Path, seconds: float, *runs: RunBuilder) -> Told:
    export(folder, *runs, at=seconds)
    return tell(*bronze(spark, folder), at(seconds))


def test_an_open_move_past_its_deadline_is_already_bad(spark: Any, tmp_path: Path) -> None:
    told = told_of(spark, tmp_path, 100.0, under_way(sla=60.0))
    move = told.move("payments-4")
    assert (move.outcome, move.open, move.met_sla) == ("open", True, "no")
    assert told.report.total.missed == 1 and told.report.total.attainment == 0.0


def test_what_happened_later_is_not_known_yet(spark: Any, tmp_path: Path) -> None:
    """As of the middle of its copy a move is open, not late, and nothing of its result is told."""
    run = late(start=0.0)
    export(tmp_path, run, moved("later", start=500))
    events, pending = bronze(spark, tmp_path)
    then = tell(events, pending, at(20))
    (move,) = then.report.moves
    assert (move.outcome, move.met_sla, move.phase, move.bytes_copied) == ("open", "not due", "queued", 0)
    assert move.duration_seconds == pytest.approx(20.0)
    afterwards = tell(events, pending, at(26))
    assert afterwards.report.moves[0].met_sla == "no"


def test_a_chain_of_runs_is_one_move(spark: Any, tmp_path: Path) -> None:
    parameter = {"topic": "t", "partition": 0, "node": 1, "directory": "/d2", "sla_seconds": 100}
    first = RunBuilder(f"{CLUSTER}/long", "r1", parameter=parameter).continue_as_new(50.0, "r2")
    second = RunBuilder(
        f"{CLUSTER}/long", "r2", parameter={"carried": 1}, start=50.0, first_run_id="r1", continued_from="r1"
    )
    told = told_of(spark, tmp_path, 120.0, first, second)
    (move,) = told.report.moves
    assert (move.replica, move.outcome, move.met_sla) == ("t-0", "open", "no")
    assert move.duration_seconds == pytest.approx(120.0)


def test_a_parameter_may_be_a_string_that_holds_json(spark: Any, tmp_path: Path) -> None:
    text = '[{"topic":"t","partition":3,"node":2,"directory":"/d2","deadline_seconds":9}]'
    told = told_of(spark, tmp_path, 5.0, RunBuilder("by-hand", "r1", parameter=text))
    (move,) = told.report.moves
    assert (move.replica, move.node, move.directory, move.deadline_seconds) == ("t-3", 2, "/d2", 9.0)


def test_the_heartbeat_of_a_node_that_died_is_kept(spark: Any, tmp_path: Path) -> None:
    run = RunBuilder("m", "r1", parameter={"topic": "t", "partition": 0, "node": 1, "directory": "/d2"})
    beat = [{"topic": "t", "partition": 0, "outcome": "", "bytes_copied": 77, "seconds_copying": 3.0}]
    run.activity_timed_out(COPY, call(run, ReplicaMove("t", 0, "/d2")), 1.0, 12.0, beat)
    told = told_of(spark, tmp_path, 20.0, run)
    assert told.move("t-0").bytes_copied == 77
    (execution,) = told.frames.activity_executions.collect()
    assert (execution.state, execution.failure_type) == ("timed out", "Timeout heartbeat")


def test_progress_signals_tell_of_a_copy_that_is_under_way(spark: Any, tmp_path: Path) -> None:
    run = RunBuilder("m", "r1", parameter={"topic": "t", "partition": 0, "node": 1, "directory": "/d2"})
    run.scheduled(COPY, call(run, ReplicaMove("t", 0, "/d2")), 1.0)
    run.signal("copy_progress", 11.0, [{"topic": "t", "partition": 0, "state": "copying", "bytes_copied": 55}])
    told = told_of(spark, tmp_path, 20.0, run)
    assert told.move("t-0").bytes_copied == 55


def test_rows_that_cannot_be_read_spoil_nothing(spark: Any, tmp_path: Path) -> None:
    run = RunBuilder("m", "r1", parameter={"topic": "t", "partition": 0, "node": 1, "directory": "/d2"})
    odd = {"rows": [{"topic": "t", "partition": 0, "outcome": "caught_up", "bytes_copied": "many", "attempts": 2.0}]}
    run.activity(COPY, call(run, ReplicaMove("t", 0, "/d2")), 1.0, 2.0, odd)
    run.activity(COPY, call(run, ReplicaMove("t", 0, "/d2")), 2.0, 3.0, "not rows at all")
    run.complete(4.0, {"rows": 5})
    told = told_of(spark, tmp_path, 20.0, run)
    assert (told.move("t-0").outcome, told.move("t-0").bytes_copied) == ("completed", 0)


def test_after_a_restored_database_what_happened_last_holds(spark: Any, tmp_path: Path) -> None:
    """The run was exported as it went before the restore, and again as it went on afterwards, with fewer events."""
    before = moved("twice", start=0.0)
    export(tmp_path, before)
    again = RunBuilder(before.workflow_id, before.run_id, parameter={"topic": "orders", "partition": 0, "node": 1})
    again.task(0.0)
    again.terminate(4000.0)
    export(tmp_path, again)
    told = tell(*bronze(spark, tmp_path), at(5000))
    (move,) = told.report.moves
    assert move.outcome == "terminated"


def test_no_moves_at_all_is_a_report_too(spark: Any, tmp_path: Path) -> None:
    told = told_of(spark, tmp_path, 20.0, RunBuilder("rehome", "c", "Cluster"))
    assert told.report.moves == () and told.report.total.moves == 0


RUNS = (moved("a", sla=30.0), moved("b", partition=1, start=5, attempts=2), failed(), cancelled(), lane(), paused())


def snapshots(run: RunBuilder) -> list[History]:
    """The run as exports could have met it on its way, and as it ended."""
    events = run.events
    return [History(events=events[:3]), History(events=events[: len(events) // 2]), run.history()]


def written(folder: Path, pieces: Sequence[tuple[RunBuilder, History]], files: int) -> list[tuple[Any, ...]]:
    """The pieces, in this order, spread over so many files, and read back."""
    read: list[tuple[Any, ...]] = []
    for number in range(files):
        writer = PartWriter(folder, folder, CLOSED, f"f{number}", 1 << 20)
        for run, history in list(pieces)[number::files]:
            writer.add(RunEntry(run.workflow_id, run.run_id, run.workflow_type, len(history.events)), history)
        for entry in writer.finish():
            listed = [[run.workflow_id, run.run_id] for run in entry.runs]
            path = str(folder / entry.name)
            file = {"path": path, "name": entry.name, "export_id": str(number), "namespace": "default", "runs": listed}
            read += read_events(file)
    return read


@pytest.fixture(scope="module")
def once(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Told:
    folder = tmp_path_factory.mktemp("once")
    events = frame(spark, written(folder, [(run, run.history()) for run in RUNS], 1))
    return tell(events, no_pending(spark), at(600))


def no_pending(spark: Any) -> Any:
    from ops.analytics import schema

    return spark.createDataFrame([], schema.PENDING_ACTIVITIES)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), files=st.integers(1, 5), copies=st.integers(1, 3))
def test_duplicates_older_snapshots_order_and_files_change_nothing(
    spark: Any, once: Told, tmp_path_factory: pytest.TempPathFactory, seed: int, files: int, copies: int
) -> None:
    pieces = [(run, history) for run in RUNS for history in snapshots(run) * copies]
    random.Random(seed).shuffle(pieces)
    folder = tmp_path_factory.mktemp("many")
    events = frame(spark, written(folder, pieces, files))
    again = tell(events, no_pending(spark), at(600)).report
    assert again == once.report


def test_the_fixture_of_rows_is_what_the_exporter_reads(spark: Any, tmp_path: Path) -> None:
    """A lane's result told twice, by its last step and by the run, is counted once."""
    told = told_of(spark, tmp_path, 60.0, lane())
    assert [move.bytes_copied for move in told.report.moves] == [4_000_000, 0, 0]
    assert rows()["rows"] == []
