"""Consumer groups as people use them: kafka-consumer-groups, the console consumer, librdkafka's consumers; and what a
broker answers on the wire where the tools do not look.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.conformance.clusters import Cluster
from tests.conformance.conftest import Tools

SESSION = timedelta(seconds=10)


@pytest.fixture
def group() -> str:
    """A name that no group has yet."""
    return f"g{uuid.uuid4().hex[:10]}"


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
            "session.timeout.ms": 6000,
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


def coordinator(cluster: Cluster, group: str) -> int:
    """The node that coordinates a group; waits until there is one."""

    def found() -> int:
        answer = cluster.call("FindCoordinator", 4, key_type=0, coordinator_keys=[group])
        (row,) = answer.coordinators
        if int(row.error_code):
            return 0
        # It may not know yet that it is the one, or still read what it has.
        (described,) = cluster.call("DescribeGroups", 5, node=row.node_id, groups=[group]).groups
        return 0 if int(described.error_code) else row.node_id

    return cluster.eventually(found, f"a coordinator of {group}")


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


def test_an_active_group_is_described_with_its_lag(
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


def test_the_console_consumer_goes_on_where_its_group_was(cluster: Cluster, tools: Tools, group: str) -> None:
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


def test_a_static_member_that_restarts_keeps_its_partitions(
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


def test_a_consumer_that_only_assigns_commits(cluster: Cluster, group: str, consumer: Callable[..., Consumer]) -> None:
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
def test_the_coordinator_dies_and_comes_back(cluster: Cluster, group: str, consumer: Callable[..., Consumer]) -> None:
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


# On the wire


def test_what_brokers_answer_for_groups_that_are_not_there(cluster: Cluster, group: str) -> None:
    where = coordinator(cluster, group)

    def ask(api: str, version: int, **values: Any) -> Any:
        return cluster.call(api, version, node=where, **values)

    member = {"group_id": group, "member_id": "stranger", "generation_id": 1}
    assert int(ask("Heartbeat", 4, **member).error_code) == 25
    sync = {**member, "protocol_type": "consumer", "protocol_name": "range", "assignments": []}
    assert int(ask("SyncGroup", 5, **sync).error_code) == 25
    assert int(ask("SyncGroup", 5, **member, assignments=[]).error_code) == 23
    leaving = [{"member_id": "stranger", "group_instance_id": None, "reason": None}]
    answer = ask("LeaveGroup", 5, group_id=group, members=leaving)
    assert (int(answer.error_code), [int(row.error_code) for row in answer.members]) == (0, [25])
    assert int(ask("LeaveGroup", 2, group_id=group, member_id="stranger").error_code) == 25
    assert int(ask("DeleteGroups", 2, groups_names=[group]).results[0].error_code) == 69
    assert int(ask("OffsetDelete", 0, group_id=group, topics=[]).error_code) == 69
    (row,) = ask("DescribeGroups", 5, groups=[group], include_authorized_operations=True).groups
    assert (int(row.error_code), row.group_state, row.authorized_operations) == (0, "Dead", 3400)
    (row,) = ask("DescribeGroups", 6, groups=[group], include_authorized_operations=False).groups
    assert (int(row.error_code), row.error_message) == (69, f"Group {group} not found.")


def test_what_brokers_answer_on_join(cluster: Cluster, group: str) -> None:
    where = coordinator(cluster, group)
    wrong = next(node for node in cluster.addresses if node != where)
    base = {
        "group_id": group,
        "session_timeout": SESSION,
        "rebalance_timeout": SESSION,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b"x"}],
    }

    def join(version: int = 9, node: int = where, **changes: Any) -> Any:
        return cluster.call("JoinGroup", version, node=node, **{**base, **changes})

    def told(answer: Any) -> tuple[int, str]:
        return int(answer.error_code), answer.member_id

    assert told(join(group_id="")) == (24, "")
    assert told(join(member_id="stranger")) == (25, "stranger")
    assert told(join(session_timeout=timedelta(milliseconds=499))) == (26, "")
    assert told(join(session_timeout=timedelta(hours=1))) == (26, "")
    assert told(join(protocols=[]))[0] == 23
    assert told(join(protocol_type=""))[0] == 23
    assert told(join(node=wrong)) == (16, "")
    named = join()
    assert int(named.error_code) == 79 and named.member_id.startswith("test-")
    answer = join(member_id=named.member_id)
    assert (int(answer.error_code), answer.generation_id, answer.leader) == (0, 1, named.member_id)
    member = {"group_id": group, "member_id": named.member_id}
    sync = {**member, "generation_id": 1, "protocol_type": "consumer", "protocol_name": "range"}
    assignments = [{"member_id": named.member_id, "assignment": b"mine"}]

    def synced(**changes: Any) -> tuple[int, bytes]:
        answer = cluster.call("SyncGroup", 5, node=where, **{**sync, "assignments": assignments, **changes})
        return int(answer.error_code), answer.assignment

    assert synced(generation_id=2) == (22, b"")
    assert synced(protocol_name="other") == (23, b"")
    assert synced(protocol_type="connect") == (23, b"")
    assert synced() == (0, b"mine")
    for generation, error in ((1, 0), (0, 22), (2, 22)):
        beat = cluster.call("Heartbeat", 4, node=where, **member, generation_id=generation)
        assert int(beat.error_code) == error
    assert told(join(protocol_type="connect"))[0] == 23
    assert told(join(protocols=[{"name": "other", "metadata": b""}]))[0] == 23
    assert int(cluster.call("DeleteGroups", 2, node=where, groups_names=[group]).results[0].error_code) == 68


def test_what_brokers_answer_on_commits(cluster: Cluster, group: str) -> None:
    topic = cluster.new_topic()
    where = coordinator(cluster, group)
    wrong = next(node for node in cluster.addresses if node != where)

    def commit(node: int = where, generation: int = -1, member: str = "", version: int = 9, **changes: Any) -> int:
        row = {
            "partition_index": 0,
            "committed_offset": 5,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
            **changes,
        }
        values = {
            "group_id": group,
            "generation_id_or_member_epoch": generation,
            "member_id": member,
            "topics": [{"name": changes.get("topic", topic), "partitions": [row]}],
        }
        answer = cluster.call("OffsetCommit", version, node=node, **values)
        return int(answer.topics[0].partitions[0].error_code)

    assert commit(generation=1, member="m") == 69
    assert commit(generation=1, member="m", version=8) == 22
    assert commit(node=wrong) == 16
    assert commit(topic="nowhere") == 3
    assert commit(partition_index=7) == 3
    assert commit(committed_metadata="x" * 4097) == 12
    assert commit() == 0
    assert commit(generation=1, member="m") == 25

    def fetch(node: int, group: str) -> tuple[int, list[tuple[int, int, str | None]]]:
        topics = [{"name": topic, "partition_indexes": [0, 1]}]
        asked = [{"group_id": group, "member_id": None, "topics": topics}]
        (row,) = cluster.call("OffsetFetch", 9, node=node, groups=asked, require_stable=True).groups
        parts = row.topics[0].partitions if row.topics else ()
        return int(row.error_code), [(int(p.error_code), p.committed_offset, p.metadata) for p in parts]

    assert fetch(where, group) == (0, [(0, 5, ""), (0, -1, "")])
    assert fetch(wrong, group) == (16, [])
    other = cluster.call("FindCoordinator", 4, node=wrong, key_type=0, coordinator_keys=[group]).coordinators[0]
    assert other.node_id == where


def test_what_brokers_answer_of_offsets_that_are_removed(cluster: Cluster, group: str) -> None:
    topic, other = cluster.new_topic(), cluster.new_topic()
    where = coordinator(cluster, group)
    rows = [{"partition_index": 0, "committed_offset": 5, "committed_leader_epoch": -1, "committed_metadata": "note"}]
    values = {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [{"name": topic, "partitions": rows}, {"name": other, "partitions": rows}],
    }
    cluster.call("OffsetCommit", 8, node=where, **values)

    def listed(**filters: Any) -> list[tuple[str, str, str]]:
        answer = cluster.call("ListGroups", 5, node=where, **{"states_filter": [], "types_filter": [], **filters})
        return [(row.protocol_type, row.group_state, row.group_type) for row in answer.groups if row.group_id == group]

    assert listed() == listed(states_filter=["EMPTY"]) == listed(types_filter=["CLASSIC"])
    assert listed() == [("", "Empty", "classic")]
    assert listed(states_filter=["Stable"]) == listed(types_filter=["consumer"]) == []
    (row,) = cluster.call("DescribeGroups", 6, node=where, groups=[group], include_authorized_operations=True).groups
    assert (int(row.error_code), row.group_state, row.protocol_type, row.members) == (0, "Empty", "", ())

    def remove(*topics: str) -> list[int]:
        asked = [{"name": name, "partitions": [{"partition_index": 0}, {"partition_index": 5}]} for name in topics]
        answer = cluster.call("OffsetDelete", 0, node=where, group_id=group, topics=asked)
        assert int(answer.error_code) == 0
        return [int(part.error_code) for one in answer.topics for part in one.partitions]

    assert sorted(remove(topic, "nowhere")) == [0, 3, 3, 3]

    def offsets(version: int) -> list[tuple[str, int, str | None]]:
        answer = cluster.call("OffsetFetch", version, node=where, group_id=group, topics=None)
        assert int(answer.error_code) == 0
        return [(one.name, p.committed_offset, p.metadata) for one in answer.topics for p in one.partitions]

    for version in (2, 5, 7):
        assert offsets(version) == [(other, 5, "note")]
    assert int(cluster.call("DeleteGroups", 2, node=where, groups_names=[group]).results[0].error_code) == 0
    assert offsets(7) == []
    nowhere = [{"name": "nowhere", "partition_indexes": [3]}]
    answer = cluster.call("OffsetFetch", 1, node=where, group_id=group, topics=nowhere)
    (part,) = answer.topics[0].partitions
    assert (int(part.error_code), part.committed_offset, part.metadata) == (0, -1, "")
