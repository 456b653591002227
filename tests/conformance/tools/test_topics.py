"""kafka-topics: create, describe, list, delete, with the words it prints."""

from __future__ import annotations

import re
import uuid

import pytest

from tests.conformance.clusters import Cluster
from tests.conformance.conftest import Tools

TOPICS = "kafka-topics"


def test_create_describe_list_and_delete(cluster: Cluster, tools: Tools) -> None:
    topic = f"made-{uuid.uuid4().hex[:8]}"
    create = ("--create", "--topic", topic, "--replica-assignment", "1,3,2", "--config", "retention.ms=123456")
    assert tools.run(TOPICS, *create) == (0, f"Created topic {topic}.\n", "")
    cluster.eventually(lambda: all(len(cluster.leaders(topic, node)) == 3 for node in cluster.addresses))
    head, *rows = tools.out(TOPICS, "--describe", "--topic", topic).splitlines()
    shown = re.fullmatch(
        rf"Topic: {topic}\tTopicId: ([\w-]{{22}})\tPartitionCount: 3\tReplicationFactor: 1\tConfigs: (.*)", head
    )
    assert shown and "retention.ms=123456" in shown[2].split(",")
    for partition, (row, leader) in enumerate(zip(rows, (1, 3, 2), strict=True)):
        what = f"\tTopic: {topic}\tPartition: {partition}\tLeader: {leader}\tReplicas: {leader}\tIsr: {leader}\t"
        assert row.startswith(what)
    assert topic in tools.out(TOPICS, "--list").split()
    assert tools.run(TOPICS, "--delete", "--topic", topic) == (0, "", "")
    cluster.eventually(lambda: topic not in tools.out(TOPICS, "--list").split())


def test_what_kafka_topics_says_of_mistakes(cluster: Cluster, tools: Tools) -> None:
    topic = cluster.new_topic()
    code, out, err = tools.run(TOPICS, "--create", "--topic", topic)
    assert code == 1 and f"Error while executing topic command : Topic '{topic}' already exists." in out
    assert tools.run(TOPICS, "--create", "--topic", topic, "--if-not-exists").code == 0
    for action in ("--describe", "--delete"):
        code, out, err = tools.run(TOPICS, action, "--topic", "no-such-topic")
        assert code == 1
        assert "Error while executing topic command : Topic 'no-such-topic' does not exist as expected" in out
        assert tools.run(TOPICS, action, "--topic", "no-such-topic", "--if-exists").code == 0
    for wrong, complaint in (
        (("--replication-factor", "4"), "eplication factor"),
        (("--config", "retention.ms=soon"), "retention.ms"),
        (("--config", "no.such.config=1"), "Unknown topic config name: no.such.config"),
        (("--partitions", "0"), "The partitions must be greater than 0"),
    ):
        code, out, err = tools.run(TOPICS, "--create", "--topic", f"{topic}-wrong", *wrong)
        assert code == 1 and complaint in out + err, out + err
    for name, complaint in (
        (
            "not/allowed",
            "'not/allowed' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'",
        ),
        ("..", "'..' is not allowed"),
        ("n" * 250, f"the length of '{'n' * 250}' is longer than the max allowed length 249"),
    ):
        code, out, _ = tools.run(TOPICS, "--create", "--topic", name)
        assert code == 1
        assert out.endswith(f"Error while executing topic command : Topic name is invalid: {complaint}\n")


def test_internal_look_at_many_topics(cluster: Cluster, tools: Tools) -> None:
    names = sorted(cluster.new_topic() for _ in range(3))
    out = tools.out(TOPICS, "--describe", "--topic", "|".join(names))
    assert sorted(re.findall(r"^Topic: (\S+)", out, re.MULTILINE)) == names
    # What tests before have left may still have to come back into sync.
    for which in ("--unavailable-partitions", "--under-replicated-partitions"):
        cluster.eventually(lambda which=which: tools.out(TOPICS, "--describe", which) == "", which)  # type: ignore[misc]


@pytest.mark.parametrize("before", [1, 3])
def test_partitions_are_added(cluster: Cluster, tools: Tools, before: int) -> None:
    topic = cluster.new_topic(before)
    assert tools.run(TOPICS, "--alter", "--topic", topic, "--partitions", str(before + 2)) == (0, "", "")
    cluster.eventually(lambda: all(len(cluster.leaders(topic, node)) == before + 2 for node in cluster.addresses))
    assert f"PartitionCount: {before + 2}" in tools.out(TOPICS, "--describe", "--topic", topic)
    assert {cluster.end_offset(topic, partition) for partition in range(before + 2)} == {0}
    code, out, err = tools.run(TOPICS, "--alter", "--topic", topic, "--partitions", str(before))
    told = f"The topic {topic} currently has {before + 2} partition(s); {before} would not be an increase."
    assert (code, out, err) == (1, f"Error while executing topic command : {told}\n", "")
