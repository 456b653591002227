"""A worker of plans for the cluster of each kind, and the promise that plans leave no config behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from activities.kafka_admin.admin import KafkaAdmin
from tests.conformance.clusters import NODES, Cluster
from tests.conformance.plan_runs.orchestrator import Orchestrator
from tests.support.programs.temporal import TemporalServer, temporal_server
from workflows.model.throttles import LISTS, MOVE_RATE, RATES

__all__ = ["orchestrator", "temporal_server"]


@pytest.fixture(scope="module")
def orchestrator(
    cluster: Cluster, temporal_server: TemporalServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Orchestrator]:
    made = Orchestrator(temporal_server, cluster, tmp_path_factory.mktemp(cluster.kind))
    made.start()
    try:
        yield made
    finally:
        made.close()


def throttles(cluster: Cluster) -> dict[str, dict[str, dict[str, str]]]:
    """All throttles that are set on brokers and topics, without empty ones."""
    with KafkaAdmin(cluster.bootstrap) as admin:
        nodes = admin.overrides("broker", [str(node) for node in NODES], (*RATES, MOVE_RATE))
        topics = admin.overrides("topic", admin.topics(), LISTS)
    return {
        "nodes": {name: row for name, row in nodes.items() if row},
        "topics": {name: row for name, row in topics.items() if any(row.values())},
    }


@pytest.fixture(autouse=True)
def _nothing_stays(cluster: Cluster) -> Iterator[None]:
    """After each test the cluster's throttles are those from before."""
    before = throttles(cluster)
    yield
    # The keeper looks every thirty seconds at a broker that did not respond, and one look more may come too early.
    cluster.eventually(lambda: throttles(cluster) == before, "the throttles are those from before", 120)
