"""rehome reassign and reassignments against a real stack, and their decisions by themselves."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ops.cli import main as cli
from ops.cli.kafka_admin import KafkaAdmin, LogDirectoryView, PlacedReplica, Reassignment
from ops.cli.reassign import comparing
from ops.cli.reassign import throttling as throttles
from ops.cli.reassign.comparing import Row
from ops.cli.reassign.polling import Reported
from ops.stack.errors import ExitCode
from ops.stack.stack import Stack
from storage_node.model.ids import TopicPartition
from tests.ops.cli.conftest import Rehome, placed
from tests.support.nodes.node_harness import until
from workflows.model.plans.document import PlannedPartition
from workflows.model.throttles import MOVE_RATE

T0 = TopicPartition("t", 0)


def plan(folder: Path, topic: str, replicas: list[int], log_dirs: list[str] | None = None) -> Path:
    file = folder / "plan.json"
    entry = {"topic": topic, "partition": 0, "replicas": replicas, **({"log_dirs": log_dirs} if log_dirs else {})}
    file.write_text(json.dumps({"version": 1, "partitions": [entry]}))
    return file


def described(rehome: Rehome, topic: str) -> dict[str, Any]:
    return dict(rehome("topic", "describe", topic)["partitions"][0])


def other(rehome: Rehome, topic: str) -> tuple[int, int]:
    """The node that leads the topic's partition, and the other one."""
    here = described(rehome, topic)["leader"]
    return here, 3 - here


def measured(rehome: Rehome) -> dict[str, Any] | None:
    """Return the only reassignment in progress, once its rate and its stall reason are reported."""
    (line,) = rehome("reassignments")["reassignments"]
    return dict(line) if line["rate"] > 0 and line["eta"] is not None and line["reason"] else None


@pytest.mark.temporal
@pytest.mark.timeout(400)
def test_reassign_moves_a_partition_once(rehome: Rehome, topic: str, tmp_path: Path, stack: Stack) -> None:
    here, there = other(rehome, topic)
    file = plan(tmp_path, topic, [there])
    (row,) = rehome("reassign", str(file), "--wait")
    assert (row["outcome"], row["from"], row["to"]) == ("done", [here], [there])
    placed(stack, topic, [there], [])
    found = described(rehome, topic)
    assert (found["replicas"], found["isr"], found["leader"]) == ([there], [there], there)
    assert (found["adding"], found["removing"]) == ([], [])
    assert [each["node"] for each in found["log_dirs"]] == [there] or len(found["log_dirs"]) == 2
    (row,) = rehome("reassign", str(file), "--wait")
    assert row["outcome"] == "in_place"
    assert rehome("reassignments")["reassignments"] == []


@pytest.mark.temporal
@pytest.mark.timeout(400)
def test_reassign_moves_a_partition_to_a_directory_of_another_node(
    rehome: Rehome, topic: str, tmp_path: Path, stack: Stack
) -> None:
    _, there = other(rehome, topic)
    for directory in stack.spec().log_dirs(there)[1:]:
        file = plan(tmp_path, topic, [there], [str(directory)])
        (row,) = rehome("reassign", str(file), "--wait")
        assert row["outcome"] == "done"
        held = [each for each in described(rehome, topic)["log_dirs"] if each["node"] == there and not each["future"]]
        assert [each["directory"] for each in held] == [str(directory)]


@pytest.mark.temporal
@pytest.mark.timeout(400)
def test_throttled_reassignment_is_shown_and_a_cancel_removes_its_throttle(
    rehome: Rehome, topic: str, tmp_path: Path, stack: Stack
) -> None:
    here, there = other(rehome, topic)
    file = plan(tmp_path, topic, [there])
    row = Row(TopicPartition(topic, 0), (here,), (there,), comparing.TO_CHANGE)
    with KafkaAdmin(stack.spec().bootstrap) as admin:
        admin.change_configs("broker", {str(here): {throttles.RATES[0]: ("SET", "123456")}})
        try:
            _, said = throttles.throttle(admin, file, [row], 100_000)
            assert [f"node {here} keeps" in each for each in said] == [True]
            rehome("reassign", str(file))
            (line,) = until(lambda: rehome("reassignments")["reassignments"], 40, "it is shown")
            assert (line["source"], line["target"], line["in_sync"]) == ([here], [there], [])
            assert 0 <= line["bytes_copied"] < line["bytes_total"]
            line = until(lambda: measured(rehome), 60, "rate, ETA and stall reason are reported")
            assert line["reason"] == f"the throttle of node {there} lets 100000 bytes per second pass"
            assert 0 < line["bytes_copied"] < line["bytes_total"]
            # Far from what it is without a throttle; what is left is a part of the whole.
            assert 1000 < line["rate"] < 1_000_000
            assert 0 < line["rate"] * line["eta"] < 1.01 * line["bytes_total"]
            assert line["id"] and line["by"].startswith("rehome at 127.0.0.1"), (
                "its run, and the client that requested it"
            )
            until(
                lambda: str(line["reason"]) in rehome("reassignments", table=True),
                60,
                "the table shows why it is stalled",
            )
            placed(stack, topic, [here], [there])
            assert described(rehome, topic)["adding"] == [there]
            (row_now,) = rehome("reassign", str(file))
            assert row_now["outcome"] == "under_way"
            (cancelled,) = rehome("reassign", str(file), "--cancel")
            assert cancelled["outcome"] == "cancelled"
            placed(stack, topic, [here], [])
            assert described(rehome, topic)["replicas"] == [here]
            assert rehome("reassign", str(file), "--cancel")[0]["outcome"] == "nothing_under_way"
            until(lambda: not admin.configs("topic", [topic])[topic].get(throttles.LEADERS), 40, "no list is left")
            # What others have set stays.
            assert admin.configs("broker", [str(here)])[str(here)].get(throttles.RATES[0]) == "123456"
            until(
                lambda: throttles.RATES[0] not in admin.configs("broker", [str(there)])[str(there)],
                40,
                "no rate is left",
            )
            assert not throttles.note_of(file).exists()
        finally:
            admin.change_configs("broker", {str(here): {throttles.RATES[0]: ("DELETE", None)}})


@pytest.mark.temporal
@pytest.mark.timeout(400)
@pytest.mark.feature("113-42")
def test_throttle_is_removed_after_the_command_has_exited(
    rehome: Rehome, topic: str, tmp_path: Path, stack: Stack
) -> None:
    here, there = other(rehome, topic)
    file = plan(tmp_path, topic, [there])
    with KafkaAdmin(stack.spec().bootstrap) as admin:
        (row,) = rehome("reassign", str(file), "--throttle", "100KB")
        assert row["outcome"] == "started" and not throttles.note_of(file).exists()
        (line,) = until(lambda: rehome("reassignments")["reassignments"], 40, "it is shown")
        assert line["bytes_copied"] < line["bytes_total"]

        def throttled() -> bool:
            nodes = admin.configs("broker", [str(here), str(there)])
            return [nodes[str(node)].get(throttles.RATES[0]) for node in (here, there)] == ["100000", "100000"]

        until(throttled, 40, "every node has the rate")
        nodes = admin.configs("broker", [str(here), str(there)])
        assert not any(MOVE_RATE in values for values in nodes.values()), "copies between directories have their own"
        placed(stack, topic, [here], [there])
        # A second call raises the rate, so that the test ends sooner.
        (row,) = rehome("reassign", str(file), "--throttle", "50MB")
        assert row["outcome"] == "under_way"
        until(lambda: described(rehome, topic)["replicas"] == [there], 40, "it is done")

        def removed() -> bool:
            left = admin.configs("broker", [str(here), str(there)])
            lists = admin.configs("topic", [topic])[topic]
            return not any(key in left[node] for node in left for key in throttles.RATES) and not any(
                lists.get(key) for key in (throttles.LEADERS, throttles.FOLLOWERS)
            )

        until(removed, 40, "the throttle is removed")


@contextlib.contextmanager
def waiting_for(file: Path, data: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs a plan, slowly, and waits for it."""
    program = "from ops.cli.entry import main; main()"
    call = ["reassign", str(file), "--wait", "--throttle", "100KB", "--data", str(data), "--json"]
    process = subprocess.Popen([sys.executable, "-c", program, *call], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()


@pytest.mark.temporal
@pytest.mark.timeout(400)
def test_ctrl_c_ends_only_the_wait(rehome: Rehome, topic: str, tmp_path: Path, stack: Stack, data: Path) -> None:
    here, there = other(rehome, topic)
    file = plan(tmp_path, topic, [there])
    with waiting_for(file, data) as waiting:
        until(lambda: topic in str(rehome("reassignments")["reassignments"]), 40, "it is under way")
        until(lambda: not throttles.note_of(file).exists(), 40, "a run holds the throttle")
        waiting.send_signal(signal.SIGINT)
        shown, said = waiting.communicate(timeout=30)
    assert (waiting.returncode, shown) == (130, b""), said
    message, error = said.decode().strip().splitlines()
    assert json.loads(error)["code"] == "interrupted"
    assert message.startswith("the reassignment continues") and f"rehome reassign --cancel {file}" in message
    assert message.endswith("its runs remove the throttle when it ends")
    placed(stack, topic, [here], [there])
    assert described(rehome, topic)["adding"] == [there]
    (cancelled,) = rehome("reassign", str(file), "--cancel")
    assert cancelled["outcome"] == "cancelled"
    assert "topic no-such does not exist; see: rehome topic list" in rehome("topic", "describe", "no-such", code=1)
    with KafkaAdmin(stack.spec().bootstrap) as admin:
        until(
            lambda: throttles.RATES[0] not in admin.configs("broker", [str(here)])[str(here)],
            40,
            "its throttle is gone",
        )


@pytest.mark.temporal
@pytest.mark.timeout(400)
@pytest.mark.parametrize("way", ["kafka", "rehome", "temporal"])
def test_wait_for_a_cancelled_reassignment_ends_with_outcome_cancelled(
    rehome: Rehome, topic: str, tmp_path: Path, data: Path, stack: Stack, way: str
) -> None:
    here, there = other(rehome, topic)
    file = plan(tmp_path, topic, [there])
    with waiting_for(file, data) as waiting:
        line = until(lambda: shown_with_its_run(rehome, topic), 60, "it is under way, seen through by a run")
        if way == "kafka":
            with KafkaAdmin(stack.spec().bootstrap) as admin:
                assert admin.reassign({TopicPartition(topic, 0): None}) == {TopicPartition(topic, 0): ""}
        elif way == "rehome":
            assert rehome("reassign", str(file), "--cancel")[0]["outcome"] == "cancelled"
        else:
            rehome("cancel", line["id"])
        printed, errors = waiting.communicate(timeout=60)
    (row,) = json.loads(printed)
    assert (row["outcome"], row["message"]) == ("cancelled", f"cancelled: back on node {here}"), errors
    assert waiting.returncode == 1 and f"cancelled: back on node {here}" in errors.decode()
    assert described(rehome, topic)["replicas"] == [here]


def shown_with_its_run(rehome: Rehome, topic: str) -> dict[str, Any] | None:
    """The reassignment of a topic, once it is listed with the run that the command has started."""
    lines = rehome("reassignments")["reassignments"]
    return next((line for line in lines if line["topic"] == topic and "/cli-" in line["id"]), None)


@pytest.mark.temporal
@pytest.mark.timeout(400)
def test_invalid_plan_changes_nothing(rehome: Rehome, topic: str, tmp_path: Path) -> None:
    here, there = other(rehome, topic)
    assert "node 9 does not exist; the cluster has 1,2" in rehome(
        "reassign", str(plan(tmp_path, topic, [9])), code=ExitCode.REFUSED
    )
    assert "partition no-such-0 does not exist" in rehome(
        "reassign", str(plan(tmp_path, "no-such", [1])), code=ExitCode.REFUSED
    )
    message = rehome("reassign", str(plan(tmp_path, topic, [there], ["/nowhere"])), code=ExitCode.REFUSED)
    assert "'/nowhere' is not one of the log.dirs" in message and "nothing was changed" in message
    assert described(rehome, topic)["replicas"] == [here]


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["--throttle", "1MB"], "--wait"),
        (["--cancel", "--wait"], "--cancel cannot be combined"),
        (["--throttle", "fast", "--wait"], "not a valid rate"),
    ],
)
def test_reassign_with_wrong_usage_fails_with_the_reason(
    arguments: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = plan(tmp_path, "t", [1])
    assert cli.run(["reassign", str(file), "--bootstrap-server", "127.0.0.1:1", *arguments]) == 2
    assert text in capsys.readouterr().err
    file.write_text('{"version": 1, "partitions": [{"topic": "t"}]}')
    assert cli.run(["reassign", str(file), "--bootstrap-server", "127.0.0.1:1"]) == 2
    assert "$.partitions[0].partition is missing" in capsys.readouterr().err


# --- decisions


def entry(*replicas: int, dirs: tuple[str, ...] = ()) -> PlannedPartition:
    return PlannedPartition("t", 0, replicas, dirs or ("any",) * len(replicas))


def test_compare_partition_with_the_plan() -> None:
    moving = Reassignment(T0, (2, 1), (2,), (1,))
    assert comparing.compare(entry(1), [1], None, {}).outcome == comparing.IN_PLACE
    assert comparing.compare(entry(2), [1], None, {}).outcome == comparing.TO_CHANGE
    assert comparing.compare(entry(2), [2, 1], moving, {}).outcome == comparing.UNDER_WAY
    assert comparing.compare(entry(3), [2, 1], moving, {}) == Row(T0, (1,), (3,), comparing.TO_CHANGE)
    view = LogDirectoryView(1, "/a", "", -1, -1, (PlacedReplica(1, "/a", T0, 10, 0, False),))
    placed = comparing.placed([view])
    assert comparing.compare(entry(1, dirs=("/a",)), [1], None, placed).outcome == comparing.IN_PLACE
    assert comparing.compare(entry(1, dirs=("/b",)), [1], None, placed).outcome == comparing.TO_CHANGE


def test_ended_returns_the_outcome_of_a_started_reassignment() -> None:
    row = Row(T0, (1, 4), (2,), comparing.STARTED)
    assert comparing.ended(row, [2, 1, 4], Reassignment(T0, (2, 1, 4), (2,), (1, 4))) is None
    assert comparing.ended(row, [2], None) == comparing.replaced(row, comparing.DONE)
    for replicas, under_way, outcome, message in (
        ([1, 4], None, comparing.CANCELLED, "cancelled: back on node 1,4"),
        ([4, 1], None, comparing.CANCELLED, "cancelled: back on node 4,1"),
        ([3], None, comparing.SUPERSEDED, "it is on 3 now: another target was requested"),
        (
            [3, 1],
            Reassignment(T0, (3, 1), (3,), (1,)),
            comparing.SUPERSEDED,
            "its target is 3 now: another target was requested",
        ),
        (None, None, comparing.FAILED, "its topic was deleted"),
    ):
        assert comparing.ended(row, replicas, under_way) == comparing.replaced(row, outcome, message)


@pytest.mark.feature("113-42")
def test_only_throttles_of_this_plan_are_removed() -> None:
    rows = [Row(T0, (1, 2), (2, 3), comparing.TO_CHANGE)]
    others = {"t": {throttles.LEADERS: "0:1,7:7", throttles.FOLLOWERS: "*"}}
    rates = {"1": {throttles.RATES[0]: "5"}}
    mine = throttles.to_set(rows, 1000, others, rates, throttles.Throttles())
    assert mine.topics == {"t": {throttles.LEADERS: ["0:2"]}}
    assert throttles.RATES[0] not in mine.nodes["1"] and mine.nodes["3"][throttles.RATES[0]] == "1000"
    rates_set = {key for values in mine.nodes.values() for key in values}
    assert rates_set == set(throttles.RATES), "copies between directories have a rate of their own"
    # A second call with another rate changes what the first has set, and recognises its own items.
    now = {"t": {throttles.LEADERS: "0:1,0:2,7:7", throttles.FOLLOWERS: "*"}}
    again = throttles.to_set(
        rows, 2000, now, {**rates, **{n: dict(v) for n, v in mine.nodes.items() if n != "1"}}, mine
    )
    assert again.topics == mine.topics and again.nodes["3"][throttles.RATES[1]] == "2000"
    # A rate that another client has changed since stays.
    gone = throttles.to_remove(again, {"3": {throttles.RATES[0]: "9", throttles.RATES[1]: "2000"}})
    assert gone.nodes == {"3": {throttles.RATES[1]: "2000"}} and gone.topics == mine.topics


def test_line_reports_why_a_reassignment_is_stalled() -> None:
    one = Reassignment(T0, (2, 3, 1), (2, 3), (1,))
    described = {"isr": [1, 2], "leader": 1}
    sizes = {(1, T0): 100, (2, T0): 120, (3, T0): 40}
    found = comparing.line(one, described, sizes, {}, Reported(10.0, 6.0), "run")
    assert (found.bytes_total, found.bytes_copied, found.rate, found.eta) == (200, 140, 10.0, 6.0)
    assert (found.in_sync, found.reason, found.id) == ((2,), "", "run")
    assert comparing.line(one, described, sizes, {3: "node 3 is dead"}).reason == "node 3 is dead"
    assert comparing.line(one, {"isr": [], "leader": -1}, sizes, {}).reason == "the partition has no leader"
    before = comparing.line(one, described, {**sizes, (3, T0): 20}, {})
    (later,) = comparing.measured([comparing.line(one, described, sizes, {})], [before], 2.0)
    assert (later.rate, later.eta) == (10.0, 6.0)
