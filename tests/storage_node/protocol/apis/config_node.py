"""A node whose configs are described and changed over one connection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from storage_node.config.changes import Op
from storage_node.model.ids import TopicPartition
from tests.support.nodes.node_harness import Harness, running
from tests.support.refused_configs import Ops
from tests.support.wire import Client

TOPIC, BROKER, LOGGER = 2, 4, 8
OWN, BY_BROKER, BY_DEFAULT, STATIC, DEFAULT = 1, 2, 3, 4, 5
RATE = "replica.alter.log.dirs.io.max.bytes.per.second"
REPLICAS = "leader.replication.throttled.replicas"


class Node:
    """A node with a topic t, and a connection to it."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.client = Client(harness)

    def again(self) -> None:
        self.harness.restart()
        self.client = Client(self.harness)

    def alter(self, kind: int, name: str, ops: Ops, version: int = 1, *, validate_only: bool = False) -> Any:
        rows = [{"name": key, "config_operation": op, "value": value} for key, op, value in ops]
        resource = {"resource_type": kind, "resource_name": name, "configs": rows}
        return self.client.ask(44, version, {"resources": [resource], "validate_only": validate_only}).responses[0]

    def set(self, kind: int, name: str, key: str, value: str | None) -> None:
        done = self.alter(kind, name, [(key, Op.DELETE if value is None else Op.SET, value)])
        assert int(done.error_code) == 0, done.error_message

    def describe(self, kind: int, name: str, keys: list[str] | None = None, version: int = 4) -> Mapping[str, Any]:
        resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
        (result,) = self.client.ask(32, version, {"resources": [resource], "include_synonyms": True}).results
        assert int(result.error_code) == 0, result.error_message
        assert [row.name for row in result.configs] == sorted(row.name for row in result.configs)
        return {row.name: row for row in result.configs}

    def config(self, topic: str = "t") -> Any:
        partition = self.harness.node.partition(TopicPartition(topic, 0))
        assert partition is not None
        return partition.log.config


def configured(root: Path) -> Iterator[Node]:
    """Yield a node whose server.properties has log configs, and a secret of another program."""
    extra = {"log.retention.minutes": "600", "log.segment.bytes": "2000000", "rehome.secret": "value"}
    with running(root, 2, extra) as harness:
        harness.create_topic("t")
        yield Node(harness)


def synonyms(row: Any) -> list[tuple[str, str, int]]:
    return [(each.name, each.value, each.source) for each in row.synonyms]
