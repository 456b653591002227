"""Where a new replica goes when nobody says."""

from __future__ import annotations

import time

import pytest

from tests.conformance.clusters import Cluster
from tests.conformance.log_dirs.calls import UNKNOWN_TOPIC_OR_PARTITION, alter, describe, where

NODE = 2


def filled(cluster: Cluster, path: str, replicas: int, records: int) -> None:
    """Replicas in that directory, each with so many records."""
    topic = f"filled{time.monotonic_ns()}"
    wanted = {(topic, partition): path for partition in range(replicas)}
    assert set(alter(cluster, NODE, wanted).values()) == {UNKNOWN_TOPIC_OR_PARTITION}
    cluster.new_topic(name=topic, assignment={partition: [NODE] for partition in range(replicas)})
    for partition in range(replicas):
        if records:
            cluster.produce(topic, partition, records)


@pytest.mark.conformance(78)
def test_new_replica_goes_where_there_is_least(cluster: Cluster) -> None:
    many, few = cluster.log_dirs[NODE]

    def held(path: str) -> list[int]:
        return [replica.size for replica in describe(cluster, NODE)[path].replicas.values()]

    # Many replicas with next to nothing in them here, few that are empty and expected to grow there.
    while held(few).count(0) <= held(many).count(0):
        filled(cluster, few, 2, 0)
    while len(held(many)) <= len(held(few)):
        filled(cluster, many, 4, 1)
    place = where(cluster, NODE, cluster.new_topic(assignment={0: [NODE]}))
    assert place == (many if cluster.differs("placed-by-bytes") else few)
