"""A disk of a running cluster fails for longer than the delay: its replicas are in sync again on the node's others."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from ops.cli import main as cli
from ops.cli.kafka_admin import KafkaAdmin
from ops.stack import ports
from ops.stack.stack import Stack
from storage_node.model.ids import TopicPartition
from tests.support.nodes.node_harness import until
from tests.support.programs.binary import ensure_temporal

pytestmark = [pytest.mark.temporal, pytest.mark.timeout(600)]

TOPIC, PARTITIONS, COUNT = "healed", 6, 50
HASTY = "\nlog.dir.health.check.interval.ms=200\nlog.dir.heal.delay.ms=4000\n"

Rehome = Callable[..., Any]


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    ensure_temporal()
    made = Stack(tmp_path / "stack")
    made.make_folder()
    first = ports.some_block(5)
    try:
        spec = made.prepare({"nodes": 3, "dirs": 3, "port": first, "temporal_port": first + 3})
        for node in spec.node_ids:
            properties = spec.node_home(node) / "server.properties"
            text = properties.read_text().replace("file.delete.delay.ms=5000", "file.delete.delay.ms=500")
            properties.write_text(text + HASTY)
        made.up()
        yield made
    finally:
        made.down()


@pytest.fixture
def rehome(stack: Stack, capsys: pytest.CaptureFixture[str]) -> Rehome:
    def run(*arguments: str) -> Any:
        capsys.readouterr()
        code = cli.run([*arguments, "--data", str(stack.data), "--json"])
        shown = capsys.readouterr()
        assert code == 0, shown.err
        return json.loads(shown.out)

    return run


def produce(bootstrap: str, start: int) -> None:
    failed: list[Any] = []
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "message.timeout.ms": 60_000})
    for number in range(start, start + COUNT):
        for partition in range(PARTITIONS):
            producer.produce(
                TOPIC,
                b"%d " % number + b"x" * 2000,
                partition=partition,
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )
    assert producer.flush(90) == 0 and not failed


def consume(bootstrap: str, partition: int, count: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False})
    consumer.assign([KafkaPartition(TOPIC, partition, 0)])
    found: list[int] = []

    def enough() -> bool:
        found.extend(int((each.value() or b"").split()[0]) for each in consumer.consume(500, 0.2) if not each.error())
        return len(found) >= count

    try:
        until(enough, 60, f"{count} records of partition {partition}")
    finally:
        consumer.close()
    return found


@pytest.mark.feature("18-13")
def test_replicas_of_a_failed_disk_are_in_sync_on_the_others_and_its_copies_lose(stack: Stack, rehome: Rehome) -> None:
    spec = stack.spec()
    disks = list(spec.log_dirs(1))
    with KafkaAdmin(spec.bootstrap) as admin:
        admin.create_topic(TOPIC, PARTITIONS, 3, {})
    produce(spec.bootstrap, 0)

    def holds(disk: Path) -> set[int]:
        return {number for number in range(PARTITIONS) if (disk / f"{TOPIC}-{number}").is_dir()}

    def in_sync() -> bool:
        rows = rehome("topic", "describe", TOPIC)["partitions"]
        return len(rows) == PARTITIONS and all(set(row["isr"]) == {1, 2, 3} for row in rows)

    until(in_sync, 60, "all replicas are in sync")
    bad = next(disk for disk in disks if holds(disk))
    lost = holds(bad)
    away = bad.rename(bad.with_name("pulled-out"))
    until(lambda: not in_sync(), 60, "the node's replicas leave the ISR")
    produce(spec.bootstrap, COUNT)
    until(in_sync, 120, "they are in sync again")
    others = [disk for disk in disks if disk != bad]
    assert set().union(*(holds(disk) for disk in others)) == set(range(PARTITIONS))
    events = rehome("dirs", "history", "1", str(bad))["events"]
    (remade,) = [event for event in events if event["event"] == "remade"]
    assert {TopicPartition(*each).partition for each in remade["replicas"]} == lost
    log = (stack.data / "logs" / "node-1.log").read_text()
    for number in lost:
        assert f"{TOPIC}-{number}: it is made again in " in log and f"since log directory {bad} has failed" in log

    # The disk returns: its copies are older, and go.
    away.rename(bad)
    rehome("dirs", "online", "1", str(bad))
    until(lambda: not [path for path in bad.iterdir() if path.name.startswith(TOPIC)], 60, "its copies are removed")
    assert set().union(*(holds(disk) for disk in others)) == set(range(PARTITIONS))
    until(in_sync, 60, "all replicas are in sync")
    produce(spec.bootstrap, 2 * COUNT)
    for number in range(PARTITIONS):
        assert consume(spec.bootstrap, number, 3 * COUNT) == list(range(3 * COUNT))
