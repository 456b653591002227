"""DescribeLogDirs: every directory with its error and volume, replicas by filter, sizes and lags."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.clusters import Cluster
from tests.conformance.log_dirs.calls import NONE, describe, where

NODE = 2
VERSIONS = range(1, 6)


@pytest.mark.conformance(22, 24, 27, 28, 35, 36)
@pytest.mark.feature("113-31", "113-32")
@pytest.mark.parametrize("version", VERSIONS)
def test_null_is_all_an_empty_list_is_none_and_directories_are_always_there(cluster: Cluster, version: int) -> None:
    topic = cluster.new_topic(assignment={0: [NODE], 1: [NODE], 2: [1]})
    every = describe(cluster, NODE, None, version)
    assert set(every) == set(cluster.log_dirs[NODE])
    mine = sorted(key for row in every.values() for key in row.replicas if key[0] == topic)
    assert mine == [(topic, 0, False), (topic, 1, False)]
    for asked, found in (
        ({}, []),
        ({topic: []}, []),
        ({topic: [1, 2, 7]}, [(topic, 1, False)]),
        ({"no-such-topic": [0]}, []),
        ({topic: [0], "no-such-topic": [1]}, [(topic, 0, False)]),
    ):
        rows = describe(cluster, NODE, asked, version)
        assert set(rows) == set(cluster.log_dirs[NODE])
        assert [key for row in rows.values() for key in row.replicas] == found
        assert all(t.partitions for row in rows.values() for t in row.topics), "a topic without a partition"
        assert {(row.error, row.cordoned) for row in rows.values()} == {(NONE, False)}
        for row in rows.values():
            assert (0 < row.usable <= row.total) if version >= 4 else (row.usable, row.total) == (-1, -1)


@pytest.mark.conformance(25, 26)
@pytest.mark.feature("113-33")
def test_size_is_that_of_the_segments_and_a_current_replica_has_no_lag(cluster: Cluster) -> None:
    topic = cluster.new_topic(assignment={0: [NODE]}, configs={"segment.bytes": str(1 << 20)})
    cluster.produce(topic, 0, 2500, size=1000)
    path = where(cluster, NODE, topic)
    assert path is not None
    replica = describe(cluster, NODE, {topic: [0]})[path].replicas[topic, 0, False]
    sizes = [segment.stat().st_size for segment in (Path(path) / f"{topic}-0").glob("*.log")]
    assert len(sizes) > 1 and replica.size == sum(sizes) > 2_500_000
    assert replica.lag == 0
