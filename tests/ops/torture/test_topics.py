"""The side topic: its lives are known at the end, also after requests without a response."""

from __future__ import annotations

import pytest

from ops.stack.errors import OpsError
from ops.torture import topics
from ops.torture.topics import SIDE, Side


class Cluster:
    """An admin client in memory; creations and deletions may time out, and be applied later."""

    def __init__(self) -> None:
        self.there: set[str] = set()
        self.silent = False

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None: ...

    def create_topic(self, name: str, *_: object) -> None:
        if self.silent:
            raise OpsError("no response")
        if name in self.there:
            raise OpsError("it exists already")
        self.there.add(name)

    def delete_topic(self, name: str) -> None:
        if self.silent:
            raise OpsError("no response")
        self.there.remove(name)

    def topics(self) -> set[str]:
        return self.there


class Roles:
    bootstrap = "127.0.0.1:9092"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(topics, "KafkaAdmin", lambda *_: made)
    return made


@pytest.fixture
def side() -> Side:
    return Side(Roles())  # type: ignore[arg-type]


def labels(side: Side) -> list[tuple[str, bool, bool]]:
    """Return (label, used by clients, deleted) of each life."""
    return [(life.label, life.used, life.deleted) for life in side.lives]


def test_life_created_after_its_request_timed_out_is_known_at_the_end(cluster: Cluster, side: Side) -> None:
    cluster.silent = True
    assert side.create() is None
    cluster.there.add(SIDE)
    side.settle()
    assert labels(side) == [("visits@1", False, False)]
