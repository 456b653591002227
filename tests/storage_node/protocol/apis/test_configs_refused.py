"""Configs of topics and brokers that the node rejects, in Kafka's order and with its messages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from storage_node.config.changes import Op
from tests.storage_node.protocol.apis.config_node import BROKER, LOGGER, RATE, REPLICAS, TOPIC, Node, configured
from tests.support.refused_configs import NOT_DESCRIBED, REFUSED_OF_BROKERS, REFUSED_OF_TOPICS, Ops, named


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    yield from configured(tmp_path_factory.mktemp("configs"))


@pytest.mark.parametrize(
    ("kind", "name", "code", "message"),
    [*NOT_DESCRIBED, (LOGGER, "1", 42, "BROKER_LOGGER"), (99, "g", 42, "99")],
)
def test_what_cannot_be_described(node: Node, kind: int, name: str, code: int, message: str) -> None:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    (result,) = node.client.ask(32, 4, {"resources": [resource]}).results
    assert (int(result.error_code), result.resource_type, result.resource_name) == (code, kind, name)
    assert message in (result.error_message or "") and not result.configs


#: What our nodes refuse beyond Kafka, or as no client of the conformance tests asks: a part of the message.
OWN_OF_TOPICS: list[tuple[Ops, int, str]] = [
    ([("retention.ms", 9, "5")], 42, "9"),
    ([("cleanup.policy", Op.SET, "compact")], 40, "does not compact"),
    ([("cleanup.policy", Op.APPEND, "compact")], 40, "does not compact"),
    ([("cleanup.policy", Op.SET, "delete, compact")], 40, "does not compact"),
    ([("compression.type", Op.SET, "gzip")], 40, "as producers compressed them"),
]


@pytest.mark.parametrize(("ops", "code", "message"), [*REFUSED_OF_TOPICS, *OWN_OF_TOPICS], ids=named)
def test_topic_configs_that_are_refused(node: Node, ops: Ops, code: int, message: str) -> None:
    done = node.alter(TOPIC, "t", ops)
    assert (int(done.error_code), message in done.error_message) == (code, True), done
    assert node.harness.node.metadata.image.topics["t"].configs == {}, "all or nothing"


OWN_OF_BROKERS: list[tuple[Ops, int, str]] = [
    (
        [("num.replica.move.threads", Op.SET, "4")],
        42,
        "Cannot update these configs dynamically: [num.replica.alter.log.dirs.threads]",
    ),
    ([("log.cleanup.policy", Op.SET, "compact")], 42, "does not compact"),
    ([("log.retention.byte", Op.SET, "5")], 40, "did you mean log.retention.bytes?"),
]


@pytest.mark.parametrize(("ops", "code", "message"), [*REFUSED_OF_BROKERS, *OWN_OF_BROKERS], ids=named)
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
