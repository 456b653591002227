"""Changes of configs that are refused, in the same words; and what our nodes refuse and Kafka does not."""

from __future__ import annotations

import pytest

from storage_node.config.changes import Op
from storage_node.config.table import MOVE_RATE
from tests.conformance.clusters import BROKER_RESOURCE, TOPIC_RESOURCE, Cluster
from tests.conformance.configs.values import FOLLOWER, LEADER, alter, describe, rows
from tests.support.refused_configs import NOT_DESCRIBED, REFUSED_OF_BROKERS, REFUSED_OF_TOPICS, Ops, named


@pytest.mark.parametrize(("kind", "name", "code", "message"), NOT_DESCRIBED)
def test_what_cannot_be_described(cluster: Cluster, kind: int, name: str, code: int, message: str) -> None:
    result = describe(cluster, kind, name)
    assert (int(result.error_code), result.error_message or "") == (code, message)


@pytest.mark.parametrize(("ops", "code", "message"), REFUSED_OF_TOPICS, ids=named)
def test_topic_configs_that_are_refused(cluster: Cluster, topic: str, ops: Ops, code: int, message: str) -> None:
    assert alter(cluster, TOPIC_RESOURCE, topic, ops) == (code, message)
    assert alter(cluster, TOPIC_RESOURCE, topic, ops, validate_only=True) == (code, message)


@pytest.mark.parametrize(("ops", "code", "message"), REFUSED_OF_BROKERS, ids=named)
def test_broker_configs_that_are_refused(cluster: Cluster, ops: Ops, code: int, message: str) -> None:
    for name in ("1", ""):
        assert alter(cluster, BROKER_RESOURCE, name, ops) == (code, message)


def test_resources_that_are_refused(cluster: Cluster, topic: str) -> None:
    change: Ops = [("retention.ms", Op.SET, "5")]
    missing = alter(cluster, TOPIC_RESOURCE, "no-such-topic", change)
    assert missing == (3, "The topic 'no-such-topic' does not exist.")
    assert alter(cluster, TOPIC_RESOURCE, "no-such-topic", [("retention.ms", Op.SET, "x")])[0] == 40
    assert alter(cluster, TOPIC_RESOURCE, "", change) == (42, "Default topic resources are not allowed.")
    rate: Ops = [(MOVE_RATE, Op.SET, "5")]
    other = alter(cluster, BROKER_RESOURCE, "2", rate, node=1)
    assert other == (42, "Unexpected broker id, expected 1, but received 2")
    assert alter(cluster, BROKER_RESOURCE, "x", rate) == (42, "Node id must be an integer, but it is: x")
    assert alter(cluster, 77, "x", rate) == (42, "Unknown resource type 77")
    row = {"name": "retention.ms", "config_operation": 0, "value": "5"}
    twice = [{"resource_type": TOPIC_RESOURCE, "resource_name": topic, "configs": [row]}] * 2
    for answer in cluster.call("IncrementalAlterConfigs", 1, resources=twice).responses:
        assert (int(answer.error_code), answer.error_message) == (42, "Each resource must appear at most once.")


def test_deleting_what_was_never_set_is_fine(cluster: Cluster, topic: str) -> None:
    """kafka-reassign-partitions does so after every verification."""
    keys = (MOVE_RATE, f"{LEADER}.rate", f"{FOLLOWER}.rate", "no.such", "log.dirs")
    assert alter(cluster, BROKER_RESOURCE, "3", [(key, Op.DELETE, None) for key in keys], node=3)[0] == 0
    keys = (f"{LEADER}.replicas", f"{FOLLOWER}.replicas", "segment.ms", "no.such")
    assert alter(cluster, TOPIC_RESOURCE, topic, [(key, Op.DELETE, "") for key in keys])[0] == 0


# Where our nodes differ


def test_what_our_nodes_do_not_do(cluster: Cluster) -> None:
    topic = cluster.new_topic()

    def tried(key: str, value: str) -> tuple[int, str]:
        code, message = alter(cluster, TOPIC_RESOURCE, topic, [(key, Op.SET, value)], validate_only=True)
        return code, message.partition(f" for configuration {key}: ")[2]

    for value in ("compact", "compact,delete", "delete, compact"):
        code, message = tried("cleanup.policy", value)
        assert code == (40 if cluster.differs("no-compaction") else 0) and (not code or "does not compact" in message)
    code, message = tried("compression.type", "gzip")
    assert code == (40 if cluster.differs("batches-as-they-come") else 0) and (not code or "compressed them" in message)
    code, message = tried("segment.bytes", "5000")
    assert (code, message) == ((0, "") if cluster.differs("small-segments") else (40, "Value must be at least 1048576"))


def test_broker_config_that_nobody_knows(cluster: Cluster, clean: None) -> None:
    code, message = alter(cluster, BROKER_RESOURCE, "1", [("log.retention.byte", Op.SET, "5")])
    if cluster.differs("unknown-broker-configs"):
        assert code == 40 and "did you mean log.retention.bytes?" in message
        return
    assert code == 0
    row = cluster.eventually(lambda: rows(cluster, BROKER_RESOURCE, "1").get("log.retention.byte"))
    assert (row.value, row.is_sensitive, row.read_only) == (None, True, True)


@pytest.mark.feature("113-37")
def test_proposals_name_of_the_rate(cluster: Cluster, clean: None) -> None:
    assert alter(cluster, BROKER_RESOURCE, "1", [("intra.broker.throttled.rate", Op.SET, "5000")]) == (0, "")
    names = {MOVE_RATE, "intra.broker.throttled.rate"}
    found = cluster.eventually(
        lambda: {key: row.value for key, row in rows(cluster, BROKER_RESOURCE, "1").items() if key in names}
    )
    expected = {MOVE_RATE: "5000"} if cluster.differs("the-proposals-names") else {"intra.broker.throttled.rate": None}
    assert found == expected


def test_configs_of_loggers_and_groups(cluster: Cluster) -> None:
    loggers = describe(cluster, 8, "1")
    group = alter(cluster, 32, "g", [("consumer.session.timeout.ms", Op.SET, "50000")], validate_only=True)
    if cluster.differs("configs-of-topics-and-brokers-only"):
        assert int(loggers.error_code) == 42 and "BROKER_LOGGER" in loggers.error_message
        assert group[0] == 42 and "GROUP" in group[1]
    else:
        assert int(loggers.error_code) == 0 and "root" in {row.name for row in loggers.configs}
        assert group == (0, "")
