"""One of a node's three directories fails under a producer: two go on, and every view tells of the third."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from ops.cli import main as cli
from ops.cli.kafka_admin import KafkaAdmin
from ops.stack.errors import ExitCode
from storage_node.model.ids import TopicPartition
from tests.e2e.conftest import Crashable
from tests.support.nodes.node_harness import until
from workflows.model.throttles import MOVE_RATE as THROTTLE

pytestmark = [pytest.mark.temporal, pytest.mark.timeout(400)]

TOPIC, PARTITIONS = "failing", 6

Rehome = Callable[..., Any]


@pytest.fixture
def broken(crashable: Crashable) -> Iterator[Crashable]:
    """The stack; afterwards its node is started anew, which brings the directory back."""
    yield crashable
    crashable.die_at("health.start")
    until(crashable.dead, 30, "the node dies at its next health check")
    crashable.disarm()
    crashable.stack.up()


@pytest.fixture
def rehome(crashable: Crashable, capsys: pytest.CaptureFixture[str]) -> Rehome:
    def run(*arguments: str) -> Any:
        capsys.readouterr()
        code = cli.run([*arguments, "--data", str(crashable.stack.data), "--json"])
        assert code in (ExitCode.OK, ExitCode.PARTIAL)
        return json.loads(capsys.readouterr().out)

    return run


@pytest.mark.feature("18-01", "113-17")
def test_producers_of_the_other_directories_go_on(broken: Crashable, rehome: Rehome) -> None:
    with KafkaAdmin(broken.bootstrap) as admin:
        admin.create_topic(TOPIC, PARTITIONS, 1, {})
        admin.set_node_config(1, {THROTTLE: "100000"})
    replicas = {number: broken.replica(f"{TOPIC}-{number}") for number in range(PARTITIONS)}
    bad = broken.disks[2]
    lost = sorted(number for number, disk in replicas.items() if disk == bad)
    moving = next(number for number, disk in replicas.items() if disk == broken.disks[1])
    answered: dict[int, list[str]] = {number: [] for number in range(PARTITIONS)}
    # One that goes on for as long as it takes; and one that gives up soon, for what will not be answered.
    producer = Producer({"bootstrap.servers": broken.bootstrap, "acks": "all", "message.timeout.ms": 120_000})
    hasty = Producer({"bootstrap.servers": broken.bootstrap, "acks": "all", "message.timeout.ms": 4000, "retries": 2})

    def send(by: Producer, number: int) -> None:
        by.produce(
            TOPIC,
            b"x" * 10_000,
            partition=number,
            on_delivery=lambda error, message: answered[message.partition()].append(error.name() if error else ""),
        )

    for _ in range(100):
        for number in range(PARTITIONS):
            send(producer, number)
    assert producer.flush(60) == 0
    assert all(set(codes) == {""} for codes in answered.values())

    tp = TopicPartition(TOPIC, moving)
    with KafkaAdmin(broken.bootstrap) as admin:
        admin.alter_log_dirs(1, {tp: str(bad)})
        until(lambda: rehome("moves")["moves"], 60, "the move is under way")
        broken.points.write_text("cancel.after_marker=raise\n")
        admin.alter_log_dirs(1, {tp: str(broken.disks[1])})  # where it is: the move is cancelled, which meets the error
    said = until(lambda: [note for note in rehome("moves")["notes"] if str(bad) in note], 60, "rehome moves tells")
    assert "is offline" in said[0] and "Input/output error" in said[0]
    broken.disarm()

    for codes in answered.values():
        codes.clear()
    for _ in range(20):
        for number in range(PARTITIONS):
            send(producer, number)
        for number in lost:
            send(hasty, number)
        producer.poll(0)

    def gone_on() -> bool:
        producer.poll(0.05)
        return all(len(codes) >= 20 for number, codes in answered.items() if number not in lost)

    until(gone_on, 60, "the others are answered")
    assert hasty.flush(60) == 0
    producer.purge()  # what it would go on trying
    assert producer.flush(60) == 0
    for number, codes in answered.items():
        assert codes == [""] * 20 if number not in lost else "" not in codes, (number, set(codes))

    def described() -> Any:
        rows = rehome("topic", "describe", TOPIC)["partitions"]
        return rows if [row["partition"] for row in rows if row["offline"]] == lost else None

    for row in until(described, 60, "offline replicas are listed"):
        assert (row["leader"], row["offline"]) == ((-1, [1]) if row["partition"] in lost else (1, []))
    with KafkaAdmin(broken.bootstrap) as admin:
        views = {view.path: view for view in admin.log_dirs([1])}
        assert (views[str(bad)].error, views[str(bad)].total) == ("KAFKA_STORAGE_ERROR", -1)
        assert [path for path, view in views.items() if view.error] == [str(bad)]
        admin.set_node_config(1, {THROTTLE: str(10**12)})
        admin.delete_topic(TOPIC)
