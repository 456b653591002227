"""A real Temporal server, and one cluster that the tests share which leave it as they found it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.activities.cluster import Cluster, running
from tests.support.programs.temporal import TemporalServer, own_temporal_server, task_queue, temporal_server

__all__ = ["cluster", "own_temporal_server", "task_queue", "temporal_server"]


@pytest.fixture(scope="session")
def cluster(temporal_server: TemporalServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A controller and one node with three directories; every test uses topics and workflow ids of its own."""
    folder = tmp_path_factory.mktemp("cluster")
    with running(temporal_server, f"c-{folder.name}", folder, directories=3) as it:
        yield it
