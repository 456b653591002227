"""A log directory fails under replicas: its leaders move, its node serves on, nothing acknowledged is lost."""

from __future__ import annotations

import re
import threading
import time

import pytest

from storage_node.log import build_batch
from tests.conformance.clusters import APACHE, Cluster
from tests.conformance.conftest import Tools
from tests.conformance.log_dirs.calls import ask as ask_directory
from tests.conformance.log_dirs.calls import failed_directory, wait_until_in
from tests.conformance.replication.between import (
    KAFKA_STORAGE_ERROR,
    NONE,
    NOT_LEADER_OR_FOLLOWER,
    REQUEST_TIMED_OUT,
    filled,
    seen,
)
from tests.support.wire import Client

pytestmark = [pytest.mark.slow_conformance, pytest.mark.timeout(400)]

NODE = 2
#: replica.lag.time.max.ms by default, seconds.
LAG = 30.0
#: Seconds in which acknowledgements of all go on where nobody waits for that time.
SOON = 10.0


def placed(cluster: Cluster, topic: str, path: str) -> str:
    """The node's replica of the topic lies in the directory."""
    ask_directory(cluster, NODE, topic, path)
    wait_until_in(cluster, NODE, topic, path)
    return topic


class Acknowledged:
    """Records to a partition, one by one, each acknowledged by all in sync; one connection, a thread of its own."""

    def __init__(self, cluster: Cluster, topic: str, leader: int) -> None:
        self.topic = topic
        #: How many have been acknowledged, and the longest time in seconds in which none was.
        self.count, self.stall = 0, 0.0
        self._client = Client(cluster.address(leader))
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Acknowledged:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._client.close()

    def _run(self) -> None:
        last = time.monotonic()
        while not self._ended.wait(0.05):
            row = self._client.produce(self.topic, 0, build_batch([b"one"], timestamp=int(time.time() * 1000)))
            now = time.monotonic()
            self.stall = max(self.stall, now - last)
            # What was not acknowledged in time is appended all the same.
            if row.error != REQUEST_TIMED_OUT:
                assert row.error == NONE, row
                self.count, last = self.count + 1, now


@pytest.mark.conformance(97, 98, 100, 107)
@pytest.mark.feature("18-10", "18-14", "18-15")
def test_leaders_and_followers_in_it(cluster: Cluster, tools: Tools) -> None:
    good, bad = cluster.log_dirs[NODE]  # the first holds the metadata: a node ends with it
    led = placed(cluster, filled(cluster, [NODE, 1]), bad)
    followed = placed(cluster, filled(cluster, [1, NODE]), bad)
    untouched = placed(cluster, filled(cluster, [1, NODE]), good)
    leading = placed(cluster, filled(cluster, [NODE, 3]), good)
    differs = cluster.differs("out-of-sync-is-not-waited-for")
    with Acknowledged(cluster, followed, 1) as acknowledged, failed_directory(cluster, NODE, bad):
        cluster.eventually(lambda: seen(cluster, led).leader == 1, "another one leads", 30)
        cluster.eventually(lambda: seen(cluster, led).isr == (1,), "it is out of sync", 30)
        assert seen(cluster, led).offline == (NODE,) and cluster.end_offset(led) == 400
        client = cluster.wire(NODE)
        (row,) = client.fetch(led, 0, 0)
        assert row.error in (KAFKA_STORAGE_ERROR, NOT_LEADER_OR_FOLLOWER)
        assert cluster.produce(led, 0, 20) == 400
        cluster.eventually(lambda: seen(cluster, followed).isr == (1,), "the leader goes on without it", 30)
        before, limit = acknowledged.count, SOON if differs else LAG + 15
        cluster.eventually(lambda: acknowledged.count > before + 1, "acknowledgements go on", limit)
        assert (acknowledged.stall < SOON) == differs, f"{acknowledged.stall:.1f} s"
        # Its other replicas lead and follow as before, by the same fetcher.
        for topic in (untouched, leading):
            assert len(seen(cluster, topic).isr) == 2 and cluster.produce(topic, 0, 20) == 400
            assert len(seen(cluster, topic).isr) == 2
        assert seen(cluster, leading).leader == NODE
        shown = tools.out("kafka-topics", "--describe", "--under-replicated-partitions")
        under = set(re.findall(r"Topic: (\S+)\tPartition: ", shown))
        assert {led, followed} <= under and not {untouched, leading} & under
        ends = {topic: cluster.end_offset(topic) for topic in (led, followed, untouched, leading)}
    for topic, end in ends.items():
        cluster.eventually(lambda t=topic: len(seen(cluster, t).isr) == 2, f"{topic} is whole again", 60)  # type: ignore[misc]
        assert cluster.end_offset(topic) >= end
    assert cluster.end_offset(followed) >= 400 + acknowledged.count


@pytest.mark.conformance(108)
def test_good_directory_serves_when_it_is_alone(cluster: Cluster) -> None:
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
