"""AlterReplicaLogDirs and DescribeLogDirs in every supported version."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.nodes.node_harness import Harness, until
from tests.support.wire import Client, offered


def listed(answer: Any) -> list[tuple[str, int]]:
    return sorted(
        (topic.name, row.partition_index)
        for directory in answer.results
        for topic in directory.topics
        for row in topic.partitions
    )


@pytest.mark.conformance(27, 35, 36)
@pytest.mark.feature("113-31", "113-32")
@pytest.mark.parametrize("version", offered(35))
def test_null_is_all_and_an_empty_list_is_none(harness: Harness, version: int) -> None:
    harness.create_topic("t", 2)
    harness.create_topic("u")
    client = Client(harness)
    everything = client.ask(35, version, {"topics": None})
    assert listed(everything) == [("t", 0), ("t", 1), ("u", 0)]
    assert [row.log_dir for row in everything.results] == harness.paths
    nothing = client.ask(35, version, {"topics": []})
    assert listed(nothing) == [] and len(nothing.results) == 3
    some = client.ask(35, version, {"topics": [{"topic": "t", "partitions": [1, 7]}, {"topic": "u"}]})
    assert listed(some) == [("t", 1)]
    answers = (everything, nothing, some)
    assert all(topic.partitions for answer in answers for directory in answer.results for topic in directory.topics)
    if version >= 4:
        assert all(0 < row.usable_bytes <= row.total_bytes for row in everything.results)
    client.close()


@pytest.mark.conformance(14)
@pytest.mark.feature("113-03")
@pytest.mark.parametrize("version", offered(34))
def test_every_partition_has_a_result_and_its_last_directory_counts(harness: Harness, version: int) -> None:
    harness.create_topic("t", 2)
    here = harness.directory_of("t", 0)
    first, second = (path for path in harness.paths if path != here)
    client = Client(harness)

    def to(path: str, *partitions: int) -> dict[str, Any]:
        return {"path": path, "topics": [{"name": "t", "partitions": list(partitions)}]}

    asked = [to(first, 0), to("relative/path", 1), to(second, 0), to(second + "/../x", 5)]
    answer = client.ask(34, version, {"dirs": asked})
    (topic,) = answer.results
    assert {row.partition_index: int(row.error_code) for row in topic.partitions} == {0: 0, 1: 57, 5: 57}
    until(lambda: harness.directory_of("t", 0) == second)
    assert client.ask(34, version, {"dirs": []}).results == ()
    client.close()
