"""A node dies: other leaders, in-sync replicas, what is refused meanwhile; and all of it as before when it is back.

The topics are made before; each test looks at its own. What the first test waits for, all of them need.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from storage_node.log import build_batch
from tests.conformance.clusters import APACHE, Cluster
from tests.conformance.conftest import Tools
from tests.conformance.log_dirs.calls import on_disk, where
from tests.conformance.plans import Plans
from tests.conformance.replication.between import (
    ELECTION_NOT_NEEDED,
    ELIGIBLE_LEADERS_NOT_AVAILABLE,
    FENCED_LEADER_EPOCH,
    INVALID_REPLICA_ASSIGNMENT,
    NO_REASSIGNMENT_IN_PROGRESS,
    NONE,
    NOT_ENOUGH_REPLICAS,
    PREFERRED,
    PREFERRED_LEADER_NOT_AVAILABLE,
    UNCLEAN,
    UNKNOWN_LEADER_EPOCH,
    ask,
    elect,
    everywhere,
    filled,
    held,
    listed,
    see,
    seen,
    under_way,
    wait_until_done,
    wait_until_off,
)
from tests.support.wire import Client

#: What a test leaves is what the next one starts with.
SHARED = True
GONE = 3
#: Seconds from kill -9 until others lead. (The benchmark has the figures; here other tests may run beside.)
FAILOVER = 12.0
LEADER_NOT_AVAILABLE = 5


@dataclass(frozen=True, slots=True)
class Topics:
    """What stands before the node dies."""

    led: str
    """[3, 1, 2]: it leads."""
    followed: str
    """[1, 3]: it follows."""
    strict: str
    """[3, 1], two must be in sync."""
    alone: str
    """[3]."""
    shrinking: str
    """[1, 3], to be [1]."""
    deleted: str
    """[3, 1], being reassigned to [1, 2], where 2 is held; to be deleted."""
    half: str
    """[3], being reassigned to [1, 2]: 1 is in sync, 2 is held."""
    behind: str
    """[3], being reassigned to [1, 3]: 1 is held."""


@pytest.fixture(scope="module")
def topics(cluster: Cluster) -> Iterator[Topics]:
    """The topics, with the node gone; it is started again at the end, if no test did."""
    made = Topics(
        led=filled(cluster, [3, 1, 2], records=100),
        followed=filled(cluster, [1, 3], records=100),
        strict=filled(cluster, [3, 1], records=100, min_insync_replicas="2"),
        alone=filled(cluster, [3], records=100),
        shrinking=filled(cluster, [1, 3], records=100),
        deleted=filled(cluster, [3, 1]),
        half=filled(cluster, [3]),
        behind=filled(cluster, [3]),
    )
    with (
        held(cluster, made.half, to=[2], partitions="0:2"),
        held(cluster, made.deleted, to=[2], partitions="0:2"),
        held(cluster, made.behind, to=[1], partitions="0:1"),
    ):
        assert ask(cluster, made.half, [1, 2]) == (NONE, None)
        assert ask(cluster, made.deleted, [1, 2]) == (NONE, None)
        assert ask(cluster, made.behind, [1, 3]) == (NONE, None)
        cluster.eventually(lambda: seen(cluster, made.half).isr == (1, 3), "one of two has come")
        cluster.kill(GONE)
        try:
            yield made
        finally:
            if not cluster.running(GONE):
                cluster.start(GONE)


@pytest.mark.conformance(98)
@pytest.mark.feature("18-14", "18-15")
def test_others_lead_and_the_dead_is_out_of_sync(cluster: Cluster, topics: Topics) -> None:
    began = time.monotonic()
    cluster.eventually(
        lambda: all(row.leader in (1, 2) and row.isr == (1, 2) for row in everywhere(cluster, topics.led)),
        "another leads",
    )
    if cluster.kind != APACHE:
        assert time.monotonic() - began < FAILOVER
    after = seen(cluster, topics.led)
    assert after.replicas == (3, 1, 2) and after.offline == (3,) and after.epoch == 1
    cluster.eventually(lambda: seen(cluster, topics.followed).isr == (1,), "the follower is out")
    assert seen(cluster, topics.followed).leader == 1
    assert cluster.end_offset(topics.led) == 100, "all that was acknowledged"
    assert cluster.produce(topics.led, 0, 10) == 100
    for path in range(2):
        assert cluster.produce(topics.followed, 0, 10) == 100 + 10 * path


def test_what_leader_epochs_say_after_it(cluster: Cluster, topics: Topics) -> None:
    now = seen(cluster, topics.led)
    client = cluster.wire(now.leader)

    def end_of(epoch: int) -> tuple[int, int, int]:
        rows = [{"partition": 0, "current_leader_epoch": now.epoch, "leader_epoch": epoch}]
        wanted = [{"topic": topics.led, "partitions": rows}]
        answer = client.call("OffsetForLeaderEpoch", 4, replica_id=-1, topics=wanted)
        (row,) = answer.topics[0].partitions
        return int(row.error_code), row.leader_epoch, row.end_offset

    end = cluster.end_offset(topics.led)
    assert [end_of(epoch) for epoch in (0, now.epoch, now.epoch + 1)] == [
        (NONE, 0, 100),
        (NONE, now.epoch, end),
        (NONE, -1, -1),
    ]
    for epoch, error in ((0, FENCED_LEADER_EPOCH), (now.epoch, NONE), (now.epoch + 1, UNKNOWN_LEADER_EPOCH)):
        assert [row.error for row in client.fetch(topics.led, 0, 0, leader_epoch=epoch)] == [error]


def test_acknowledgements_of_too_few(cluster: Cluster, topics: Topics) -> None:
    cluster.eventually(lambda: seen(cluster, topics.strict).isr == (1,), "one is left")
    client = cluster.wire(1)
    now = int(time.time() * 1000)
    batch = build_batch([b"one"], timestamp=now)
    assert client.produce(topics.strict, 0, batch).error == NOT_ENOUGH_REPLICAS
    row = client.produce(topics.strict, 0, batch, acks=1)
    assert (row.error, row.base_offset) == (NONE, 100), "nothing of what was refused is there"


def test_partition_without_a_leader(cluster: Cluster, topics: Topics) -> None:
    found = seen(cluster, topics.alone)
    # Apache Kafka keeps it as an eligible leader only.
    last = (3,) if cluster.differs("the-last-in-sync-stays") else ()
    assert (found.leader, found.isr, found.offline) == (-1, last, (3,))
    asked = {"topics": [{"name": topics.alone}], "allow_auto_topic_creation": False}
    (row,) = cluster.call("Metadata", 12, **asked).topics
    assert int(row.partitions[0].error_code) == LEADER_NOT_AVAILABLE
    assert elect(cluster, UNCLEAN, {topics.alone: [0]})[topics.alone, 0][0] == ELIGIBLE_LEADERS_NOT_AVAILABLE


@pytest.mark.conformance(155, 156)
def test_reassignments_off_it_and_onto_it(cluster: Cluster, topics: Topics) -> None:
    assert ask(cluster, topics.shrinking, [1]) == (NONE, None)
    assert under_way(cluster, topics.shrinking) is None, "done with the answer"
    assert seen(cluster, topics.shrinking).replicas == (1,)
    assert ask(cluster, topics.shrinking, [1, 3]) == (NONE, None), "it is registered"
    assert under_way(cluster, topics.shrinking) == ([1, 3], [3], [])
    assert ask(cluster, topics.shrinking, None) == (NONE, None)
    cluster.eventually(lambda: seen(cluster, topics.shrinking).replicas == (1,))


@pytest.mark.feature("113-28")
def test_kafka_reassign_partitions_exits_with_an_error_and_begins_nothing(
    cluster: Cluster, topics: Topics, plans: Plans
) -> None:
    cluster.eventually(lambda: seen(cluster, topics.strict).isr == (1,), "the brokers know that it is gone")
    (here,) = (path for path in cluster.log_dirs[1] if (Path(path) / f"{topics.strict}-0").exists())
    (other,) = (path for path in cluster.log_dirs[1] if path != here)
    for moved in (
        plans.of((topics.alone, 0, [GONE], [cluster.log_dirs[GONE][0]])),
        plans.of((topics.strict, 0, [1, GONE], [other, "any"])),
        plans.of((topics.strict, 0, [2, GONE], None)),
    ):
        code, lines = plans.run("execute", moved, "--additional")  # others are under way here
        assert code == 1 and f"Unknown broker id {GONE}" in "\n".join(lines), lines
    assert under_way(cluster, topics.strict) is None and under_way(cluster, topics.alone) is None
    assert seen(cluster, topics.strict).replicas == (3, 1)
    assert where(cluster, 1, topics.strict) == here and where(cluster, 1, topics.strict, future=True) is None


@pytest.mark.conformance(150)
@pytest.mark.feature("455-03")
def test_cancel_that_would_lose_records(cluster: Cluster, topics: Topics) -> None:
    cluster.eventually(lambda: seen(cluster, topics.half).isr == (1,), "only an added replica is in sync")
    assert seen(cluster, topics.half).leader == 1
    code, message = ask(cluster, topics.half, None)
    assert code == INVALID_REPLICA_ASSIGNMENT and message
    assert "unclean" in message
    assert under_way(cluster, topics.half) == ([1, 2, 3], [1, 2], [3]), "it goes on"
    assert cluster.produce(topics.half, 0, 10) == 400


@pytest.mark.feature("18-16")
def test_elections_while_it_is_gone(cluster: Cluster, topics: Topics, tools: Tools) -> None:
    assert elect(cluster, PREFERRED, {topics.led: [0], topics.followed: [0]}) == {
        (topics.led, 0): (PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available."),
        (topics.followed, 0): (ELECTION_NOT_NEEDED, "Leader election not needed for topic partition."),
    }
    named = ("--election-type", "preferred", "--topic", topics.led, "--partition", "0")
    code, out, err = tools.run("kafka-leader-election", *named)
    assert code == 1 and "PreferredLeaderNotAvailableException" in out + err
    # Not by itself: who asks for it gives up what only the dead node has.
    assert seen(cluster, topics.behind).leader == -1
    assert elect(cluster, UNCLEAN, {topics.behind: [0]}) == {(topics.behind, 0): (NONE, None)}
    cluster.eventually(lambda: seen(cluster, topics.behind).leader == 1, "the one that is there leads")
    assert seen(cluster, topics.behind).isr == (1,) and cluster.end_offset(topics.behind) < 400


def test_what_kafka_topics_shows(cluster: Cluster, topics: Topics, tools: Tools) -> None:
    def shown(*which: str) -> set[str]:
        return set(re.findall(r"Topic: (\S+)\tPartition: ", tools.out("kafka-topics", "--describe", *which)))

    under = shown("--under-replicated-partitions")
    assert {topics.led, topics.followed, topics.strict} <= under
    assert (topics.alone in under) is not cluster.differs("the-last-in-sync-stays")
    assert topics.shrinking not in under
    assert {topics.alone} <= shown("--unavailable-partitions") and topics.led not in shown("--unavailable-partitions")
    few = shown("--under-min-isr-partitions")
    assert topics.strict in few and topics.led not in few
    assert topics.followed in shown("--at-min-isr-partitions")


def test_topic_is_deleted_without_it_and_while_it_is_reassigned(cluster: Cluster, topics: Topics) -> None:
    assert under_way(cluster, topics.deleted) == ([1, 2, 3], [2], [3])
    cluster.eventually(lambda: on_disk(cluster, 2, topics.deleted) == [f"{topics.deleted}-0"], "its copy has begun")
    cluster.delete_topic(topics.deleted)
    assert not [topic for topic, _ in listed(cluster) if topic == topics.deleted], "nothing is under way any more"
    wait_until_off(cluster, topics.deleted, [1, 2])
    assert f"{topics.deleted}-0" in on_disk(cluster, GONE, topics.deleted)


@pytest.mark.conformance(95)
def test_it_comes_back(cluster: Cluster, topics: Topics, tools: Tools, tmp_path: Path) -> None:
    cluster.start(GONE)
    began = time.monotonic()
    for topic, isr in (
        (topics.led, (1, 2, 3)),
        (topics.followed, (1, 3)),
        (topics.strict, (1, 3)),
        (topics.alone, (3,)),
    ):
        cluster.eventually(lambda t=topic, i=isr: seen(cluster, t).isr == i, f"{topic} is in sync", 30)  # type: ignore[misc]
    assert cluster.produce(topics.strict, 0, 1) == 101, "two are in sync again"
    assert seen(cluster, topics.alone).leader == 3 and cluster.end_offset(topics.alone) == 100
    # What it missed is deleted, too; and what was not cancelled goes on.
    if cluster.differs("deleted-while-a-node-was-away"):
        wait_until_off(cluster, topics.deleted, [GONE])
    else:
        (left,) = on_disk(cluster, GONE, topics.deleted)
        assert left.endswith("-stray")
    assert under_way(cluster, topics.half) == ([1, 2, 3], [1, 2], [3])
    assert ask(cluster, topics.half, None)[0] in (NONE, NO_REASSIGNMENT_IN_PROGRESS)
    cluster.eventually(lambda: under_way(cluster, topics.half) is None)
    assert time.monotonic() - began < 60

    # Leaders go home when somebody asks, for those that are away.
    assert seen(cluster, topics.led).leader != 3 or cluster.kind == APACHE
    chosen = {"partitions": [{"topic": name, "partition": 0} for name in (topics.led, topics.followed)]}
    file = tmp_path / "elections.json"
    file.write_text(json.dumps(chosen))
    out = tools.out("kafka-leader-election", "--election-type", "preferred", "--path-to-json-file", str(file))
    valid = f"Valid replica already elected for partitions {topics.followed}-0"
    assert valid in out
    assert f"Successfully completed leader election (PREFERRED) for partitions {topics.led}-0" in out
    cluster.eventually(lambda: {row.leader for row in everywhere(cluster, topics.led)} == {3}, "it leads again")
    assert cluster.end_offset(topics.led) == 110 and cluster.produce(topics.led, 0, 1) == 110


def test_records_are_the_same_on_all_replicas(cluster: Cluster, topics: Topics) -> None:
    assert see(cluster, topics.deleted) is None
    for topic in (topics.led, topics.followed):
        replicas = seen(cluster, topic).replicas
        read: list[bytes] = []
        wait_until_done(cluster, topic, replicas)
        for node in replicas:
            assert ask(cluster, topic, [node, *(other for other in replicas if other != node)]) == (NONE, None)
            elect(cluster, PREFERRED, {topic: [0]})
            cluster.eventually(lambda t=topic, n=node: {r.leader for r in everywhere(cluster, t)} == {n})  # type: ignore[misc]
            client = Client(cluster.address(node))
            with_end = cluster.end_offset(topic)
            read.append(b"".join(row.records for row in client.fetch(topic, 0, 0, partition_max_bytes=10_000_000)))
            client.close()
            assert with_end >= 110
        assert len(set(read)) == 1 and len(read[0]) > 100_000
