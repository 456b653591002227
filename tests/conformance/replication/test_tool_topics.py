"""kafka-topics with several replicas: where they are put, what is shown while they are added and removed."""

from __future__ import annotations

import re
import uuid

import pytest

from tests.conformance.clusters import Cluster
from tests.conformance.conftest import Tools
from tests.conformance.replication.between import NONE, ask, everywhere, filled, held, seen, wait_until_done

TOPICS = "kafka-topics"


def described(tools: Tools, topic: str) -> list[dict[str, str]]:
    """The partitions' lines, by the words before the colons."""
    rows = tools.out(TOPICS, "--describe", "--topic", topic).splitlines()[1:]
    return [dict(part.split(": ", 1) for part in re.split(r"\t+", row.strip()) if ": " in part) for row in rows]


@pytest.mark.feature("455-14")
def test_three_replicas_of_each(cluster: Cluster, tools: Tools) -> None:
    topic = f"made-{uuid.uuid4().hex[:8]}"
    create = (TOPICS, "--create", "--topic", topic, "--partitions", "6", "--replication-factor", "3")
    assert tools.run(*create, "--config", "min.insync.replicas=2") == (0, f"Created topic {topic}.\n", "")
    cluster.eventually(lambda: all(len(cluster.leaders(topic, node)) == 6 for node in cluster.addresses))
    head = tools.out(TOPICS, "--describe", "--topic", topic).splitlines()[0]
    assert "\tPartitionCount: 6\tReplicationFactor: 3\tConfigs: " in head and "min.insync.replicas=2" in head
    rows = described(tools, topic)
    assert [sorted(row["Replicas"]) for row in rows] == [sorted("1,2,3")] * 6
    assert all(row["Leader"] == row["Replicas"][0] for row in rows)
    assert len({row["Leader"] for row in rows}) >= 2
    for partition in range(6):
        assert cluster.produce(topic, partition, 10) == 0
        cluster.eventually(
            lambda p=partition: {row.isr for row in everywhere(cluster, topic, p)} == {(1, 2, 3)}, "all in sync"
        )
    assert tools.out(TOPICS, "--describe", "--under-replicated-partitions", "--topic", topic) == ""
    cluster.delete_topic(topic)


def test_replicas_are_spread_over_racks(cluster: Cluster, tools: Tools) -> None:
    answer = cluster.call("Metadata", 12, topics=())
    assert {row.node_id: row.rack for row in answer.brokers} == {1: "east", 2: "east", 3: "west"}
    topic = f"made-{uuid.uuid4().hex[:8]}"
    tools.out(TOPICS, "--create", "--topic", topic, "--partitions", "4", "--replication-factor", "2")
    cluster.eventually(lambda: all(len(cluster.leaders(topic, node)) == 4 for node in cluster.addresses))
    tools.out(TOPICS, "--alter", "--topic", topic, "--partitions", "8")
    cluster.eventually(lambda: all(len(cluster.leaders(topic, node)) == 8 for node in cluster.addresses))
    sets = [{*row["Replicas"].split(",")} for row in described(tools, topic)]
    assert all(len(each) == 2 and "3" in each for each in sets), "one in each rack"
    assert min(sum(node in each for each in sets) for node in "12") >= 2, "in turn"
    cluster.delete_topic(topic)


@pytest.mark.feature("455-18")
def test_what_is_added_and_removed_is_shown(cluster: Cluster, tools: Tools) -> None:
    topic = filled(cluster, [1, 2], [2, 1])
    with held(cluster, topic, to=[3]):
        assert ask(cluster, topic, [3, 2]) == (NONE, None)
        # Whichever node the tool asks: they hear of it with their next image.
        cluster.eventually(lambda: all(row.replicas == (3, 2, 1) for row in everywhere(cluster, topic)), "all know it")
        first, second = described(tools, topic)
        assert (first["Leader"], first["Replicas"], sorted(first["Isr"].split(","))) == ("1", "3,2,1", ["1", "2"])
        assert (first["Adding Replicas"], first["Removing Replicas"]) == ("3", "1")
        assert "Adding Replicas" not in second and second["Replicas"] == "2,1"
        # It is not called under-replicated for what has not come yet.
        assert tools.out(TOPICS, "--describe", "--under-replicated-partitions", "--topic", topic) == ""
    wait_until_done(cluster, topic, [3, 2])
    assert "Adding Replicas" not in described(tools, topic)[0]
    assert seen(cluster, topic).replicas == (3, 2)
