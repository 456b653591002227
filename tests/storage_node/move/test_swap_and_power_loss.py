"""What a loss of power right after a swap leaves: the replica under its own name, with every record that was flushed.

The disks do what POSIX says and no more: a flush of one thing makes no other thing durable.
"""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest

from storage_node import failpoints
from storage_node.log_hold import Hold
from storage_node.move import swap
from storage_node.partitions.partition import Partition
from tests.simulation.crash.checks import Expected, check_started
from tests.simulation.crash.node import TP, values_in
from tests.simulation.crash.scripts import blank, fill
from tests.simulation.crash.world import Arena, Life, World, power_losses


@pytest.fixture
def arena() -> Iterator[Arena]:
    with Arena("a", "b", loose=True) as arena:
        yield arena


@pytest.fixture
def caught_up(arena: Arena) -> Life:
    """A node whose copy in b has all that the replica in a has."""
    life = Life(arena, blank("a", "b"))
    life.start()
    fill(life)
    assert life.request("b")
    assert life.copy()
    return life


def after_losses(life: Life) -> list[World]:
    """The worlds that a loss of power may leave now."""
    return [World(disks, life.truth) for disks in power_losses(life.machine, product=True)]


def names(world: World, disk: str) -> set[str]:
    """The replica's folders on a disk, the ids of `.delete`s left out."""
    folders = (name for name, inode in world.disks[disk].root.entries.items() if inode.is_dir)
    return {"t-0.delete" if name.endswith(".delete") else name for name in folders if name.startswith("t-0")}


def started(arena: Arena, world: World) -> tuple[str, tuple[bytes, ...]]:
    """Where the replica is after the next start, and its records."""
    life = Life(arena, world)
    life.start()
    check_started(life, Expected.of(world, frozenset()), heard=False)
    assert life.node.served is not None
    return life.node.served.directory.path.name, values_in(life.node.served.log)[1]


def swap_of(life: Life) -> bool:
    """Swap, and have nothing appended to what is then the replica: its flush would make up for one that is missing."""
    status = life.node.engine.status(TP)
    assert status is not None
    return life.node.engine.swap(TP, status.claim, status.generation).outcome == "swapped"


def test_flushed_record_copied_during_the_hold_survives_a_power_loss(arena: Arena, caught_up: Life) -> None:
    """As with flush.messages=1: the source has it on the disk before the producer gets its response."""
    hold = Partition.hold
    worlds: list[World] = []

    def append_and_hold(partition: Partition, seconds: float) -> Hold | None:
        caught_up.append(flush=True)
        return hold(partition, seconds)

    def collect() -> None:
        worlds.extend(after_losses(caught_up))

    moments = dict.fromkeys((swap.AFTER_SEAL, swap.AFTER_SOURCE_FLUSHED, swap.AFTER_TARGET_FLUSHED), collect)
    with patch.object(Partition, "hold", append_and_hold), failpoints.active(moments):
        assert swap_of(caught_up)
    collect()
    truth = caught_up.truth
    assert truth.flushed == len(truth.acked)
    found = [started(arena, world) for world in worlds]
    assert {values for _, values in found} == {truth.acked}
    assert {where for where, _ in found} == {"a", "b"}  # before and after its first rename


def test_both_names_of_a_swap_are_durable_when_it_is_done(caught_up: Life) -> None:
    assert swap_of(caught_up)
    for world in after_losses(caught_up):
        assert (names(world, "a"), names(world, "b")) == ({"t-0.delete"}, {"t-0"})
