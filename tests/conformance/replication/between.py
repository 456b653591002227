"""Replicas between nodes by hand: reassigning, listing, looking, and reassignments that are held where a test looks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from tests.conformance.clusters import NODES, Cluster
from tests.conformance.log_dirs.calls import on_disk
from tests.support.nodes.reassigning import Ongoing, ongoing, results, wanted_topics

NONE = 0
UNKNOWN_TOPIC_OR_PARTITION = 3
NOT_LEADER_OR_FOLLOWER = 6
REQUEST_TIMED_OUT = 7
NOT_ENOUGH_REPLICAS = 19
INVALID_REPLICA_ASSIGNMENT = 39
KAFKA_STORAGE_ERROR = 56
FENCED_LEADER_EPOCH = 74
UNKNOWN_LEADER_EPOCH = 75
PREFERRED_LEADER_NOT_AVAILABLE = 80
ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
ELECTION_NOT_NEEDED = 84
NO_REASSIGNMENT_IN_PROGRESS = 85

LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
PREFERRED, UNCLEAN = 0, 1

#: Seconds until a reassignment of little data is expected to be over.
MOVED = 60.0
SOON = timedelta(seconds=15)


@dataclass(frozen=True, slots=True)
class Seen:
    """A partition as a node tells it: leader (-1: none), its epoch, nodes."""

    leader: int
    epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...] = ()


def see(cluster: Cluster, topic: str, partition: int = 0, node: int | None = None) -> Seen | None:
    """The partition by Metadata; None where it is not known."""
    asked = {"topics": [{"name": topic}], "allow_auto_topic_creation": False}
    (row,) = cluster.call("Metadata", 12, node=node, **asked).topics
    for part in row.partitions:
        if part.partition_index == partition:
            isr = tuple(sorted(part.isr_nodes))
            offline = tuple(sorted(part.offline_replicas))
            return Seen(part.leader_id, part.leader_epoch, tuple(part.replica_nodes), isr, offline)
    return None


def seen(cluster: Cluster, topic: str, partition: int = 0, node: int | None = None) -> Seen:
    """The partition by Metadata, which must be there."""
    found = see(cluster, topic, partition, node)
    assert found is not None, f"{topic}-{partition} is not known"
    return found


def everywhere(cluster: Cluster, topic: str, partition: int = 0) -> list[Seen]:
    """The partition as each running node tells it."""
    return [seen(cluster, topic, partition, node) for node in NODES if cluster.running(node)]


def reassign(
    cluster: Cluster, wanted: Mapping[tuple[str, int], Sequence[int] | None], *, version: int = 0, **more: Any
) -> dict[tuple[str, int], tuple[int, str | None]]:
    """AlterPartitionReassignments: (topic, partition) -> nodes, None to cancel; error code and message of each."""
    answer = cluster.call("AlterPartitionReassignments", version, topics=wanted_topics(wanted), timeout=SOON, **more)
    assert int(answer.error_code) == NONE, answer
    return results(answer)


def ask(cluster: Cluster, topic: str, replicas: Sequence[int] | None, partition: int = 0) -> tuple[int, str | None]:
    """Reassign one partition; error code and message."""
    return reassign(cluster, {(topic, partition): replicas})[topic, partition]


def listed(
    cluster: Cluster, topics: Mapping[str, Sequence[int]] | None = None, node: int | None = None
) -> dict[tuple[str, int], Ongoing]:
    """ListPartitionReassignments: (topic, partition) -> replicas, adding, removing; `topics` None: all."""
    rows = (
        None if topics is None else [{"name": name, "partition_indexes": list(each)} for name, each in topics.items()]
    )
    answer = cluster.call("ListPartitionReassignments", 0, node=node, topics=rows, timeout=SOON)
    assert int(answer.error_code) == NONE, answer
    assert all(topic.partitions for topic in answer.topics), "a topic without partitions is not told"
    return ongoing(answer)


def under_way(cluster: Cluster, topic: str, partition: int = 0) -> Ongoing | None:
    """Replicas, adding, removing of one partition; None when nothing is going on."""
    return listed(cluster, {topic: [partition]}).get((topic, partition))


def wait_until_done(cluster: Cluster, topic: str, replicas: Sequence[int], partition: int = 0) -> Seen:
    """Until the partition has exactly these replicas, all in sync, on every node; nothing is left elsewhere."""

    def done() -> bool:
        if under_way(cluster, topic, partition) is not None:
            return False
        found = everywhere(cluster, topic, partition)
        return all(row.replicas == tuple(replicas) and row.isr == tuple(sorted(replicas)) for row in found)

    cluster.eventually(done, f"{topic}-{partition} is on {list(replicas)}", MOVED)
    wait_until_off(cluster, topic, [node for node in NODES if node not in replicas], partition)
    return seen(cluster, topic, partition)


def wait_until_off(cluster: Cluster, topic: str, nodes: Sequence[int], partition: int = 0) -> None:
    """Until no directory of these nodes has anything of the partition, deleted copies included.

    Apache Kafka keeps for ever, set aside as stray, what was taken from a broker while that one was down.
    """
    name = f"{topic}-{partition}"
    for node in nodes:
        left: list[str] = []

        def off(node: int = node, left: list[str] = left) -> bool:
            found = [entry for entry in on_disk(cluster, node, topic) if entry.split(".")[0] == name]
            left[:] = [entry for entry in found if not entry.endswith("-stray")]
            return not left

        try:
            # (A broker that has just started looks for what it is to delete half a minute later.)
            cluster.eventually(off, f"{name} is off node {node}", 3 * MOVED)
        except AssertionError as error:
            error.add_note(f"still there: {left}")
            raise


def filled(cluster: Cluster, *assignment: Sequence[int], records: int = 400, **configs: str) -> str:
    """A topic with so much in each partition that its reassignment can be held."""
    named = {key.replace("_", "."): value for key, value in configs.items()}
    topic = cluster.new_topic(assignment=dict(enumerate(assignment)), configs=named)
    for partition in range(len(assignment)):
        cluster.produce(topic, partition, records, size=1000, per_batch=20)
    return topic


@contextlib.contextmanager
def held(cluster: Cluster, topic: str, *, to: Sequence[int], partitions: str = "") -> Iterator[None]:
    """While the block runs, replicas that are new on these nodes get a byte per second (the followers' side).

    `partitions`: the list of throttled replicas, all of the topic where it is empty.
    """
    cluster.set_topic_config(topic, follower_replication_throttled_replicas=partitions or "*")
    for node in to:
        cluster.set_broker_config(node, follower_replication_throttled_rate="1")
    try:
        yield
    finally:
        for node in to:
            cluster.set_broker_config(node, follower_replication_throttled_rate=None)
        if see(cluster, topic) is not None:
            cluster.set_topic_config(topic, follower_replication_throttled_replicas=None)


def elect(
    cluster: Cluster, kind: int, wanted: Mapping[str, Sequence[int]] | None
) -> dict[tuple[str, int], tuple[int, str | None]]:
    """ElectLeaders: error code and message of each partition that is answered."""
    topics = None if wanted is None else [{"topic": name, "partitions": list(each)} for name, each in wanted.items()]
    answer = cluster.call("ElectLeaders", 2, election_type=kind, topic_partitions=topics, timeout=SOON)
    assert int(answer.error_code) == NONE, answer
    return {
        (topic.topic, row.partition_id): (int(row.error_code), row.error_message)
        for topic in answer.replica_election_results
        for row in topic.partition_result
    }
