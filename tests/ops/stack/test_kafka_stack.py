"""A stack of Apache Kafka: real brokers, a record, a killed broker, commands on it, nothing left behind."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from ops.cli import main as cli
from ops.stack import ports
from ops.stack.stack import Stack
from tests.support.programs.kafka import require_kafka

pytestmark = [pytest.mark.kafka, pytest.mark.temporal, pytest.mark.timeout(240)]

TOPIC = "orders"


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    require_kafka()
    yield tmp_path
    Stack(tmp_path).down()


def rehome(capsys: pytest.CaptureFixture[str], data: Path, *arguments: str) -> object:
    """Run a command on the stack and return its value."""
    capsys.readouterr()
    code = cli.run([*arguments, "--data", str(data), "--json"])
    shown = capsys.readouterr()
    assert code == 0, shown.err
    return json.loads(shown.out)


def move(capsys: pytest.CaptureFixture[str], data: Path) -> None:
    """Move a replica to the other directory of its broker, throttled, and wait for it."""
    described = rehome(capsys, data, "topic", "describe", TOPIC)
    assert isinstance(described, dict)
    partition = described["partitions"][0]
    where = {row["node"]: Path(row["directory"]) for row in partition["log_dirs"]}
    target = where[1].with_name("disk-b" if where[1].name == "disk-a" else "disk-a")
    plan = data / "moves.json"
    replicas = partition["replicas"]
    directories = [str(target) if node == 1 else "any" for node in replicas]
    entry = {"topic": TOPIC, "partition": 0, "replicas": replicas, "log_dirs": directories}
    plan.write_text(json.dumps({"version": 1, "partitions": [entry]}))
    result = rehome(capsys, data, "move", "--file", str(plan), "--throttle", "9MB", "--wait")
    # A plan of the stack's orchestrator.
    assert set(cast(dict[str, Any], result)["outcomes"]) == {"moved"}
    (row,) = cast(list[dict[str, Any]], rehome(capsys, data, "move", "--file", str(plan), "--no-plan", "--wait"))
    assert (row["outcome"], row["directory"]) == ("in_place", str(target))
    assert (target / f"{TOPIC}-0").is_dir()


def reassign(capsys: pytest.CaptureFixture[str], data: Path) -> None:
    """Take the partition off a broker, and wait for it."""
    plan = data / "fewer.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [{"topic": TOPIC, "partition": 0, "replicas": [2, 3]}]}))
    (row,) = cast(list[dict[str, Any]], rehome(capsys, data, "reassign", str(plan), "--no-plan", "--wait"))
    assert (row["outcome"], row["to"]) == ("done", [2, 3])
    assert rehome(capsys, data, "reassignments") == {"reassignments": [], "notes": []}


def test_records_survive_a_killed_broker_and_nothing_is_left(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = ports.some_block(7)
    where = ["--port", str(first), "--temporal-port", str(first + 6)]
    up = rehome(capsys, data, "stack", "up", "--kafka", "--detach", *where)
    assert isinstance(up, dict)
    names = ["temporal", "broker-1", "broker-2", "broker-3", "orchestrator", "history"]
    assert up["kind"] == "Apache Kafka" and up["started"] == names
    assert all(row["running"] and row["ready"] for row in up["processes"])
    properties = data / "client.properties"
    assert properties.stat().st_mode & 0o777 == 0o600

    rehome(capsys, data, "topic", "create", TOPIC, "--replication-factor", "3", "--config", "min.insync.replicas=2")
    producer = Producer({"bootstrap.servers": up["bootstrap"], "acks": "all", "log_level": 0})
    producer.produce(TOPIC, b"before", partition=0)
    assert producer.flush(30) == 0
    described = rehome(capsys, data, "topic", "describe", TOPIC)
    assert isinstance(described, dict)
    leader = described["partitions"][0]["leader"]
    assert len(described["partitions"][0]["log_dirs"]) == 3

    rehome(capsys, data, "stack", "kill", f"broker-{leader}")
    status = {row["name"]: row for row in Stack(data).status()}
    assert not status[f"broker-{leader}"]["running"] and status["temporal"]["ready"]
    producer.produce(TOPIC, b"meanwhile", partition=0)
    assert producer.flush(30) == 0
    rehome(capsys, data, "stack", "start", f"broker-{leader}")
    consumer = Consumer({"bootstrap.servers": up["bootstrap"], "group.id": "g", "log_level": 0})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found = consumer.consume(2, 30)
    consumer.close()
    assert [message.value() for message in found] == [b"before", b"meanwhile"]

    found = rehome(capsys, data, "dirs", "list")
    assert isinstance(found, dict)
    assert [[each["path"] for each in row["log_dirs"]] for row in found["brokers"]] == [
        [str(data / f"broker-{node}" / f"disk-{letter}") for letter in "ab"] for node in (1, 2, 3)
    ]
    assert rehome(capsys, data, "moves") == {"moves": [], "stopped": [], "notes": []}
    move(capsys, data)
    reassign(capsys, data)
    exported = rehome(capsys, data, "export")
    assert isinstance(exported, dict) and {"manifest", "closed", "open", "events"} <= set(exported)

    pids = [record.pid for record in Stack(data).running().values()]
    rehome(capsys, data, "stack", "down")
    assert Stack(data).running() == {}
    assert not [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).ppid() != os.getpid()]
    assert all(ports.is_free(port) for port in Stack(data).spec().ports())
