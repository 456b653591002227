"""Consumer groups as people use them: kafka-consumer-groups, the console consumer, librdkafka's consumers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.conformance.clusters import Cluster
from tests.conformance.conftest import Tools
from tests.conformance.groups import coordinator


@pytest.fixture
def consumer(cluster: Cluster, group: str) -> Iterator[Callable[..., Consumer]]:
    """Makes consumers of one group, closed when the test ends."""
    made: list[Consumer] = []

    def make(**settings: Any) -> Consumer:
        config = {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 30_000,
            "heartbeat.interval.ms": 200,
            "fetch.wait.max.ms": 100,
            **{key.replace("_", "."): value for key, value in settings.items()},
        }
        made.append(Consumer(config))
        return made[-1]

    yield make
    for one in made:
        one.close()


def assigned(one: Consumer) -> set[tuple[str, int]]:
    return {(tp.topic, tp.partition) for tp in one.assignment()}


def read(cluster: Cluster, count: int, *consumers: Consumer) -> list[Any]:
    """Poll all of them until `count` records have come."""
    found: list[Any] = []

    def polled() -> bool:
        for one in consumers:
            message = one.poll(0.02)
            if message is not None:
                assert message.error() is None, message.error()
                found.append(message)
        return len(found) >= count

    cluster.eventually(polled, f"{count} records, {len(found)} came")
    return found


def commit(cluster: Cluster, tools: Tools, group: str, topic: str, offset: int, partition: int = 0) -> None:
    """As an admin does it, with the tool."""
    out = tools.out(
        "kafka-consumer-groups",
        "--group",
        group,
        "--topic",
        f"{topic}:{partition}",
        "--reset-offsets",
        "--to-offset",
        str(offset),
        "--execute",
    )
    assert out.split()[-4:] == [group, topic, str(partition), str(offset)]


def table(out: str) -> list[list[str]]:
    """The rows below a tool's head line, in words."""
    return [line.split() for line in out.splitlines() if line.strip()][1:]


# kafka-consumer-groups


def test_active_group_is_described_with_its_lag(
    cluster: Cluster, tools: Tools, group: str, consumer: Callable[..., Consumer]
) -> None:
    topic = cluster.new_topic(assignment={0: [1], 1: [2]})
    cluster.produce(topic, 0, 10)
    cluster.produce(topic, 1, 5)
    one = consumer(client_id="reader")
    one.subscribe([topic])
    read(cluster, 15, one)
    one.commit(offsets=[TopicPartition(topic, 0, 7)], asynchronous=False)
    out = tools.out("kafka-consumer-groups", "--describe", "--group", group)
    heads = next(line for line in out.splitlines() if line.strip()).split()
    assert heads[:6] == ["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"]
    rows = sorted(table(out))
    assert [row[:6] for row in rows] == [[group, topic, "0", "7", "10", "3"], [group, topic, "1", "-", "5", "-"]]
    assert all(row[6].startswith("reader-") and row[7:] == ["/127.0.0.1", "reader"] for row in rows)

    (state,) = table(tools.out("kafka-consumer-groups", "--describe", "--group", group, "--state"))
    where = coordinator(cluster, group)
    assert state[:2] == [group, cluster.address(where)]
    assert [f"({where})", "range", "Stable", "1"] == state[2:]
    (member,) = table(tools.out("kafka-consumer-groups", "--describe", "--group", group, "--members", "--verbose"))
    assert member[0] == group and member[2:5] == ["/127.0.0.1", "reader", "2"]
    assert group in tools.out("kafka-consumer-groups", "--list").split()
    assert group in tools.out("kafka-consumer-groups", "--list", "--state", "stable", "--type", "classic").split()
    assert group not in tools.out("kafka-consumer-groups", "--list", "--state", "empty").split()


def test_offsets_are_reset_and_groups_deleted(
    cluster: Cluster, tools: Tools, group: str, consumer: Callable[..., Consumer]
) -> None:
    topic, other = cluster.new_topic(), cluster.new_topic()
    cluster.produce(topic, 0, 10)
    commit(cluster, tools, group, topic, 4)
    commit(cluster, tools, group, other, 0)
    one = consumer()
    one.subscribe([topic])
    (first, *_) = read(cluster, 6, one)
    assert first.offset() == 4

    asked = ("--group", group, "--topic", topic)
    code, out, err = tools.run("kafka-consumer-groups", *asked, "--reset-offsets", "--to-earliest", "--execute")
    assert "Assignments can only be reset if the group" in out + err and "is inactive" in out + err
    code, out, err = tools.run("kafka-consumer-groups", "--delete", "--group", group)
    assert "GroupNotEmptyException" in out + err
    code, out, err = tools.run("kafka-consumer-groups", "--delete-offsets", *asked)
    assert "actively subscribed" in out + err or "GroupSubscribedToTopicException" in out + err, out + err
    assert code in (0, 1)

    one.unsubscribe()
    one.close()
    listed = ("kafka-consumer-groups", "--list", "--state", "empty")
    cluster.eventually(lambda: group in tools.out(*listed).split(), "the group is empty")
    gone = tools.out("kafka-consumer-groups", "--delete-offsets", "--group", group, "--topic", other)
    assert table(gone)[-1][:2] == [other, "0"] or "Successful" in gone
    out = tools.out("kafka-consumer-groups", "--describe", "--group", group)
    assert other not in out and topic in out
    out = tools.out("kafka-consumer-groups", "--delete", "--group", group)
    assert f"Deletion of requested consumer groups ('{group}') was successful." in out
    assert group not in tools.out("kafka-consumer-groups", "--list").split()
    code, out, err = tools.run("kafka-consumer-groups", "--describe", "--group", group)
    assert f"'{group}' does not exist" in out + err or f"Group {group} not found" in out + err, out + err


def test_members_are_removed_by_their_names(cluster: Cluster, group: str, consumer: Callable[..., Consumer]) -> None:
    topic = cluster.new_topic()
    one = consumer(group_instance_id="static-one")
    one.subscribe([topic])
    cluster.eventually(lambda: one.poll(0.05) is None and assigned(one))
    where = coordinator(cluster, group)
    members = [{"member_id": "", "group_instance_id": "static-one", "reason": "removed by hand"}]
    answer = cluster.call("LeaveGroup", 5, node=where, group_id=group, members=members)
    assert (int(answer.error_code), [int(row.error_code) for row in answer.members]) == (0, [0])
    answer = cluster.call("LeaveGroup", 5, node=where, group_id=group, members=members)
    assert (int(answer.error_code), [int(row.error_code) for row in answer.members]) == (0, [25])


# Consumers


def test_console_consumer_goes_on_where_its_group_was(cluster: Cluster, tools: Tools, group: str) -> None:
    topic = cluster.new_topic(assignment={0: [2]})
    asked = ("--topic", topic, "--group", group, "--from-beginning", "--timeout-ms", "20000")
    first = [f"line {number}" for number in range(5)]
    produce = ("kafka-console-producer", "--topic", topic)
    tools.run(*produce, stdin="".join(f"{line}\n" for line in first))
    assert tools.out("kafka-console-consumer", *asked, "--max-messages", "5").splitlines() == first
    tools.run(*produce, stdin="more\n")
    assert tools.out("kafka-console-consumer", *asked, "--max-messages", "1").splitlines() == ["more"]
    ((*_, current, end, lag),) = [
        row[:6] for row in table(tools.out("kafka-consumer-groups", "--describe", "--group", group))
    ]
    assert (current, end, lag) == ("6", "6", "0")
    listed = tools.out("kafka-topics", "--list").splitlines()
    assert topic in listed
    assert ("__consumer_offsets" in listed) is not cluster.differs("offsets-in-no-topic")


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_partitions_are_shared_as_consumers_come_and_go(
    cluster: Cluster, group: str, consumer: Callable[..., Consumer], strategy: str
) -> None:
    topic = cluster.new_topic(assignment={n: [n % 3 + 1] for n in range(4)})
    everything = {(topic, n) for n in range(4)}
    consumers: list[Consumer] = []

    def shared() -> bool:
        for one in consumers:
            one.poll(0.02)
        parts = [assigned(one) for one in consumers]
        return set().union(*parts) == everything and sum(map(len, parts)) == 4 and all(parts)

    for _ in range(3):
        consumers.append(consumer(partition_assignment_strategy=strategy))
        consumers[-1].subscribe([topic])
        cluster.eventually(shared, f"{len(consumers)} consumers share the partitions")
    consumers.pop().close()
    cluster.eventually(shared, "one has left")
    for n in range(4):
        cluster.produce(topic, n, 5)
    found = read(cluster, 20, *consumers)
    assert sorted((m.partition(), m.offset()) for m in found) == [(p, o) for p in range(4) for o in range(5)]


def test_static_member_that_restarts_keeps_its_partitions(
    cluster: Cluster, group: str, consumer: Callable[..., Consumer]
) -> None:
    topic = cluster.new_topic(assignment={0: [1], 1: [2]})
    consumers = [consumer(group_instance_id=f"i{n}") for n in range(2)]
    for one in consumers:
        one.subscribe([topic])

    def shared() -> bool:
        polled = [one.poll(0.02) for one in consumers]
        return not any(polled) and all(len(assigned(one)) == 1 for one in consumers)

    cluster.eventually(shared)
    where = coordinator(cluster, group)
    before = assigned(consumers[1])
    consumers[1].close()
    consumers[1] = consumer(group_instance_id="i1")
    consumers[1].subscribe([topic])
    cluster.eventually(shared)
    assert assigned(consumers[1]) == before
    (row,) = cluster.call("DescribeGroups", 5, node=where, groups=[group]).groups
    assert {member.group_instance_id for member in row.members} == {"i0", "i1"}


def test_consumer_that_only_assigns_commits(cluster: Cluster, group: str, consumer: Callable[..., Consumer]) -> None:
    topic = cluster.new_topic()
    cluster.produce(topic, 0, 10)
    one = consumer()
    one.assign([TopicPartition(topic, 0, 3)])
    (first, *_) = read(cluster, 1, one)
    assert first.offset() == 3
    one.commit(first, asynchronous=False)
    (found,) = consumer().committed([TopicPartition(topic, 0)], timeout=10)
    assert found.offset == 4
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 9)])
    admin.alter_consumer_group_offsets([wanted])[group].result(20)
    listed = admin.list_consumer_groups().result(20).valid
    assert {one.group_id: one.is_simple_consumer_group for one in listed}[group]
    (found,) = consumer().committed([TopicPartition(topic, 0)], timeout=10)
    assert found.offset == 9


def test_offsets_of_a_deleted_topic_are_gone(cluster: Cluster, tools: Tools, group: str) -> None:
    topic, other = cluster.new_topic(), cluster.new_topic()
    commit(cluster, tools, group, topic, 0)
    commit(cluster, tools, group, other, 0)
    cluster.delete_topic(topic)
    where = coordinator(cluster, group)

    def topics() -> list[str]:
        asked = [{"group_id": group, "member_id": None, "topics": None}]
        answer = cluster.call("OffsetFetch", 9, node=where, groups=asked, require_stable=False)
        return [row.name for row in answer.groups[0].topics]

    cluster.eventually(lambda: topics() == [other])


# Brokers that die


@pytest.mark.slow_conformance
def test_coordinator_dies_and_comes_back(cluster: Cluster, group: str, consumer: Callable[..., Consumer]) -> None:
    """Consumers go on where they were: what was committed is there, and nothing is read twice that was."""
    where = coordinator(cluster, group)
    elsewhere = [node for node in cluster.addresses if node != where]
    topic = cluster.new_topic(assignment={0: [elsewhere[0]], 1: [elsewhere[1]]})
    for partition in (0, 1):
        cluster.produce(topic, partition, 10)
    consumers = [consumer(), consumer()]
    for one in consumers:
        one.subscribe([topic])
    read(cluster, 20, *consumers)
    cluster.eventually(lambda: not any([one.poll(0.02) for one in consumers]) and all(map(assigned, consumers)))
    for one in consumers:
        one.commit(offsets=[TopicPartition(t, p, 10) for t, p in assigned(one)], asynchronous=False)
    cluster.kill(where)
    try:
        producer = Producer({"bootstrap.servers": cluster.bootstrap})  # finds a broker that is there
        for number in range(10):
            producer.produce(topic, b"after %d" % number, partition=number % 2)
        assert producer.flush(30) == 0
        found = read(cluster, 10, *consumers)
        assert {(m.partition(), m.offset()) for m in found} == {(p, o) for p in (0, 1) for o in range(10, 15)}
    finally:
        cluster.start(where)

    def committed() -> list[int]:
        try:
            for one in consumers:
                one.poll(0.02)
            return [tp.offset for tp in consumer().committed([TopicPartition(topic, p) for p in (0, 1)], timeout=5)]
        except KafkaException:
            return []

    cluster.eventually(lambda: committed() == [10, 10], seconds=40)

    def recommitted() -> bool:
        done = 0
        for one in consumers:
            one.poll(0.02)
            try:
                one.commit(offsets=[TopicPartition(t, p, 15) for t, p in assigned(one)], asynchronous=False)
                done += len(assigned(one))
            except KafkaException:
                pass
        return done >= 2

    cluster.eventually(recommitted, seconds=40)
    cluster.eventually(lambda: committed() == [15, 15], seconds=40)
    answer = cluster.call("DescribeGroups", 5, node=coordinator(cluster, group), groups=[group])
    assert answer.groups[0].group_state == "Stable"
