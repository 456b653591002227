"""Many partitions are reassigned while they are written and read and nodes are stopped and started again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.clusters import NODES, Cluster
from tests.conformance.plans import Plans
from tests.conformance.replication.between import listed, seen, wait_until_done
from tests.conformance.watched import Watched

pytestmark = [pytest.mark.slow_conformance, pytest.mark.timeout(400)]

PARTITIONS = 20
#: A partition's nodes before, and after: another second one for the even, all three for the odd.
BEFORE = {p: [NODES[p % 3], NODES[(p + 1) % 3]] for p in range(PARTITIONS)}
AFTER = {
    p: [NODES[(p + 2) % 3], nodes[1]] if p % 2 == 0 else [*nodes, NODES[(p + 2) % 3]] for p, nodes in BEFORE.items()
}


@pytest.mark.conformance(192)
@pytest.mark.parametrize("bounced", [(), NODES])
def test_nothing_acknowledged_is_lost(cluster: Cluster, plans: Plans, tmp_path: Path, bounced: tuple[int, ...]) -> None:
    topic = cluster.new_topic(assignment=BEFORE, configs={"min.insync.replicas": "2"})
    (folder := tmp_path / "histories").mkdir()
    # A new producer's first batches may be in flight when the leaders change: see the difference.
    primed = not cluster.differs("first-batches-at-a-new-leader")
    with Watched(folder, cluster.bootstrap, {topic: PARTITIONS}, producers=2, load=8000, primed=primed) as traffic:
        file = plans.of(*((topic, partition, nodes, None) for partition, nodes in AFTER.items()))
        code, lines = plans.run("execute", file, "--throttle", "3000000" if bounced else "50000000")
        assert code == 0, lines
        for node in bounced:
            cluster.stop(node)
            cluster.start(node)
            cluster.eventually(
                lambda: all(len(seen(cluster, topic, p).isr) >= 2 for p in range(PARTITIONS)), "two are in sync", 60
            )
        assert plans.run("execute", file, "--additional", "--throttle", "90000000")[0] == 0
        for partition, nodes in AFTER.items():
            wait_until_done(cluster, topic, nodes, partition)
        acknowledged, read, found = traffic.end()
    assert listed(cluster) == {} and found == [], "\n".join(found)
    assert acknowledged > 100 and read >= acknowledged
    code, lines = plans.run("verify", file)
    assert code == 0 and sum(line.endswith("is completed.") for line in lines) == PARTITIONS
