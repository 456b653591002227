"""Runs a script once, takes the world as every crash would leave it, and starts the node on each under each condition.

A start is one durable step after the other as well: the worlds that a crash during it would leave are collected too,
and so are those of the script going on after it. Worlds that cannot be told apart are looked at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from storage_node.directories.errors import StartRefused
from storage_node.directories.formatting import format_directories
from storage_node.directories.meta import properties as meta_properties
from storage_node.replicas.boot.actions import Rename, WriteMarker
from tests.simulation.crash import checks, keys
from tests.simulation.crash.checks import Expected, Violation
from tests.simulation.crash.node import CLUSTER
from tests.simulation.crash.scripts import Script, blank
from tests.simulation.crash.world import Arena, Life, Recorder, World
from tests.simulation.inodes import State
from tests.simulation.machine import Machine
from tests.simulation.patching import simulated


@dataclass(frozen=True, slots=True)
class Condition:
    """How the machine comes back: `disk` is in error, not there, an empty folder (where it is mounted otherwise), or
    replaced by an empty one that the operator has formatted.
    """

    kind: str = "good"  # or one of KINDS
    disk: str = ""

    def __str__(self) -> str:
        return f"{self.disk} {self.kind}" if self.disk else "all good"


GOOD = Condition()
KINDS = ("bad", "missing", "unmounted", "wiped")
_AWAY = ("bad", "missing")


def conditions(names: Iterable[str], kinds: Iterable[str]) -> list[Condition]:
    """Each of the kinds on each disk."""
    return [Condition(kind, name) for name in names for kind in kinds]


@dataclass
class Found:
    """What an exploration has counted, and what must never happen."""

    count: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def violated(self, violation: Exception, *path: object) -> None:
        self.count["violations"] += 1
        if len(self.violations) < 200:
            self.violations.append(f"{violation}\n    after " + "\n    then  ".join(map(str, path)))


class Explorer:
    """Explores one script; `found` has what came of it.

    `whole`: power losses leave every state of one disk with every state of the others, all unflushed bytes kept or all
    lost, and the node is started, with all disks good, on all worlds that differ in anything; and every state of one
    disk, each unflushed file kept or lost by itself, with the two ends of the others, of which each outline is started
    on once. Else the other disks keep or lose all, and each outline is started on once. Under the other conditions
    (their `kinds`) each outline is started on, or else each that is canonically another (see `keys`). A second
    crash begins from all that are canonically different, and after it they are started on.
    `posix`: a flush makes durable what POSIX says, not what a journal keeps besides.
    """

    def __init__(
        self, script: Script, *, whole: bool, kinds: Iterable[str], found: Found | None = None, posix: bool = False
    ) -> None:
        self.script = script
        self.whole = whole
        self.kinds = tuple(kinds)
        self.found = found or Found()
        self.arena = Arena(*script.disks, loose=posix)
        self.worlds: set[int] = set()
        self.starts: dict[tuple[int, str], World | None] = {}
        """Where each start came to, as far as the disks go that were there."""
        self.earlier: dict[str, list[tuple[int, World]]] = {name: [] for name in script.disks}
        """Worlds of the first life, by what then was new on a disk."""
        self._settled: set[int] = set()
        self._returned: set[int] = set()
        self._mixed: set[int] = set()
        self._begun: set[tuple[int, str]] = set()
        self._gone_on: set[int] = set()
        self._calls = 0
        self._stack = ExitStack()

    def __enter__(self) -> Explorer:
        self._stack.enter_context(self.script.around())
        self._stack.enter_context(self.arena)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # The script

    def first(self, start: World | None = None) -> list[World]:
        """The worlds that one crash of the script leaves."""
        recorder = Recorder(self.worlds, product=self.whole, mixed=keys.outline if self.whole else None)
        life = Life(self.arena, start or blank(*self.script.disks), recorder)
        life.start()
        self.script.run(life)
        life.end()
        self._counted(recorder)
        self.found.count["worlds after one crash"] += len(recorder.worlds)
        for name, known in self.earlier.items():
            seen: set[int] = set()
            for world in recorder.worlds:
                key = keys.canonical(replace(world, disks={name: world.disks[name]}))
                if key not in seen:
                    seen.add(key)
                    known.append((world.when, world))
        return recorder.worlds

    def second(self, world: World, every: int = 1) -> list[World]:
        """The worlds that a crash leaves which comes during the start on this one, under any condition, or when the
        script goes on after it; those that are canonically the same once.

        `every`: of the points at which it may come only each so many-th is taken, another one in each call.
        """
        self._calls += 1
        offset = self._calls % every
        found: list[World] = []
        for condition in (GOOD, *conditions(world.disks, self.kinds)):
            key = (keys.canonical(world), str(condition))
            if every == 1 and key in self._begun:
                continue
            self._begun.add(key)
            away = {condition.disk: world.disks[condition.disk]} if condition.kind in _AWAY else {}
            recorder = self._again_recorder(every, offset, away)
            self.start(world, condition, recorder)
            self._counted(recorder)
            for new in recorder.worlds:
                at = f"{world.at}\n    then  {condition}, {new.at}"
                found.append(replace(new, at=at, without=condition.disk if away else ""))
        on = self._on(world, self._again_recorder(every, offset, {}))
        found += [replace(new, at=f"{world.at}\n    then  {new.at}") for new in on]
        self.found.count["worlds after two crashes"] += len(found)
        return found

    def _again_recorder(self, every: int, offset: int, away: Mapping[str, State]) -> Recorder:
        return Recorder(
            self.worlds,
            key=keys.canonical,
            product=False,
            wanted=None if every == 1 else lambda number: number % every == offset,
            away=away,
        )

    def _counted(self, recorder: Recorder) -> None:
        self.found.count["crash points"] += recorder.points
        self.found.count["crashes"] += recorder.left

    def _on(self, world: World, recorder: Recorder) -> list[World]:
        life = Life(self.arena, world, recorder)
        try:
            life.start()
            expected = Expected.of(world, frozenset())
            checks.check_started(life, expected, heard=False)
            checks.settle(life)
            life.hear()
            checks.settle(life)
            # Starts come to few different ends, from which the script goes on in the same way.
            key = keys.canonical(World(life.machine.snapshot(), life.truth))
            if key not in self._gone_on:
                self._gone_on.add(key)
                self.script.run(life)
                life.end()
        except Violation as violation:
            self.found.violated(violation, world.at, "the script goes on")
        self._counted(recorder)
        return recorder.worlds

    def distinct(self, worlds: Iterable[World]) -> list[World]:
        """One of all that are canonically the same."""
        return list({keys.canonical(world): world for world in worlds}.values())

    # Starts

    def start_everywhere(self, world: World, recorder: Recorder | None = None) -> None:
        """Start on a world under every condition."""
        self.start(world, GOOD, recorder)
        for condition in conditions([world.without] if world.without else world.disks, self.kinds):
            self.start(world, condition, recorder)

    def start(self, world: World, condition: Condition, recorder: Recorder | None = None) -> World | None:
        """Start on a world under one condition and check what must hold; answers the world afterwards."""
        key = (self._start_key(world, condition), str(condition))
        known = key in self.starts and recorder is None
        try:
            if not known:
                self.starts[key] = None
                self.found.count["starts"] += 1
                self.starts[key] = self._start(world, condition, recorder)
            elif not self.whole:
                return self.starts[key]
            after = self.starts[key]
            if after is not None and condition.kind in _AWAY:
                # It may have come from a world that differs in what the disk holds that was away.
                after = replace(after, disks={**after.disks, condition.disk: world.disks[condition.disk]})
                self._back(after)
            return after
        except Violation as violation:
            self.found.violated(violation, world.at, condition)
            return None

    def _start_key(self, world: World, condition: Condition) -> int:
        if condition.kind == "good":
            return self._key(world)
        if not self.whole:
            return keys.canonical(world)
        return keys.outline(world, condition.disk)

    def start_with_older(self, world: World) -> None:
        """Start on a world in which one disk is as it was at some time before."""
        for name, known in self.earlier.items():
            for when, before in known:
                if when >= world.when:
                    break
                truth = replace(world.truth, lost=True)
                at = f"{world.at}; {name} as of {before.at}"
                mixed = World({**world.disks, name: before.disks[name]}, truth, at, world.when)
                key = keys.outline(mixed) if self.whole else keys.canonical(mixed)
                if key not in self._mixed:
                    self._mixed.add(key)
                    self.found.count["older disks"] += 1
                    self.start(mixed, GOOD)

    def _key(self, world: World) -> int:
        return world.key() if self.whole else keys.outline(world)

    def _start(self, world: World, condition: Condition, recorder: Recorder | None) -> World | None:
        disk = condition.disk
        away = frozenset({disk} if condition.kind in _AWAY else ())
        if condition.kind == "wiped":
            world = _wiped(world, disk)
        expected = Expected.of(world, away)
        order = [name for name in world.disks if name != disk] + ([disk] if disk else [])
        life = Life(self.arena, world, recorder, order)
        if condition.kind == "bad":
            life.machine.disks[disk].fail()
        elif condition.kind == "missing":
            del life.machine.disks[disk]
        elif condition.kind == "unmounted":
            return self._refused(life, disk)
        life.start()
        checks.check_started(life, expected, heard=False)
        again = self._noted(life, world, away)
        checks.settle(life)
        life.append(flush=True)
        life.append()
        life.hear()
        checks.check_started(life, _after(expected, life), heard=True)
        checks.settle(life)
        life.tell()
        life.copy()
        life.delete_due()
        checks.check_kept(life, world, expected)
        after = life.end(f"{world.at}, started with {condition}")
        there = {name: state for name, state in after.disks.items() if name not in away}
        after = replace(after, disks={**world.disks, **there})
        if again is not None:
            self._again(*again, order, away)
        if not after.truth.topic_id:
            checks.check_gone(self._restarted(after, order, away))
        return after

    def _refused(self, life: Life, disk: str) -> None:
        """A start that finds an empty folder instead of a disk says so, and touches nothing."""
        life.machine.disks[disk].unmount()
        before = {name: _told_by(one.tree()) for name, one in life.machine.disks.items()}
        try:
            life.start()
        except StartRefused as refused:
            if "not mounted" not in str(refused):
                raise Violation(f"the node does not start: {refused}") from refused
        else:
            raise Violation(f"the node starts although {disk} is not mounted")
        if before != {name: _told_by(one.tree()) for name, one in life.machine.disks.items()}:
            raise Violation("a start that is refused has changed something")
        self.found.count["refused starts"] += 1

    def _restarted(self, world: World, order: Sequence[str], away: frozenset[str]) -> Life:
        life = Life(self.arena, world, None, order)
        for name in away:
            life.machine.disks[name].fail()
        life.start()
        return life

    def _noted(self, life: Life, before: World, away: frozenset[str]) -> tuple[World, tuple[object, ...]] | None:
        """The world after a start, and what came of it; None if a second start was tried on the same already."""
        here = World({n: d.snapshot() for n, d in life.machine.disks.items() if n not in away}, life.truth, before.at)
        key = self._key(here)
        if key in self._settled:
            return None
        self._settled.add(key)
        return replace(here, disks={**before.disks, **here.disks}), _told(life)

    def _again(self, world: World, told: tuple[object, ...], order: Sequence[str], away: frozenset[str]) -> None:
        """A second start comes to the same state and changes nothing."""
        life = self._restarted(world, order, away)
        assert life.node.plans is not None, "the start has reported its plans"
        changes = [a for plan in life.node.plans for a in plan.actions if isinstance(a, WriteMarker | Rename)]
        if changes:
            raise Violation(f"a second start changes something: {changes[0]}")
        if _told(life) != told:
            raise Violation(f"a second start comes to {_told(life)} instead of {told}")
        self.found.count["second starts"] += 1

    def _back(self, world: World) -> None:
        """The disk that was away is there again: nothing of what was appended meanwhile is lost."""
        key = self._key(world)
        if key in self._returned:
            return
        self._returned.add(key)
        self.found.count["disks back"] += 1
        self._start(world, GOOD, None)


def _after(expected: Expected, life: Life) -> Expected:
    """What holds after records were appended since the start."""
    if not life.online:
        return expected
    return replace(expected, needed=life.truth.needed)


def _told(life: Life) -> tuple[object, ...]:
    partition = life.node.served
    if partition is None:
        return (sorted(map(str, life.node.replicas.offline)),)
    return (partition.directory.path.name, partition.generation, partition.log.log_end_offset, partition.offline)


def _told_by(tree: dict[str, bytes | None]) -> dict[str, bytes | None]:
    """All but the lock, which a start that is refused takes as well."""
    return {name: data for name, data in tree.items() if name != ".lock"}


def _wiped(world: World, disk: str) -> World:
    """Another disk, empty, in the place of one that the operator declares gone; formatted."""
    machine = Machine(*world.disks)
    machine.restore(world.disks)
    paths = [machine.path(name) for name in world.disks]
    with simulated(machine):
        known = meta_properties.read(machine.path(disk))
        assert known is not None and known.directory_id is not None
        machine.disks[disk].wipe()
        format_directories(paths, cluster_id=CLUSTER, node_id=1, forget=[known.directory_id])
    truth = replace(world.truth, lost=True)
    return World(machine.snapshot(), truth, world.at)
