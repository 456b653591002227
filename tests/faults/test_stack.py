"""Bad disks under a whole stack of processes: a move ends with a reason, the others serve, all comes back."""

from __future__ import annotations

import asyncio
import errno
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError

from ops.cli.kafka_admin import KafkaAdmin
from ops.stack import ports
from storage_node.model.ids import TopicPartition
from tests.e2e.conftest import Crashable
from tests.faults.disk import CHANGES, READS, Disk, needs_fuse
from tests.faults.producing import Producing
from tests.support.nodes.node_harness import until
from tests.support.programs.binary import ensure_temporal
from tests.support.scale import FULL, tally

pytestmark = [pytest.mark.fuse, pytest.mark.temporal, needs_fuse, pytest.mark.timeout(600)]

PARTITIONS, RECORDS, SLOW = 6, 50, 50_000
#: Producers of the moving partition, more than its directory has threads for appends; ms for which a disk may hang.
PRODUCERS, PATIENCE = 6, 8000
FAULTS: dict[str, dict[str, Any]] = {
    "dies": {"ops": (*CHANGES, *READS), "errno": errno.EIO},
    # Not at close, which asks no real disk anything, and would keep a process that has been killed.
    "hangs": {"ops": (*CHANGES, *READS), "hang": True},
    "hangs in the swap": {"ops": ("rename",), "path": r"-\d+\.move$", "hang": True},
    "turns read-only": {"ops": CHANGES, "errno": errno.EROFS},
}


class BadDisk(Crashable):
    """A stack whose node has its third directory on a faulty disk."""

    def __init__(self, data: Path, first_port: int) -> None:
        super().__init__(data, first_port)
        self.bad = self.disks[2]
        properties = data / "stack" / "node-1" / "server.properties"
        patient = f"\nlog.dir.failure.timeout.ms={PATIENCE}\nlog.dir.health.check.interval.ms=300\n"
        properties.write_text(properties.read_text() + patient)
        # What was formatted goes onto the disk.
        formatted = {entry.name: entry.read_bytes() for entry in self.bad.iterdir()}
        self.disk = Disk(self.bad.parent, self.bad.name)
        for name, content in formatted.items():
            (self.bad / name).write_bytes(content)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BadDisk]:
    ensure_temporal()
    made = BadDisk(tmp_path_factory.mktemp("bad"), ports.some_block(3))
    try:
        made.stack.up()
        yield made
    finally:
        made.disk.heal()
        made.stack.down()
        made.disk.close()


def send(bootstrap: str, topic: str, partitions: list[int], count: int) -> dict[int, list[str]]:
    """Produce to each partition; answers the errors by partition, "" for what was acknowledged."""
    answered: dict[int, list[str]] = {number: [] for number in partitions}
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "message.timeout.ms": 30000})
    for number in range(count):
        for partition in partitions:
            producer.produce(
                topic,
                b"%d " % number + b"x" * 5000,
                partition=partition,
                on_delivery=lambda error, message: answered[message.partition()].append(error.name() if error else ""),
            )
    producer.flush(60)
    return answered


@pytest.mark.feature("18-01", "113-17")
@pytest.mark.parametrize("fault", list(FAULTS) if FULL else ["hangs", "hangs in the swap"])
def test_target_of_a_run(stack: BadDisk, fault: str) -> None:
    topic = f"t-{fault.replace(' ', '-')}"
    with KafkaAdmin(stack.bootstrap) as admin:
        admin.create_topic(topic, PARTITIONS, 1, {})
    everyone = list(range(PARTITIONS))
    before = send(stack.bootstrap, topic, everyone, RECORDS)
    assert all(set(codes) == {""} and len(codes) == RECORDS for codes in before.values())
    there = [number for number in everyone if stack.replica(f"{topic}-{number}") == stack.bad]
    others = [number for number in everyone if number not in there]
    moving = others[0]
    source = stack.replica(f"{topic}-{moving}")
    neighbours = [number for number in others[1:] if stack.replica(f"{topic}-{number}") == source]
    assert neighbours
    producing = Producing(stack.bootstrap, topic, [moving] * PRODUCERS + neighbours)

    async def play() -> ApplicationError:
        client = await Client.connect(stack.temporal)
        move = {"topic": topic, "partition": moving, "node": 1, "directory": str(stack.bad), "throttle": SLOW}
        handle = await client.start_workflow("MoveReplica", move, id=f"bad-{uuid.uuid4()}", task_queue="rehome")
        copy = stack.disk.backing / f"{topic}-{moving}.move"
        await asyncio.to_thread(until, copy.is_dir, 60, "the copy begins")
        stack.disk.rules(FAULTS[fault])
        if "hang" in FAULTS[fault]:
            await asyncio.to_thread(until, lambda: stack.disk.hanging > 0, 60, "the move hangs in its target")
            await asyncio.to_thread(producing.go_on, neighbours, PATIENCE / 1000 - 2)
        with pytest.raises(WorkflowFailureError) as failed:
            await asyncio.wait_for(handle.result(), 90)
        assert isinstance(failed.value.cause, ApplicationError)
        return failed.value.cause

    with producing:
        producing.go_on([moving, *neighbours], 30)
        reason = asyncio.run(play())
        producing.go_on([moving, *neighbours], 30)
    assert producing.failed == []
    assert reason.type == "LogDirOffline" and str(stack.bad) in str(reason), reason
    with KafkaAdmin(stack.bootstrap) as admin:
        views = {view.path: view.error for view in admin.log_dirs([1])}
    assert views[str(stack.bad)] == "KAFKA_STORAGE_ERROR"
    assert [path for path, error in views.items() if error] == [str(stack.bad)]
    answers = send(stack.bootstrap, topic, others, 20)
    assert all(set(codes) == {""} and len(codes) == 20 for codes in answers.values())
    with tally("faults injected through FUSE") as counted:
        counted.count += 1
    began = time.monotonic()
    stack.stack.stop("node-1")
    assert time.monotonic() - began < 60, "a node stops whatever hangs"
    stack.disk.heal()
    stack.stack.up()
    with KafkaAdmin(stack.bootstrap) as admin:
        until(lambda: not [view for view in admin.log_dirs([1]) if view.error], 60, "the directory is back")
        until(lambda: len(offsets(stack, topic)) == PARTITIONS, 60, "all partitions are served")
    ends = offsets(stack, topic)
    sent = {number: len(producing.acknowledged.get(number, ())) for number in others}
    assert {number: ends[number] for number in others} == {number: RECORDS + 20 + sent[number] for number in others}
    assert all(ends[number] >= RECORDS for number in there)
    for number, acknowledged in producing.acknowledged.items():
        stored = values(stack, topic, number, ends[number])
        assert {offset: stored.get(offset) for offset in acknowledged} == acknowledged
    with KafkaAdmin(stack.bootstrap) as admin:
        admin.alter_log_dirs(1, {TopicPartition(topic, moving): str(stack.bad)})
        until(lambda: stack.replica(f"{topic}-{moving}") == stack.bad, 60, "the move is made again and ends")
        admin.delete_topic(topic)


def offsets(stack: BadDisk, topic: str) -> dict[int, int]:
    """Log end offsets of the partitions that answer."""
    consumer = Consumer({"bootstrap.servers": stack.bootstrap, "group.id": "offsets"})
    found: dict[int, int] = {}
    for number in range(PARTITIONS):
        try:
            found[number] = consumer.get_watermark_offsets(KafkaPartition(topic, number), timeout=5)[1]
        except KafkaException:
            continue
    consumer.close()
    return found


def values(stack: BadDisk, topic: str, partition: int, end: int) -> dict[int, bytes | None]:
    """All records of a partition by offset."""
    consumer = Consumer({"bootstrap.servers": stack.bootstrap, "group.id": "values", "enable.auto.commit": False})
    consumer.assign([KafkaPartition(topic, partition, 0)])
    found: dict[int, bytes | None] = {}
    deadline = time.monotonic() + 60
    while len(found) < end and time.monotonic() < deadline:
        for message in consumer.consume(1000, 1.0):
            if message.error() is None:
                found[message.offset()] = message.value()
    consumer.close()
    return found
