"""What the nodes report of reassignments, as values."""

from __future__ import annotations

from typing import Any

from ops.cli import reassign_look
from ops.cli.kafka_admin import Reassignment
from ops.cli.nodes import Reach, Unreachable
from ops.cli.reassign_look import Told, told_of
from storage_node.types import TopicPartition

T0 = TopicPartition("t", 0)
ONE = Reassignment(T0, (2, 3, 1), (2, 3), (1,))


def answer(version: int, *rows: list[Any], **more: Any) -> dict[str, Any]:
    return {
        "generation": 1,
        "version": version,
        "fenced": [],
        "partitions": list(rows),
        "sizes": [],
        "catching_up": [],
    } | more


def row(state: str, copied: int, rate: float, message: str = "") -> dict[str, Any]:
    values = {"state": state, "bytes_total": 100, "bytes_copied": copied, "rate": rate, "message": message}
    return {"topic": "t", "partition": 0, **values}


def test_newest_metadata_of_the_nodes_counts() -> None:
    moving, done = ["t", 0, [2, 3, 1], [2, 3], [1], [1], 1], ["t", 0, [2, 3], [], [], [2, 3], 2]
    for order in ((1, 2), (2, 1)):
        answers = {1: answer(7, moving, sizes=[["t", 0, 9]]), 2: answer(8, done, fenced=[3])}
        found = reassign_look.of({node: answers[node] for node in order})
        assert found is not None and found.under_way == {}
        assert found.held[T0]["replicas"] == [2, 3] and found.fenced == {3}
        assert found.sizes == {(1, T0): 9}
    found = reassign_look.of({1: answer(7, moving), 2: Unreachable("", Reach.REFUSED)})
    assert found is not None and found.under_way == {T0: ONE}
    assert found.reach == {1: Reach.RESPONDS, 2: Reach.REFUSED}
    assert reassign_look.of({1: Unreachable("", Reach.CLOSED)}) is None


def test_time_to_go_is_that_of_the_slowest_replica() -> None:
    both = {(2, T0): row("catching_up", 50, 10.0), (3, T0): row("catching_up", 90, 1.0, "throttled")}
    assert told_of(ONE, both) == Told(11.0, 10.0, "throttled")
    assert told_of(ONE, {(2, T0): row("catching_up", 50, 10.0)}) == Told(10.0, None, "")
    in_sync = {(2, T0): row("in_sync", 100, 0.0), (3, T0): row("catching_up", 90, 1.0)}
    assert told_of(ONE, in_sync) == Told(1.0, 10.0, "")
    assert told_of(ONE, {}) is None
