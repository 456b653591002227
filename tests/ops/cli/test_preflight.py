"""What is said of a move before it is started: pure decisions, and a cluster that does not answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ops.cli import preflight
from ops.cli.kafka_admin import LogDirectoryView, NoAnswer, NodeAddress, UnknownTopic
from ops.cli.log_dirs import Wish
from ops.cli.preflight import NotMeant
from ops.cli.target import Target
from storage_node.types import TopicPartition

TARGET = Target("kafka:9092", "temporal:7233", "default", "lab")
VIEWS = [
    LogDirectoryView(1, f"/d/{name}", error, 0, 0, ()) for name, error in (("a", ""), ("b", "KAFKA_STORAGE_ERROR"))
]


def wish(directory: str = "/d/a", node: int = 1, topic: str = "orders", partition: int = 0) -> Wish:
    return Wish(TopicPartition(topic, partition), node, directory)


class Cluster:
    """Answers as `KafkaAdmin` does: topic orders on node 1; node 2 is fenced."""

    def __init__(self, unknown: int = 0, held: int = 1, silent: str = "") -> None:
        self._unknown, self._held, self._silent = unknown, held, silent

    def __call__(self, bootstrap: str, timeout: float) -> Cluster:
        return self

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def describe(self, topics: list[str]) -> list[dict[str, Any]]:
        if self._unknown:
            self._unknown -= 1
            raise UnknownTopic(f"there is no topic {topics[0]}")
        return [{"name": topics[0], "partitions": [{"partition": 0, "replicas": [self._held]}]}]

    def nodes(self, *, fenced: bool = False) -> list[NodeAddress]:
        return [NodeAddress(node, "h", 1) for node in ([1, 2] if fenced else [1])]

    def log_dirs(self, nodes: list[int]) -> list[LogDirectoryView]:
        if self._silent:
            raise NoAnswer(self._silent)
        return VIEWS


def said(monkeypatch: pytest.MonkeyPatch, cluster: Cluster, asked: Wish, target: Target = TARGET) -> list[str]:
    """What was said of a move that goes on."""
    monkeypatch.setattr(preflight, "KafkaAdmin", cluster)
    monkeypatch.setattr(preflight, "PATIENCE_SECONDS", 0.3)
    lines: list[str] = []
    preflight.check(target, asked, lines.append)
    return lines


def test_a_good_move_is_not_talked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(monkeypatch, Cluster(), wish()) == []
    assert said(monkeypatch, Cluster(), wish("/d/x/../a/")) == []


def test_a_topic_made_a_moment_ago_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(monkeypatch, Cluster(unknown=2), wish()) == []


@pytest.mark.parametrize(
    ("cluster", "asked", "told"),
    [
        (Cluster(unknown=99), wish(), "there is no topic orders"),
        (Cluster(), wish(partition=3), "topic orders has no partition 3, it has only 0"),
        (Cluster(), wish(node=2), "node 2 has no replica of orders-0, which is on node 1"),
        (Cluster(), wish(node=7), "there is no node 7 in this cluster; it has 1, 2"),
        (Cluster(), wish("/d/c"), "/d/c is not one of the log.dirs of node 1: /d/a, /d/b"),
        (Cluster(), wish("/d/b"), "/d/b on node 1 is offline"),
        (Cluster(), wish("d/a"), "--to d/a is a relative path"),
        (Cluster(), wish(topic="t" * 249), "too long to be moved"),
    ],
)
def test_a_move_that_cannot_be_is_refused(
    monkeypatch: pytest.MonkeyPatch, cluster: Cluster, asked: Wish, told: str
) -> None:
    with pytest.raises(NotMeant, match=told) as refused:
        said(monkeypatch, cluster, asked)
    assert refused.value.exit_code == 1


def test_who_does_not_answer_does_not_hinder_a_durable_run(monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = said(monkeypatch, Cluster(silent="no answer from node 1"), wish("/d/c"))
    assert line == "warning: the move is not checked beforehand and waits for its node: no answer from node 1"
    (line,) = said(monkeypatch, Cluster(held=2), wish("/d/c", node=2))
    assert "node 2 is away; the move waits for it" in line


def test_without_a_nodes_address_nothing_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (line,) = said(monkeypatch, Cluster(), wish(), Target("", "temporal:7233", "default", "lab"))
    assert "no node's address is known" in line
