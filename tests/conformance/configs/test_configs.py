"""Configs of topics and brokers: described alike, in force alike, and there after restarts."""

from __future__ import annotations

import time
from typing import Any

import pytest

from storage_node.config.changes import Op
from storage_node.config.table import BROKER, MOVE_RATE, TOPIC, Scope
from storage_node.log import build_batch
from tests.conformance.clusters import BROKER_RESOURCE, NODES, TOPIC_RESOURCE, Cluster
from tests.conformance.configs.values import (
    BY_BROKER,
    BY_DEFAULT,
    BY_KAFKA,
    DEFAULT,
    LEADER,
    OURS,
    OWN,
    STATIC,
    alter,
    describe,
    rows,
    synonyms,
)
from tests.support.refused_configs import number


def test_configs_of_a_topic(cluster: Cluster, topic: str) -> None:
    found = rows(cluster, TOPIC_RESOURCE, topic)
    assert set(found) == set(TOPIC)
    for name, key in TOPIC.items():
        row = found[name]
        assert (row.config_type, row.read_only, row.is_sensitive) == (key.kind, False, False), name
        if name in ("file.delete.delay.ms", BY_KAFKA):
            continue
        assert (row.value, row.config_source) == (key.default, DEFAULT), name
        # The one name that a broker has for it; where there are several, they would begin with the finest.
        expected = [(key.synonyms[0], key.default, DEFAULT)] if len(key.synonyms) == 1 else []
        assert synonyms(row) == expected, name
    # Kafka itself sets this one for all brokers.
    by, default = found[BY_KAFKA], (BY_KAFKA, "1", DEFAULT)
    if cluster.differs("no-defaults-of-its-own"):
        assert (by.value, synonyms(by)) == ("1", [default]) and BY_KAFKA not in rows(cluster, BROKER_RESOURCE, "")
    else:
        assert (by.value, synonyms(by)) == ("1", [(BY_KAFKA, "1", BY_DEFAULT), default])
        assert rows(cluster, BROKER_RESOURCE, "")[BY_KAFKA].config_source == BY_DEFAULT
    row = found["file.delete.delay.ms"]
    on_broker = "log.segment.delete.delay.ms"
    assert (row.value, row.config_source) == ("1000", STATIC)
    assert synonyms(row) == [(on_broker, "1000", STATIC), (on_broker, "60000", DEFAULT)]


def test_configs_of_a_broker(cluster: Cluster) -> None:
    found = rows(cluster, BROKER_RESOURCE, "2", node=2)
    if cluster.differs("the-configs-of-a-node"):
        assert set(found) - OURS <= set(BROKER) and set(found) >= OURS
    else:
        assert len(found) > 300 and not OURS & set(found)
    for name, key in BROKER.items():
        if name in OURS or key.scope is Scope.RATE:
            assert key.scope is not Scope.RATE or name not in found, f"{name} is not set"
            continue
        row = found[name]
        assert (row.config_type, row.is_sensitive) == (key.kind, False), name
        if name in ("listeners", "max.connections.per.ip.overrides"):
            assert row.read_only == cluster.differs("listeners-are-static"), name
        else:
            assert row.read_only == (key.scope is Scope.READ_ONLY), name
        default = key.default
        if name == "auto.create.topics.enable":
            default = "false" if cluster.differs("nothing-by-its-name") else "true"
        if name == "queued.max.request.bytes":
            default = "268435456" if cluster.differs("requests-are-bounded") else "-1"
        if name == "max.connections":
            default = "8192" if cluster.differs("connections-are-bounded") else "2147483647"
        if default is not None:
            assert (name, default, DEFAULT) in synonyms(row), name
    assert found["node.id"].value == found["broker.id"].value == "2"
    assert found["log.dirs"].value == ",".join(cluster.log_dirs[2])
    assert synonyms(found["log.dirs"]) == [("log.dirs", ",".join(cluster.log_dirs[2]), STATIC)]
    assert found["num.replica.alter.log.dirs.threads"].value is None
    assert found["log.retention.ms"].value is None and not found["log.retention.ms"].synonyms


def test_documentation_when_asked_for(cluster: Cluster, topic: str) -> None:
    for kind, name in ((TOPIC_RESOURCE, topic), (BROKER_RESOURCE, "1")):
        texts = {
            row.name: row.documentation for row in describe(cluster, kind, name, include_documentation=True).configs
        }
        assert all(texts[key] for key in texts if key in (TOPIC if kind == TOPIC_RESOURCE else BROKER))
        assert all(row.documentation is None for row in describe(cluster, kind, name).configs)


def test_lists_of_throttled_replicas(cluster: Cluster) -> None:
    topic, key = cluster.new_topic(), f"{LEADER}.replicas"

    def held() -> str:
        return str(rows(cluster, TOPIC_RESOURCE, topic)[key].value)

    for value in ("", "*", "0:1", "0:1,1:2", " 0:1 , 1:2 ", "0:1,"):
        assert alter(cluster, TOPIC_RESOURCE, topic, [(key, Op.SET, value)]) == (0, ""), value
        cluster.eventually(lambda value=value: held() == value.replace(" ", ""))
    for value in ("none", "0", "0:", "0 : 1", "a:1", "0:1;1:2", "*,0:1"):
        code, message = alter(cluster, TOPIC_RESOURCE, topic, [(key, Op.SET, value)])
        items = ", ".join(item.strip() for item in value.split(","))
        assert code == 40 and message.startswith(f"Invalid value [{items}] for configuration {key}: {key} must be the")
    assert alter(cluster, TOPIC_RESOURCE, topic, [(key, Op.SET, "0:1")])[0] == 0
    assert alter(cluster, TOPIC_RESOURCE, topic, [(key, Op.APPEND, "1:1,0:1")])[0] == 0
    cluster.eventually(lambda: held() == "0:1,1:1")
    assert alter(cluster, TOPIC_RESOURCE, topic, [(key, Op.SUBTRACT, "0:1,5:5")])[0] == 0
    cluster.eventually(lambda: held() == "1:1")
    assert alter(cluster, TOPIC_RESOURCE, topic, [(key, Op.DELETE, None)])[0] == 0
    cluster.eventually(lambda: held() == "")


def usually_within_a_second(took: list[float]) -> bool:
    """By the middle one of several: a machine that stalls makes some of them late, and no more is asserted here."""
    return sorted(took)[len(took) // 2] < 1.0


def test_which_value_holds(cluster: Cluster, clean: None) -> None:
    """Topic, then broker, then all brokers, then default: on every node, half of the changes within a second."""
    topic = cluster.new_topic(assignment={0: [2]})
    key, took = "log.retention.ms", []

    def at(node: int) -> tuple[str, list[tuple[str, str, int]]]:
        row = rows(cluster, TOPIC_RESOURCE, topic, node)["retention.ms"]
        return row.value, synonyms(row)

    def in_force(node: int, value: str, *names: tuple[str, str, int]) -> None:
        began = time.monotonic()
        cluster.eventually(lambda: at(node) == (value, list(names)), f"{value} is in force on node {node}")
        took.append(time.monotonic() - began)

    default = ("log.retention.hours", "168", DEFAULT)
    for_all, own = (key, "70000000", BY_DEFAULT), (key, "60000000", BY_BROKER)
    assert alter(cluster, BROKER_RESOURCE, "", [(key, Op.SET, "70000000")]) == (0, "")
    for node in NODES:
        in_force(node, "70000000", for_all, default)
    assert alter(cluster, BROKER_RESOURCE, "2", [(key, Op.SET, "60000000")], node=2) == (0, "")
    in_force(2, "60000000", own, for_all, default)
    assert at(1) == ("70000000", [for_all, default])
    row = rows(cluster, BROKER_RESOURCE, "2", 2)[key]
    assert (row.value, row.config_source, synonyms(row)) == ("60000000", BY_BROKER, [own, for_all, default])
    row = rows(cluster, BROKER_RESOURCE, "")[key]
    assert (row.value, row.config_source, synonyms(row)) == ("70000000", BY_DEFAULT, [for_all])
    assert alter(cluster, TOPIC_RESOURCE, topic, [("retention.ms", Op.SET, "50000000")]) == (0, "")
    mine = ("retention.ms", "50000000", OWN)
    in_force(2, "50000000", mine, own, for_all, default)
    assert usually_within_a_second(took), took


def test_largest_batch_changes_on_every_node_and_mostly_within_a_second(cluster: Cluster, clean: None) -> None:
    topic = cluster.new_topic(assignment={0: [1], 1: [2], 2: [3]})
    clients = {node: cluster.wire(node) for node in NODES}
    took: list[float] = []

    def taken(node: int) -> int:
        batch = build_batch([b"x" * 1000], timestamp=int(time.time() * 1000))
        return clients[node].produce(topic, node - 1, batch).error

    def in_force(node: int, error: int) -> None:
        began = time.monotonic()
        cluster.eventually(lambda: taken(node) == error, f"node {node} answers {error}")
        took.append(time.monotonic() - began)

    assert [taken(node) for node in NODES] == [0, 0, 0]
    assert alter(cluster, BROKER_RESOURCE, "", [("message.max.bytes", Op.SET, "500")]) == (0, "")
    for node in NODES:
        in_force(node, 10)
    assert alter(cluster, BROKER_RESOURCE, "2", [("message.max.bytes", Op.SET, "5000")], node=2) == (0, "")
    in_force(2, 0)
    assert (taken(1), taken(3)) == (10, 10)
    assert alter(cluster, BROKER_RESOURCE, "", [("message.max.bytes", Op.DELETE, None)]) == (0, "")
    for node in (1, 3):
        in_force(node, 0)
    assert usually_within_a_second(took), took


def test_records_of_the_future_are_refused(cluster: Cluster) -> None:
    topic = cluster.new_topic(assignment={0: [1]})
    client, now, hour = cluster.wire(1), int(time.time() * 1000), 3_600_000

    def produce(timestamp: int) -> int:
        return client.produce(topic, 0, build_batch([b"x"], timestamp=timestamp)).error

    assert (produce(now + hour - 60_000), produce(now + hour + 60_000)) == (0, 32)
    assert alter(cluster, TOPIC_RESOURCE, topic, [("message.timestamp.before.max.ms", Op.SET, "60000")])[0] == 0
    cluster.eventually(lambda: produce(now - 120_000) == 32)


def test_alter_configs_removes_what_it_does_not_name(cluster: Cluster) -> None:
    topic = cluster.new_topic(configs={"segment.ms": "5000000"})

    def replace(kind: int, name: str, configs: dict[str, str | None]) -> tuple[int, str]:
        rows = [{"name": key, "value": value} for key, value in configs.items()]
        resource = {"resource_type": kind, "resource_name": name, "configs": rows}
        (row,) = cluster.call("AlterConfigs", 2, node=1, resources=[resource]).responses
        return int(row.error_code), row.error_message or ""

    def own() -> dict[str, str]:
        found = rows(cluster, TOPIC_RESOURCE, topic)
        return {name: row.value for name, row in found.items() if row.config_source == OWN}

    assert replace(TOPIC_RESOURCE, topic, {"retention.ms": None})[0] == 42
    assert replace(TOPIC_RESOURCE, topic, {"no.such": "5"}) == (40, "Unknown topic config name: no.such")
    assert replace(TOPIC_RESOURCE, topic, {"retention.ms": "9000000"}) == (0, "")
    cluster.eventually(lambda: own() == {"retention.ms": "9000000"})
    assert replace(TOPIC_RESOURCE, topic, {}) == (0, "")
    cluster.eventually(lambda: own() == {})
    assert replace(TOPIC_RESOURCE, "no-such-topic", {"retention.ms": "5"})[0] == 3
    assert replace(BROKER_RESOURCE, "1", {"log.dirs": "/x"})[0] == 42
    assert replace(BROKER_RESOURCE, "2", {MOVE_RATE: "5"})[0] == 42


def test_create_topics_answers_with_all_configs(cluster: Cluster) -> None:
    def create(**configs: str | None) -> Any:
        given = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
        name = f"c{time.time_ns()}"
        row = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": given}
        return cluster.call("CreateTopics", 7, topics=[row]).topics[0]

    made = create(retention_ms="5000000")
    found = {row.name: (row.value, row.config_source) for row in made.configs}
    assert int(made.error_code) == 0 and set(found) == set(TOPIC)
    assert found["retention.ms"] == ("5000000", OWN) and found["file.delete.delay.ms"] == ("1000", STATIC)
    assert found["segment.ms"] == ("604800000", DEFAULT)
    refused = [create(retention_ms="x"), create(retention_ms=None), create(no_such="1")]
    assert [(int(row.error_code), row.error_message) for row in refused] == [
        (40, number("retention.ms", "x", "LONG")),
        (40, "Null value not supported for topic configs: retention.ms"),
        (40, "Unknown topic config name: no.such"),
    ]


def test_which_resources_have_configs(cluster: Cluster, topic: str) -> None:
    def names(*kinds: int) -> set[tuple[int, str]]:
        answer = cluster.call("ListConfigResources", 1, resource_types=list(kinds))
        return {(row.resource_type, row.resource_name) for row in answer.config_resources}

    brokers = {(BROKER_RESOURCE, str(node)) for node in NODES}
    assert names(BROKER_RESOURCE) == brokers and (TOPIC_RESOURCE, topic) in names(TOPIC_RESOURCE)
    assert brokers | {(TOPIC_RESOURCE, topic)} <= names()
    assert names(16) == set() and not cluster.call("ListConfigResources", 0).config_resources


# What lasts


@pytest.mark.slow_conformance
def test_configs_outlive_every_process(cluster: Cluster, clean: None) -> None:
    topic = cluster.new_topic(assignment={0: [2]}, configs={"retention.ms": "5000000"})
    assert alter(cluster, BROKER_RESOURCE, "2", [(MOVE_RATE, Op.SET, "5000")], node=2)[0] == 0
    assert alter(cluster, BROKER_RESOURCE, "", [(MOVE_RATE, Op.SET, "7000")])[0] == 0

    def kept() -> bool:
        own, default = (rows(cluster, BROKER_RESOURCE, name, 2).get(MOVE_RATE) for name in ("2", ""))
        topics = rows(cluster, TOPIC_RESOURCE, topic, 2)
        values = [(own and own.value), (default and default.value), topics["retention.ms"].value]
        return values == ["5000", "7000", "5000000"]

    cluster.eventually(kept)
    cluster.kill(2)
    cluster.start(2)
    cluster.eventually(kept)
    with cluster.no_controller(2):
        assert kept()
    cluster.eventually(kept)
    assert alter(cluster, TOPIC_RESOURCE, topic, [("retention.ms", Op.DELETE, None)], node=1)[0] == 0
