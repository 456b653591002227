"""A restarted node leads its preferred partitions again, without an operator's request."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from storage_node.model.assignment import Assignment
from storage_node.model.ids import TopicPartition
from storage_node.model.image import ClusterImage
from storage_node.model.metadata import PartitionImage, TopicImage
from storage_node.replication.balance import to_lead_again
from tests.support.nodes.memory_cluster import running_cluster
from tests.support.nodes.node_harness import until

SHOULD = PartitionImage(0, Assignment((1, 2)), ("", ""), (0, 0), isr=(2, 1), leader=2)


@pytest.mark.parametrize(
    ("row", "requested"),
    [
        (SHOULD, True),
        (replace(SHOULD, leader=1), False),
        (replace(SHOULD, leader=-1), False),
        (replace(SHOULD, isr=(2,)), False),
        (replace(SHOULD, assignment=Assignment((2, 1))), False),
        (replace(SHOULD, assignment=Assignment((1, 3, 2), (3,), (2,), (1, 2))), False),
    ],
)
def test_node_requests_the_leadership_of_its_preferred_partitions(row: PartitionImage, requested: bool) -> None:
    image = ClusterImage("c", 1, 1, {"t": TopicImage("t", "id", {}, (row,))})
    assert to_lead_again(image, 1) == ([TopicPartition("t", 0)] if requested else [])


@pytest.mark.parametrize("enabled", [True, False])
def test_restarted_node_leads_again_if_enabled(tmp_path: Path, enabled: bool) -> None:
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
            requested = {command["do"] for command in cluster.controller.applied}
            assert "elect_leaders" not in requested and cluster.nodes[1].housekeeping._balance.interval is None
