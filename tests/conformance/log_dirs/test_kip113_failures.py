"""KIP-113's system test 2: log directories become unreadable under load, of a follower, of the leader, of everybody.

A directory becomes unreadable as in the proposal: its mode is 000, and the nodes run as an ordinary user would.
"""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conformance.clusters import NODES, Cluster
from tests.conformance.conftest import Tools
from tests.conformance.log_dirs.calls import unreadable_directory, wait_until_in
from tests.conformance.plans import Plans
from tests.conformance.replication.between import seen
from tests.conformance.watched import Watched

pytestmark = pytest.mark.timeout(300)

#: Seconds; Apache Kafka's leader waits for a follower for replica.lag.time.max.ms, 30 s by default.
PATIENCE = 60.0


def placed(cluster: Cluster, plans: Plans, topic: str, number: int) -> None:
    """Kafka's tool brings all replicas of the topic's partition into each node's directory of that number."""
    target = [cluster.log_dirs[node][number] for node in NODES]
    code, lines = plans.run("execute", plans.of((topic, 0, NODES, target)))
    assert code == 0, lines
    for node, path in zip(NODES, target, strict=True):
        wait_until_in(cluster, node, topic, path)


def described(tools: Tools, topic: str) -> tuple[str, list[str]]:
    """Leader and in-sync replicas as kafka-topics tells them."""
    out = tools.out("kafka-topics", "--describe", "--topic", topic)
    ((leader, isr),) = re.findall(r"Leader: (\S+)\tReplicas: 1,2,3\tIsr: ([0-9,]*)", out)
    return leader, sorted(isr.split(",")) if isr else []


@pytest.mark.conformance(107)
@pytest.mark.feature("113-52", "113-53")
def test_second_directories_fail_one_by_one(cluster: Cluster, tools: Tools, plans: Plans, tmp_path: Path) -> None:
    safe, struck = (cluster.new_topic(assignment={0: NODES}) for _ in range(2))
    placed(cluster, plans, safe, 0)
    placed(cluster, plans, struck, 1)
    folders = [tmp_path / name for name in ("safe", "struck")]
    for folder in folders:
        folder.mkdir()
    with ExitStack() as failed, Watched(folders[0], cluster.bootstrap, {safe: 1}) as unmoved:

        def fail(node: int) -> None:
            failed.enter_context(unreadable_directory(cluster, node, cluster.log_dirs[node][1]))

        with Watched(folders[1], cluster.bootstrap, {struck: 1}) as traffic:
            for node in (2, 1):  # a follower, then the leader
                assert (seen(cluster, struck).leader == node) == (node == 1)
                fail(node)
                left = [other for other in NODES if other >= (3 if node == 1 else 1) and other != node]
                cluster.eventually(lambda want=tuple(left): seen(cluster, struck).isr == want, "it is out of sync", 30)  # type: ignore[misc]
                end = cluster.end_offset(struck)
                cluster.eventually(lambda now=end: cluster.end_offset(struck) > now + 100, "records go on", PATIENCE)  # type: ignore[misc]
                leader, isr = described(tools, struck)
                assert leader == str(seen(cluster, struck).leader) and isr == [str(one) for one in left]
            assert seen(cluster, struck).leader == 3
            acknowledged, read, found = traffic.end()
        assert found == [], "\n".join(found)
        assert acknowledged > 200 and read >= acknowledged

        fail(3)
        cluster.eventually(lambda: seen(cluster, struck).leader == -1, "nobody leads", 30)
        assert described(tools, struck)[0] == "none" and described(tools, safe) == ("1", ["1", "2", "3"])
        assert seen(cluster, struck).offline == NODES and seen(cluster, safe).offline == ()
        end = cluster.end_offset(safe)
        cluster.eventually(lambda: cluster.end_offset(safe) > end + 50, "records of the other topic go on", PATIENCE)
        acknowledged, read, found = unmoved.end()
        assert found == [], "\n".join(found)
        assert acknowledged > end and read >= acknowledged
    cluster.eventually(lambda: seen(cluster, struck).isr == NODES, "all are back", PATIENCE)
