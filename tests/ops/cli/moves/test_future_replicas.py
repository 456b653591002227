"""The moves of Apache Kafka's brokers, from DescribeLogDirs."""

from __future__ import annotations

from ops.cli.kafka_admin import LogDirectoryView, PlacedReplica
from ops.cli.moves import future_replicas
from ops.cli.moves.future_replicas import FutureReplicas
from storage_node.model.ids import TopicPartition

ORDERS = TopicPartition("orders", 0)


def view(path: str, *replicas: tuple[TopicPartition, int, bool], node: int = 1) -> LogDirectoryView:
    placed = tuple(PlacedReplica(node, path, tp, size, 0, future) for tp, size, future in replicas)
    return LogDirectoryView(node, path, "", -1, -1, placed)


def copying(copied: int) -> list[LogDirectoryView]:
    return [view("/a", (ORDERS, 100, False)), view("/b", (ORDERS, copied, True))]


def test_each_future_replica_is_a_line() -> None:
    (line,) = future_replicas.lines(copying(40))
    assert (line.topic, line.partition, line.node) == ("orders", 0, 1)
    assert (line.source, line.directory, line.phase) == ("/a", "/b", "copying")
    assert (line.bytes_copied, line.bytes_total, line.id) == (40, 100, "")
    assert future_replicas.lines([view("/a", (ORDERS, 100, False))]) == []


def test_copy_of_a_replica_that_shrinks_is_at_most_whole() -> None:
    (line,) = future_replicas.lines(copying(140))
    assert (line.bytes_copied, line.bytes_total) == (100, 100)


def test_rate_and_eta_are_measured_between_two_reads() -> None:
    times = iter([10.0, 12.0])
    reader = FutureReplicas("kafka:9092", clock=lambda: next(times))
    (first,) = reader.measured(future_replicas.lines(copying(40)))
    assert (first.rate, first.eta) == (0.0, None)
    (second,) = reader.measured(future_replicas.lines(copying(60)))
    assert (second.rate, second.eta) == (10.0, 4.0)


def test_eta_of_an_empty_replica_is_unknown() -> None:
    times = iter([10.0, 12.0])
    reader = FutureReplicas("kafka:9092", clock=lambda: next(times))
    empty = [view("/a", (ORDERS, 0, False)), view("/b", (ORDERS, 0, True))]
    for _ in range(2):
        (line,) = reader.measured(future_replicas.lines(empty))
        assert (line.bytes_total, line.eta) == (0, None)
