"""What a registration carries of where a node's replicas are (KIP-858): applied with the unfencing, in one step."""

from __future__ import annotations

import pytest

from storage_node.model.command_rows import decode
from storage_node.model.commands import Registration
from tests.workflows.model.support import cluster, done, lost, registration
from workflows.model.metadata.registration import register_all
from workflows.model.metadata.state import ClusterState


def leaders(state: ClusterState) -> list[int]:
    return [partition.leader for partition in state.topics["t"].partitions]


@pytest.mark.feature("858-13")
def test_directories_that_a_registration_carries_apply_before_leaders_are_elected() -> None:
    """The metadata has the replica in `d1`, which is gone; the node has moved it to `e1` without the controller."""
    state = done(cluster(1, t=2), {"do": "assign_directories", "node": 1, "replicas": [["t", 0, "", "d1", 1]]})
    fenced = done(state, lost(1))
    topic = state.topics["t"].id
    moved = [["t", 0, topic, "e1", 2]]
    again = registration(1, online=False) | {"assigned": moved}
    back = done(fenced, registration(1, online=False) | {"lost": [["t", 0, topic, "d1", 1]], "assigned": moved})
    row = back.topics["t"].partitions[0]
    assert (row.leader, row.directories, row.generations) == (1, ("e1",), (2,))
    assert leaders(done(fenced, registration(1, online=False))) == [-1, 1], "without it, the replica counts as lost"
    assert done(back, again) == back, "carried twice, it applies once"
    for stale in (
        ["t", 0, topic, "d1", 1],
        ["t", 0, "other", "d1", 3],
        ["t", 9, topic, "d1", 3],
        ["u", 0, "", "d1", 3],
    ):
        again = done(back, registration(1, online=False) | {"assigned": [stale]})
        assert again.topics == back.topics, "a row of an older generation, or of no such replica, is skipped"


def test_controller_that_collects_applies_the_directories_of_every_node() -> None:
    state = done(done(cluster(2, t=2), lost(1)), lost(2))
    commands = {}
    for node in (1, 2):
        command = decode(registration(node) | {"assigned": [["t", node - 1, "", f"e{node}", 1]]})
        assert isinstance(command, Registration)
        commands[node] = command
    after, results = register_all(state, commands)
    assert not any(result.get("error") for rows in results.values() for result in rows)
    assert [each.directories for each in after.topics["t"].partitions] == [("e1",), ("e2",)]
    assert leaders(after) == [1, 2]
