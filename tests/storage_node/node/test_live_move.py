"""A partition moves to another disk while it is written and read; nobody notices."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition as KafkaPartition
from kafka import TopicPartition as KafkaPythonPartition
from kafka.admin import KafkaAdminClient

from storage_node.model.ids import TopicPartition
from storage_node.move import creator
from storage_node.move.copying import movers
from storage_node.move.future import FutureLog
from storage_node.move.status import MoveState
from tests.support.nodes.node_harness import Harness, running, until


class Traffic:
    """An idempotent producer of numbered records and a consumer that follows, each on a thread."""

    def __init__(self, harness: Harness, topic: str) -> None:
        self.harness = harness
        self.topic = topic
        self.acknowledged: list[tuple[int, bytes]] = []
        self.seen: list[tuple[int, bytes]] = []
        self.errors: list[str] = []
        self._stop = threading.Event()
        self._caught_up = threading.Event()
        self._threads = [threading.Thread(target=self._produce), threading.Thread(target=self._consume)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def _produce(self) -> None:
        producer = self.harness.producer(linger_ms=1, error_cb=lambda error: self.errors.append(f"producer: {error}"))

        def delivered(error: object, message: object) -> None:
            if error is not None:
                self.errors.append(f"delivery: {error}")
            else:
                self.acknowledged.append((message.offset(), message.value()))  # type: ignore[attr-defined]

        number = 0
        while not self._stop.is_set():
            producer.produce(self.topic, b"%d " % number + b"x" * 500, partition=0, on_delivery=delivered)
            number += 1
            producer.poll(0)
            self._stop.wait(0.001)  # some thousand records are enough
        producer.flush(30)

    def _consume(self) -> None:
        consumer = self.harness.consumer()
        consumer.assign([KafkaPartition(self.topic, 0, 0)])
        while not self._caught_up.is_set():
            for message in consumer.consume(500, timeout=0.1):
                if message.error() is not None:
                    self.errors.append(f"consumer: {message.error()}")
                else:
                    self.seen.append((message.offset(), message.value()))
        consumer.close()

    def finish(self) -> None:
        self._stop.set()
        self._threads[0].join()
        until(lambda: len(self.seen) >= len(self.acknowledged), 30, "the consumer catches up")
        self._caught_up.set()
        self._threads[1].join()

    def check(self) -> None:
        assert self.errors == []
        offsets = [offset for offset, _ in self.acknowledged]
        assert offsets == list(range(len(offsets)))
        assert self.seen == self.acknowledged
        numbers = [int(value.split()[0]) for _, value in self.seen]
        assert numbers == list(range(len(numbers)))


def move(harness: Harness, admin: KafkaAdminClient, topic: str, target: str) -> None:
    (error,) = admin.alter_replica_log_dirs({(topic, 0, 1): target}).values()
    assert error.__name__ == "NoError"
    until(lambda: harness.directory_of(topic) == target, 60)


@pytest.mark.feature("113-12", "113-13", "113-15", "113-18")
def test_nothing_is_lost_or_doubled_over_several_moves(tmp_path: Path) -> None:
    with running(tmp_path) as harness:
        harness.create_topic("t", configs={"segment.bytes": "100000"})
        admin = KafkaAdminClient(bootstrap_servers=harness.bootstrap)
        traffic = Traffic(harness, "t")
        traffic.start()
        try:
            until(lambda: len(traffic.acknowledged) > 200)
            for round_ in range(6):
                move(harness, admin, "t", harness.paths[(round_ + 1) % 3])
                seen = len(traffic.acknowledged)
                until(lambda: len(traffic.acknowledged) > seen + 50)  # noqa: B023
        finally:
            traffic.finish()
            admin.close()
        traffic.check()
        tp = TopicPartition("t", 0)
        assert harness.node.replicas.served[tp].log.log_start_offset == 0
        until(lambda: not [p for d in harness.paths for p in Path(d).glob("t-0.*")], 20)


@pytest.mark.conformance(59)
@pytest.mark.feature("113-19")
def test_delete_records_during_a_move_holds_for_both_copies(tmp_path: Path) -> None:
    with running(tmp_path, extra={"replica.alter.log.dirs.io.max.bytes.per.second": "50000"}) as harness:
        harness.create_topic("t", configs={"segment.bytes": "20000"})
        admin = KafkaAdminClient(bootstrap_servers=harness.bootstrap)
        harness.produce("t", [b"%d " % i + b"x" * 1000 for i in range(400)], batch_num_messages=10)
        target = harness.other_directory("t")
        admin.alter_replica_log_dirs({("t", 0, 1): target})
        partition = harness.node.partition(TopicPartition("t", 0))
        assert partition is not None
        until(lambda: partition.future is not None and partition.future.log_end_offset > 20)
        assert harness.directory_of("t") != target
        replica = KafkaPythonPartition("t", 0)
        assert admin.delete_records({replica: 300})[replica]["low_watermark"] == 300
        future = partition.future
        assert future is not None and future.log_start_offset == 300
        harness.node.engine.set_node_rate(None)
        until(lambda: harness.directory_of("t") == target, 30)
        assert partition.log.log_start_offset == 300
        found = harness.consume("t", 100, offset=300)
        assert [int(m.value().split()[0]) for m in found] == list(range(300, 400))
        admin.close()


@pytest.mark.conformance(53)
@pytest.mark.feature("113-21")
def test_restart_during_a_copy_resumes_it(tmp_path: Path) -> None:
    with running(tmp_path, extra={"replica.alter.log.dirs.io.max.bytes.per.second": "300000"}) as harness:
        harness.create_topic("t", configs={"segment.bytes": "100000"})
        admin = KafkaAdminClient(bootstrap_servers=harness.bootstrap)
        harness.produce("t", [b"%d " % i + b"x" * 1000 for i in range(2000)], batch_num_messages=10)
        target = harness.other_directory("t")
        admin.alter_replica_log_dirs({("t", 0, 1): target})
        admin.close()
        tp = TopicPartition("t", 0)
        until(lambda: (status := harness.node.engine.status(tp)) is not None and status.bytes_copied > 300_000)
        claim = harness.node.engine.status(tp).claim  # type: ignore[union-attr]
        harness.restart()
        status = until(lambda: harness.node.engine.status(tp))
        assert status is not None
        assert status.claim == claim and status.directory == target
        until(lambda: (status := harness.node.engine.status(tp)) is not None and status.bytes_resumed > 200_000)
        harness.node.engine.set_node_rate(None)
        planned = harness.controller.planned[0]
        assert harness.controller.run_move(harness.node, planned) == "swapped"
        assert harness.directory_of("t") == target
        assert [int(m.value().split()[0]) for m in harness.consume("t", 2000)] == list(range(2000))


@pytest.mark.parametrize("where", ["a new copy", "a copy found at the start"])
def test_configs_that_change_while_a_copy_is_being_opened_hold_after_the_swap(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = where == "a copy found at the start"
    module, opening = (movers, movers.open_copy) if found else (creator, creator.open_copy)
    with running(tmp_path, extra={"file.delete.delay.ms": "0"}) as harness:
        harness.controller.hold_moves = True
        harness.create_topic("t", 1)
        harness.settle()
        harness.produce("t", [b"x" * 100] * 10)
        tp = TopicPartition("t", 0)

        def slow(*args: Any) -> FutureLog:
            copy = opening(*args)
            topics = harness.controller.image.topics
            changed = replace(topics["t"], configs={"flush.messages": "1", "retention.ms": "60000"})
            harness.controller.change(topics={**topics, "t": changed})
            return copy

        if not found:
            monkeypatch.setattr(module, "open_copy", slow)
        target = harness.other_directory("t")
        claim = harness.node.engine.create(tp, target, owner="me").claim
        if found:
            monkeypatch.setattr(module, "open_copy", slow)
            harness.restart()
            until(lambda: harness.node.metadata.image.topics["t"].configs, what="the configs change")
        engine = harness.node.engine
        engine.start_copy(tp, claim)
        assert engine.wait(tp, claim, 30).state is MoveState.CAUGHT_UP
        until(lambda: engine.swap(tp, claim).outcome == "swapped")
        partition = harness.node.partition(tp)
        assert partition is not None and partition.directory.name == target
        assert (partition.log.config.flush_messages, partition.log.config.retention_ms) == (1, 60_000)
