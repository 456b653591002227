"""The rules of a start, checked exhaustively against a model of the move on two disks.

Every durable step of the protocol is a point at which the node may die; then a disk may be gone for a while, or for
good; the start itself may die between any two of its steps. Whatever happens: what was acknowledged is served or the
partition is offline until the disk that holds it is back; and no copy that holds all of it goes while no other one
does.

Each step is flushed before the next is issued, so that a power loss leaves the state before or after some step, as a
kill does. A disk's copy is modelled by how many records of the one sequence it holds.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from storage_node.directories.names import delete_name, move_name, parse, replica_name
from storage_node.model.ids import TopicPartition
from storage_node.replicas.boot.actions import BootPlan, Copy, Found, Rename, ScheduleDelete, WriteMarker
from storage_node.replicas.boot.table import decide
from storage_node.replicas.marker import Marker, Reason, State

TP = TopicPartition("t", 0)
HEX = "0123456789abcdef" * 2


@dataclass
class Folder:
    """A partition's directory: its marker, how many records it holds, and whether that ever was all of them."""

    marker: Marker | None
    records: int
    whole: bool = True


@dataclass
class World:
    """Two disks, what the metadata knows, and what was acknowledged."""

    disks: dict[str, dict[str, Folder]] = field(default_factory=dict)
    acked: int = 0
    assigned: str = "a"
    generation: int = 0  # as the metadata knows it
    gone: frozenset[str] = frozenset()  # disks that are not there now
    forgotten: frozenset[str] = frozenset()  # of these, those whose ids the operator took out
    lost: bool = False  # a disk was taken out for good: records may be lost, by the operator's word

    def folder(self, path: Path) -> Folder:
        return self.disks[path.parent.name][path.name]

    def path(self, disk: str, name: str) -> Path:
        return Path("/") / disk / name

    def found(self) -> Found:
        kinds: dict[str, list[Copy]] = {"current": [], "move": [], "delete": []}
        for disk in sorted(self.disks.keys() - self.gone):
            for name, folder in self.disks[disk].items():
                kind = parse(name).kind
                kinds[kind].append(Copy(disk, self.path(disk, name), kind, folder.marker))
        return Found(TP, tuple(kinds["current"]), tuple(kinds["move"]), tuple(kinds["delete"]))

    def plan(self) -> BootPlan:
        visible = frozenset(self.disks) - self.gone
        return decide(self.found(), self.gone - self.forgotten, self.assigned, self.generation, visible=visible)

    def all_folders(self) -> list[Folder]:
        return [folder for disk in self.disks.values() for folder in disk.values()]

    def mark(self, path: Path, marker: Marker) -> None:
        self.folder(path).marker = marker

    def rename(self, source: Path, target: Path) -> None:
        disk = self.disks[source.parent.name]
        assert target.name not in disk, "a rename onto something"
        disk[target.name] = disk.pop(source.name)

    def append(self, path: Path) -> None:
        assert self.folder(path).records == self.acked, "an append to a copy that lacks records"
        self.folder(path).records += 1
        self.acked += 1


Step = Iterator[None]


def start() -> World:
    world = World({"a": {"t-0": Folder(Marker("t", 0, source_id="a"), 3)}, "b": {}}, acked=3)
    return world


def move(world: World, *, fail_target: bool = False, cancel: bool = False, tell: bool = True) -> Step:
    """The whole protocol from wherever the replica is to the other disk; a point to die at each `yield`."""
    source = next(d for d in ("a", "b") if d not in world.gone and "t-0" in world.disks[d])
    target = "b" if source == "a" else "a"
    current, copying = world.path(source, "t-0"), world.path(target, move_name(TP))
    deleted = world.path(source, delete_name(TP, f"{world.generation:032x}"))
    marker = world.folder(current).marker or Marker("t", 0, source_id=source)
    world.generation = max(world.generation, marker.generation) + 1  # the metadata first
    yield
    world.mark(current, replace(marker, claim=marker.claim + 1, target_id=target, source_id=source))
    yield
    claim = marker.claim + 1
    going = Marker("t", 0, "", source, target, world.generation, State.COPYING, claim=claim)
    if copying.name not in world.disks[target]:
        making = copying.with_name(delete_name(TP, f"{claim + 100:032x}"))
        world.disks[target][making.name] = Folder(None, 0, whole=False)
        yield
        world.mark(making, going)
        yield
        world.rename(making, copying)
    else:
        world.mark(copying, going)
    yield
    world.folder(copying).records = 1
    yield
    world.append(current)
    yield
    if cancel:
        world.mark(copying, replace(going, state=State.CANCELLED, reason=Reason.CANCEL))
        yield
        gone = copying.with_name(delete_name(TP, f"{claim:032x}"))
        world.rename(copying, gone)
        yield
        world.append(current)
        yield
        del world.disks[target][gone.name]
        yield
        return
    world.folder(copying).records = world.folder(current).records
    yield
    world.append(current)
    yield
    world.folder(copying).records = world.folder(current).records
    world.folder(copying).whole = True
    world.mark(copying, replace(going, state=State.SEALED))
    yield
    world.rename(current, deleted)
    yield
    if fail_target:
        yield from undo(world, deleted, current)
        return
    promoted = copying.with_name(replica_name(TP))
    world.rename(copying, promoted)
    yield
    world.append(promoted)
    yield
    if tell:
        world.assigned = target
        yield
    sealed = world.folder(promoted).marker
    assert sealed is not None
    world.mark(promoted, sealed.settled())
    yield
    left = world.folder(deleted).marker
    assert left is not None
    world.mark(deleted, replace(left, state=State.DELETED, reason=Reason.SWAP))
    yield
    world.append(promoted)
    yield
    world.mark(deleted, replace(left, state=State.DELETED, reason=Reason.REMOVING))
    world.folder(deleted).records, world.folder(deleted).whole = 0, False
    yield
    del world.disks[source][deleted.name]
    yield


def undo(world: World, deleted: Path, current: Path) -> Step:
    """The rename on the target failed: the source is taken back, two generations higher, and serves on."""
    marker = world.folder(deleted).marker
    assert marker is not None
    world.mark(deleted, marker.settled(marker.generation + 2))
    yield
    world.rename(deleted, current)
    yield
    world.append(current)
    yield


def undo_after_rename(world: World) -> Step:
    """The same, when the target's rename was done and only its flush failed: both stand under the plain name for a
    while.
    """
    steps = move(world)
    for _ in steps:
        if "t-0" in world.disks["b"]:
            break
        yield
    yield
    deleted = next(world.path("a", name) for name in world.disks["a"] if name.endswith(".delete"))
    yield from undo(world, deleted, world.path("a", "t-0"))


def twice(world: World) -> Step:
    """There and back again."""
    yield from move(world)
    yield from move(world)


def cancel_then_move(world: World) -> Step:
    yield from move(world, cancel=True)
    yield from move(world)


def undone_and_again(world: World) -> Step:
    yield from move(world, fail_target=True)
    world.gone = frozenset()
    yield from boot_steps(world)
    yield from move(world)


SCRIPTS: dict[str, Callable[[World], Step]] = {
    "move": move,
    "move, not told": lambda world: move(world, tell=False),
    "cancel": lambda world: move(world, cancel=True),
    "target fails": lambda world: move(world, fail_target=True),
    "target fails late": undo_after_rename,
    "cancel, then move": cancel_then_move,
    "there and back": twice,
    "target fails, then again": undone_and_again,
}


def worlds(script: Callable[[World], Step], world: World | None = None) -> list[World]:
    """The world at every point of a script."""
    world = world or start()
    seen = [copy.deepcopy(world)]
    for _ in script(world):
        seen.append(copy.deepcopy(world))
    return seen


def boot_steps(world: World) -> Step:
    """One start, a point to die after every step; then the deletions that are due."""
    plan = world.plan()
    for action in plan.actions:
        if isinstance(action, WriteMarker):
            world.mark(action.path, action.marker)
            yield
        elif isinstance(action, Rename):
            world.rename(action.source, action.target)
            yield
    for action in plan.actions:
        if isinstance(action, ScheduleDelete) and (
            not action.guarded or (plan.state == "online" and plan.generation > action.generation)
        ):
            folder = world.disks[action.path.parent.name].pop(action.path.name)
            if 0 <= world.acked <= folder.records:
                assert any(f.records >= world.acked for f in world.all_folders()), "the last whole copy goes"
            yield


CONDITIONS = {
    "all there": (frozenset(), frozenset()),
    "a gone": (frozenset("a"), frozenset()),
    "b gone": (frozenset("b"), frozenset()),
    "a taken out": (frozenset("a"), frozenset("a")),
    "b taken out": (frozenset("b"), frozenset("b")),
}


def with_condition(world: World, condition: str) -> World:
    world = copy.deepcopy(world)
    world.gone, world.forgotten = CONDITIONS[condition]
    if world.forgotten:
        world.lost = True
        for disk in world.forgotten:
            world.disks[disk] = {}
        if all(folder.records < world.acked for folder in world.all_folders()):
            world.acked = -1  # nobody can promise anything more
    return world


def settle(world: World) -> BootPlan:
    for _ in boot_steps(world):
        pass
    plan = world.plan()
    assert not [a for a in plan.actions if isinstance(a, WriteMarker | Rename)], "a second start changes something"
    return plan


def check(world: World, plan: BootPlan) -> None:
    if plan.state == "online" and plan.path is not None:
        assert world.folder(plan.path).whole, "a partial copy is served"
    if world.acked < 0:
        return
    if plan.state == "online":
        assert plan.path is not None
        assert world.folder(plan.path).records == world.acked, "a copy is served that lacks acknowledged records"
    if not world.gone:
        assert plan.state == "online", f"offline although every disk is there: {plan.reason}"


@pytest.mark.feature("113-21", "113-22", "113-23", "113-24")
@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("script", SCRIPTS)
def test_every_crash(script: str, condition: str) -> None:
    for crashed in worlds(SCRIPTS[script]):
        base = with_condition(crashed, condition)
        # The start dies after each of its own steps, too.
        for started in worlds(boot_steps, copy.deepcopy(base)):
            plan = settle(started)
            check(started, plan)
            if plan.state == "online" and plan.path is not None and started.acked >= 0:
                started.append(plan.path)
            # The disk comes back: nothing of what was appended meanwhile is lost, and it is online again.
            if not started.lost:
                started.gone = frozenset()
                check(started, settle(started))


@pytest.mark.feature("113-21", "113-23")
@pytest.mark.parametrize("script", ["move", "target fails", "target fails late", "cancel"])
def test_move_continues_after_any_crash(script: str) -> None:
    """After a crash and a start, with a disk away in between or not, the move is made again, and may die again."""
    for crashed in worlds(SCRIPTS[script]):
        for away in ("all there", "a gone", "b gone"):
            world = with_condition(crashed, away)
            plan = settle(world)
            if plan.state == "online" and plan.path is not None:
                world.append(plan.path)
            world.gone = frozenset()
            plan = settle(world)
            check(world, plan)
            for again in worlds(move, copy.deepcopy(world)):
                for condition in ("all there", "a gone", "b gone"):
                    last = with_condition(again, condition)
                    check(last, settle(last))
                    last.gone = frozenset()
                    check(last, settle(last))
