"""Topics, offsets, configs and the cluster through the Java AdminClient."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.conformance.clients.conftest import Ask, fresh
from tests.conformance.clients.java import ok
from tests.support.nodes.node_harness import until

pytestmark = [pytest.mark.kafka, pytest.mark.temporal]

#: The first record's time stamp, milliseconds: young enough for retention, older than the test.
T0 = int(time.time() * 1000) - 3_600_000


def errors(rows: dict[str, Any]) -> dict[str, str]:
    return {name: row.get("error", "ok") for name, row in rows.items()}


def test_cluster(ask: Ask, cluster: Any) -> None:
    found = ask("describeCluster")
    addresses = {node: cluster.address(node) for node in (1, 2, 3)}
    assert dict(found["nodes"]) == addresses
    assert found["controller"] in addresses
    assert found["id"]
    assert isinstance(ok(ask("describeFeatures")), list)


def test_topics_are_created_described_and_deleted(ask: Ask, cluster: Any) -> None:
    plain, chosen, dry = (fresh() for _ in range(3))
    wanted: list[dict[str, Any]] = [
        {"name": plain, "partitions": 5, "replication": 1, "configs": {"retention.ms": "3600000"}},
        {"name": chosen, "assignment": {"0": [2], "1": [3]}},
        {"name": "not a name", "partitions": 1, "replication": 1},
        {"name": fresh(), "partitions": 1, "replication": 9},
        {"name": fresh(), "partitions": 0, "replication": 1},
        {"name": fresh(), "partitions": 1, "replication": 1, "configs": {"retention.ms": "long"}},
        {"name": fresh(), "assignment": {"0": [99]}},
    ]
    made = ask("createTopics", topics=wanted)
    names = [row["name"] for row in wanted]
    assert [errors(made)[name] for name in names] == [
        "ok",
        "ok",
        "InvalidTopicException",
        "InvalidReplicationFactorException",
        "InvalidPartitionsException",
        "InvalidConfigurationException",
        "InvalidReplicaAssignmentException",
    ]
    values = ok(made[plain])
    assert (values["partitions"], values["replication"]) == (5, 1)
    retention = values["configs"]["retention.ms"]
    assert (retention["value"], retention["source"]) == ("3600000", "DYNAMIC_TOPIC_CONFIG")
    assert values["configs"]["cleanup.policy"]["source"] == "DEFAULT_CONFIG"
    assert errors(ask("createTopics", topics=wanted[:1])) == {plain: "TopicExistsException"}
    only_checked = ask("createTopics", topics=[{"name": dry, "partitions": 2, "replication": 1}], validateOnly=True)
    assert ok(only_checked[dry])["partitions"] == 2

    # Whichever node the client asks.
    until(lambda: cluster.ready(plain, 5) and cluster.ready(chosen, 2), 60, "every node knows the new topics")
    assert {plain, chosen} <= set(ok(ask("listTopics")))
    assert dry not in ok(ask("listTopics"))
    described = ask("describeTopics", topics=[plain, chosen, dry], limit=2)
    assert errors(described) == {plain: "ok", chosen: "ok", dry: "UnknownTopicOrPartitionException"}
    rows = ok(described[plain])
    assert rows["id"] == values["id"]
    assert [row["partition"] for row in rows["partitions"]] == list(range(5))
    assert [row["replicas"] for row in ok(described[chosen])["partitions"]] == [[2], [3]]
    assert all(row["isr"] == row["replicas"] == [row["leader"]] for row in rows["partitions"])
    by_id = ask("describeTopics", ids=[values["id"], "AAAAAAAAAAAAAAAAAAAAZA"])
    assert ok(by_id[values["id"]])["name"] == plain
    assert by_id["AAAAAAAAAAAAAAAAAAAAZA"]["error"] == "UnknownTopicIdException"

    assert errors(ask("deleteTopics", topics=[plain, chosen, dry])) == {
        plain: "ok",
        chosen: "ok",
        dry: "UnknownTopicOrPartitionException",
    }
    until(lambda: not {plain, chosen} & set(ok(ask("listTopics"))), 60, "no node lists them")


def test_partitions_are_added(ask: Ask, cluster: Any) -> None:
    topic, fewer, same = (cluster.new_topic(partitions=2) for _ in range(3))
    done = ask("createPartitions", counts={topic: 4, fewer: 1, same: 2, "no-such-topic": 3})
    assert errors(done) == {
        topic: "ok",
        fewer: "InvalidPartitionsException",
        same: "InvalidPartitionsException",
        "no-such-topic": "UnknownTopicOrPartitionException",
    }
    until(lambda: cluster.ready(topic, 4), 60, "every node knows the new partitions")
    assert len(ok(ask("describeTopics", topics=[topic])[topic])["partitions"]) == 4
    sent = ask("produce", topic=topic, partition=3, prefix="new", count=3)
    assert sent["failures"] == []
    assert [row[:2] for row in sent["acknowledged"]] == [[3, 0], [3, 1], [3, 2]]


def test_offsets_of_all_kinds(ask: Ask, cluster: Any) -> None:
    topic = cluster.new_topic()
    ask("produce", topic=topic, partition=0, prefix="r", count=10, timestamp=T0)
    ask("produce", topic=topic, partition=0, prefix="late", count=1, timestamp=T0 - 5000)
    assert ok(ask("deleteRecords", wanted=[[topic, 0, 2]])[f"{topic}-0"]) == 2

    def found(kind: str | int) -> tuple[int, int]:
        row = ok(ask("listOffsets", wanted=[[topic, 0, str(kind)]])[f"{topic}-0"])
        return row["offset"], row["timestamp"]

    assert found("earliest") == (2, -1)
    assert found("earliest_local") == (2, -1)
    assert found("latest") == (11, -1)
    assert found("max_timestamp") == (9, T0 + 9)
    assert found(T0 + 4) == (4, T0 + 4)
    assert found(T0 + 5000) == (-1, -1)
    assert found(0) == (2, T0 + 2)
    assert found("latest_tiered") == (-1, -1)
    assert found("earliest_pending_upload") == (-1, -1)

    def told() -> bool:
        unknown = errors(ask("listOffsets", wanted=[[topic, 7, "latest"], [topic, 0, "latest"]], timeoutMs=700))
        assert unknown.pop(f"{topic}-7") == "TimeoutException"  # asked again until then
        return unknown == {f"{topic}-0": "ok"}  # it is, unless the machine stalls for so long

    until(told, 60, "the partition that is there has its offset")


def test_records_are_deleted(ask: Ask, cluster: Any) -> None:
    topic = cluster.new_topic(partitions=2)
    ask.expected.append("OFFSET_OUT_OF_RANGE")
    for partition in (0, 1):
        ask("produce", topic=topic, partition=partition, prefix="r", count=5)
    done = ask("deleteRecords", wanted=[[topic, 0, 3], [topic, 1, 99]])
    assert ok(done[f"{topic}-0"]) == 3
    assert done[f"{topic}-1"]["error"] == "OffsetOutOfRangeException"
    assert ok(ask("deleteRecords", wanted=[[topic, 1, -1]])[f"{topic}-1"]) == 5
    read = ask("consume", assign=[[topic, 0]], count=2, seconds=20)
    assert [row[1] for row in read["records"]] == [3, 4]


def test_configs(ask: Ask, cluster: Any) -> None:
    topic = cluster.new_topic(configs={"max.message.bytes": "2000000"})
    resources = [["TOPIC", topic], ["BROKER", "1"], ["TOPIC", "no-such-topic"]]
    found = ask("describeConfigs", resources=resources)
    assert found["TOPIC no-such-topic"]["error"] == "UnknownTopicOrPartitionException"
    size = ok(found[f"TOPIC {topic}"])["max.message.bytes"]
    assert (size["value"], size["source"], size["type"]) == ("2000000", "DYNAMIC_TOPIC_CONFIG", "INT")
    assert size["synonyms"][0] == ["max.message.bytes", "2000000", "DYNAMIC_TOPIC_CONFIG"]
    assert size["documented"] and not size["readOnly"] and not size["sensitive"]
    broker = ok(found["BROKER 1"])
    assert broker["log.dirs"]["value"].split(",") == [str(path) for path in cluster.log_dirs[1]]
    assert broker["log.dirs"]["readOnly"]

    def retention() -> tuple[str, str]:
        row = ok(ask("describeConfigs", resources=[["TOPIC", topic]])[f"TOPIC {topic}"])["retention.ms"]
        return row["value"], row["source"]

    before = retention()
    done = ask(
        "alterConfigs",
        changes=[
            ["TOPIC", topic, "SET", "retention.ms", "1000000"],
            ["TOPIC", "no-such-topic", "SET", "retention.ms", "1"],
        ],
    )
    assert errors(done) == {f"TOPIC {topic}": "ok", "TOPIC no-such-topic": "UnknownTopicOrPartitionException"}
    until(lambda: retention() == ("1000000", "DYNAMIC_TOPIC_CONFIG"), 60, "every node has the new value")
    for name, value in (("retention.ms", "long"), ("no.such.config", "1")):
        refused = ask("alterConfigs", changes=[["TOPIC", topic, "SET", name, value]])
        assert errors(refused) == {f"TOPIC {topic}": "InvalidConfigurationException"}
    ok(ask("alterConfigs", changes=[["TOPIC", topic, "DELETE", "retention.ms", None]])[f"TOPIC {topic}"])
    until(lambda: retention() == before, 60, "the default is back")


def test_reassignments_and_elections_that_change_nothing(ask: Ask, cluster: Any) -> None:
    topic = cluster.new_topic(assignment={0: [1]})
    done = ask("alterPartitionReassignments", wanted=[[topic, 0, None], [topic, 4, [1]], ["no-such-topic", 0, [1]]])
    assert errors(done) == {
        f"{topic}-0": "NoReassignmentInProgressException",
        f"{topic}-4": "UnknownTopicOrPartitionException",
        "no-such-topic-0": "UnknownTopicOrPartitionException",
    }
    ok(ask("alterPartitionReassignments", wanted=[[topic, 0, [1]]])[f"{topic}-0"])
    assert ok(ask("listPartitionReassignments")) == []
    elected = ok(ask("electLeaders", type="PREFERRED", partitions=[[topic, 0], ["no-such-topic", 0]]))
    assert elected == {
        f"{topic}-0": "ElectionNotNeededException",
        "no-such-topic-0": "UnknownTopicOrPartitionException",
    }
