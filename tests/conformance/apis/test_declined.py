"""What our nodes decline or answer otherwise than Apache Kafka's brokers, on the wire."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance.apis.calls import INVALID, code
from tests.conformance.clusters import BROKER_RESOURCE, DELETE, SET, TOPIC_RESOURCE, Cluster
from tests.support.wire import Client

UNKNOWN_SERVER_ERROR = -1
NODE = 3
#: More than are there already: Kafka would close some of those.
FEW = "30"


def test_what_features_are_told(client: Client, cluster: Cluster) -> None:
    answer = client.call("ApiVersions", 4)
    levels = {row.name: row.max_version_level for row in answer.finalized_features}
    if cluster.differs("no-features"):
        assert (levels, answer.supported_features, answer.finalized_features_epoch) == ({}, (), -1)
    else:
        assert levels["metadata.version"] > 0 and answer.finalized_features_epoch >= 0
        assert "metadata.version" in {row.name for row in answer.supported_features}


@pytest.mark.parametrize("version", [0, 1])
def test_operation_on_a_config_that_nobody_knows(client: Client, cluster: Cluster, topic: str, version: int) -> None:
    configs = [{"name": "retention.ms", "config_operation": 9, "value": "1"}]
    resource = {"resource_type": TOPIC_RESOURCE, "resource_name": topic, "configs": configs}
    answer = client.call("IncrementalAlterConfigs", version, resources=[resource])
    found = [code(row) for row in answer.responses]
    assert found == ([INVALID] if cluster.differs("unknown-config-operations") else [UNKNOWN_SERVER_ERROR])


@pytest.fixture
def limited(cluster: Cluster) -> Iterator[Client]:
    """One of the connections to a node that takes a few."""

    def limit(client: Client, operation: int) -> None:
        config = {"name": "max.connections", "config_operation": operation, "value": FEW if operation == SET else None}
        resource = {"resource_type": BROKER_RESOURCE, "resource_name": str(NODE), "configs": [config]}
        (row,) = client.call("IncrementalAlterConfigs", 1, resources=[resource]).responses
        assert code(row) == 0

    with contextlib.closing(Client(cluster.address(NODE))) as client:
        limit(client, SET)
        try:
            yield client
        finally:
            limit(client, DELETE)


def answered(client: Client, seconds: float) -> Any:
    """True: an answer has come; False: none within `seconds`; None: the connection was closed."""
    client.socket.settimeout(seconds)
    try:
        return client.call("ApiVersions", 4) is not None
    except TimeoutError:
        return False
    except ConnectionError:
        return None


def test_connections_beyond_what_a_node_takes(limited: Client, cluster: Cluster) -> None:
    with contextlib.ExitStack() as opened:

        def refused() -> bool:
            # Our nodes keep some for who comes from their own machine.
            more = opened.enter_context(contextlib.closing(Client(cluster.address(NODE))))
            found = answered(more, 0.5)
            if cluster.differs("too-many-connections"):
                return found is None
            assert found is not None
            return not found

        cluster.eventually(refused, "the limit holds")
        assert answered(limited, 30)
