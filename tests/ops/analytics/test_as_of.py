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
from tests.support.histories import CLUSTER, RunBuilder, call, export, moved
from tests.support.sample_runs import cancelled, failed, lane, late, paused, under_way
from workflows.model.calls import COPY, ReplicaMove

pytestmark = pytest.mark.spark


def moving(name: str, topic: str, **more: Any) -> RunBuilder:
    """A run that was asked to move `topic`-0."""
    asked = {"topic": topic, "partition": 0, "node": 1, "directory": "/d2", **more}
    return RunBuilder(f"{CLUSTER}/{name}", f"run-{name}", parameter=asked)


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
    return [first, second, typed, died, signalled, strange, overdue, lane(), moved("twice", topic="twice")]


@pytest.fixture(scope="module")
def told(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Told:
    folder = tmp_path_factory.mktemp("odd")
    export(folder, *odd_runs(), at=100)
    restored = moving("restored", "twice")
    restored.workflow_id, restored.run_id = f"{CLUSTER}/move/1/twice-0/twice", "run-twice"
    restored.task(0.0)
    restored.terminate(4000.0)
    export(folder, restored, at=4100)
    return tell(*bronze(spark, folder), at(5000))


def test_an_open_move_past_its_deadline_is_already_bad(told: Told) -> None:
    move = told.move("payments-4")
    assert (move.outcome, move.open, move.met_sla) == ("open", True, "no")


def test_a_chain_of_runs_is_one_move(told: Told) -> None:
    move = told.move("chained-0")
    assert (move.outcome, move.met_sla) == ("open", "no")
    assert move.duration_seconds == pytest.approx(5000.0)


def test_a_parameter_may_be_a_string_that_holds_json(told: Told) -> None:
    move = told.move("typed-3")
    assert (move.node, move.directory, move.deadline_seconds, move.met_sla) == (2, "/d2", 9000.0, "not due")


def test_the_heartbeat_of_a_node_that_died_is_kept(told: Told) -> None:
    assert told.move("died-0").bytes_copied == 77
    (execution,) = [row for row in told.frames.activity_executions.collect() if row.run_id == "run-died"]
    assert (execution.state, execution.failure_type) == ("timed out", "Timeout heartbeat")


def test_progress_signals_tell_of_a_copy_that_is_under_way(told: Told) -> None:
    assert told.move("signalled-0").bytes_copied == 55


def test_rows_that_cannot_be_read_spoil_nothing(told: Told) -> None:
    assert (told.move("strange-0").outcome, told.move("strange-0").bytes_copied) == ("completed", 0)


def test_after_a_restored_database_what_happened_last_holds(told: Told) -> None:
    """The run was exported as it went before the restore, and again as it went on afterwards, with fewer events."""
    assert told.move("twice-0").outcome == "terminated"


def test_a_result_told_by_the_last_step_and_by_the_run_is_counted_once(told: Told) -> None:
    assert [told.move(f"small-{p}").bytes_copied for p in (0, 1, 2)] == [4_000_000, 0, 0]


def test_what_happened_later_is_not_known_yet(spark: Any, tmp_path: Path) -> None:
    """As of the middle of its copy a move is open, not late, and nothing of its result is told."""
    export(tmp_path, late(start=0.0), moved("later", start=500))
    (move,) = tell(*bronze(spark, tmp_path), at(20)).report.moves
    assert (move.outcome, move.met_sla, move.phase, move.bytes_copied) == ("open", "not due", "queued", 0)
    assert move.duration_seconds == pytest.approx(20.0)


def test_no_moves_at_all_is_a_report_too(spark: Any, tmp_path: Path) -> None:
    export(tmp_path, RunBuilder("rehome", "c", "Cluster"))
    told = tell(*bronze(spark, tmp_path), at(20))
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


@pytest.mark.timeout(600)
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
