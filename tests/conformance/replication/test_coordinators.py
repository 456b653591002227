"""Who coordinates a group while the node that did is down."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.conformance.clusters import APACHE, NODES, Cluster
from tests.conformance.groups import coordinator
from tests.conformance.replication.between import NONE, reassign, seen, wait_until_done

COORDINATOR_NOT_AVAILABLE = 15
OFFSETS = "__consumer_offsets"


@contextlib.contextmanager
def replicated(cluster: Cluster, node: int) -> Iterator[None]:
    """While the block runs, the offsets whose leader the node is have replicas everywhere, as in production; where
    there is such a topic.
    """
    if cluster.kind != APACHE:
        yield
        return
    led = [partition for partition, leader in cluster.leaders(OFFSETS).items() if leader == node]
    every = (node, *(other for other in NODES if other != node))
    wanted = {(OFFSETS, partition): every for partition in led}
    assert set(reassign(cluster, wanted).values()) == {(NONE, None)}
    for partition in led:
        cluster.eventually(lambda p=partition: seen(cluster, OFFSETS, p).isr == NODES, "all are in sync")  # type: ignore[misc]
    try:
        yield
    finally:
        assert set(reassign(cluster, dict.fromkeys(wanted, (node,))).values()) == {(NONE, None)}
        for partition in led:
            wait_until_done(cluster, OFFSETS, [node], partition)


@pytest.mark.slow_conformance
def test_group_whose_node_is_down(cluster: Cluster, group: str) -> None:
    where = coordinator(cluster, group)

    def told() -> list[tuple[int, int]]:
        """Error code and node that each of the others names."""
        asked = {"key_type": 0, "coordinator_keys": [group]}
        others = [node for node in NODES if node != where]
        answers = [cluster.call("FindCoordinator", 4, node=node, **asked).coordinators[0] for node in others]
        return [(int(row.error_code), row.node_id) for row in answers]

    with replicated(cluster, where):
        cluster.kill(where)
        try:
            if cluster.differs("a-groups-node"):
                cluster.eventually(lambda: told() == [(COORDINATOR_NOT_AVAILABLE, -1)] * 2, "nobody else takes it over")
            else:
                cluster.eventually(
                    lambda: {code for code, _ in told()} == {NONE} and where not in {node for _, node in told()},
                    "another one has taken it over",
                )
        finally:
            cluster.start(where)
    assert coordinator(cluster, group) == where
