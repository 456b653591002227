"""unclean.leader.election.enable in server.properties counts when all nodes say so, below what is set dynamically."""

from __future__ import annotations

from typing import Any

import pytest

from storage_node.model.image import decode
from storage_node.model.packing import pack, unpack
from tests.workflows.model.replicated import replicated, row, with_isr
from tests.workflows.model.support import done, lost, registration
from workflows.model.metadata import image
from workflows.model.metadata.state import ClusterState

KEY = "unclean.leader.election.enable"


def left_alone(*unclean: int) -> ClusterState:
    """Partition t-0 on nodes 1 and 2; 1 alone is in sync, and has gone. `unclean`: the nodes whose files say so."""
    state = replicated([1, 2], nodes=3)
    for node in (1, 2, 3):
        state = done(state, {**registration(node), **({"unclean": True} if node in unclean else {})})
    return done(with_isr(state, [1]), lost(1))


@pytest.mark.parametrize(("unclean", "leader"), [((), -1), ((2,), -1), ((1, 2), -1), ((1, 2, 3), 2)])
def test_unclean_election_needs_the_property_of_every_node(unclean: tuple[int, ...], leader: int) -> None:
    assert row(left_alone(*unclean)).leader == leader


def test_registration_that_enables_unclean_election_elects_leaders() -> None:
    state = done(left_alone(1, 2), {**registration(3, "again"), "unclean": True})
    assert (row(state).leader, row(state).isr) == (2, (2,))


@pytest.mark.parametrize(("kind", "name"), [("topic", "t"), ("broker", "")])
def test_dynamic_config_overrides_the_nodes_property(kind: str, name: str) -> None:
    state = replicated([1, 2], nodes=2)
    for node in (1, 2):
        state = done(state, {**registration(node), "unclean": True})
    state = done(state, {"do": "alter_configs", "kind": kind, "name": name, "changes": {KEY: "false"}})
    assert row(done(with_isr(state, [1]), lost(1))).leader == -1


def test_nodes_property_is_kept_in_rows_and_images() -> None:
    state = left_alone(1, 2, 3)
    assert ClusterState.of(unpack(pack(state.rows()))) == state
    assert decode(image.since(state, 0, 0)[0]).nodes[1].unclean
    # And taken back by a start without it.
    again: Any = registration(3, "again")
    assert not done(state, again).nodes[3].unclean
