"""What the node does when it dies: each script goes on from whatever it finds, as the activities of a move do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from storage_node.directories.formatting import format_directories
from tests.simulation.crash_node import CLUSTER
from tests.simulation.crash_world import Life, Truth, World
from tests.simulation.disks import FLUSHES
from tests.simulation.machine import Machine
from tests.simulation.patching import simulated


@dataclass(frozen=True, slots=True)
class Script:
    """What is done, on how many disks."""

    name: str
    run: Callable[[Life], None]
    disks: tuple[str, ...] = ("a", "b")


def blank(*names: str) -> World:
    """Formatted disks with nothing on them, all of it durable."""
    machine = Machine(*names)
    with simulated(machine):
        format_directories([machine.path(name) for name in names], cluster_id=CLUSTER, node_id=1)
    for disk in machine.disks.values():
        disk.sync()
    return World(machine.snapshot(), Truth())


def fill(life: Life) -> None:
    """The topic with a few records, of which some are on the disk."""
    life.create_topic()
    if len(life.truth.acked) < 3:
        life.append(3, flush=True)
    life.append()


def other(life: Life, *avoid: str) -> str:
    """The first disk on which the replica is not."""
    partition = life.node.served
    here = partition.directory.path.name if partition is not None else ""
    return next(name for name in life.order if name != here and name not in avoid)


def move_to(life: Life, target: str) -> bool:
    """The whole move, with a producer at work."""
    if not life.request(target):
        return False
    life.append()
    life.copy()
    life.append()
    done = life.swap()
    life.append()
    life.tell()
    return done


def move(life: Life) -> None:
    """There, and the source's deletion."""
    fill(life)
    move_to(life, "b")
    life.append(flush=True)
    life.delete_due()
    life.append()


def there_and_back(life: Life) -> None:
    """To the other disk and back before the first source is deleted."""
    fill(life)
    move_to(life, "b")
    life.append()
    move_to(life, "a")
    life.append(flush=True)
    life.delete_due()
    life.append()


def untold(life: Life) -> None:
    """The controller learns of the swap only much later."""
    fill(life)
    if life.request("b"):
        life.append()
        life.copy()
        life.swap()
    life.append(flush=True)
    life.delete_due()
    life.append()


def cancelled(life: Life) -> None:
    """A move that is cancelled half-way, and made again."""
    fill(life)
    if life.request("b"):
        life.append()
        life.copy()
        life.append()
        life.cancel()
        life.append(flush=True)
        life.delete_due()
    move_to(life, "b")
    life.append()


def target_fails(life: Life) -> None:
    """The target's rename fails: the source is taken back."""
    fill(life)
    if life.request("b"):
        life.copy()
        life.append()
        life.machine.disks["b"].fail(ops=frozenset({"rename"}), path="t-0.move -> ")
        life.swap()
    life.append(2, flush=True)
    life.append()
    life.tell()


def target_flush_fails(life: Life) -> None:
    """The target's rename is done and its flush fails: the source is taken back, and both names may be there."""
    fill(life)
    if life.request("b"):
        life.copy()
        life.append()
        disk = life.machine.disks["b"]

        def renamed() -> None:
            disk.fail(ops=FLUSHES)

        life.when("rename", "t-0.move -> ", renamed)
        life.swap()
    life.append(2, flush=True)
    life.append()
    life.tell()


def seal_fails(life: Life) -> None:
    """The seal cannot be flushed: whether the copy is sealed is not known."""
    fill(life)
    if life.request("b"):
        life.copy()
        life.append()
        disk = life.machine.disks["b"]

        def sealed() -> None:
            disk.fail(ops=FLUSHES)

        life.when("rename", "t-0.move/partition.move.tmp -> ", sealed)
        life.swap()
    life.append(2, flush=True)
    life.append()


def source_fails(life: Life) -> None:
    """The source's flush fails after its rename: nobody knows its name."""
    fill(life)
    if life.request("b"):
        life.copy()
        life.append()
        disk = life.machine.disks["a"]

        def renamed() -> None:
            disk.fail(ops=FLUSHES)

        life.when("rename", "t-0 -> ", renamed)
        life.swap()
    life.append(2, flush=True)


def source_full(life: Life) -> None:
    """There is not a byte left where the replica is, which was never moved: not even for its marker."""
    fill(life)
    disk = life.machine.disks["a"]
    disk.capacity = disk.used
    if life.request("b"):
        life.copy()
        life.swap()
    life.append(2, flush=True)
    life.tell()
    life.delete_due()
    life.append()


def source_full_target_fails(life: Life) -> None:
    """The same, and the target fails when the source has its new name already."""
    fill(life)
    disk = life.machine.disks["a"]
    disk.capacity = disk.used
    if life.request("b"):
        life.copy()
        life.when("rename", "t-0.move -> ", lambda: life.machine.disks["b"].fail(ops=FLUSHES))
        life.swap()
    life.append(2, flush=True)


def retarget(life: Life) -> None:
    """Three disks: another target while the copy is under way."""
    fill(life)
    if life.request("b"):
        life.append()
        life.copy()
        life.append()
    move_to(life, "c")
    life.append(flush=True)
    life.delete_due()
    life.append()


def topic_deleted(life: Life) -> None:
    """The topic is deleted while its replica is being moved, and one of the same name is created."""
    fill(life)
    if not life.controller.image.gone:
        if life.request("b"):
            life.copy()
            life.append()
        life.delete_topic()
    life.create_topic()
    life.append(2, flush=True)
    life.delete_due()
    life.append()
    move_to(life, "b")


def records_deleted(life: Life) -> None:
    """DeleteRecords before, during and after the copy."""
    fill(life)
    life.delete_records(1)
    if life.request("b"):
        life.delete_records(2)
        life.copy()
        life.append()
        life.delete_records(3)
        life.swap()
        life.append()
    life.tell()
    life.append(flush=True)
    life.delete_due()


SCRIPTS = {
    script.name: script
    for script in (
        Script("move", move),
        Script("there and back", there_and_back),
        Script("not told", untold),
        Script("cancelled", cancelled),
        Script("target's rename fails", target_fails),
        Script("target's flush fails", target_flush_fails),
        Script("seal fails", seal_fails),
        Script("source's flush fails", source_fails),
        Script("source full", source_full),
        Script("source full, target fails", source_full_target_fails),
        Script("another target", retarget, ("a", "b", "c")),
        Script("topic deleted", topic_deleted),
        Script("records deleted", records_deleted),
    )
}
