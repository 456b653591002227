"""Single worlds of the crash model, and what its checks say of a start on them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import pytest

from storage_node.publisher import creation
from storage_node.replicas.boot import table
from storage_node.replicas.boot.actions import Verdict
from tests.simulation.crash.checks import copies
from tests.simulation.crash.explore import Condition, Explorer
from tests.simulation.crash.node import record
from tests.simulation.crash.scripts import SCRIPTS, blank, fill
from tests.simulation.crash.world import TOPIC_IDS, Arena, Life, World
from tests.simulation.inodes import Inode

WIPED = Condition("wiped", "a")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """A disk in error is logged each time, with a traceback."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def explorer() -> Iterator[Explorer]:
    with Explorer(SCRIPTS["topic deleted"], whole=False, kinds=("wiped",)) as explorer:
        yield explorer


def killed(life: Life, op: str, path: str, go_on: Callable[[], None]) -> World:
    """The world as a kill leaves it before the first operation of this kind on such a path."""
    left: list[World] = []
    life.when(op, path, lambda: left.append(World(life.machine.snapshot(), life.truth, f"killed before {op} {path}")))
    go_on()
    return left[0]


def never_made(arena: Arena) -> World:
    """A topic was deleted while its replica was being moved from a to b, and on both disks a folder of it waits for its
    removal; of another topic of that name there is the image on one disk.
    """
    life = Life(arena, blank("a", "b"))
    life.start()
    fill(life)
    assert life.request("b")
    assert life.copy()
    life.append()
    life.delete_topic()
    return killed(life, "rename", "/sim/b/cluster-image.tmp", life.create_topic)


def being_made(arena: Arena, world: World) -> World:
    """The next start is about to make the replica, on a."""
    life = Life(arena, world)
    return killed(life, "mkdir", "/sim/a/t-0", life.start)


def made(arena: Arena, world: World) -> World:
    """It has made it, and taken a record; the controller was not told where."""
    life = Life(arena, world)
    life.start()
    return killed(life, "fdatasync", "/sim/a/t-0/", lambda: life.append(flush=True))


def files(folder: Inode) -> dict[str, object]:
    """All that a start reads."""
    return {
        name: files(inode) if inode.is_dir else bytes(inode.content)
        for name, inode in folder.entries.items()
        if name != ".lock"
    }


def where(world: World, topic_id: str) -> list[str]:
    return [copy.disk for copy in copies(world.disks) if copy.topic_id == topic_id]


def test_replica_nobody_was_told_of_is_made_again_beside_what_is_left_of_another_topic(explorer: Explorer) -> None:
    """The only disk that holds it is taken away for good."""
    world = made(explorer.arena, never_made(explorer.arena))
    assert where(world, TOPIC_IDS[0]) == ["a", "b"]
    assert where(world, TOPIC_IDS[1]) == ["a"]
    assert world.truth.topic_id == TOPIC_IDS[1]
    assert len(world.truth.acked) == 1
    after = explorer.start(world, WIPED)
    assert explorer.found.violations == []
    assert after is not None
    assert where(after, TOPIC_IDS[1]) == ["b"]


def test_what_is_left_does_not_tell_whether_the_replica_had_been_made(explorer: Explorer) -> None:
    """So no node can do anything else than where it had not, and there it is to be made."""
    world = never_made(explorer.arena)
    before, after = being_made(explorer.arena, world), made(explorer.arena, world)
    assert where(before, TOPIC_IDS[1]) == []
    assert files(before.disks["b"].root) == files(after.disks["b"].root)
    for world in (before, after):
        started = explorer.start(world, WIPED)
        assert started is not None
        assert where(started, TOPIC_IDS[1]) == ["b"]
    assert explorer.found.violations == []


def test_replica_that_is_made_again_with_records_is_found(explorer: Explorer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as those of the other topic."""
    genuine = creation.create_logs

    def create_logs(*args: Any) -> Any:
        logs = genuine(*args)
        for _, _, log in logs:
            log.append_as_leader(record(0, 1).batch, 0)
        return logs

    world = made(explorer.arena, never_made(explorer.arena))
    monkeypatch.setattr(creation, "create_logs", create_logs)
    explorer.start(world, WIPED)
    assert ["with records, which no copy there has" in one for one in explorer.found.violations] == [True]


def test_part_of_the_replica_that_is_served_is_found(explorer: Explorer) -> None:
    """Its own, beside what is left of the other topic."""
    life = Life(explorer.arena, made(explorer.arena, never_made(explorer.arena)))
    life.start()
    life.append(2, flush=True)
    assert life.request("b")
    world = life.end()
    assert where(world, TOPIC_IDS[1]) == ["a", "b"]
    row = table.Row(table.Current.NONE, frozenset({table.Moving.COPYING}), frozenset(), None, Verdict.PROMOTE)
    with patch.object(table, "TABLE", (row, *table.TABLE)):
        explorer.start(world, WIPED)
    assert ["where no whole copy is left" in one for one in explorer.found.violations] == [True]
