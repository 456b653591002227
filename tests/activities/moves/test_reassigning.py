"""What a node says of the replicas of a reassignment before and after they are made."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from activities.moves.reassigning import ReassignActivities
from storage_node.model.ids import TopicPartition
from storage_node.model.reassignments import ReplicaOutcome
from tests.support.nodes.node_harness import Harness, until
from workflows.model.calls import AssignedReplica, ReassignCall, ReplicaRow


def placed(harness: Harness, topic: str, directory: str, **more: Any) -> ReplicaRow:
    node = harness.node
    one = AssignedReplica(topic, 0, "", [1], [1], directory)
    activities = ReassignActivities(node, asyncio.to_thread)
    return asyncio.run(activities.place_replicas(ReassignCall("w", "r", 1, [one], **more))).rows[0]


def test_preferred_directory_is_noted_only_for_a_missing_new_replica(tmp_path: Path) -> None:
    harness = Harness(tmp_path)
    harness.start()
    try:
        harness.create_topic("t")
        until(lambda: harness.node.partition(TopicPartition("t", 0)) is not None)
        first, second = (directory.name for directory in harness.node.dirs.directories[:2])
        held = harness.node.partition(TopicPartition("t", 0)).directory.name
        assert (placed(harness, "t", second).outcome, placed(harness, "t", second).directory) == (
            ReplicaOutcome.HELD,
            held,
        )
        # A replica that a later target has taken away again: what is asked for now is for no replica of later on.
        late = placed(harness, "later", first, wish=False)
        assert (late.outcome, late.message) == (ReplicaOutcome.FAILED, "node 1 no longer hosts a replica of later-0")
        assert harness.node.preferred_log_dirs.get(TopicPartition("later", 0)) is None
        early = placed(harness, "later", second)
        assert (early.outcome, early.directory) == (ReplicaOutcome.PREFERRED, second)
        assert harness.node.preferred_log_dirs.get(TopicPartition("later", 0)) is harness.node.dirs.by_path(second)
    finally:
        harness.close()
