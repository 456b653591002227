"""The throttles of KIP-73: which replicas they hold, at what rate, and how that is changed while they do."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest

from tests.conformance.clusters import NODES, Cluster
from tests.conformance.log_dirs.calls import describe
from tests.conformance.replication.between import (
    MOVED,
    NONE,
    ask,
    filled,
    reassign,
    seen,
    under_way,
    wait_until_done,
)

RATE = 300_000
#: Seconds after which Kafka's throttles remember nothing.
WINDOWS = 11.0
LEADER, FOLLOWER = "leader", "follower"


@contextlib.contextmanager
def rate(cluster: Cluster, side: str, bytes_per_second: int, *nodes: int) -> Iterator[None]:
    """While the block runs these nodes have the rate, as leaders or as followers."""
    name = f"{side}_replication_throttled_rate"
    for node in nodes:
        cluster.set_broker_config(node, **{name: str(bytes_per_second)})
    try:
        yield
    finally:
        for node in nodes:
            cluster.set_broker_config(node, **{name: None})


@pytest.fixture(autouse=True)
def _lists_end_with_their_test(cluster: Cluster) -> Iterator[None]:
    """What a listed replica fetches is counted by Kafka's throttles, and remembered in the next test."""
    yield
    while _listed:
        topic = _listed.pop()
        cluster.set_topic_config(
            topic, **{f"{side}_replication_throttled_replicas": None for side in (LEADER, FOLLOWER)}
        )


_listed: set[str] = set()


def list_(cluster: Cluster, topic: str, side: str, replicas: str | None) -> None:
    """Set the list of throttled replicas of one side; None takes it away."""
    _listed.add(topic)
    cluster.set_topic_config(topic, **{f"{side}_replication_throttled_replicas": replicas})


def copied(cluster: Cluster, node: int, topic: str, partition: int = 0) -> int:
    """Bytes of the replica on the node's disks."""
    rows = describe(cluster, node, {topic: [partition]})
    return sum(replica.size for row in rows.values() for replica in row.replicas.values())


@pytest.mark.conformance(195, 197)
@pytest.mark.parametrize("side", [LEADER, FOLLOWER])
def test_only_listed_replicas_of_the_node_are_held(cluster: Cluster, side: str) -> None:
    topic = filled(cluster, [1], [1], [1])
    # The leaders' list names leaders, the followers' list those that fetch; other nodes' entries are not this one's.
    here, elsewhere = (1, 3) if side == LEADER else (3, 2)
    list_(cluster, topic, side, f"0:{here}, 1:{elsewhere},7:{here}")
    with rate(cluster, side, 1, here):
        assert set(reassign(cluster, {(topic, p): [3] for p in range(3)}).values()) == {(NONE, None)}
        for free in (1, 2):
            wait_until_done(cluster, topic, [3], free)
        assert under_way(cluster, topic, 0) == ([3, 1], [3], [1])
        assert seen(cluster, topic).isr == (1,) and copied(cluster, 3, topic) < 400_000
        # Taken off the list it is free, although the rate is still there.
        list_(cluster, topic, side, None)
        wait_until_done(cluster, topic, [3], 0)


@pytest.mark.conformance(195)
def test_star_is_all_of_the_topic_and_of_no_other(cluster: Cluster) -> None:
    topic, other = filled(cluster, [1], [1]), filled(cluster, [1])
    list_(cluster, topic, FOLLOWER, "*")
    with rate(cluster, FOLLOWER, 1, 2, 3):
        reassign(cluster, {(topic, 0): [2], (topic, 1): [3], (other, 0): [2]})
        wait_until_done(cluster, other, [2])
        assert under_way(cluster, topic, 0) is not None and under_way(cluster, topic, 1) is not None
    for partition, node in enumerate((2, 3)):
        wait_until_done(cluster, topic, [node], partition)


@pytest.mark.conformance(195)
def test_who_is_in_sync_is_never_held(cluster: Cluster) -> None:
    topic = filled(cluster, [1, 2])
    for side in (LEADER, FOLLOWER):
        list_(cluster, topic, side, "*")
    with rate(cluster, LEADER, 1, *NODES), rate(cluster, FOLLOWER, 1, *NODES):
        for number in range(5):
            # Each of these is acknowledged when the follower has it, or refused after seconds: held, it takes a day.
            assert cluster.produce(topic, 0, 20, size=5000, per_batch=20) == 400 + 20 * number
        assert seen(cluster, topic).isr == (1, 2)


def pause(cluster: Cluster, seconds: float) -> None:
    """Nothing happens for so long, as far as a throttle's windows of time are concerned."""
    until = time.monotonic() + seconds
    cluster.eventually(lambda: time.monotonic() > until, seconds=seconds + 1)


def forgotten(cluster: Cluster) -> None:
    """Apache Kafka's throttles remember nothing from before: its windows of time are empty, and none is open.

    Each fetch of a follower counts with what it brings of throttled replicas, mostly nothing, and so keeps the windows
    open: what they have not used up is let through at once. Topics that have followers, all of tests before, go.
    """
    if not cluster.differs("no-burst-after-a-pause"):
        asked = {"topics": None, "allow_auto_topic_creation": False}
        for row in cluster.call("Metadata", 12, **asked).topics:
            if any(len(partition.replica_nodes) > 1 for partition in row.partitions):
                cluster.delete_topic(row.name)
        pause(cluster, WINDOWS)


def timed(cluster: Cluster, topic: str) -> float:
    """Seconds that the way from node 1 to node 2 takes."""
    began = time.monotonic()
    assert ask(cluster, topic, [2]) == (NONE, None)
    cluster.eventually(lambda: seen(cluster, topic).isr == (2,), "it has gone over", 2 * MOVED)
    return time.monotonic() - began


@pytest.mark.slow_conformance
@pytest.mark.conformance(193, 194, 196)
@pytest.mark.parametrize("side", [LEADER, FOLLOWER])
def test_throttled_reassignment_takes_the_time_that_the_rate_says(cluster: Cluster, side: str) -> None:
    topic = filled(cluster, [1], records=9000)
    list_(cluster, topic, side, "*")
    forgotten(cluster)
    with rate(cluster, side, 3 * RATE, 1 if side == LEADER else 2):
        took, expected = timed(cluster, topic), 9000 * 1000 / (3 * RATE)
    assert 0.9 * expected <= took <= 2 * expected, f"{took:.1f} s, not about {expected:.0f} s"


@pytest.mark.slow_conformance
@pytest.mark.conformance(194)
def test_throttle_that_had_a_pause(cluster: Cluster) -> None:
    little, topic = filled(cluster, [1], records=100), filled(cluster, [1], records=7000)
    for each in (little, topic):
        list_(cluster, each, LEADER, "*")
    forgotten(cluster)
    with rate(cluster, LEADER, 3 * RATE, 1):
        timed(cluster, little)
        pause(cluster, 8)
        took, expected = timed(cluster, topic), 7000 * 1000 / (3 * RATE)
    if cluster.differs("no-burst-after-a-pause"):
        assert took >= 0.9 * expected, f"{took:.1f} s, not {expected:.0f} s"
    else:
        assert took <= 0.6 * expected, f"{took:.1f} s, not far below {expected:.0f} s"


@pytest.mark.conformance(183, 193)
@pytest.mark.feature("455-27")
def test_rate_is_kept_and_changed_in_the_middle(cluster: Cluster) -> None:
    # So slow that all of it would take half a minute, however the machine stalls meanwhile.
    slow, some = RATE // 3, RATE
    topic = filled(cluster, [1], records=3000)
    list_(cluster, topic, FOLLOWER, "*")
    with rate(cluster, FOLLOWER, slow, 2):
        began = time.monotonic()
        assert ask(cluster, topic, [2]) == (NONE, None)
        cluster.eventually(lambda: copied(cluster, 2, topic) > some, "three seconds' worth has come", MOVED)
        assert time.monotonic() - began >= 0.9 * (some - 2 * 65_536) / slow
        assert under_way(cluster, topic) == ([2, 1], [2], [1])
        cluster.set_broker_config(2, follower_replication_throttled_rate="50000000")
        wait_until_done(cluster, topic, [2])
        assert time.monotonic() - began < 0.9 * 3_000_000 / slow
