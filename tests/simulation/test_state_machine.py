"""Random lives of a node (see `node_machine`): no promise is broken, whatever happens to its disks and when it dies."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.simulation.node_machine import NodeMachine


def test_x() -> None:
    s = int(os.environ.get("SEED", "0"))
    NodeMachine._hypothesis_internal_use_seed = s
    run_state_machine_as_test(
        NodeMachine,
        settings=settings(
            max_examples=int(os.environ.get("N", 300)),
            stateful_step_count=30,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
