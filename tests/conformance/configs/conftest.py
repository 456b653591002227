"""What tests of configs start with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.clusters import Cluster
from tests.conformance.configs.values import clear


@pytest.fixture(scope="module")
def topic(cluster: Cluster) -> str:
    return cluster.new_topic(assignment={0: [1]})


@pytest.fixture
def clean(cluster: Cluster) -> Iterator[None]:
    """No dynamic broker configs are left behind."""
    yield
    clear(cluster)
