"""Checks of a move before its run is started: pure decisions, and a cluster that does not respond."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ops.cli.kafka_admin import LogDirectoryView, NodeAddress, NoResponse, UnknownTopic
from ops.cli.moves import preflight
from ops.cli.moves.log_dirs import RequestedMove
from ops.cli.moves.preflight import InvalidMove
from ops.cli.target import Target
from ops.stack.errors import ExitCode
from storage_node.model.ids import TopicPartition

TARGET = Target("kafka:9092", "temporal:7233", "default", "lab")
VIEWS = [
    LogDirectoryView(1, f"/d/{name}", error, 0, 0, ()) for name, error in (("a", ""), ("b", "KAFKA_STORAGE_ERROR"))
]


def requested(directory: str = "/d/a", node: int = 1, topic: str = "orders", partition: int = 0) -> RequestedMove:
    return RequestedMove(TopicPartition(topic, partition), node, directory)


class Cluster:
    """Responds as `KafkaAdmin` does: topic orders on node 1; node 2 is fenced."""

    def __init__(self, unknown: int = 0, held: int = 1, unavailable: str = "") -> None:
        self._unknown, self._held, self._unavailable = unknown, held, unavailable

    def __call__(self, bootstrap: str, timeout: float) -> Cluster:
        return self

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def describe(self, topics: list[str]) -> list[dict[str, Any]]:
        if self._unknown:
            self._unknown -= 1
            raise UnknownTopic(f"topic {topics[0]} does not exist")
        return [{"name": topics[0], "partitions": [{"partition": 0, "replicas": [self._held]}]}]

    def nodes(self, *, fenced: bool = False) -> list[NodeAddress]:
        return [NodeAddress(node, "h", 1) for node in ([1, 2] if fenced else [1])]

    def log_dirs(self, nodes: list[int]) -> list[LogDirectoryView]:
        if self._unavailable:
            raise NoResponse(self._unavailable)
        return VIEWS


def warnings(
    monkeypatch: pytest.MonkeyPatch, cluster: Cluster, move: RequestedMove, target: Target = TARGET
) -> list[str]:
    """Return the warnings about a move that is started."""
    monkeypatch.setattr(preflight, "KafkaAdmin", cluster)
    monkeypatch.setattr(preflight, "PATIENCE_SECONDS", 0.3)
    lines: list[str] = []
    preflight.check(target, move, lines.append)
    return lines


def test_check_of_a_valid_move_prints_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    assert warnings(monkeypatch, Cluster(), requested()) == []
    assert warnings(monkeypatch, Cluster(), requested("/d/x/../a/")) == []


def test_check_retries_a_topic_that_was_just_created(monkeypatch: pytest.MonkeyPatch) -> None:
    assert warnings(monkeypatch, Cluster(unknown=2), requested()) == []


@pytest.mark.parametrize(
    ("cluster", "move", "message"),
    [
        (Cluster(unknown=99), requested(), "topic orders does not exist"),
        (Cluster(), requested(partition=3), "topic orders has no partition 3, it has only 0"),
        (Cluster(), requested(node=2), "node 2 has no replica of orders-0, which is on node 1"),
        (Cluster(), requested(node=7), "node 7 does not exist in this cluster; its nodes are 1, 2"),
        (Cluster(), requested("/d/c"), "'/d/c' is not one of the log.dirs of node 1: /d/a, /d/b"),
        (Cluster(), requested("/d/b"), "/d/b on node 1 is offline"),
        (Cluster(), requested("d/a"), "--to 'd/a' is a relative path"),
        (Cluster(), requested(topic="t" * 249), "too long to be moved"),
    ],
)
def test_check_of_an_invalid_move_fails_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, cluster: Cluster, move: RequestedMove, message: str
) -> None:
    with pytest.raises(InvalidMove, match=message) as raised:
        warnings(monkeypatch, cluster, move)
    assert raised.value.exit_code == ExitCode.REFUSED


def test_check_without_a_response_only_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = warnings(monkeypatch, Cluster(unavailable="no response from node 1"), requested("/d/c"))
    assert line == "warning: the move is not checked beforehand and waits for its node: no response from node 1"
    (line,) = warnings(monkeypatch, Cluster(held=2), requested("/d/c", node=2))
    assert "node 2 is unavailable; the move waits for it" in line


def test_check_without_a_bootstrap_server_only_warns(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (line,) = warnings(monkeypatch, Cluster(), requested(), Target("", "temporal:7233", "default", "lab"))
    assert "no bootstrap server is known" in line
