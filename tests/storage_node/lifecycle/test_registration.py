"""What a starting node's registration carries of where its replicas are (KIP-858, before the broker is unfenced)."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage_node.model.ids import TopicPartition
from tests.support.nodes.memory_cluster import running_cluster
from tests.support.nodes.node_harness import until
from tests.support.wire import Client

TP = TopicPartition("t", 0)


@pytest.mark.feature("858-13")
@pytest.mark.parametrize("source_is_lost", [False, True])
def test_directory_that_the_metadata_does_not_have_travels_with_the_registration(
    tmp_path: Path, source_is_lost: bool
) -> None:
    """The node has swapped a replica while it could not reach the controller, and was restarted before it could."""
    with running_cluster(tmp_path, 1, 3) as cluster:
        controller = cluster.controller
        cluster.create_topic("t", [[1]])
        until(lambda: controller.partition("t").directories[0], what="the metadata has the directory")
        cluster.produce("t", [b"value"] * 20)
        node = cluster.nodes[1]
        source = node.replicas.served[TP].directory
        target = next(each for each in node.dirs.directories if each is not source)
        client = Client(f"127.0.0.1:{node.port}")
        topics = [{"name": "t", "partitions": [0]}]
        answer = client.call("AlterReplicaLogDirs", 2, dirs=[{"path": target.name, "topics": topics}])
        client.close()
        assert int(answer.results[0].partitions[0].error_code) == 0
        controller.cut.add(1)
        claim = controller.planned[-1].claim
        node.engine.start_copy(TP, claim)
        node.engine.wait(TP, claim, 20)
        node.engine.swap(TP, claim)
        cluster.stop(1)
        assert controller.partition("t").directories == (source.id,)
        if source_is_lost:
            source.path.rename(source.path.with_name("pulled-out"))
        node = cluster.start(1, attach=False)
        node.housekeeping.stop()  # only the registration reports where replicas are
        controller.cut.clear()
        before = len(controller.applied)
        controller.attach(node)
        first, *others = controller.applied[before:]
        assert first["do"] == "register"
        assert first["assigned"] == [["t", 0, controller.state.topics["t"].id, target.id, 1]]
        row = controller.partition("t")
        assert (row.leader, row.directories, row.generations) == (1, (target.id,), (1,))
        until(lambda: not cluster.nodes[1].housekeeping.differing())
        assert "assign_directories" not in [each["do"] for each in others], "nothing is left to report"
        if source_is_lost:
            (failure,) = until(lambda: controller.failed)
            assert (failure.directory_id, failure.replicas) == (source.id, ()), "the replica is not in it"
            assert cluster.nodes[1].failures.offline_replicas(()) == ()
        assert cluster.consume("t", 20) == [b"value"] * 20
