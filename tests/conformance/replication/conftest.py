"""What one test leaves behind is no other test's: reassignments, rates."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.clusters import BROKER_RESOURCE, NODES, Cluster
from tests.conformance.plans import config
from tests.conformance.replication.between import listed, reassign


@pytest.fixture(autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "cluster" not in request.fixturenames or getattr(request.module, "SHARED", False):
        return
    cluster: Cluster = request.getfixturevalue("cluster")
    for node in filter(cluster.running, NODES):
        left = {key.replace(".", "_"): None for key in config(cluster, BROKER_RESOURCE, str(node)) if ".rate" in key}
        if left:
            cluster.set_broker_config(node, **left)
    if going := listed(cluster):
        reassign(cluster, dict.fromkeys(going))
