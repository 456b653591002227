"""Configs of topics and brokers on the wire: described, altered, effective at once."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage_node.config.changes import Op
from storage_node.log import build_batch
from storage_node.protocol.network.connections import RESERVED
from tests.storage_node.protocol.apis.config_node import (
    BROKER,
    BY_BROKER,
    BY_DEFAULT,
    DEFAULT,
    LOGGER,
    OWN,
    RATE,
    REPLICAS,
    STATIC,
    TOPIC,
    Node,
    configured,
    synonyms,
)
from tests.support.nodes.node_harness import raw_connection, running, until
from tests.support.wire import encode_request, offered, receive_frame


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    yield from configured(tmp_path_factory.mktemp("configs"))


@pytest.mark.parametrize("version", offered(32))
def test_topics_configs(node: Node, version: int) -> None:
    node.set(TOPIC, "t", "flush.messages", "77")
    found = node.describe(TOPIC, "t", version=version)
    row = found["flush.messages"]
    assert (row.value, row.config_source, row.read_only, row.is_sensitive) == ("77", OWN, False, False)
    longest = str(2**63 - 1)
    assert synonyms(row) == [("flush.messages", "77", OWN), ("log.flush.interval.messages", longest, DEFAULT)]
    row = found["segment.bytes"]
    assert (row.value, row.config_source) == ("2000000", STATIC)
    assert synonyms(row) == [("log.segment.bytes", "2000000", STATIC), ("log.segment.bytes", "1073741824", DEFAULT)]
    assert found["retention.ms"].value == "36000000", "minutes as milliseconds"
    assert not found["retention.ms"].synonyms, "Kafka's: they begin with log.retention.ms, and that is not set"
    if version >= 3:
        assert (found["retention.ms"].config_type, found["cleanup.policy"].config_type) == (5, 7)
    node.set(TOPIC, "t", "flush.messages", None)


def test_which_keys_are_described(node: Node) -> None:
    assert list(node.describe(TOPIC, "t", ["segment.bytes", "nothing"])) == ["segment.bytes"]
    assert len(node.describe(TOPIC, "t", [])) == len(node.describe(TOPIC, "t")), "as in Kafka, no key requests all"
    assert not node.describe(BROKER, ""), "of the brokers' default only what is set"


def test_brokers_configs(node: Node) -> None:
    found = node.describe(BROKER, "1")
    assert found["log.dirs"].read_only and found["log.dirs"].value == ",".join(node.harness.paths)
    assert (found["log.dirs"].config_source, found["node.id"].value) == (STATIC, "1")
    assert RATE not in found, "as in Kafka, only where it is set"
    row = found["log.retention.ms"]
    assert (row.value, row.config_source, row.read_only, row.config_type) == (None, DEFAULT, False, 5)
    row = found["log.retention.minutes"]
    assert (row.value, row.config_source, row.read_only) == ("600", STATIC, True)
    row = found["rehome.secret"]
    assert row.is_sensitive and row.value is None and synonyms(row) == [("rehome.secret", None, STATIC)]
    assert all(row.documentation is None for row in found.values())
    resource = {"resource_type": BROKER, "resource_name": "1", "configuration_keys": ["log.dirs"]}
    values = {"resources": [resource], "include_synonyms": False, "include_documentation": True}
    (row,) = node.client.ask(32, 4, values).results[0].configs
    assert "directories" in row.documentation and not row.synonyms


def test_groups_and_client_metrics_have_no_configs(node: Node) -> None:
    for kind, name in ((16, "m"), (32, "g")):
        assert not node.describe(kind, name)
        assert int(node.alter(kind, name, [("interval.ms", Op.SET, "5000")]).error_code) == 42


@pytest.mark.parametrize("version", offered(44))
def test_topic_configs_take_effect_at_once(node: Node, version: int) -> None:
    def alter(*ops: tuple[str, int, str | None]) -> None:
        assert int(node.alter(TOPIC, "t", list(ops), version).error_code) == 0

    alter(("retention.ms", Op.SET, " 1234 "))
    assert node.config().retention_ms == 1234 and node.describe(TOPIC, "t")["retention.ms"].value == "1234"
    alter(("retention.ms", Op.DELETE, None))
    assert node.config().retention_ms == 36_000_000
    alter((REPLICAS, Op.APPEND, "0:1,1:1"), ("segment.ms", Op.DELETE, None))
    alter((REPLICAS, Op.APPEND, "1:1,2:1"))
    assert node.describe(TOPIC, "t")[REPLICAS].value == "0:1,1:1,2:1"
    alter((REPLICAS, Op.SUBTRACT, "0:1,7:7,1:1"))
    assert node.harness.node.metadata.image.topics["t"].configs == {REPLICAS: "2:1"}
    alter((REPLICAS, Op.DELETE, None))
    assert int(node.alter(TOPIC, "t", [("retention.ms", Op.SET, "5")], version, validate_only=True).error_code) == 0
    assert node.harness.node.metadata.image.topics["t"].configs == {}


def test_brokers_value_holds_for_topics_without_their_own(node: Node) -> None:
    """A broker's value overrides the cluster-wide default, and both server.properties; the logs use it too."""
    node.harness.create_topic("own", configs={"retention.ms": "5"})

    def held() -> tuple[int, str, int]:
        row = node.describe(TOPIC, "t")["retention.ms"]
        assert int(row.value) == node.config().retention_ms
        assert node.config("own").retention_ms == 5
        return node.config().retention_ms, row.value, row.config_source

    node.set(BROKER, "", "log.retention.ms", "70000")
    until(lambda: held() == (70_000, "70000", BY_DEFAULT))
    node.set(BROKER, "1", "log.retention.ms", "60000")
    until(lambda: held() == (60_000, "60000", BY_BROKER))
    expected = [("log.retention.ms", "60000", BY_BROKER), ("log.retention.ms", "70000", BY_DEFAULT)]
    expected += [("log.retention.minutes", "600", STATIC), ("log.retention.hours", "168", DEFAULT)]
    assert synonyms(node.describe(TOPIC, "t")["retention.ms"]) == expected
    assert synonyms(node.describe(BROKER, "1")["log.retention.ms"]) == expected
    own = [("retention.ms", "5", OWN), *expected]
    assert synonyms(node.describe(TOPIC, "own")["retention.ms"]) == own
    assert synonyms(node.describe(BROKER, "")["log.retention.ms"]) == [("log.retention.ms", "70000", BY_DEFAULT)]
    node.again()
    assert held() == (60_000, "60000", BY_BROKER), "after a restart, before a request to the controller"
    node.set(BROKER, "1", "log.retention.ms", None)
    until(lambda: held() == (70_000, "70000", BY_DEFAULT))
    node.set(BROKER, "", "log.retention.ms", None)
    until(lambda: held() == (36_000_000, "36000000", DEFAULT))


def test_largest_batch_follows_the_broker(node: Node) -> None:
    node.set(BROKER, "1", "message.max.bytes", "100")
    until(lambda: node.config().max_message_bytes == 100)
    node.set(BROKER, "1", "message.max.bytes", None)
    until(lambda: node.config().max_message_bytes == 1_048_588)


@pytest.mark.feature("113-37", "455-27")
@pytest.mark.parametrize("name", [RATE, "intra.broker.throttled.rate"])
def test_rate_of_moves_by_broker_and_by_default(node: Node, name: str) -> None:
    limiter = node.harness.node.engine._limiter
    node.set(BROKER, "", name, "1000000")
    until(lambda: limiter.rate == 1_000_000)
    node.set(BROKER, "1", name, "2000000")
    until(lambda: limiter.rate == 2_000_000)
    found = node.describe(BROKER, "1")
    assert name == RATE or name not in found, "kept by its real name"
    assert (found[RATE].value, found[RATE].read_only, found[RATE].config_type) == ("2000000", False, 5)
    node.set(BROKER, "1", name, "0")
    until(lambda: limiter.rate == 1)
    for level in ("1", "", ""):
        node.set(BROKER, level, name, None)
    until(lambda: limiter.rate is None)
    assert RATE not in node.describe(BROKER, "1")


@pytest.mark.feature("113-37", "455-27")
def test_replication_throttles_are_kept_for_kafkas_tools(node: Node) -> None:
    for key in ("leader.replication.throttled.rate", "follower.replication.throttled.rate"):
        node.set(BROKER, "1", key, "700")
        row = node.describe(BROKER, "1")[key]
        assert (row.value, row.config_source, row.config_type, row.read_only) == ("700", BY_BROKER, 5, False)
        node.set(BROKER, "1", key, None)


def test_deleting_what_was_never_set_is_fine(node: Node) -> None:
    assert int(node.alter(TOPIC, "t", [("segment.ms", Op.DELETE, None), (REPLICAS, Op.DELETE, "")]).error_code) == 0
    keys = (RATE, "leader.replication.throttled.rate", "unknown.key", "log.dirs")
    assert int(node.alter(BROKER, "1", [(key, Op.DELETE, None) for key in keys]).error_code) == 0


@pytest.mark.parametrize(
    "value", ["", "*", "0:1", "0:1,1:2", " 0:1 , 1:2 ", "12:345", "0:1,"], ids=lambda value: repr(value)
)
def test_valid_lists_of_throttled_replicas_are_accepted(node: Node, value: str) -> None:
    node.set(TOPIC, "t", REPLICAS, value)
    assert node.describe(TOPIC, "t")[REPLICAS].value == value.replace(" ", "")
    node.set(TOPIC, "t", REPLICAS, None)


@pytest.mark.parametrize("version", offered(33))
def test_alter_configs_removes_what_it_does_not_name(node: Node, version: int) -> None:
    def replace(kind: int, name: str, configs: dict[str, str | None], validate_only: bool = False) -> Any:
        rows = [{"name": key, "value": value} for key, value in configs.items()]
        resource = {"resource_type": kind, "resource_name": name, "configs": rows}
        values = {"resources": [resource], "validate_only": validate_only}
        return node.client.ask(33, version, values).responses[0]

    node.set(TOPIC, "t", "segment.ms", "5000")
    assert int(replace(TOPIC, "t", {"retention.ms": "x"}).error_code) == 40
    assert int(replace(TOPIC, "t", {"retention.ms": None}).error_code) == 42
    assert int(replace(TOPIC, "t", {"retention.ms": "99"}, validate_only=True).error_code) == 0
    assert node.harness.node.metadata.image.topics["t"].configs == {"segment.ms": "5000"}
    assert int(replace(TOPIC, "t", {"retention.ms": "99"}).error_code) == 0
    assert node.harness.node.metadata.image.topics["t"].configs == {"retention.ms": "99"}
    assert int(replace(TOPIC, "t", {}).error_code) == 0
    assert node.harness.node.metadata.image.topics["t"].configs == {}
    assert int(replace(TOPIC, "nothing", {}).error_code) == 3
    assert int(replace(BROKER, "1", {"log.dirs": "/x"}).error_code) == 42
    assert int(replace(LOGGER, "1", {"root": "INFO"}).error_code) == 42
    assert int(replace(BROKER, "1", {RATE: "5000"}).error_code) == 0
    assert node.describe(BROKER, "1")[RATE].value == "5000"
    assert int(replace(BROKER, "1", {}).error_code) == 0
    assert RATE not in node.describe(BROKER, "1")


def test_which_resources_have_configs(node: Node) -> None:
    def names(*kinds: int) -> set[tuple[int, str]]:
        answer = node.client.ask(74, 1, {"resource_types": list(kinds)})
        assert int(answer.error_code) == 0
        return {(row.resource_type, row.resource_name) for row in answer.config_resources}

    assert {(TOPIC, "t"), (BROKER, "1")} <= names()
    assert names(BROKER) == {(BROKER, "1")} and not names(16, 32)
    assert not node.client.ask(74, 0, {}).config_resources


def test_create_topics_checks_configs_alike(node: Node) -> None:
    def create(name: str, configs: dict[str, str | None]) -> Any:
        rows = [{"name": key, "value": value} for key, value in configs.items()]
        topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "configs": rows}
        return node.client.ask(19, 7, {"topics": [topic]}).topics[0]

    for configs, words in (
        ({"no.such": "5"}, "Unknown topic config name: no.such"),
        ({"retention.ms": "x"}, "Not a number of type LONG"),
        ({"retention.ms": None}, "Null value not supported for topic configs: retention.ms"),
        ({"cleanup.policy": "compact,delete"}, "does not compact"),
    ):
        done = create("bad", configs)
        assert int(done.error_code) == 40 and words in done.error_message
    done = create("good", {"retention.ms": " 5 "})
    assert int(done.error_code) == 0, done.error_message
    rows = {row.name: (row.value, row.config_source) for row in done.configs}
    assert rows["retention.ms"] == ("5", OWN) and rows["segment.ms"] == ("604800000", DEFAULT)
    assert rows["segment.bytes"] == ("2000000", STATIC) and set(rows) == set(node.describe(TOPIC, "good"))
    assert node.harness.node.metadata.image.topics["good"].configs == {"retention.ms": "5"}


def test_alter_configs_is_validated_without_a_controller(tmp_path: Path) -> None:
    with running(tmp_path, 1) as harness:
        harness.create_topic("t")
        harness.controller.away = True
        node = Node(harness)
        assert int(node.alter(TOPIC, "t", [("no.such", Op.SET, "5")]).error_code) == 40
        assert int(node.alter(TOPIC, "t", [("retention.ms", Op.SET, "5")], validate_only=True).error_code) == 0


def test_records_with_timestamps_out_of_bounds_are_rejected(node: Node) -> None:
    """As in Kafka, at most an hour after the node's clock, and before it as long as the topic's config allows."""
    now = int(time.time() * 1000)
    hour = 3_600_000

    def produce(timestamp: int) -> int:
        return node.client.produce("t", 0, build_batch([b"x"], timestamp=timestamp)).error

    assert [produce(now + hour - 60_000), produce(0), produce(-1)] == [0, 0, 0]
    assert produce(now + hour + 60_000) == 32
    node.set(TOPIC, "t", "message.timestamp.before.max.ms", "60000")
    assert [produce(now - 120_000), produce(now)] == [32, 0]
    node.set(TOPIC, "t", "message.timestamp.before.max.ms", None)
    node.set(BROKER, "1", "log.message.timestamp.after.max.ms", str(2 * hour))
    until(lambda: produce(now + hour + 60_000) == 0)
    node.set(BROKER, "1", "log.message.timestamp.after.max.ms", None)


def test_recovery_threads_change_while_the_node_runs(node: Node) -> None:
    key = "num.recovery.threads.per.data.dir"
    node.set(BROKER, "1", key, "4")
    assert node.harness.node.broker_values().number(key) == 4
    row = node.describe(BROKER, "1")[key]
    assert (row.value, row.read_only) == ("4", False)
    assert synonyms(row) == [(key, "4", BY_BROKER), (key, "2", DEFAULT)]
    node.set(BROKER, "1", key, None)
    assert node.harness.node.broker_values().number(key) == 2


@pytest.mark.parametrize(
    ("key", "value", "room"), [("max.connections.per.ip", 3, 2), ("max.connections", 2, 1 + RESERVED)]
)
def test_lowered_connection_limit_applies_to_new_connections(node: Node, key: str, value: int, room: int) -> None:
    """Open connections stay; a new one is closed, until the limit is removed."""
    table = node.harness.node.listener.connections
    assert table is not None

    def tried() -> list[bool]:
        opened = [raw_connection(node.harness) for _ in range(room + 2)]
        answered = [served(connection) for connection in opened]
        for connection in opened:
            connection.close()
        until(lambda: len(table) == 1, what="only this client's connection is left")
        return answered

    until(lambda: len(table) == 1, what="no other client is connected")
    node.set(BROKER, "1", key, str(value))
    assert node.describe(BROKER, "1")[key].value == str(value)
    assert tried() == [True] * room + [False] * 2
    node.set(BROKER, "1", key, None)
    assert tried() == [True] * (room + 2)


def served(connection: socket.socket) -> bool:
    """Return whether the node responds on a connection, and does not close it."""
    try:
        connection.sendall(encode_request(18, 3, {"client_software_name": "a", "client_software_version": "1"}))
        return bool(receive_frame(connection))
    except OSError:
        return False
