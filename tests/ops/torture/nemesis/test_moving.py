"""The node of a MoveReplica run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ops.torture.nemesis.moving import Moving, ReplicaOnDisk
from ops.torture.roles import Roles
from workflows.model import names


@pytest.fixture
def moving(monkeypatch: pytest.MonkeyPatch) -> Moving:
    made = Moving(cast(Roles, SimpleNamespace(cluster="rehome")))
    monkeypatch.setattr(made, "temporal", lambda work, *_: "begun")
    return made


def test_node_of_a_nodes_own_run_is_in_its_id(moving: Moving) -> None:
    for count in (1, 3):
        assert moving.node_of(names.move_id("rehome", 12, "orders", 5, count, 7)) == 12


def test_node_of_a_run_that_was_started_here_is_remembered(moving: Moving, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(
        "ops.torture.nemesis.moving.uuid4", lambda: seen.append(1) or SimpleNamespace(hex="abcdef0123456789")
    )
    moving.start([ReplicaOnDisk(3, "/n3/a", "orders", 5)], "/n3/b", None)
    assert moving.node_of("torture-abcdef01-orders-5") == 3


def test_of_other_runs_no_node_is_known(moving: Moving) -> None:
    for name in ("torture-00000000-orders-5", "other/move/1/orders-5/1", "rehome/reassign/orders-5"):
        assert moving.node_of(name) == -1
