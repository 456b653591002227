"""What the node does when it dies: each script goes on from whatever it finds, as the activities of a move do."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from unittest.mock import patch

from storage_node.directories import names
from storage_node.directories.formatting import format_directories
from tests.simulation.crash.node import CLUSTER
from tests.simulation.crash.world import Life, Truth, World
from tests.simulation.disks import FLUSHES
from tests.simulation.machine import Machine
from tests.simulation.patching import simulated


@dataclass(frozen=True, slots=True)
class Script:
    """What is done, on how many disks; `around` is what production meets there beside the disks."""

    name: str
    run: Callable[[Life], None]
    disks: tuple[str, ...] = ("a", "b")
    around: Callable[[], AbstractContextManager[object]] = nullcontext


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


def target_flush_fails(life: Life, error: int = errno.EIO) -> None:
    """The target's rename is done and its flush fails: the source is taken back, and both names may be there."""
    fill(life)
    if life.request("b"):
        life.copy()
        life.append()
        disk = life.machine.disks["b"]

        def renamed() -> None:
            disk.fail(error, FLUSHES)

        life.when("rename", "t-0.move -> ", renamed)
        life.swap()
    life.append(2, flush=True)
    life.append()
    life.tell()


def target_flush_finds_no_room(life: Life) -> None:
    """The same, and what the flush says is that there is no room: it has failed all the same."""
    target_flush_fails(life, errno.ENOSPC)


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
    """There is not a byte left where the replica is, which was never moved: not even for its marker.

    More than one record is not flushed: the replica may lose them, get another and still be shorter than its copy.
    """
    fill(life)
    life.append()
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
    life.append()
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


def topic_deleted_after(life: Life) -> None:
    """The topic is deleted after the swap, while the source waits for its removal; nothing comes after it."""
    if not life.controller.image.gone:
        fill(life)
        move_to(life, "b")
        life.append(flush=True)
        life.delete_topic()
    life.delete_due()


def target_full(life: Life) -> None:
    """There is no room for the copy; the target stays online, and the copy goes on when there is room again."""
    fill(life)
    disk = life.machine.disks["b"]
    if life.request("b"):
        disk.capacity = disk.used
        life.append(3, flush=True)
        life.copy()
        life.swap()
        life.append()
        disk.capacity = None
        if disk.faults == [] and not life.node.directory_named("b").online:
            raise AssertionError("a full disk was taken offline")
    move_to(life, "b")
    life.append(flush=True)
    life.delete_due()


def bystander(life: Life) -> None:
    """A third disk has nothing to do with it, and may be away."""
    fill(life)
    move_to(life, "b")
    life.append(flush=True)
    life.delete_due()
    move_to(life, "a")
    life.append(flush=True)


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


def short_names() -> AbstractContextManager[object]:
    """Names may only be so long that each `.delete` is shortened and its marker alone tells the partition."""
    return patch.object(names, "NAME_MAX", 40)


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
        Script("topic deleted after the swap", topic_deleted_after),
        Script("target full", target_full),
        Script("target's flush finds no room", target_flush_finds_no_room),
        Script("bystander", bystander, ("a", "b", "c")),
        Script("names too long", move, around=short_names),
    )
}
