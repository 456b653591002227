"""Moves between nodes: from histories that servers wrote, and from runs that are open, killed or without a result."""

from __future__ import annotations

from datetime import UTC
from typing import Any

import pytest

from ops.analytics.report import Move
from tests.ops.analytics.bronze import Collected, bronze, collect
from tests.ops.analytics.conftest import at
from tests.support.runs.histories import CLUSTER, RunBuilder, export
from tests.support.runs.recorded import recorded_run
from workflows.model import names
from workflows.model.calls import AWAIT_DELETION, CATCH_UP

pytestmark = pytest.mark.spark

LEASES = ("throttle-lease", "throttle-lease-cancelled")
RECORDED = ("happy", "then-moved", "throttled", "cancelled-by-temporal", "cancelled-by-api", "superseded", "by-hand")


def reassignment(name: str, parameter: Any, start: float = 0.0) -> RunBuilder:
    """Return a run of reassignments."""
    return RunBuilder(
        f"{CLUSTER}/reassign/{name}", f"run-{name}", names.PARTITION_REASSIGNMENT, parameter=parameter, start=start
    )


def made(topic: str, original: list[int], target: list[int], partition: int = 0) -> list[Any]:
    """Return the controller's row of a change."""
    adding = [node for node in target if node not in original]
    removing = [node for node in original if node not in target]
    return [topic, "id", partition, original, target, adding, removing, "client c-1"]


def call(run: RunBuilder, node: int, topic: str, original: list[int], target: list[int]) -> dict[str, Any]:
    """Return the parameter of a step on a node."""
    replica = {
        "topic": topic,
        "partition": 0,
        "topic_id": "id",
        "target": target,
        "original": original,
        "directory": "",
    }
    return {"workflow_id": run.workflow_id, "run_id": run.run_id, "node": node, "replicas": [replica], "wish": True}


def row(topic: str, node: int, outcome: str, **facts: Any) -> dict[str, Any]:
    """Return a node's row of a step."""
    return {"topic": topic, "partition": 0, "node": node, "outcome": outcome, "directory": f"/n{node}/a", **facts}


def built() -> list[RunBuilder]:
    """Runs that ended in every way, or did not."""
    two = reassignment("two", {"made": [made("two", [1, 2], [3, 4])], "generation": 1, "version": 5})
    for node in (3, 4):
        facts = {"bytes_total": 1000, "bytes_copied": 1000, "seconds_placing": 1.0, "seconds_in_sync": 2.0}
        facts |= {"seconds_catching_up": 5.0, "seconds_throttled": 2.0, "attempts": 1}
        result = {"rows": [row("two", node, "joined", **facts)]}
        queue = f"{CLUSTER}/node-{node}/moves"
        two.activity(CATCH_UP, call(two, node, "two", [1, 2], [3, 4]), 1.0, 10.0, result, queue=queue)
    for node in (1, 2):
        result = {"rows": [row("two", node, "deleted", seconds_deleting=0.5 + node)]}
        queue = f"{CLUSTER}/node-{node}/moves"
        two.activity(AWAIT_DELETION, call(two, node, "two", [1, 2], [3, 4]), 10.0, 13.0, result, queue=queue)
    done = {"topic": "two", "partition": 0, "outcome": "done", "original": [1, 2], "target": [3, 4], "nodes": []}
    two.complete(14.0, {"rows": [done], "phases": []})

    killed = reassignment("killed", {"made": [made("killed", [1], [2])], "generation": 1, "version": 5})
    killed.terminate(7.0)
    lost = reassignment("lost", {"made": [made("lost", [2], [1])], "generation": 1, "version": 5})
    argument = call(lost, 1, "lost", [2], [1])
    beat = {"rows": [row("lost", 1, "", bytes_total=100, bytes_copied=30, seconds_catching_up=3.0)]}
    lost.activity_timed_out(CATCH_UP, argument, 1.0, 20.0, beat)
    lost.open_activity(CATCH_UP, argument, 30.0, 4, beat)
    report = {"topic": "lost", "partition": 0, "node": 1, "bytes_total": 100, "bytes_copied": 60, "next_in": 10}
    lost.signal("copy_progress", 40.0, [report])
    grown = reassignment(
        "grown", [{"topic": "grown", "partition": 0, "replicas": [1, 2], "log_dirs": ["any", "/n2/b"]}]
    )
    change = {"generation": 1, "version": 5, "made": [made("grown", [1], [1, 2])], "results": [], "rows": []}
    grown.signal("answered", 2.0, change)
    shrunk = reassignment("shrunk", {"made": [made("shrunk", [1, 2], [1])], "generation": 1, "version": 5})
    gone = reassignment("refused", '{"partitions": [{"topic": "refused", "partition": 0, "replicas": [9]}]}')
    part = {"topic": "refused", "partition": 0, "outcome": "failed", "error": "ReassignmentRefused", "message": "no 9"}
    gone.fail(1.0, "ReassignmentRefused", "no 9", {"rows": [{**part, "original": [], "target": [9], "nodes": []}]})
    less = reassignment("less", {"made": [made("less", [1, 2, 3], [1])], "generation": 1, "version": 5})
    return [two, killed, lost, grown, shrunk, less, gone]


@pytest.fixture(scope="module")
def collected(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Collected:
    folder = tmp_path_factory.mktemp("reassignments")
    recorded = [*(f"reassign-{name}" for name in RECORDED), *LEASES]
    export(folder, *built(), *map(recorded_run, recorded), at=100)
    return collect(*bronze(spark, folder), at(100))


def moves_of(collected: Collected, part: str) -> list[Move]:
    """The moves whose workflow id contains a text, by node."""
    return sorted((one for one in collected.report.moves if part in one.workflow_id), key=lambda one: one.node or 0)


def test_every_added_replica_is_a_move_from_the_node_that_it_replaces(collected: Collected) -> None:
    first, second = moves_of(collected, "/two")
    assert [(one.kind, one.from_node, one.node, one.outcome) for one in (first, second)] == [
        ("node", 1, 3, "moved"), ("node", 2, 4, "moved"),
    ]  # fmt: skip
    assert (first.directory, first.bytes_copied, first.attempts) == ("/n3/a", 1000, 1)
    assert first.finished == "2026-11-20T10:00:10.000000Z" and first.duration_seconds == 10.0
    assert (first.seconds_queued, first.seconds_copying, first.seconds_throttled) == (1.0, 3.0, 2.0)
    assert (first.seconds_delete_delay, second.seconds_delete_delay) == (1.5, 2.5)
    assert first.mean_rate == pytest.approx(200.0) and first.spent["node_limit"] == 2.0
    assert (first.origin, first.target) == ("node 1", "node 3: /n3/a")


def test_time_of_a_move_between_nodes_is_split_into_phases(collected: Collected) -> None:
    first = moves_of(collected, "/two")[0]
    spent = {phase.phase: phase.seconds for phase in collected.report.phases if phase.id == first.id}
    assert spent == pytest.approx(
        {"asking": 1.0, "queued": 1.0, "copying": 3.0, "throttled": 2.0, "in_sync": 2.0, "unavailable": 1.0,
         "deleting": 3.0}
    )  # fmt: skip


def test_run_that_was_terminated_has_its_moves(collected: Collected) -> None:
    (one,) = moves_of(collected, "/killed")
    assert (one.outcome, one.from_node, one.node, one.finished) == (
        "terminated", 1, 2, "2026-11-20T10:00:07.000000Z",
    )  # fmt: skip


def test_open_run_has_the_last_report_of_its_node(collected: Collected) -> None:
    (one,) = moves_of(collected, "/lost")
    assert (one.outcome, one.open, one.bytes_copied, one.attempts) == ("open", True, 60, 4)
    assert one.duration_seconds == pytest.approx(100.0)
    assert one.spent["unavailable"] == pytest.approx(10.0 + 16.0)


def test_added_replica_with_a_directory_changes_both(collected: Collected) -> None:
    (one,) = moves_of(collected, "/grown")
    assert (one.kind, one.from_node, one.node, one.directory, one.open) == ("both", None, 2, "/n2/b", True)


def test_removed_replica_is_a_move_to_no_node(collected: Collected) -> None:
    (one,) = moves_of(collected, "/shrunk")
    assert (one.kind, one.from_node, one.node) == ("node", 2, None)


def test_each_of_several_removed_replicas_is_a_move_of_its_own(collected: Collected) -> None:
    found = moves_of(collected, "/less")
    assert sorted((one.from_node or 0, one.id.rsplit("/", 1)[1]) for one in found) == [
        (2, "less-0@from-2"), (3, "less-0@from-3"),
    ]  # fmt: skip
    ids = [one.id for one in collected.report.moves]
    assert len(ids) == len(set(ids))


def test_change_that_the_controller_rejected_is_a_failed_move(collected: Collected) -> None:
    (one,) = moves_of(collected, "/refused")
    assert (one.outcome, one.reason, one.message) == ("failed", "ReassignmentRefused", "no 9")


def test_recorded_reassignments_are_found_with_their_outcomes(collected: Collected) -> None:
    found = {name: moves_of(collected, recorded_run(f"reassign-{name}").workflow_id) for name in RECORDED}
    outcomes = {name: [one.outcome for one in moves if one.kind != "disk"] for name, moves in found.items()}
    assert outcomes == {
        "happy": ["moved"],
        "then-moved": ["moved"],
        "throttled": ["moved"],
        "cancelled-by-temporal": ["cancelled"],
        "cancelled-by-api": ["cancelled"],
        "superseded": ["superseded"],
        "by-hand": ["moved"],
    }
    (moved,) = [one for one in found["then-moved"] if one.kind == "both"]
    assert (moved.from_node, moved.node, moved.directory, moved.bytes_copied) == (1, 2, "/b", 1000)
    (limited,) = found["throttled"]
    spans = [span for span in collected.frames.throttle_spans.collect() if span.workflow_id == limited.workflow_id]
    assert {(span.scope, span.subject, span.rate) for span in spans if span.scope == "node"} == {
        ("node", "1", 1000.0), ("node", "2", 1000.0),
    }  # fmt: skip
    assert all(span.ended is not None for span in spans)


@pytest.mark.parametrize("name", LEASES)
def test_throttle_lease_holds_its_limits_until_it_releases_each_of_them(collected: Collected, name: str) -> None:
    run = recorded_run(name)
    sent = [
        event.event_time.ToDatetime(tzinfo=UTC)
        for event in run.events
        if event.HasField("signal_external_workflow_execution_initiated_event_attributes")
    ]
    held, released_first, released_last = sent  # node 2 has moved its replicas, or was not asked to, before node 1
    found = [span for span in collected.frames.throttle_spans.collect() if span.workflow_id == run.workflow_id]
    columns = "unix_micros(began) AS began", "unix_micros(ended) AS ended", "subject"
    spans = collected.frames.throttle_spans.where(f"workflow_id = '{run.workflow_id}'").selectExpr(*columns).collect()
    micros = [round(at.timestamp() * 1e6) for at in (held, released_first, released_last)]
    assert sorted((row.subject, row.began, row.ended) for row in spans) == [
        ("1", micros[0], micros[2]), ("2", micros[0], micros[1]),
    ]  # fmt: skip
    config = "replica.alter.log.dirs.io.max.bytes.per.second"
    assert {(span.workflow_type, span.scope, span.config, span.rate) for span in found} == {
        ("ThrottleLease", "node", config, 100.0)
    }
