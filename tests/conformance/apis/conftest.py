"""A connection and a topic for tests of single APIs."""

from __future__ import annotations

import pytest

from tests.conformance.apis.calls import NODE
from tests.conformance.clusters import Cluster
from tests.support.wire import Client


@pytest.fixture
def client(cluster: Cluster) -> Client:
    return cluster.wire(NODE)


@pytest.fixture
def topic(cluster: Cluster) -> str:
    # The records of most tests are of 1970: retention would delete them when it looks next.
    return cluster.new_topic(assignment={0: [NODE], 1: [NODE], 2: [2]}, configs={"retention.ms": "-1"})
