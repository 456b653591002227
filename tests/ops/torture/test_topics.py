"""The topic that comes and goes: its lives are known at the end, also where a request's outcome was not."""

from __future__ import annotations

import pytest

from ops.stack.errors import OpsError
from ops.torture import topics
from ops.torture.topics import SIDE, Side


class Cluster:
    """What a node would say of topics; requests to create and delete may time out, and be carried out later."""

    def __init__(self) -> None:
        self.there: set[str] = set()
        self.silent = False

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None: ...

    def create_topic(self, name: str, *_: object) -> None:
        if self.silent:
            raise OpsError("no answer")
        if name in self.there:
            raise OpsError("it exists already")
        self.there.add(name)

    def delete_topic(self, name: str) -> None:
        if self.silent:
            raise OpsError("no answer")
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
    """Label, whether clients use it, whether it was deleted; of each life."""
    return [(life.label, life.used, life.deleted) for life in side.lives]


def test_a_life_made_after_its_request_had_timed_out_is_known_at_the_end(cluster: Cluster, side: Side) -> None:
    cluster.silent = True
    assert side.create() is None
    cluster.there.add(SIDE)
    side.settle()
    assert labels(side) == [("visits@1", False, False)]


def test_a_life_that_was_not_made_after_all_is_none(cluster: Cluster, side: Side) -> None:
    cluster.silent = True
    assert side.create() is None
    side.settle()
    assert labels(side) == []


def test_a_life_that_turns_out_to_be_there_when_it_is_asked_for_again_is_used(cluster: Cluster, side: Side) -> None:
    cluster.silent = True
    assert side.create() is None
    cluster.there.add(SIDE)
    cluster.silent = False
    assert side.create() is not None
    side.settle()
    assert labels(side) == [("visits@1", True, False)]


def test_a_life_deleted_after_its_request_had_timed_out_is_known_to_be_deleted(cluster: Cluster, side: Side) -> None:
    side.create()
    cluster.silent = True
    assert side.delete() is False
    cluster.there.clear()
    side.settle()
    assert labels(side) == [("visits@1", True, True)]
