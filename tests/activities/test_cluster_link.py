"""When a node has to register again: whenever the controller may know less than before."""

from __future__ import annotations

import pytest

from activities.cluster_run import ClusterRun

BEFORE = ClusterRun("first", "run", 100)


@pytest.mark.parametrize(
    ("now", "again"),
    [
        (ClusterRun("first", "run", 100), False),
        (ClusterRun("first", "run", 140), False),
        (ClusterRun("first", "run", 99), True),  # the database went back
        (ClusterRun("first", "later", 3), True),  # continued as new, or went back: nobody can tell
        (ClusterRun("other", "other", 300), True),  # terminated and started again
    ],
)
def test_another_run_or_a_shorter_history(now: ClusterRun, again: bool) -> None:
    assert now.replaces(BEFORE) is again
