"""What the nodes report of reassignments, as values."""

from __future__ import annotations

import time
from typing import Any

import pytest

from ops.cli import nodes
from ops.cli.kafka_admin import NodeAddress, NoResponse, Reassignment
from ops.cli.nodes import Reach, Unreachable
from ops.cli.reassign import polling
from ops.cli.reassign.polling import Reported, SnapshotReader, reported_of
from ops.cli.target import Target
from storage_node.model.ids import TopicPartition
from workflows.model.reports import ReplicaReport

T0 = TopicPartition("t", 0)
ONE = Reassignment(T0, (2, 3, 1), (2, 3), (1,))


def response(version: int, *rows: list[Any], **more: Any) -> dict[str, Any]:
    return {
        "generation": 1,
        "version": version,
        "fenced": [],
        "partitions": list(rows),
        "sizes": [],
        "catching_up": [],
    } | more


def row(state: str, copied: int, rate: float, message: str = "") -> ReplicaReport:
    return ReplicaReport("t", 0, state=state, message=message, bytes_total=100, bytes_copied=copied, rate=rate)


def test_snapshot_has_the_newest_metadata_of_the_nodes() -> None:
    moving, done = ["t", 0, [2, 3, 1], [2, 3], [1], [1], 1], ["t", 0, [2, 3], [], [], [2, 3], 2]
    for order in ((1, 2), (2, 1)):
        responses = {1: response(7, moving, sizes=[["t", 0, 9]]), 2: response(8, done, fenced=[3])}
        found = polling.of({node: responses[node] for node in order})
        assert found is not None and found.under_way == {}
        assert found.held[T0]["replicas"] == [2, 3] and found.fenced == {3}
        assert found.sizes == {(1, T0): 9}
    found = polling.of({1: response(7, moving), 2: Unreachable("", Reach.REFUSED)})
    assert found is not None and found.under_way == {T0: ONE}
    assert found.reach == {1: Reach.RESPONDS, 2: Reach.REFUSED}
    assert polling.of({1: Unreachable("", Reach.CLOSED)}) is None


def test_eta_is_that_of_the_slowest_replica() -> None:
    both = {(2, T0): row("catching_up", 50, 10.0), (3, T0): row("catching_up", 90, 1.0, "throttled")}
    assert reported_of(ONE, both) == Reported(11.0, 10.0, "throttled")
    assert reported_of(ONE, {(2, T0): row("catching_up", 50, 10.0)}) == Reported(10.0, None, "")
    in_sync = {(2, T0): row("in_sync", 100, 0.0), (3, T0): row("catching_up", 90, 1.0)}
    assert reported_of(ONE, in_sync) == Reported(1.0, 10.0, "")
    assert reported_of(ONE, {}) is None


def test_snapshot_reader_uses_known_addresses_while_the_bootstrap_node_is_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def down(*_: Any, **__: Any) -> Any:
        raise NoResponse("no response at 127.0.0.1:1")

    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(nodes, "addresses", down)
    monkeypatch.setattr(nodes, "call", lambda *_, **__: response(7, ["t", 0, [2, 3, 1], [2, 3], [1], [1], 1]))
    reader = SnapshotReader(Target("127.0.0.1:1", "", "default", "c"))
    with pytest.raises(NoResponse):
        reader.read()
    with monkeypatch.context() as patched:
        patched.setattr(nodes, "addresses", lambda *_, **__: [NodeAddress(2, "127.0.0.1", 2)])
        assert reader.read() is not None and reader.problem is None
    clock[0] += 31.0
    found = reader.read()
    assert found is not None and found.under_way == {T0: ONE}
    assert str(reader.problem) == "no response at 127.0.0.1:1"
