"""Units, targets, the table of moves, responses to AlterReplicaLogDirs: pure values."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.cli import output
from ops.cli.kafka_admin import LogDirectoryView, PlacedReplica
from ops.cli.moves import file_move, log_dirs, view
from ops.cli.moves.log_dirs import RequestedMove
from ops.cli.moves.open_runs import OpenRun, Step
from ops.cli.moves.view import NodeMoves
from ops.cli.nodes import Reach, Unreachable
from ops.cli.target import resolve
from ops.stack import state
from ops.stack.errors import OpsError, UsageError
from ops.stack.layout import StackKind, StackSpec
from ops.stack.state import StackState
from storage_node.model.error_codes import ErrorCode
from storage_node.model.ids import TopicPartition
from workflows.model.calls import read_row
from workflows.model.reports import LiveMoveRow


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("20MB", 20_000_000),
        ("20mb/s", 20_000_000),
        ("512KiB", 524_288),
        ("1.5G", 1_500_000_000),
        ("2TB", 2 * 10**12),
        ("1TiB", 2**40),
        (" 7 ", 7),
    ],
)
def test_parse_rate_accepts_units(text: str, rate: int) -> None:
    assert output.parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "fast", "-1MB", "0", "20 apples", "1e6", "0.1"])
def test_parse_rate_rejects_invalid_text(text: str) -> None:
    with pytest.raises(UsageError, match="is not a valid rate"):
        output.parse_rate(text)


@given(st.integers(min_value=1, max_value=10**13))
def test_parse_rate_accepts_any_positive_number(rate: int) -> None:
    assert output.parse_rate(str(rate)) == rate


def test_sizes_and_durations_are_formatted() -> None:
    assert [output.size(n) for n in (0, 999, 1500, 40_000_000)] == ["0 B", "999 B", "1.5 kB", "40.0 MB"]
    shown = [output.duration(s) for s in (None, 0.44, 12.2, 185, 7390)]
    assert shown == ["-", "0.4 s", "12 s", "3:05 min", "2:03:10 h"]


# Which cluster is meant


@pytest.fixture
def stack(tmp_path: Path) -> Path:
    state.save(
        StackState(StackSpec(tmp_path, nodes=2, port=19000, temporal_port=17233, cluster="lab"), "/bin/temporal")
    )
    return tmp_path


def test_stack_has_all_addresses(stack: Path) -> None:
    target = resolve(stack, environment={"TEMPORAL_ADDRESS": "elsewhere:1", "REHOME_BOOTSTRAP_SERVER": "elsewhere:2"})
    assert target.bootstrap == "127.0.0.1:19000,127.0.0.1:19001"
    assert (target.temporal_address, target.cluster) == ("127.0.0.1:17233", "lab")


def test_options_override_the_stack(stack: Path) -> None:
    target = resolve(stack, "kafka:9092", "temporal:7233", "prod", environment={})
    assert (target.bootstrap, target.temporal_address, target.cluster) == ("kafka:9092", "temporal:7233", "prod")


def test_environment_overrides_the_default_stack(stack: Path) -> None:
    environment = {"REHOME_DATA": str(stack), "TEMPORAL_ADDRESS": "elsewhere:1"}
    target = resolve(environment=environment)
    assert (target.temporal_address, target.cluster) == ("elsewhere:1", "lab")


def test_target_without_a_cluster_fails(tmp_path: Path) -> None:
    target = resolve(environment={"REHOME_DATA": str(tmp_path)})
    for need in (target.need_kafka, target.need_temporal):
        with pytest.raises(OpsError, match="rehome stack up"):
            need()


def test_apache_kafka_of_a_stack_has_no_runs(tmp_path: Path) -> None:
    state.save(StackState(StackSpec(tmp_path, kind=StackKind.APACHE_KAFKA), "/bin/temporal"))
    target = resolve(tmp_path, environment={})
    assert (target.apache_kafka, target.has_runs, target.without_runs) == (True, False, "on Apache Kafka")
    assert target.need_temporal() == "127.0.0.1:7233"
    elsewhere = resolve(tmp_path, "kafka:9092", environment={})
    assert (elsewhere.apache_kafka, elsewhere.has_runs) == (False, True)


# The table of moves


def status(topic: str, partition: int, **values: object) -> dict[str, object]:
    return {
        "topic": topic,
        "partition": partition,
        "state": "copying",
        "source": "/a",
        "directory": "/b",
        "owner": "run-1",
        "bytes_total": 100,
        "bytes_copied": 40,
        "rate": 20.0,
        "attempt": 1,
    } | values


def run(workflow_id: str, activity: str = "copy", *rows: Mapping[str, object], **values: Any) -> OpenRun:
    """An open run that moves orders-0 of node 1 to /b, and what its step reported."""
    move = {"topic": "orders", "partition": 0, "node": 1, "directory": "/b"}
    beats = tuple(beat for row in rows if (beat := read_row(LiveMoveRow, {"outcome": None, **row})) is not None)
    return OpenRun(workflow_id, "r", move, Step(activity, 2, beats), **values)


def reported(*statuses: Mapping[str, object], **response: Any) -> NodeMoves:
    """Node 1 responds with these copies."""
    return NodeMoves.of({1: {"moves": list(statuses), "generation": 1, "version": 1} | response})


def missed(reach: Reach, fenced: Collection[int] = ()) -> NodeMoves:
    """Node 1 does not respond."""
    return NodeMoves.of({1: Unreachable("node 1 does not respond", reach)}).with_fenced(fenced)


def test_line_of_a_node_has_an_eta() -> None:
    (line,) = view.of_node(1, [status("orders", 0)])
    assert (line.eta, line.phase, line.attempt) == (3.0, "copying", 1)
    assert view.cells(line)[6:10] == ["40 B 40%", "100 B", "20 B/s", "3.0 s"]
    (empty,) = view.of_node(1, [status("orders", 0, bytes_total=0, bytes_copied=0, rate=0.0)])
    assert view.cells(empty)[6:10] == ["0 B", "0 B", "-", "-"], "its records were deleted: nothing is left to copy"


HELD = {"stall": "queued", "stall_message": "queued behind t-0 (/disks/a -> /disks/b)"}


def test_stall_is_shown_in_the_table_and_in_a_sentence() -> None:
    (line,) = view.of_node(1, [status("orders", 0, **HELD)])
    assert view.cells(line)[-1] == "other moves"
    assert view.reasons([line], "/disks/") == ["orders-0: queued behind t-0 (a -> b)"]
    assert (line.as_json()["stall"], line.as_json()["stall_message"]) == tuple(HELD.values())
    (free,) = view.of_node(1, [status("orders", 0)])
    assert view.cells(free)[-1] == "-" and view.reasons([free]) == []


def test_eta_includes_the_growth_of_the_source() -> None:
    def eta(**values: object) -> float | None:
        return view.of_node(1, [status("orders", 0, **values)])[0].eta

    assert eta(append_rate=10.0) == 6.0
    assert eta(append_rate=20.0) is None
    assert eta(append_rate=10.0, stall="growing_source") is None


def test_stall_of_a_responding_fenced_node_is_fenced() -> None:
    (line,) = view.join(reported(status("orders", 0), fenced=[1]), [])
    assert (line.stall, line.phase) == ("fenced", "copying")
    assert line.stall_message == "the controller has fenced node 1, though it responds"
    (queued,) = view.join(reported(status("orders", 0, **HELD), fenced=[1]), [])
    assert queued.stall == "queued", "its own reason goes first"


def test_fenced_nodes_are_those_of_the_newest_metadata() -> None:
    old = {"moves": [], "generation": 1, "version": 7, "fenced": []}
    new = {"moves": [], "generation": 1, "version": 8, "fenced": [1]}
    assert NodeMoves.of({1: old, 2: new}).fenced == NodeMoves.of({1: new, 2: old}).fenced == {1}


@pytest.mark.parametrize(
    ("reach", "fenced", "stall", "sentence"),
    [
        (
            Reach.REFUSED,
            True,
            "dead",
            "node 1 is dead: its address refuses connections, and the controller has fenced it",
        ),
        (Reach.REFUSED, False, "dead", "node 1 is dead: its address refuses connections, and the controller has not"),
        (
            Reach.SILENT,
            True,
            "cut_off",
            "node 1 is cut off from here, or its machine is down: it does not respond, and the",
        ),
        (Reach.SILENT, False, "cut_off", "it does not respond, but the controller considers it alive"),
        (Reach.CLOSED, True, "fenced", "the controller has fenced node 1"),
        (Reach.CLOSED, False, "", ""),
    ],
)
def test_diagnosis_distinguishes_dead_cut_off_and_fenced(reach: Reach, fenced: bool, stall: str, sentence: str) -> None:
    (line,) = view.join(missed(reach, {1} if fenced else ()), [run("r", "copy", status("orders", 0))])
    assert line.stall == stall and sentence in line.stall_message
    assert view.cells(line)[-1] == (stall.replace("_", " ") or "-")
    away = reach is not Reach.CLOSED
    assert (line.phase, line.rate, line.eta) == (("unavailable", 0.0, None) if away else ("copying", 20.0, 3.0))


def test_eta_without_a_rate_is_unknown() -> None:
    assert view.eta(100, 40, 0.0) is None
    assert view.eta(100, 100, 0.0) == 0.0
    assert view.eta(0, 0, 5.0) is None


def test_join_returns_one_line_per_replica() -> None:
    joined = view.join(reported(status("orders", 0, owner="")), [run("run-9")])
    assert [(line.id, line.bytes_copied, line.attempt, line.phase) for line in joined] == [("run-9", 40, 2, "copying")]


def test_run_reported_completely_by_its_node_lacks_nothing() -> None:
    assert not view.lacks(run("run-1"), reported(status("orders", 0)))
    left = {"topic": "orders", "partition": 0, "source": "/a", "directory": "/b", "bytes_total": 100, "due": 4.0}
    assert not view.lacks(run("run-1"), reported(delete_delays=[left]))
    assert view.lacks(run("run-1"), reported(status("orders", 1)))
    assert view.lacks(OpenRun("run-1", "r"), reported(status("orders", 0)))


@pytest.mark.parametrize(("due", "phase"), [(4.0, "delete_delay"), (-0.1, "deleting")])
def test_move_in_its_delete_delay_is_shown(due: float, phase: str) -> None:
    left = {"topic": "orders", "partition": 0, "source": "/a", "directory": "/b", "bytes_total": 100, "due": due}
    (line,) = view.join(reported(delete_delays=[left]), [run("run-1", "", paused=False)])
    assert (line.phase, line.source, line.bytes_copied, line.bytes_total) == (phase, "/a", 100, 100)
    assert view.join(reported(delete_delays=[left]), []) == [], "without an open run it is no open move"


@pytest.mark.parametrize(
    ("activity", "phase"),
    [("create_move", "creating"), ("copy", "copying"), ("swap", "swapping"), ("cancel_move", "cancelling")],
)
def test_run_without_a_node_report_is_shown_by_its_step(activity: str, phase: str) -> None:
    beat = {"topic": "orders", "partition": 0, "bytes_total": 100, "bytes_copied": 40, "rate": 20.0, "source": "/a"}
    (line,) = view.join(NodeMoves(), [run("run-9", activity, beat)])
    assert (line.id, line.node, line.phase, line.attempt) == ("run-9", 1, phase, 2)
    assert (line.source, line.directory, line.bytes_copied, line.rate, line.eta) == ("/a", "/b", 40, 20.0, 3.0)


def test_run_with_an_unreadable_parameter_is_shown() -> None:
    (line,) = view.join(NodeMoves(), [OpenRun("run-9", "r")])
    assert (line.id, line.phase) == ("run-9", "unknown")


def test_each_run_with_an_unreadable_parameter_is_shown_without_a_node() -> None:
    unread = [OpenRun(f"run-{number}", "r") for number in (8, 7)]
    joined = view.join(NodeMoves.of({0: Unreachable("", Reach.REFUSED)}), [*unread, run("run-9")])
    assert [line.id for line in joined] == ["run-7", "run-8", "run-9"]
    assert [line.node for line in joined] == [-1, -1, 1]
    assert {(line.phase, line.stall) for line in joined[:2]} == {("unknown", "")}, "node 0 says nothing of them"
    assert [view.cells(line)[2] for line in joined] == ["-", "-", "1"]


def test_join_adds_pauses_and_cancels_from_the_server() -> None:
    stopped = reported(status("orders", 0, state="stopped", stall="stopped", stall_message="stopped"))
    (paused,) = view.join(stopped, [run("run-1", paused=True)])
    assert (paused.phase, paused.stall, paused.stall_message) == ("paused", "stopped", "the run is paused")
    (cancelling,) = view.join(stopped, [run("run-1", "cancel_move")])
    assert cancelling.phase == "cancelling"


# Kafka's way of moving


def requested(partition: int, node: int = 1, directory: str = "/b") -> RequestedMove:
    return RequestedMove(TopicPartition("orders", partition), node, directory)


class Admin:
    """Responds to AlterReplicaLogDirs from a script: for each node a list of responses, one per call."""

    def __init__(self, responses: dict[int, list[ErrorCode | OpsError]]) -> None:
        self.responses = responses
        self.calls: list[int] = []

    def alter_log_dirs(self, node: int, moves: Mapping[TopicPartition, str]) -> dict[TopicPartition, ErrorCode]:
        self.calls.append(node)
        response = self.responses[node].pop(0) if len(self.responses[node]) > 1 else self.responses[node][0]
        if isinstance(response, OpsError):
            raise response
        return dict.fromkeys(moves, response)

    def log_dirs(self, nodes: list[int]) -> list[LogDirectoryView]:
        return [held(path, 0, 0, node=node) for node in nodes for path in ("/a", "/b")]


def request_moves(admin: Admin, *moves: RequestedMove, patience: float = 10.0) -> list[log_dirs.MoveResult]:
    clock = [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    return log_dirs.request_moves(admin, moves, patience=patience, clock=lambda: clock[0], sleep=sleep)  # type: ignore[arg-type]


def test_replica_not_available_is_retried() -> None:
    admin = Admin({1: [ErrorCode.REPLICA_NOT_AVAILABLE, ErrorCode.REPLICA_NOT_AVAILABLE, ErrorCode.NONE]})
    assert [response.outcome for response in request_moves(admin, requested(0))] == ["accepted"]
    assert admin.calls == [1, 1, 1]


def test_retries_end_after_the_timeout() -> None:
    admin = Admin({1: [ErrorCode.REPLICA_NOT_AVAILABLE]})
    (response,) = request_moves(admin, requested(0), patience=2.0)
    assert (response.outcome, response.error) == ("refused", "REPLICA_NOT_AVAILABLE")
    assert "node 1 has no replica of orders-0" in response.message
    assert len(admin.calls) == 5


def test_other_errors_are_not_retried() -> None:
    admin = Admin({1: [ErrorCode.LOG_DIR_NOT_FOUND]})
    (response,) = request_moves(admin, requested(0, directory="/nowhere "))
    assert admin.calls == [1]
    assert response.message == (
        "'/nowhere ' is not one of the log.dirs of node 1, which are /a, /b; see: rehome dirs list --node 1"
    )


def test_node_without_a_response_fails_only_its_own_replicas() -> None:
    admin = Admin({1: [OpsError("no response")], 2: [ErrorCode.NONE]})
    responses = request_moves(admin, requested(0, node=1), requested(1, node=2))
    assert [(response.outcome, response.error) for response in responses] == [
        ("refused", "NO_RESPONSE"),
        ("accepted", ""),
    ]


def held(directory: str, partition: int, size: int, *, future: bool = False, node: int = 1) -> LogDirectoryView:
    replica = PlacedReplica(node, directory, TopicPartition("orders", partition), size, 0, future)
    return LogDirectoryView(node, directory, "", -1, -1, (replica,))


def test_progress_of_requested_moves() -> None:
    views = [held("/a", 0, 100), held("/b", 0, 30, future=True), held("/b", 1, 80), held("/a", 2, 100)]
    progress = log_dirs.progress_of([requested(0), requested(1), requested(2), requested(3)], views)
    assert [(s.state, s.bytes_copied, s.bytes_total) for s in progress] == [
        ("copying", 30, 100),
        ("in_place", 80, 80),
        ("not_moved", 0, 100),
        ("unknown", 0, 0),
    ]


def plan_file(tmp_path: Path, value: object) -> Path:
    file = tmp_path / "plan.json"
    file.write_text(value if isinstance(value, str) else json.dumps(value))
    return file


def test_read_moves_returns_the_moves_of_the_plan(tmp_path: Path) -> None:
    partitions = [{"topic": "orders", "partition": 0, "replicas": [1, 2], "log_dirs": ["any", "/b"]}]
    assert file_move.read_moves(plan_file(tmp_path, {"version": 1, "partitions": partitions})) == [requested(0, node=2)]


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ("{", "is not JSON"),
        ({"version": 2, "partitions": []}, "version"),
        (
            {"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1], "log_dirs": ["x"]}]},
            "log_dirs[0]",
        ),
        ({"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1]}]}, "requests no moves"),
    ],
)
def test_read_moves_of_an_invalid_plan_raises(tmp_path: Path, value: object, part: str) -> None:
    with pytest.raises(UsageError) as raised:
        file_move.read_moves(plan_file(tmp_path, value))
    assert "plan.json" in str(raised.value)
    assert part in str(raised.value)
