"""Describing and changing configs in the conformance tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from storage_node.config.changes import Op
from tests.conformance.clusters import BROKER_RESOURCE, NODES, Cluster
from tests.support.refused_configs import Ops

OWN, BY_BROKER, BY_DEFAULT, STATIC, DEFAULT = 1, 2, 3, 4, 5
LEADER, FOLLOWER = "leader.replication.throttled", "follower.replication.throttled"

#: Keys of our nodes that Apache Kafka does not have.
OURS = {
    *("group.state.max.bytes", "log.dir.health.check.interval.ms", "num.io.threads.per.data.dir"),
    *("replica.move.swap.deadline.ms", "private.api.remote.enable", "cluster.id"),
}
#: What Kafka itself sets for all brokers, so that its in-sync replicas cannot get fewer (KIP-966).
BY_KAFKA = "min.insync.replicas"


def describe(cluster: Cluster, kind: int, name: str, node: int = 1, **more: Any) -> Any:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    return cluster.call("DescribeConfigs", 4, node=node, resources=[resource], include_synonyms=True, **more).results[0]


def rows(cluster: Cluster, kind: int, name: str, node: int = 1) -> Mapping[str, Any]:
    result = describe(cluster, kind, name, node)
    assert int(result.error_code) == 0, result.error_message
    return {row.name: row for row in result.configs}


def synonyms(row: Any) -> list[tuple[str, str, int]]:
    return [(each.name, each.value, each.source) for each in row.synonyms]


def alter(cluster: Cluster, kind: int, name: str, ops: Ops, node: int = 1, **more: Any) -> tuple[int, str]:
    configs = [{"name": key, "config_operation": int(op), "value": value} for key, op, value in ops]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    (row,) = cluster.call("IncrementalAlterConfigs", 1, node=node, resources=[resource], **more).responses
    return int(row.error_code), row.error_message or ""


def clear(cluster: Cluster) -> None:
    """Take away every dynamic config of brokers."""
    for name, node in (("", 1), *((str(node), node) for node in NODES)):
        left = [key for key, row in rows(cluster, BROKER_RESOURCE, name, node).items() if is_set(row, name)]
        assert alter(cluster, BROKER_RESOURCE, name, [(key, Op.DELETE, None) for key in left], node)[0] == 0


def is_set(row: Any, name: str) -> bool:
    return row.config_source == (BY_BROKER if name else BY_DEFAULT) and row.name != BY_KAFKA
