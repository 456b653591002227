"""kafka-reassign-partitions asks for a log directory again and again while the new replica is not there yet.

On nodes of ours in this process: so the node that is to get the replica can be kept from hearing of it.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ops.kafka.tools import WarmTools
from storage_node.model.ids import TopicPartition
from tests.conformance.conftest import Tools
from tests.conformance.plans import Plans
from tests.support.nodes.memory_cluster import MemoryCluster, running_cluster
from tests.support.nodes.node_harness import until

LATE = 3
"""The node that is to get a replica, and does not hear of it for a while."""

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MemoryCluster]:
    with running_cluster(tmp_path_factory.mktemp("patience"), 3, 2) as made:
        yield made


@pytest.fixture
def plans(nodes: MemoryCluster, warm_tools: WarmTools, tmp_path: Path) -> Plans:
    """The tool, which asks a node for everything that hears of all changes."""
    return Plans(tmp_path, Tools(warm_tools, f"127.0.0.1:{nodes.nodes[1].port}"))


@pytest.fixture
def topic(nodes: MemoryCluster) -> str:
    """A topic of one partition on node 1, known to all nodes."""
    name = f"t{uuid.uuid4().hex[:8]}"
    nodes.create_topic(name, [[1]])
    return name


@pytest.fixture
def asked(nodes: MemoryCluster, topic: str, monkeypatch: pytest.MonkeyPatch) -> list[dict[TopicPartition, str]]:
    """Whatever the late node is asked for by AlterReplicaLogDirs, in order; it hears of no change meanwhile."""
    found: list[dict[TopicPartition, str]] = []
    log_dirs = nodes.nodes[LATE].log_dirs
    alter = log_dirs.alter

    async def noted(wanted: Any) -> Any:
        found.append(dict(wanted))
        return await alter(wanted)

    monkeypatch.setattr(log_dirs, "alter", noted)
    nodes.controller.cut.add(LATE)
    return found


def placed(nodes: MemoryCluster, topic: str) -> str:
    """The log directory in which the late node makes its replica, once it has heard of it."""
    replica = until(lambda: nodes.replica(LATE, topic), what=f"node {LATE} has a replica of {topic}")
    return str(replica.directory.path)


@pytest.mark.conformance(178)
@pytest.mark.feature("113-29")
@pytest.mark.parametrize("directory", [0, 1])
def test_directory_of_a_replica_that_is_not_there_is_asked_for_until_the_timeout(
    nodes: MemoryCluster, plans: Plans, topic: str, asked: list[dict[TopicPartition, str]], directory: int
) -> None:
    there = nodes.paths[LATE][directory]
    (other,) = set(nodes.paths[1]) - {str(nodes.replica(1, topic).directory.path)}
    try:
        code, lines = plans.run(
            "execute", plans.of((topic, 0, [LATE, 1], [there, other])), "--additional", "--timeout", "1000"
        )
        # The replica that is there is accepted and told; the other one is not, and the reassignment goes on.
        assert (code, lines[5:]) == (
            1,
            [
                f"Successfully started partition reassignment for {topic}-0",
                f"Successfully started moving log directory to {other} for replica {topic}-0 with broker 1 ",
                f"Timed out before log directory move could be started for: {topic}-0-{LATE}",
            ],
        )
        assert asked and asked == [{TopicPartition(topic, 0): there}] * len(asked)
        assert nodes.replica(LATE, topic) is None
    finally:
        nodes.controller.heal(LATE)
    assert placed(nodes, topic) == there, "the node has noted what it was asked for"


@pytest.mark.feature("113-29")
def test_it_is_asked_for_again_until_the_replica_is_there(
    nodes: MemoryCluster, plans: Plans, topic: str, asked: list[dict[TopicPartition, str]]
) -> None:
    there = nodes.paths[LATE][1]
    ran: list[tuple[int, list[str]]] = []
    file = plans.of((topic, 0, [LATE, 1], [there, "any"]))
    tool = threading.Thread(target=lambda: ran.append(plans.run("execute", file, "--additional", "--timeout", "60000")))
    tool.start()
    try:
        until(lambda: len(asked) > 2, what="it is asked for again and again")
        assert not ran and nodes.replica(LATE, topic) is None
    finally:
        nodes.controller.heal(LATE)
        tool.join(60)
    assert [code for code, _ in ran] == [0], ran
    begun = f"Successfully started moving log directory to {there} for replica {topic}-0 with broker {LATE} "
    assert ran[0][1][-1] == begun
    assert placed(nodes, topic) == there
