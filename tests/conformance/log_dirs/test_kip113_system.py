"""KIP-113's system test 1: replicas move to the other disk, then to the unused disk of the next node, under load.

Kafka's own kafka-reassign-partitions does the moves and verifies them; a producer and a consumer keep running, and what
they were told is checked as the torture does.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conformance.clusters import NODES, Cluster
from tests.conformance.conftest import Tools
from tests.conformance.log_dirs.calls import describe, on_disk
from tests.conformance.plans import Plans
from tests.conformance.replication.between import listed, seen
from tests.conformance.watched import Watched

pytestmark = pytest.mark.timeout(400)

PARTITIONS = len(NODES)
#: Seconds that KIP-113 calls a reasonable amount of time for moves of this size.
REASONABLE = 60.0

Places = dict[int, tuple[int, str]]


def replicas(cluster: Cluster, topic: str) -> list[tuple[int, tuple[int, str]]]:
    """Partition, node and log directory of all replicas; no moving copy is there."""
    found: list[tuple[int, tuple[int, str]]] = []
    for node in NODES:
        for path, row in describe(cluster, node, {topic: list(range(PARTITIONS))}).items():
            for _, partition, future in row.replicas:
                assert not future, f"{topic}-{partition} is being moved"
                found.append((partition, (node, path)))
    return sorted(found)


def carry_out(cluster: Cluster, plans: Plans, topic: str, target: Places) -> list[str]:
    """Execute, then verify now and then until all is done; what --verify said last."""
    file = plans.of(*((topic, partition, [node], [path]) for partition, (node, path) in sorted(target.items())))
    code, lines = plans.run("execute", file)
    assert code == 0, lines
    said: list[str] = []

    def done() -> bool:
        code, said[:] = plans.run("verify", file)
        assert code == 0 and not any("failed" in line or "cannot be found" in line for line in said), said
        # While Apache Kafka swaps, its tool may find a replica neither here nor there.
        finished = [line for line in said if line.endswith(("is completed.", "completed successfully."))]
        return len(finished) == 2 * PARTITIONS

    cluster.eventually(done, "the reassignment is complete", REASONABLE)
    return said


def validate(cluster: Cluster, tools: Tools, topic: str, target: Places) -> None:
    """What the proposal calls the state of the cluster: nodes, what is described, where everything is."""
    assert [cluster.running(node) for node in NODES] == [True] * 3 and listed(cluster) == {}
    # Whichever node the tool asks, and where a replica was: they hear of the end with their next image.
    end = [(node, (node,), (node,)) for _, (node, _) in sorted(target.items())]

    def told(by: int) -> list[tuple[int, tuple[int, ...], tuple[int, ...]]]:
        found = [seen(cluster, topic, partition, by) for partition in sorted(target)]
        return [(row.leader, row.replicas, row.isr) for row in found]

    cluster.eventually(lambda: all(told(node) == end for node in NODES), "every node knows of the end")
    described = tools.out("kafka-topics", "--describe", "--topic", topic)
    rows = re.findall(r"Partition: (\d+)\tLeader: (\d+)\tReplicas: (\S+)\tIsr: (\S+)", described)
    assert rows == [(str(p), str(node), str(node), str(node)) for p, (node, _) in sorted(target.items())]
    cluster.eventually(lambda: replicas(cluster, topic) == sorted(target.items()), "each replica is where it is to be")
    for node in NODES:
        names = sorted(f"{topic}-{partition}" for partition, (on, _) in target.items() if on == node)
        cluster.eventually(lambda n=node, want=names: on_disk(cluster, n, topic) == want, f"only these are on {node}")  # type: ignore[misc]


@pytest.mark.feature("113-49", "113-50", "113-51", "455-16")
def test_to_the_other_disk_and_to_the_next_node(cluster: Cluster, tools: Tools, plans: Plans, tmp_path: Path) -> None:
    topic = cluster.new_topic(assignment={partition: [node] for partition, node in enumerate(NODES)})
    (folder := tmp_path / "histories").mkdir()
    with Watched(folder, cluster.bootstrap, {topic: PARTITIONS}, per_second=500) as traffic:
        cluster.eventually(
            lambda: min(cluster.end_offset(topic, p) for p in range(PARTITIONS)) > 500, "something to move"
        )
        first = dict(replicas(cluster, topic))
        assert {p: node for p, (node, _) in first.items()} == dict(enumerate(NODES))

        other = {p: (node, next(d for d in cluster.log_dirs[node] if d != path)) for p, (node, path) in first.items()}
        said = carry_out(cluster, plans, topic, other)
        assert said[4:7] == [f"Reassignment of replica {topic}-{p}-{p + 1} completed successfully." for p in range(3)]
        validate(cluster, tools, topic, other)

        used = {node: path for node, path in other.values()}
        following = {1: 2, 2: 3, 3: 1}
        target = {
            p: (following[node], next(d for d in cluster.log_dirs[following[node]] if d != used[following[node]]))
            for p, (node, _) in other.items()
        }
        said = carry_out(cluster, plans, topic, target)
        assert said[1:4] == [f"Reassignment of partition {topic}-{p} is completed." for p in range(3)]
        validate(cluster, tools, topic, target)
        acknowledged, read, found = traffic.end()
    assert found == [], "\n".join(found)
    assert acknowledged > 100 and read >= acknowledged
