"""What the other tests of this folder rely on: the cluster of three and Kafka's tools in a warm virtual machine."""

from __future__ import annotations

import pytest

from tests.conformance.clusters import Cluster
from tests.conformance.conftest import Tools


def test_topics_are_known_to_all_nodes_and_take_records(cluster: Cluster) -> None:
    topic = cluster.new_topic(assignment={0: [3], 1: [1]}, configs={"retention.ms": "100000"})
    assert [cluster.leaders(topic, node) for node in cluster.addresses] == [{0: 3, 1: 1}] * 3
    assert cluster.produce(topic, 0, 250, size=50) == 0
    assert cluster.produce(topic, 0, 1) == 250
    assert cluster.end_offset(topic, 0) == 251 and cluster.end_offset(topic, 1) == 0
    cluster.delete_topic(topic)
    assert cluster.leaders(topic) == {}


def test_tool_answers_code_output_and_complaint(cluster: Cluster, tools: Tools) -> None:
    topic = cluster.new_topic(2)
    code, out, err = tools.run("kafka-topics", "--describe", "--topic", topic)
    assert (code, err) == (0, "") and "PartitionCount: 2" in out
    code, out, err = tools.run("kafka-topics", "--describe", "--topic", "no-such-topic")
    assert code == 1 and "does not exist" in out + err
    code, out, err = tools.run("kafka-topics", "--describe", "--no-such-option")
    assert code == 1 and "no-such-option" in err


def test_warm_tool_does_what_one_in_its_own_process_does(cluster: Cluster, tools: Tools) -> None:
    topic = cluster.new_topic()
    lines = [f"line-{number}" for number in range(20)]
    tools.out("kafka-console-producer", "--topic", topic, stdin="\n".join(lines) + "\n")
    read = ("kafka-console-consumer", "--topic", topic, "--partition", "0", "--offset", "earliest", "--max-messages")
    for count in ("20", "7"):
        warm = tools.run(*read, count)
        assert warm.out.split() == lines[: int(count)]
        assert f"Processed a total of {count} messages" in warm.err
    own = tools.run(*read, "7", own_process=True)
    assert (own.code, own.out) == (warm.code, warm.out) and own.err.endswith(warm.err)


@pytest.mark.slow_conformance
def test_node_that_was_killed_comes_back_with_its_records(cluster: Cluster) -> None:
    topic = cluster.new_topic(assignment={0: [2]})
    cluster.produce(topic, 0, 10)
    cluster.kill(2)
    assert not cluster.running(2)
    cluster.start(2)
    cluster.eventually(lambda: cluster.leaders(topic) == {0: 2})
    assert cluster.end_offset(topic) == 10
