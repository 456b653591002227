"""Changes of configs that are refused, in the same words; and what our nodes refuse and Kafka does not."""

from __future__ import annotations

import pytest

from storage_node.config.changes import Op
from storage_node.config.table import MOVE_RATE
from tests.conformance.clusters import BROKER_RESOURCE, TOPIC_RESOURCE, Cluster
from tests.conformance.configs.values import (
    FOLLOWER,
    LEADER,
    Ops,
    alter,
    describe,
    number,
    rows,
)


@pytest.mark.parametrize(
    ("kind", "name", "code", "message"),
    [
        (TOPIC_RESOURCE, "no-such-topic", 3, ""),
        (TOPIC_RESOURCE, "", 17, "Topic name is invalid: the empty string is not allowed"),
        (BROKER_RESOURCE, "2", 42, "Unexpected broker id, expected 1 or empty string, but received 2"),
        (BROKER_RESOURCE, "x", 42, "Broker id must be an integer, but it is: x"),
        (16, "", 42, "Client metrics subscription name must not be empty"),
        (32, "", 42, "Group name must not be empty"),
    ],
)
def test_what_cannot_be_described(cluster: Cluster, kind: int, name: str, code: int, message: str) -> None:
    result = describe(cluster, kind, name)
    assert (int(result.error_code), result.error_message or "") == (code, message)


def named(value: object) -> str:
    """A test's name: the last config of its request."""
    return str(value[-1][0]) if isinstance(value, list) else ""


REFUSED_OF_TOPICS: list[tuple[Ops, int, str]] = [
    ([("no.such", Op.SET, "1")], 40, "Unknown topic config name: no.such"),
    ([("no.such", Op.APPEND, "1")], 40, "Can't APPEND to key no.such because its type is not LIST."),
    ([("retention.ms", Op.SET, "77"), ("no.such", Op.SET, "1")], 40, "Unknown topic config name: no.such"),
    ([("retention.ms", Op.SET, "x")], 40, number("retention.ms", "x", "LONG")),
    ([("file.delete.delay.ms", Op.SET, "")], 40, number("file.delete.delay.ms", "", "LONG")),
    ([("segment.bytes", Op.SET, "99999999999")], 40, number("segment.bytes", "99999999999", "INT")),
    ([("min.cleanable.dirty.ratio", Op.SET, "abc")], 40, number("min.cleanable.dirty.ratio", "abc", "DOUBLE")),
    (
        [("min.cleanable.dirty.ratio", Op.SET, "2")],
        40,
        "Invalid value 2.0 for configuration min.cleanable.dirty.ratio: Value must be no more than 1",
    ),
    (
        [("retention.ms", Op.SET, "-2")],
        40,
        "Invalid value -2 for configuration retention.ms: Value must be at least -1",
    ),
    (
        [("compression.gzip.level", Op.SET, "77")],
        40,
        "Invalid value 77 for configuration compression.gzip.level: Value must be between 1 and 9 or equal to -1",
    ),
    (
        [("cleanup.policy", Op.SET, "burn")],
        40,
        "Invalid value burn for configuration cleanup.policy: String must be one of: compact, delete",
    ),
    (
        [("message.timestamp.type", Op.SET, "x")],
        40,
        "Invalid value x for configuration message.timestamp.type: String must be one of: CreateTime, LogAppendTime",
    ),
    (
        [("preallocate", Op.SET, "yes")],
        40,
        "Invalid value yes for configuration preallocate: Expected value to be either true or false",
    ),
    (
        [("min.compaction.lag.ms", Op.SET, "9"), ("max.compaction.lag.ms", Op.SET, "8")],
        40,
        "conflict topic config setting min.compaction.lag.ms (9) > max.compaction.lag.ms (8)",
    ),
    (
        [("remote.storage.enable", Op.SET, "true")],
        40,
        "Tiered Storage functionality is disabled in the broker. Topic cannot be configured with remote log storage.",
    ),
    ([("retention.ms", Op.SET, None)], 42, "Null value not supported for : retention.ms"),
    ([("retention.ms", Op.APPEND, "5")], 40, "Can't APPEND to key retention.ms because its type is not LIST."),
    ([("retention.ms", Op.SUBTRACT, "5")], 40, "Can't SUBTRACT to key retention.ms because its type is not LIST."),
    ([("retention.ms", Op.SET, "5"), ("retention.ms", Op.SET, "6")], 42, "Error due to duplicate config keys"),
]


@pytest.mark.parametrize(("ops", "code", "message"), REFUSED_OF_TOPICS, ids=named)
def test_topic_configs_that_are_refused(cluster: Cluster, topic: str, ops: Ops, code: int, message: str) -> None:
    assert alter(cluster, TOPIC_RESOURCE, topic, ops) == (code, message)
    assert alter(cluster, TOPIC_RESOURCE, topic, ops, validate_only=True) == (code, message)


REFUSED_OF_BROKERS: list[tuple[Ops, int, str]] = [
    ([("log.dirs", Op.SET, "/x")], 42, "Cannot update these configs dynamically: [log.dirs]"),
    ([("log.retention.hours", Op.SET, "5")], 42, "Cannot update these configs dynamically: [log.retention.hours]"),
    (
        [("num.replica.alter.log.dirs.threads", Op.SET, "4")],
        42,
        "Cannot update these configs dynamically: [num.replica.alter.log.dirs.threads]",
    ),
    ([(MOVE_RATE, Op.SET, "-1")], 42, f"Invalid value -1 for configuration {MOVE_RATE}: Value must be at least 0"),
    ([(MOVE_RATE, Op.SET, "fast")], 42, number(MOVE_RATE, "fast", "LONG")),
    ([(MOVE_RATE, Op.APPEND, "5")], 40, f"Unknown config name: {MOVE_RATE}"),
    ([(MOVE_RATE, Op.SET, None)], 42, f"Null value not supported for : {MOVE_RATE}"),
    ([("log.retention.ms", Op.SET, "x")], 42, number("log.retention.ms", "x", "LONG")),
    (
        [("message.max.bytes", Op.SET, "-1")],
        42,
        "Invalid value -1 for configuration message.max.bytes: Value must be at least 0",
    ),
    (
        [("log.cleanup.policy", Op.SET, "burn")],
        42,
        "Invalid value burn for configuration log.cleanup.policy: String must be one of: compact, delete",
    ),
]


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
