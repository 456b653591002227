"""A log directory fails while the node runs: the controller hears of it, and the other directories go on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.activities.cluster import Cluster, running, until
from tests.support.temporal import TemporalServer
from workflows.model.state import ClusterState

pytestmark = [pytest.mark.temporal, pytest.mark.timeout(120)]

TOPIC = "spread"
PARTITIONS = 6


def leaders(cluster: Cluster) -> dict[int, int]:
    """The leader of every partition of the topic, as the controller knows it."""
    rows = cluster.with_handle(cluster.name, lambda handle: handle.query("state"))
    return {each.index: each.leader for each in ClusterState.of(rows).topics[TOPIC].partitions}


def told_leaders(cluster: Cluster) -> dict[int, int]:
    """The same as the node tells its clients."""
    topic = cluster.admin().list_topics(TOPIC, timeout=10).topics[TOPIC]
    return {number: partition.leader for number, partition in topic.partitions.items()}


@pytest.mark.feature("858-08", "858-12")
def test_the_controller_hears_which_replicas_are_offline(
    temporal_server: TemporalServer, task_queue: str, tmp_path: Path
) -> None:
    with running(temporal_server, task_queue, tmp_path / "cluster", directories=3) as cluster:
        cluster.create_topic(TOPIC, PARTITIONS)
        counts = {partition: cluster.produce(TOPIC, 0.2, partition) for partition in range(PARTITIONS)}
        failing = cluster.dirs()[1]
        lost = {partition for partition in counts if cluster.disk_of(TOPIC, partition) == failing}
        assert 0 < len(lost) < PARTITIONS
        expected = {partition: -1 if partition in lost else 1 for partition in counts}
        assert set(leaders(cluster).values()) == {1}
        until("the controller knows where all replicas are", lambda: located(cluster))

        # Its path leads nowhere any more, as that of a disk which was pulled out.
        aside = failing.with_name("pulled-out")
        failing.rename(aside)
        until("the controller has heard of it", lambda: leaders(cluster) == expected)
        until("clients are told so", lambda: told_leaders(cluster) == expected)
        status = cluster.ask("status")
        assert [each["online"] for each in status["directories"]] == [True, False, True]
        for partition, count in counts.items():
            if partition not in lost:
                assert cluster.read_numbers(TOPIC, count, partition) == list(range(count))
                cluster.produce(TOPIC, 0.1, partition)

        # A start without it changes nothing of that, and one with it brings its replicas back.
        cluster.kill("node-1")
        cluster.start_node(1)
        cluster.wait_registered()
        assert leaders(cluster) == expected
        cluster.kill("node-1")
        if failing.exists():
            failing.rename(failing.with_name("empty"))
        aside.rename(failing)
        cluster.start_node(1)
        cluster.wait_registered()
        until("all have a leader again", lambda: set(leaders(cluster).values()) == {1})
        until("clients are told so", lambda: set(told_leaders(cluster).values()) == {1})
        for partition in lost:
            assert cluster.read_numbers(TOPIC, counts[partition], partition) == list(range(counts[partition]))


def located(cluster: Cluster) -> bool:
    """Whether the controller knows the directory of every replica; it is told a moment after the creation."""
    rows = cluster.with_handle(cluster.name, lambda handle: handle.query("state"))
    return all(all(each.directories) for each in ClusterState.of(rows).topics[TOPIC].partitions)
