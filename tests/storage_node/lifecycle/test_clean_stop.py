"""What a clean-shutdown marker promises to the next start, and when it must not be there, on simulated disks."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from storage_node import failpoints
from storage_node.directories import clean_shutdown
from storage_node.log_hold import Hold
from storage_node.move import swap
from storage_node.partitions.partition import Partition
from tests.simulation.crash.node import TP, values_in
from tests.simulation.crash.scripts import blank, fill
from tests.simulation.crash.world import Arena, Life, World, power_losses
from tests.simulation.disks import FLUSHES, Disk
from tests.simulation.inodes import State

MARKER = clean_shutdown.FILE


@pytest.fixture
def arena() -> Iterator[Arena]:
    """Disks that do what POSIX says and no more: a flush of one thing makes no other thing durable."""
    with Arena("a", "b", loose=True) as arena:
        yield arena


@pytest.fixture
def life(arena: Arena) -> Life:
    """A node that has a replica in a, the last record of which is not flushed."""
    life = Life(arena, blank("a", "b"))
    life.start()
    fill(life)
    return life


def marked(disks: dict[str, State]) -> set[str]:
    """The disks that were stopped cleanly."""
    return {name for name, state in disks.items() if MARKER in state.root.entries}


def next_life(arena: Arena, world: World) -> Life:
    life = Life(arena, world)
    life.start()
    return life


def served(life: Life) -> tuple[bytes, ...]:
    assert life.node.served is not None
    return values_in(life.node.served.log)[1]


def test_start_after_a_clean_stop_scans_nothing(arena: Arena, life: Life) -> None:
    life.node.stop()
    world = life.end()
    assert marked(world.disks) == {"a", "b"}
    again = next_life(arena, world)
    assert again.node.recovered_bytes == 0
    assert served(again) == life.truth.acked


def test_power_loss_just_after_a_start_does_not_bring_the_clean_marker_back(arena: Arena, life: Life) -> None:
    life.node.stop()
    again = next_life(arena, life.end())
    again.append()
    for disks in list(power_losses(again.machine, product=True)):
        assert marked(disks) == set()
        after = next_life(arena, World(disks, again.truth))
        assert served(after) in (life.truth.acked, again.truth.acked)


def flush_fails(disk: Disk) -> None:
    disk.fail(errno.EIO, FLUSHES, times=1, path="t-0/")


def no_room(disk: Disk) -> None:
    """For the producers' snapshot that a clean stop writes; there is some again afterwards."""
    disk.fail(errno.ENOSPC, frozenset({"create", "write"}), times=1, path=".snapshot")


@pytest.mark.parametrize("trouble", [flush_fails, no_room])
def test_directory_whose_log_fails_to_close_gets_no_clean_marker(
    arena: Arena, life: Life, trouble: Callable[[Disk], None]
) -> None:
    trouble(life.machine.disks["a"])
    life.node.stop()
    world = life.end()
    assert marked(world.disks) == {"b"}
    again = next_life(arena, world)
    assert again.node.recovered_bytes > 0
    assert served(again) == life.truth.acked


def between_the_renames_of_a_swap(life: Life) -> World:
    """The world as a kill leaves it when the source has its new name and the copy does not have the replica's yet; the
    copy's last record came while the swap held the log.
    """
    assert life.request("b")
    assert life.copy()
    hold = Partition.hold
    worlds: list[World] = []

    def append_and_hold(partition: Partition, seconds: float) -> Hold | None:
        life.append()
        return hold(partition, seconds)

    def kill() -> None:
        worlds.append(World(life.machine.snapshot(), life.truth))

    with (
        patch.object(Partition, "hold", append_and_hold),
        failpoints.active({swap.AFTER_SOURCE_FLUSHED: kill}),
    ):
        assert life.swap()
    return worlds[0]


def test_replica_that_the_start_renames_is_scanned_in_spite_of_the_clean_marker(arena: Arena, life: Life) -> None:
    """It was not closed as what it is now: the marker speaks of the replicas that were served."""
    world = between_the_renames_of_a_swap(life)
    arena.put(world)
    for name in world.disks:
        clean_shutdown.write(life.machine.path(name), 1)
    tail = max(Path("/sim/b/t-0.move").glob("*.log"))
    data = tail.read_bytes()
    tail.write_bytes(data[:-1] + b"?")  # only the checksum shows it
    again = next_life(arena, replace(world, disks=arena.machine.snapshot()))
    partition = again.node.served
    assert partition is not None and partition.tp == TP
    assert partition.directory.path.name == "b"
    assert served(again) == world.truth.acked[:-1]
