"""The commands against a real stack: topics, moves by run and by file, cancel, stop, export."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from ops.cli import main as cli
from ops.cli.moves import preflight
from ops.stack.errors import ExitCode
from ops.stack.stack import Stack
from tests.ops.cli.conftest import Rehome, fill, known
from tests.support.nodes.node_harness import until

pytestmark = [pytest.mark.temporal, pytest.mark.timeout(400)]


def where(rehome: Rehome, topic: str) -> tuple[int, Path]:
    """Node and directory of the topic's one replica."""
    rows = rehome("topic", "describe", topic)["partitions"][0]["log_dirs"]
    (current,) = [row for row in rows if not row["future"]]
    return current["node"], Path(current["directory"])


def another(directory: Path) -> Path:
    return directory.parent / ("disk-a" if directory.name != "disk-a" else "disk-b")


def test_topic_is_created_described_and_deleted(stack: Stack, rehome: Rehome) -> None:
    name = f"t{uuid4().hex[:8]}"
    assert rehome("topic", "create", name, "--partitions", "3") == {
        "name": name,
        "partitions": 3,
        "replication_factor": 1,
    }
    known(stack, name)
    assert name in rehome("topic", "list")

    def described() -> Any:
        partitions = rehome("topic", "describe", name)["partitions"]
        assert [p["partition"] for p in partitions] == [0, 1, 2]
        return all(p["log_dirs"] for p in partitions) and partitions

    assert all(len(p["log_dirs"]) == 1 for p in until(described, what="every replica has its directory"))
    assert "already exists" in rehome("topic", "create", name, code=ExitCode.REFUSED).lower().replace("_", " ")
    assert rehome("topic", "delete", name) == {"name": name, "deleted": True}
    known(stack, name, there=False)
    assert name not in rehome("topic", "list")
    assert name in rehome("topic", "describe", name, code=1)


@pytest.mark.feature("113-01")
def test_move_with_wait_ends_in_the_target_directory(rehome: Rehome, topic: str) -> None:
    node, directory = where(rehome, topic)
    target = another(directory)
    done = rehome("move", f"{topic}-0", "--node", str(node), "--to", str(target), "--wait", "--sla", "60")
    assert done["result"]["rows"][0]["outcome"] in ("deleted", "swapped")
    assert done["result"]["sla"]["met"] is True
    assert where(rehome, topic) == (node, target)
    assert not [entry for entry in directory.iterdir() if entry.name.startswith(topic)]


def test_invalid_move_fails_with_the_reason_and_starts_no_run(
    rehome: Rehome, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "RESPONSE_SECONDS", 30.0)  # without a response the run would be started
    node, directory = where(rehome, topic)
    other, target = 3 - node, str(another(directory))
    for replica, at, to, message in (
        (f"{topic}-not-0", node, target, f"topic {topic}-not does not exist; see: rehome topic list"),
        (f"{topic}-5", node, target, f"topic {topic} has no partition 5, it has only 0"),
        (f"{topic}-0", 77, target, "node 77 does not exist in this cluster; its nodes are 1, 2"),
        (f"{topic}-0", other, target, f"node {other} has no replica of {topic}-0, which is on node {node}"),
        (
            f"{topic}-0",
            node,
            str(tmp_path),
            f"'{tmp_path}' is not one of the log.dirs of node {node}: {directory.parent}",
        ),
        (f"{topic}-0", node, f"{target}/below", f"'{target}/below' is not one of the log.dirs of node {node}"),
        (f"{topic}-0", node, "disk-b", "--to 'disk-b' is a relative path"),
    ):
        sentence = rehome("move", replica, "--node", str(at), "--to", to, "--id", f"bad-{topic}", code=ExitCode.REFUSED)
        assert sentence.startswith(f"error: {message}"), sentence
    assert "is not the id of a run" in rehome("cancel", f"bad-{topic}", code=2)
    assert where(rehome, topic) == (node, directory)


def test_move_is_started_without_a_response_from_a_node(
    rehome: Rehome, topic: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], data: Path
) -> None:
    node, directory = where(rehome, topic)
    monkeypatch.setattr(preflight, "RESPONSE_SECONDS", 0.5)
    move = ["move", f"{topic}-0", "--node", str(node), "--to", str(another(directory)), "--wait"]
    assert cli.run([*move, "--data", str(data), "--bootstrap-server", "127.0.0.1:1"]) == 0
    shown = capsys.readouterr()
    assert "warning: the move is not checked beforehand and waits for its node: cannot reach Kafka" in shown.err
    assert f"{topic}-0 is in {another(directory)}" in shown.out


@pytest.mark.feature("113-25", "113-28", "113-30")
def test_move_by_file_sends_alter_replica_log_dirs(rehome: Rehome, topic: str, tmp_path: Path) -> None:
    node, directory = where(rehome, topic)
    file = tmp_path / "moves.json"
    partition = {"topic": topic, "partition": 0, "replicas": [node], "log_dirs": [str(another(directory))]}
    file.write_text(json.dumps({"version": 1, "partitions": [partition]}))
    (row,) = rehome("move", "--file", str(file), "--wait")
    assert (row["topic"], row["outcome"]) == (topic, "in_place")
    assert where(rehome, topic) == (node, another(directory))

    partition["log_dirs"] = [str(tmp_path)]
    file.write_text(json.dumps({"version": 1, "partitions": [partition]}))
    assert f"'{tmp_path}' is not one of the log.dirs of node {node}" in rehome(
        "move", "--file", str(file), code=ExitCode.REFUSED
    )


@pytest.mark.feature("113-29")
def test_move_by_file_retries_a_missing_replica_then_fails(rehome: Rehome, topic: str, tmp_path: Path) -> None:
    node, directory = where(rehome, topic)
    file = tmp_path / "moves.json"
    partition = {"topic": f"{topic}-not", "partition": 0, "replicas": [node], "log_dirs": [str(directory)]}
    file.write_text(json.dumps({"version": 1, "partitions": [partition]}))
    message = rehome("move", "--file", str(file), "--timeout", "1", code=ExitCode.REFUSED)
    assert f"{topic}-not-0" in message


def test_slow_move_is_listed_stopped_resumed_and_cancelled(rehome: Rehome, topic: str, producer: Producer) -> None:
    fill(producer, topic)  # once more: the move is not to end by itself
    node, directory = where(rehome, topic)
    target = another(directory)
    copy = target / f"{topic}-0.move"
    started = rehome("move", f"{topic}-0", "--node", str(node), "--to", str(target), "--throttle", "300kB")

    def line() -> Any:
        found = [row for row in rehome("moves")["moves"] if row["topic"] == topic]
        return found[0] if found and found[0]["bytes_copied"] else None

    seen = until(line)
    assert seen["id"] == started["id"]
    assert (seen["node"], seen["source"], seen["directory"]) == (node, str(directory), str(target))
    assert 0 < seen["bytes_copied"] < seen["bytes_total"]
    assert seen["attempt"] >= 1

    rehome("node", "stop-moves", str(node))
    try:
        assert rehome("moves")["stopped"] == [node]
        held = until(lambda: (row := line()) and row["phase"] == "stopped" and row)["bytes_copied"]
    finally:
        rehome("node", "resume-moves", str(node))
    until(lambda: (row := line()) and row["bytes_copied"] > held)

    assert copy.is_dir()
    (cancelled,) = rehome("cancel", f"{topic}-0")["runs"]
    assert (cancelled["id"], cancelled["status"]) == (started["id"], "cancelled")
    assert not copy.exists()
    assert where(rehome, topic) == (node, directory)
    assert rehome("cancel", started["id"])["runs"][0]["status"] == "cancelled", "once more changes nothing"


def test_copy_continues_after_a_kill_of_its_node(stack: Stack, rehome: Rehome, topic: str) -> None:
    node, directory = where(rehome, topic)
    target = another(directory)
    copy = target / f"{topic}-0.move"
    started = rehome("move", f"{topic}-0", "--node", str(node), "--to", str(target), "--throttle", "2MB")
    until(lambda: any(file.stat().st_size > 1_000_000 for file in copy.glob("*.log")))
    assert rehome("stack", "kill", f"node-{node}") == {"name": f"node-{node}", "action": "kill", "changed": True}
    notes = rehome("moves")["notes"]
    assert any(f"node {node} does not respond" in note for note in notes)
    assert rehome("stack", "start", f"node-{node}")["changed"] is True
    until(lambda: not rehome("moves")["moves"], seconds=40)
    assert where(rehome, topic) == (node, target)
    assert "already ended" in rehome("cancel", started["id"], code=ExitCode.REFUSED)


def test_export_writes_a_manifest(rehome: Rehome, tmp_path: Path) -> None:
    result = rehome("export", "--to", str(tmp_path / "export"))
    assert result["events"] > 0
    assert Path(result["manifest"]).is_file()


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_report_writes_one_page(rehome: Rehome, tmp_path: Path) -> None:
    made = rehome("report", "--out", str(tmp_path / "report"))
    assert Path(made["report"]) == tmp_path / "report" / "report.html"
    assert "<html" in Path(made["report"]).read_text()[:2000].lower()
    assert made["summary"]["runs"] > 0


def test_cluster_describe_shows_the_controllers_state(rehome: Rehome) -> None:
    described = rehome("cluster", "describe")
    assert described["cluster"] == "rehome"
    assert sorted(node["node"] for node in described["nodes"]) == [1, 2]


def test_status_has_the_command_line_of_each_process(stack: Stack, rehome: Rehome) -> None:
    rows = rehome("stack", "status")
    assert [row["name"] for row in rows] == ["temporal", "controller", "node-1", "node-2"]
    assert all(row["ready"] and row["pid"] for row in rows)
    clients = [row["temporal_client"] for row in rows]
    assert clients[0] is None
    assert all(one["connected"] and one["address"] == stack.spec().temporal_address for one in clients[1:])
    assert all(one["restarted"] == [] and one["notes"] == [] for one in clients[1:])
    assert rehome("node", "status", "1")["temporal_client"] == clients[2]
    assert rows[2]["addresses"] == {"kafka": stack.spec().node_address(1)}
    assert [Path(path).name for path in rows[2]["directories"]] == ["disk-a", "disk-b", "disk-c"]
    assert "worker.py node --config" in rows[2]["command"]
    assert set(rows[0]["addresses"]) == {"grpc", "ui"}
