"""A log directory fails under replicas: its leaders move, its node serves on, nothing acknowledged is lost."""

from __future__ import annotations

import re

import pytest

from tests.conformance.clusters import APACHE, Cluster
from tests.conformance.conftest import Tools
from tests.conformance.log_dirs import ask as ask_directory
from tests.conformance.log_dirs import failed_directory, wait_until_in
from tests.conformance.replication.between import KAFKA_STORAGE_ERROR, NOT_LEADER_OR_FOLLOWER, filled, seen

pytestmark = [pytest.mark.slow_conformance, pytest.mark.timeout(240)]

NODE = 2


def placed(cluster: Cluster, topic: str, path: str) -> str:
    """The node's replica of the topic lies in the directory."""
    ask_directory(cluster, NODE, topic, path)
    wait_until_in(cluster, NODE, topic, path)
    return topic


@pytest.mark.conformance(97, 98, 100, 107)
@pytest.mark.feature("18-10", "18-14", "18-15")
def test_leaders_and_followers_in_it(cluster: Cluster, tools: Tools) -> None:
    good, bad = cluster.log_dirs[NODE]  # the first holds the metadata: a node ends with it
    led = placed(cluster, filled(cluster, [NODE, 1]), bad)
    followed = placed(cluster, filled(cluster, [1, NODE]), bad)
    untouched = placed(cluster, filled(cluster, [1, NODE]), good)
    leading = placed(cluster, filled(cluster, [NODE, 3]), good)
    with failed_directory(cluster, NODE, bad):
        cluster.eventually(lambda: seen(cluster, led).leader == 1, "another one leads", 30)
        cluster.eventually(lambda: seen(cluster, led).isr == (1,), "it is out of sync", 30)
        assert seen(cluster, led).offline == (NODE,) and cluster.end_offset(led) == 400
        client = cluster.wire(NODE)
        (row,) = client.fetch(led, 0, 0)
        assert row.error in (KAFKA_STORAGE_ERROR, NOT_LEADER_OR_FOLLOWER)
        for topic in (led, followed):
            cluster.eventually(lambda t=topic: seen(cluster, t).isr == (1,), f"{topic} goes on without it", 30)  # type: ignore[misc]
            assert cluster.produce(topic, 0, 20) == 400
        # Its other replicas lead and follow as before, by the same fetcher.
        for topic in (untouched, leading):
            assert len(seen(cluster, topic).isr) == 2 and cluster.produce(topic, 0, 20) == 400
            assert len(seen(cluster, topic).isr) == 2
        assert seen(cluster, leading).leader == NODE
        shown = tools.out("kafka-topics", "--describe", "--under-replicated-partitions")
        under = set(re.findall(r"Topic: (\S+)\tPartition: ", shown))
        assert {led, followed} <= under and not {untouched, leading} & under
    for topic in (led, followed, untouched, leading):
        cluster.eventually(lambda t=topic: len(seen(cluster, t).isr) == 2, f"{topic} is whole again", 60)  # type: ignore[misc]
        assert cluster.end_offset(topic) == 420


@pytest.mark.conformance(108)
def test_the_good_directory_serves_when_it_is_alone(cluster: Cluster) -> None:
    if cluster.kind == APACHE:
        pytest.skip("these brokers are the controllers, too: with two of three gone nobody elects")
    good, bad = cluster.log_dirs[NODE]  # the first holds the metadata: a node ends with it
    topic = placed(cluster, filled(cluster, [1, NODE, 3]), good)
    with failed_directory(cluster, NODE, bad):
        for other in (1, 3):
            cluster.stop(other)
        try:
            cluster.eventually(lambda: seen(cluster, topic, node=NODE).leader == NODE, "it leads", 30)
            cluster.eventually(lambda: seen(cluster, topic, node=NODE).isr == (NODE,), "alone", 30)
            assert cluster.end_offset(topic) == 400 and cluster.produce(topic, 0, 20) == 400
        finally:
            for other in (1, 3):
                cluster.start(other)
    cluster.eventually(lambda: seen(cluster, topic).isr == (1, 2, 3), "all are in sync again", 60)
    assert cluster.end_offset(topic) == 420
