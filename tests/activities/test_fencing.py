"""Who is fenced, and who is not: a node that lives keeps its registration over any outage of Temporal."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import NewTopic

from tests.activities.cluster import Cluster, running, until
from tests.support.programs.temporal import TemporalServer
from tests.support.scale import scaled

pytestmark = [pytest.mark.temporal, pytest.mark.timeout(400)]

#: Longer than a lease, a probe and all retries of an update together.
OUTAGE = scaled(8.0, 90.0)
#: Leases that ended with the outage are asked for in this time.
SETTLE = 6.0
#: A lease and a probe are 6 s together. (The benchmark of failovers has the figures; here other tests may run beside.)
FAILOVER = 15.0


def nodes(cluster: Cluster) -> dict[int, tuple[int, bool]]:
    """Broker epoch of every node, and whether it is fenced."""
    described = cluster.query(cluster.name, "describe")
    return {each["node"]: (each["broker_epoch"], each["fenced"]) for each in described["nodes"]}


def leaders(cluster: Cluster) -> list[Any]:
    state = cluster.query(cluster.name, "state")
    return [[row[8], row[9]] for row in next(each for each in state["topics"] if each[0] == "t")[3]]


@pytest.mark.parametrize("outage", ["killed", "frozen"])
def test_temporal_outage_fences_no_live_node(
    own_temporal_server: TemporalServer, task_queue: str, tmp_path: Path, outage: str
) -> None:
    with running(own_temporal_server, task_queue, tmp_path / "cluster", nodes=3) as cluster:
        admin = cluster.admin()  # kept: its requests die with it
        new = NewTopic("t", 3, replica_assignment=[[1, 2, 3], [2, 3, 1], [3, 1, 2]])
        admin.create_topics([new], operation_timeout=20, request_timeout=25)["t"].result(30)
        before, led = nodes(cluster), leaders(cluster)
        assert not any(fenced for _, fenced in before.values())
        if outage == "killed":
            own_temporal_server.kill()
            time.sleep(OUTAGE)
            own_temporal_server.start()
        else:
            assert own_temporal_server.process is not None
            os.kill(own_temporal_server.process.pid, signal.SIGSTOP)
            try:
                time.sleep(OUTAGE)
            finally:
                os.kill(own_temporal_server.process.pid, signal.SIGCONT)
        deadline = time.monotonic() + SETTLE
        while time.monotonic() < deadline:
            assert nodes(cluster) == before, "a node was fenced, or has registered anew"
            time.sleep(0.5)
        assert leaders(cluster) == led

        # And who dies after it is found out as ever.
        cluster.kill("node-2")
        until("node 2 is fenced", lambda: nodes(cluster)[2][1])
        until("its partitions have another leader", lambda: all(leader != 2 for leader, _ in leaders(cluster)))


def test_frozen_node_is_fenced_and_registers_again_when_it_thaws(
    temporal_server: TemporalServer, task_queue: str, tmp_path: Path
) -> None:
    with running(temporal_server, task_queue, tmp_path / "cluster", nodes=2) as cluster:
        admin = cluster.admin()
        new = NewTopic("t", 1, replica_assignment=[[2, 1]])
        admin.create_topics([new], operation_timeout=20, request_timeout=25)["t"].result(30)
        (epoch, _), pid = nodes(cluster)[2], cluster.processes["node-2"].pid
        os.kill(pid, signal.SIGSTOP)
        began = time.monotonic()
        try:
            until("node 1 leads", lambda: leaders(cluster)[0][0] == 1)
            took = time.monotonic() - began
            assert nodes(cluster)[2][1]
        finally:
            os.kill(pid, signal.SIGCONT)
        assert took < FAILOVER, f"{took:.2f} s"
        until("node 2 is back, under a new epoch", lambda: nodes(cluster)[2][0] > epoch and not nodes(cluster)[2][1])
