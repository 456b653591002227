"""A node that was away leads again what it should, without anybody asking for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from storage_node.metadata import ClusterImage, PartitionImage, TopicImage
from storage_node.replication.balance import to_lead_again
from storage_node.types import TopicPartition
from tests.support.memory_cluster import running_cluster
from tests.support.node_harness import until

SHOULD = PartitionImage(0, (1, 2), isr=(2, 1), leader=2)


@pytest.mark.parametrize(
    ("row", "asked"),
    [
        (SHOULD, True),
        (replace(SHOULD, leader=1), False),
        (replace(SHOULD, leader=-1), False),
        (replace(SHOULD, isr=(2,)), False),
        (replace(SHOULD, replicas=(2, 1)), False),
        (replace(SHOULD, replicas=(1, 3, 2), adding=(3,), removing=(2,), original=(1, 2)), False),
    ],
)
def test_what_a_node_asks_for(row: PartitionImage, asked: bool) -> None:
    image = ClusterImage("c", 1, 1, {"t": TopicImage("t", "id", {}, {0: row})})
    assert to_lead_again(image, 1) == ([TopicPartition("t", 0)] if asked else [])


@pytest.mark.parametrize("enabled", [True, False])
def test_after_it_was_away(tmp_path: Path, enabled: bool) -> None:
    settings = {"auto.leader.rebalance.enable": str(enabled).lower(), "leader.imbalance.check.interval.seconds": "1"}
    with running_cluster(tmp_path, 2, 1, settings) as cluster:
        cluster.create_topic("t", [[1, 2]])
        cluster.stop(1)
        assert cluster.controller.partition("t").leader == 2
        cluster.start(1)
        until(lambda: 1 in cluster.controller.partition("t").isr, what="it is in sync again")
        if enabled:
            until(lambda: cluster.controller.partition("t").leader == 1, what="it leads again")
        else:
            asked = {command["do"] for command in cluster.controller.applied}
            assert "elect_leaders" not in asked and cluster.nodes[1].housekeeping._balance.interval is None
