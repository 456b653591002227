"""Metadata requests to one node, for all topics or some."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ops.torture import ask
from tests.support.nodes.memory_cluster import MemoryCluster, running_cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MemoryCluster]:
    with running_cluster(tmp_path_factory.mktemp("ask"), 1, 1) as made:
        made.create_topic("one", [[1], [1]])
        made.create_topic("two", [[1]])
        yield made


@pytest.mark.parametrize(
    ("topics", "rows"),
    [
        (None, [("one", 0), ("one", 1), ("two", 0)]),
        (("two",), [("two", 0)]),
        (("one", "not-there"), [("one", 0), ("one", 1)]),
        ((), []),
    ],
)
def test_all_topics_or_some(
    cluster: MemoryCluster, topics: tuple[str, ...] | None, rows: list[tuple[str, int]]
) -> None:
    host, port = cluster.bootstrap.split(":")
    found = ask.metadata(host, int(port), topics=topics)
    assert sorted((row.topic, row.partition) for row in found) == rows
    assert all(row.leader == 1 and row.replicas == (1,) and row.isr == (1,) for row in found)
