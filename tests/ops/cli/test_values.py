"""Units, targets, the table of moves, answers to AlterReplicaLogDirs: pure values."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.cli import file_move, log_dirs, moves_view, output
from ops.cli.kafka_admin import LogDirectoryView, PlacedReplica
from ops.cli.log_dirs import Wish
from ops.cli.moves_view import NodeMoves
from ops.cli.nodes import Reach, Unreachable
from ops.cli.open_runs import OpenRun, Step
from ops.cli.target import resolve
from ops.stack import state
from ops.stack.errors import OpsError, UsageError
from ops.stack.layout import StackSpec
from ops.stack.state import StackState
from storage_node.errors import ErrorCode
from storage_node.types import TopicPartition


@pytest.mark.parametrize(
    ("text", "rate"),
    [("20MB", 20_000_000), ("20mb/s", 20_000_000), ("512KiB", 524_288), ("1.5G", 1_500_000_000), (" 7 ", 7)],
)
def test_rates_as_people_type_them(text: str, rate: int) -> None:
    assert output.parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "fast", "-1MB", "0", "20 apples", "1e6", "0.1"])
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(UsageError, match="is no rate"):
        output.parse_rate(text)


@given(st.integers(min_value=1, max_value=10**13))
def test_any_number_is_a_rate(rate: int) -> None:
    assert output.parse_rate(str(rate)) == rate


def test_sizes_and_durations_for_people() -> None:
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


def test_a_stack_names_everything(stack: Path) -> None:
    target = resolve(stack, environment={"TEMPORAL_ADDRESS": "elsewhere:1", "REHOME_BOOTSTRAP_SERVER": "elsewhere:2"})
    assert target.bootstrap == "127.0.0.1:19000,127.0.0.1:19001"
    assert (target.temporal_address, target.cluster) == ("127.0.0.1:17233", "lab")


def test_options_go_before_the_stack(stack: Path) -> None:
    target = resolve(stack, "kafka:9092", "temporal:7233", "prod", environment={})
    assert (target.bootstrap, target.temporal_address, target.cluster) == ("kafka:9092", "temporal:7233", "prod")


def test_the_environment_goes_before_the_default_stack(stack: Path) -> None:
    environment = {"REHOME_DATA": str(stack), "TEMPORAL_ADDRESS": "elsewhere:1"}
    target = resolve(environment=environment)
    assert (target.temporal_address, target.cluster) == ("elsewhere:1", "lab")


def test_no_cluster_at_all(tmp_path: Path) -> None:
    target = resolve(environment={"REHOME_DATA": str(tmp_path)})
    for need in (target.need_kafka, target.need_temporal):
        with pytest.raises(OpsError, match="rehome stack up"):
            need()


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
    return OpenRun(workflow_id, "r", move, Step(activity, 2, rows), **values)


def reported(*statuses: Mapping[str, object], **answer: Any) -> NodeMoves:
    """Node 1 responds with these copies."""
    return NodeMoves.of({1: {"moves": list(statuses), "generation": 1, "version": 1} | answer})


def missed(reach: Reach, fenced: Collection[int] = ()) -> NodeMoves:
    """Node 1 does not respond."""
    return NodeMoves.of({1: Unreachable("node 1 does not respond", reach)}).with_fenced(fenced)


def test_a_nodes_line_has_the_time_to_go() -> None:
    (line,) = moves_view.of_node(1, [status("orders", 0)])
    assert (line.eta, line.phase, line.attempt) == (3.0, "copying", 1)
    assert moves_view.cells(line)[6:10] == ["40 B 40%", "100 B", "20 B/s", "3.0 s"]


HELD = {"stall": "queued", "stall_message": "queued behind t-0 (/disks/a -> /disks/b)"}


def test_what_holds_a_move_stands_in_a_word_and_in_a_sentence() -> None:
    (line,) = moves_view.of_node(1, [status("orders", 0, **HELD)])
    assert moves_view.cells(line)[-1] == "other moves"
    assert moves_view.reasons([line], "/disks/") == ["orders-0: queued behind t-0 (a -> b)"]
    assert (line.as_json()["stall"], line.as_json()["stall_message"]) == tuple(HELD.values())
    (free,) = moves_view.of_node(1, [status("orders", 0)])
    assert moves_view.cells(free)[-1] == "-" and moves_view.reasons([free]) == []


def test_a_source_that_grows_takes_longer_or_has_no_end() -> None:
    def eta(**values: object) -> float | None:
        return moves_view.of_node(1, [status("orders", 0, **values)])[0].eta

    assert eta(append_rate=10.0) == 6.0
    assert eta(append_rate=20.0) is None
    assert eta(append_rate=10.0, stall="growing_source") is None


def test_a_node_that_is_fenced_though_it_responds_is_the_reason() -> None:
    (line,) = moves_view.join(reported(status("orders", 0), fenced=[1]), [])
    assert (line.stall, line.phase) == ("fenced", "copying")
    assert line.stall_message == "the controller has fenced node 1, though it responds"
    (queued,) = moves_view.join(reported(status("orders", 0, **HELD), fenced=[1]), [])
    assert queued.stall == "queued", "its own reason goes first"


def test_the_newest_metadata_has_the_fenced_nodes() -> None:
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
def test_dead_cut_off_and_fenced_are_distinguished(reach: Reach, fenced: bool, stall: str, sentence: str) -> None:
    (line,) = moves_view.join(missed(reach, {1} if fenced else ()), [run("r", "copy", status("orders", 0))])
    assert line.stall == stall and sentence in line.stall_message
    assert moves_view.cells(line)[-1] == (stall.replace("_", " ") or "-")
    away = reach is not Reach.CLOSED
    assert (line.phase, line.rate, line.eta) == (("node away", 0.0, None) if away else ("copying", 20.0, 3.0))


def test_no_rate_no_time_to_go() -> None:
    assert moves_view.eta(100, 40, 0.0) is None
    assert moves_view.eta(100, 100, 0.0) == 0.0


def test_node_and_run_become_one_line() -> None:
    joined = moves_view.join(reported(status("orders", 0, owner="")), [run("run-9")])
    assert [(line.id, line.bytes_copied, line.attempt, line.phase) for line in joined] == [("run-9", 40, 2, "copying")]


def test_a_run_that_its_node_reports_completely_lacks_nothing() -> None:
    assert not moves_view.lacks(run("run-1"), reported(status("orders", 0)))
    left = {"topic": "orders", "partition": 0, "source": "/a", "directory": "/b", "bytes_total": 100, "due": 4.0}
    assert not moves_view.lacks(run("run-1"), reported(waiting=[left]))
    assert moves_view.lacks(run("run-1"), reported(status("orders", 1)))
    assert moves_view.lacks(OpenRun("run-1", "r"), reported(status("orders", 0)))


@pytest.mark.parametrize(("due", "phase"), [(4.0, "waiting"), (-0.1, "deleting")])
def test_a_move_that_waits_for_the_deletion_of_its_source_is_shown(due: float, phase: str) -> None:
    left = {"topic": "orders", "partition": 0, "source": "/a", "directory": "/b", "bytes_total": 100, "due": due}
    (line,) = moves_view.join(reported(waiting=[left]), [run("run-1", "", paused=False)])
    assert (line.phase, line.source, line.bytes_copied, line.bytes_total) == (phase, "/a", 100, 100)
    assert moves_view.join(reported(waiting=[left]), []) == [], "without an open run it is no open move"


@pytest.mark.parametrize(
    ("activity", "phase"),
    [("create_move", "creating"), ("copy", "copying"), ("swap", "swapping"), ("cancel_move", "cancelling")],
)
def test_a_run_that_no_node_reports_is_shown_by_its_step(activity: str, phase: str) -> None:
    beat = {"topic": "orders", "partition": 0, "bytes_total": 100, "bytes_copied": 40, "rate": 20.0, "source": "/a"}
    (line,) = moves_view.join(NodeMoves(), [run("run-9", activity, beat)])
    assert (line.id, line.node, line.phase, line.attempt) == ("run-9", 1, phase, 2)
    assert (line.source, line.directory, line.bytes_copied, line.rate, line.eta) == ("/a", "/b", 40, 20.0, 3.0)


def test_a_run_that_cannot_be_read_is_shown() -> None:
    (line,) = moves_view.join(NodeMoves(), [OpenRun("run-9", "r")])
    assert (line.id, line.phase) == ("run-9", "unknown")


def test_each_run_that_cannot_be_read_is_shown_without_a_node() -> None:
    unread = [OpenRun(f"run-{number}", "r") for number in (8, 7)]
    joined = moves_view.join(NodeMoves.of({0: Unreachable("", Reach.REFUSED)}), [*unread, run("run-9")])
    assert [line.id for line in joined] == ["run-7", "run-8", "run-9"]
    assert [line.node for line in joined] == [-1, -1, 1]
    assert {(line.phase, line.stall) for line in joined[:2]} == {("unknown", "")}, "node 0 says nothing of them"
    assert [moves_view.cells(line)[2] for line in joined] == ["-", "-", "1"]


def test_what_only_the_server_knows() -> None:
    stopped = reported(status("orders", 0, state="stopped", stall="stopped", stall_message="stopped"))
    (paused,) = moves_view.join(stopped, [run("run-1", paused=True)])
    assert (paused.phase, paused.stall, paused.stall_message) == ("paused", "stopped", "the run is paused")
    (cancelling,) = moves_view.join(stopped, [run("run-1", "cancel_move")])
    assert cancelling.phase == "cancelling"


# Kafka's way of moving


def wish(partition: int, node: int = 1, directory: str = "/b") -> Wish:
    return Wish(TopicPartition("orders", partition), node, directory)


class Admin:
    """Answers AlterReplicaLogDirs from a script: for each node a list of answers, one per call."""

    def __init__(self, answers: dict[int, list[ErrorCode | OpsError]]) -> None:
        self.answers = answers
        self.calls: list[int] = []

    def alter_log_dirs(self, node: int, moves: Mapping[TopicPartition, str]) -> dict[TopicPartition, ErrorCode]:
        self.calls.append(node)
        answer = self.answers[node].pop(0) if len(self.answers[node]) > 1 else self.answers[node][0]
        if isinstance(answer, OpsError):
            raise answer
        return dict.fromkeys(moves, answer)


def ask(admin: Admin, *wishes: Wish, patience: float = 10.0) -> list[log_dirs.Answer]:
    clock = [0.0]

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    return log_dirs.ask(admin, wishes, patience=patience, clock=lambda: clock[0], sleep=sleep)  # type: ignore[arg-type]


def test_a_replica_that_is_not_there_yet_is_asked_again() -> None:
    admin = Admin({1: [ErrorCode.REPLICA_NOT_AVAILABLE, ErrorCode.REPLICA_NOT_AVAILABLE, ErrorCode.NONE]})
    assert [answer.outcome for answer in ask(admin, wish(0))] == ["accepted"]
    assert admin.calls == [1, 1, 1]


def test_patience_ends() -> None:
    admin = Admin({1: [ErrorCode.REPLICA_NOT_AVAILABLE]})
    (answer,) = ask(admin, wish(0), patience=2.0)
    assert (answer.outcome, answer.error) == ("refused", "REPLICA_NOT_AVAILABLE")
    assert "node 1 has no replica of orders-0" in answer.message
    assert len(admin.calls) == 5


def test_other_refusals_are_final() -> None:
    admin = Admin({1: [ErrorCode.LOG_DIR_NOT_FOUND]})
    (answer,) = ask(admin, wish(0, directory="/nowhere"))
    assert admin.calls == [1]
    assert "/nowhere is not one of the log.dirs of node 1" in answer.message


def test_a_silent_node_fails_its_own_replicas_only() -> None:
    admin = Admin({1: [OpsError("no answer")], 2: [ErrorCode.NONE]})
    answers = ask(admin, wish(0, node=1), wish(1, node=2))
    assert [(answer.outcome, answer.error) for answer in answers] == [("refused", "NO_ANSWER"), ("accepted", "")]


def held(directory: str, partition: int, size: int, *, future: bool = False, node: int = 1) -> LogDirectoryView:
    replica = PlacedReplica(node, directory, TopicPartition("orders", partition), size, 0, future)
    return LogDirectoryView(node, directory, "", -1, -1, (replica,))


def test_where_wishes_stand() -> None:
    views = [held("/a", 0, 100), held("/b", 0, 30, future=True), held("/b", 1, 80), held("/a", 2, 100)]
    standings = log_dirs.standings([wish(0), wish(1), wish(2), wish(3)], views)
    assert [(s.state, s.bytes_copied, s.bytes_total) for s in standings] == [
        ("copying", 30, 100),
        ("in_place", 80, 80),
        ("refused", 0, 100),
        ("unknown", 0, 0),
    ]


def plan_file(tmp_path: Path, value: object) -> Path:
    file = tmp_path / "plan.json"
    file.write_text(value if isinstance(value, str) else json.dumps(value))
    return file


def test_the_plans_wishes(tmp_path: Path) -> None:
    partitions = [{"topic": "orders", "partition": 0, "replicas": [1, 2], "log_dirs": ["any", "/b"]}]
    assert file_move.read_wishes(plan_file(tmp_path, {"version": 1, "partitions": partitions})) == [wish(0, node=2)]


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ("{", "is not JSON"),
        ({"version": 2, "partitions": []}, "version"),
        (
            {"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1], "log_dirs": ["x"]}]},
            "log_dirs[0]",
        ),
        ({"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1]}]}, "moves nothing"),
    ],
)
def test_a_bad_plan_is_one_sentence(tmp_path: Path, value: object, part: str) -> None:
    with pytest.raises(UsageError) as told:
        file_move.read_wishes(plan_file(tmp_path, value))
    assert "plan.json" in str(told.value)
    assert part in str(told.value)
