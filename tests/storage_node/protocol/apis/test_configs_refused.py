"""Configs of topics and brokers that the node rejects, in Kafka's order and with its messages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from storage_node.config.changes import Op
from tests.storage_node.protocol.apis.config_node import BROKER, LOGGER, RATE, REPLICAS, TOPIC, Node, Ops, configured


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    yield from configured(tmp_path_factory.mktemp("configs"))


@pytest.mark.parametrize(
    ("kind", "name", "code", "message"),
    [
        (TOPIC, "nothing", 3, ""),
        (TOPIC, "", 17, "empty"),
        (BROKER, "2", 42, "Unexpected broker id, expected 1 or empty string, but received 2"),
        (BROKER, "x", 42, "Broker id must be an integer, but it is: x"),
        (LOGGER, "1", 42, "BROKER_LOGGER"),
        (16, "", 42, "Client metrics subscription name must not be empty"),
        (32, "", 42, "Group name must not be empty"),
        (99, "g", 42, "99"),
    ],
)
def test_what_cannot_be_described(node: Node, kind: int, name: str, code: int, message: str) -> None:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    (result,) = node.client.ask(32, 4, {"resources": [resource]}).results
    assert (int(result.error_code), result.resource_type, result.resource_name) == (code, kind, name)
    assert message in result.error_message and not result.configs


BAD_TOPIC: list[tuple[Ops, int, str]] = [
    ([("no.such", Op.SET, "5")], 40, "Unknown topic config name: no.such"),
    ([("retention.ms", Op.SET, "5"), ("no.such", Op.SET, "5")], 40, "Unknown topic config name: no.such"),
    (
        [("retention.ms", Op.SET, "x")],
        40,
        "Invalid value x for configuration retention.ms: Not a number of type LONG",
    ),
    (
        [("segment.bytes", Op.SET, "99999999999")],
        40,
        "Invalid value 99999999999 for configuration segment.bytes: Not a number of type INT",
    ),
    (
        [("retention.ms", Op.SET, "-2")],
        40,
        "Invalid value -2 for configuration retention.ms: Value must be at least -1",
    ),
    (
        [("preallocate", Op.SET, "yes")],
        40,
        "Invalid value yes for configuration preallocate: Expected value to be either true or false",
    ),
    (
        [("message.timestamp.type", Op.SET, "x")],
        40,
        "Invalid value x for configuration message.timestamp.type: String must be one of: CreateTime, LogAppendTime",
    ),
    ([("min.cleanable.dirty.ratio", Op.SET, "2")], 40, "Value must be no more than 1"),
    ([("min.compaction.lag.ms", Op.SET, "9"), ("max.compaction.lag.ms", Op.SET, "8")], 40, "conflict topic config"),
    ([("retention.ms", Op.SET, None)], 42, "Null value not supported for : retention.ms"),
    ([("retention.ms", Op.APPEND, "5")], 40, "Can't APPEND to key retention.ms because its type is not LIST."),
    ([("retention.ms", Op.SUBTRACT, "5")], 40, "Can't SUBTRACT to key retention.ms because its type is not LIST."),
    ([("retention.ms", 9, "5")], 42, "9"),
    ([("retention.ms", Op.SET, "5"), ("retention.ms", Op.SET, "6")], 42, "Error due to duplicate config keys"),
    ([("cleanup.policy", Op.SET, "compact")], 40, "does not compact"),
    ([("cleanup.policy", Op.APPEND, "compact")], 40, "does not compact"),
    ([("cleanup.policy", Op.SET, "delete, compact")], 40, "does not compact"),
    ([("cleanup.policy", Op.SET, "burn")], 40, "String must be one of: compact, delete"),
    ([("remote.storage.enable", Op.SET, "true")], 40, "Tiered Storage functionality is disabled"),
    ([("compression.type", Op.SET, "gzip")], 40, "as producers compressed them"),
]


@pytest.mark.parametrize(("ops", "code", "message"), BAD_TOPIC)
def test_topic_configs_that_are_refused(node: Node, ops: Ops, code: int, message: str) -> None:
    done = node.alter(TOPIC, "t", ops)
    assert (int(done.error_code), message in done.error_message) == (code, True), done
    assert node.harness.node.metadata.image.topics["t"].configs == {}, "all or nothing"


@pytest.mark.parametrize(
    ("ops", "code", "message"),
    [
        ([("log.dirs", Op.SET, "/x")], 42, "Cannot update these configs dynamically: [log.dirs]"),
        ([("log.retention.hours", Op.SET, "5")], 42, "Cannot update these configs dynamically: [log.retention.hours]"),
        (
            [("num.replica.move.threads", Op.SET, "4")],
            42,
            "Cannot update these configs dynamically: [num.replica.alter.log.dirs.threads]",
        ),
        ([(RATE, Op.SET, "-1")], 42, f"Invalid value -1 for configuration {RATE}: Value must be at least 0"),
        ([(RATE, Op.SET, "fast")], 42, f"Invalid value fast for configuration {RATE}: Not a number of type LONG"),
        ([(RATE, Op.APPEND, "5")], 40, f"Unknown config name: {RATE}"),
        ([(RATE, Op.SET, None)], 42, f"Null value not supported for : {RATE}"),
        ([("log.cleanup.policy", Op.SET, "compact")], 42, "does not compact"),
        ([("log.retention.byte", Op.SET, "5")], 40, "did you mean log.retention.bytes?"),
    ],
)
def test_broker_configs_that_are_refused(node: Node, ops: Ops, code: int, message: str) -> None:
    for name in ("1", ""):
        done = node.alter(BROKER, name, ops)
        assert (int(done.error_code), message in done.error_message) == (code, True), done
    assert not node.describe(BROKER, "")


@pytest.mark.parametrize(
    ("kind", "name", "key", "value", "code", "message"),
    [
        (TOPIC, "nothing", "retention.ms", "5", 3, "The topic 'nothing' does not exist."),
        (TOPIC, "nothing", "retention.ms", "x", 40, "Not a number"),
        (TOPIC, "", "retention.ms", "5", 42, "Default topic resources are not allowed."),
        (BROKER, "2", RATE, "5", 42, "Unexpected broker id, expected 1, but received 2"),
        (BROKER, "x", RATE, "5", 42, "Node id must be an integer, but it is: x"),
        (LOGGER, "1", "root", "INFO", 42, "BROKER_LOGGER"),
        (99, "1", "root", "INFO", 42, "Unknown resource type 99"),
    ],
)
def test_resources_that_are_refused(
    node: Node, kind: int, name: str, key: str, value: str, code: int, message: str
) -> None:
    done = node.alter(kind, name, [(key, Op.SET, value)])
    assert (int(done.error_code), message in done.error_message) == (code, True), done


def test_duplicate_resource_is_rejected_both_times(node: Node) -> None:
    row = {"name": "retention.ms", "config_operation": Op.SET, "value": "5"}
    resources = [{"resource_type": TOPIC, "resource_name": name, "configs": [row]} for name in ("t", "t", "nothing")]
    done = node.client.ask(44, 1, {"resources": resources}).responses
    assert [int(row.error_code) for row in done] == [42, 42, 3]
    assert "at most once" in done[0].error_message


@pytest.mark.parametrize("value", ["none", "0", "0:", ":1", "0 :1", "a:1", "0:1;1:2", "**", "0:1:2", "*,0:1"])
def test_invalid_lists_of_throttled_replicas_are_rejected(node: Node, value: str) -> None:
    done = node.alter(TOPIC, "t", [(REPLICAS, Op.SET, value)])
    assert int(done.error_code) == 40 and "must be the literal '*' or a list of replicas" in done.error_message
