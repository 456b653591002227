"""What a crash leaves: the disks, and beside them what was promised to whom.

A `World` is a machine that is switched off. `Life` is one run of the node on it: it starts the production node, does
what a script says, keeps the promises up to date, and lets a `Recorder` take the world as every crash would leave it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace

from storage_node import failpoints
from storage_node.errors import LogDirectoryOffline, RequestRefused, StorageError
from storage_node.model.image import ClusterImage
from storage_node.model.moves import MoveState
from storage_node.move import swap
from tests.simulation.crash.node import TP, Controller, Ids, QuietNode, config_for, record, threadless
from tests.simulation.disks import Disk, Inode, State
from tests.simulation.inodes import set_name
from tests.simulation.losses import after_loss, choices, dirty_files
from tests.simulation.machine import Machine, Step
from tests.simulation.patching import simulated

TOPIC_IDS = ("AAAAAAAAAAAAAAAAAAAA1A", "AAAAAAAAAAAAAAAAAAAA2A", "AAAAAAAAAAAAAAAAAAAA3A")


@dataclass(frozen=True, slots=True)
class Truth:
    """What was promised.

    `acked` has the value of each acknowledged record of the topic, from offset 0; of these the first `flushed` are
    known to be on the disk, and the first `needed` must be there now: all after a kill, the flushed ones after a power
    loss. Records before `start` were deleted. `tried` is the record whose answer was not there yet when the crash came.
    """

    topic_id: str = ""
    acked: tuple[bytes, ...] = ()
    flushed: int = 0
    needed: int = 0
    start: int = 0
    tried: bytes = b""
    image: ClusterImage = field(default_factory=ClusterImage)
    life: int = 0
    lost: bool = False
    """Somebody has taken a disk away for good, or put an old one in its place: records may be lost."""


@dataclass(frozen=True, slots=True)
class World:
    """The machine, switched off. `at` says where the crash was, for people."""

    disks: dict[str, State]
    truth: Truth
    at: str = ""
    when: int = 0
    """At which point of its life the crash was."""
    without: str = ""
    """The disk that was away then: the next one to be away is this one again, after it was there again any."""

    def key(self) -> int:
        """The same for worlds that cannot be told apart; ids drawn by chance are not looked at."""
        truth = self.truth
        promised = (truth.topic_id, truth.acked, truth.flushed, truth.needed, truth.start, truth.tried, truth.lost)
        known = (truth.image.version, truth.life)
        return hash((promised, known, *(_signature(state) for state in self.disks.values())))


def _signature(state: State) -> int:
    rows: list[tuple[object, ...]] = []
    todo = [("", state.root)]
    while todo:
        prefix, folder = todo.pop()
        for name, inode in folder.entries.items():
            if name in (".lock", ".kafka_cleanshutdown"):
                continue
            if inode.is_dir:
                rows.append((prefix + name, None))
                todo.append((f"{prefix}{name}/", inode))
            elif name.endswith(".tmp"):
                # What stands in a file that was to be renamed is looked at by nobody.
                rows.append((prefix + name, bool(inode.pending)))
            elif inode.pending:
                rows.append((prefix + name, bytes(inode.content), inode.durable, len(inode.pending)))
            else:
                rows.append((prefix + name, bytes(inode.content)))
    journal = tuple((name, inode is None) for op in state.journal for _, name, inode in op)
    return hash((frozenset(rows), journal))


def power_losses(machine: Machine, product: bool) -> Iterator[dict[str, State]]:
    """What a power loss may leave: of each disk every prefix of its journal, its unflushed bytes all kept or all lost.

    `product`: every state of one disk with every state of the others; else with the two ends of the others, which
    keep or lose all.
    """
    each = [list(_losses(disk.state)) for disk in machine.disks.values()]
    combined = itertools.product(*each) if product else _stars(each, each)
    for states in combined:
        yield dict(zip(machine.disks, states, strict=True))


def mixed_losses(machine: Machine) -> Iterator[dict[str, State]]:
    """The same, each unflushed file keeping or losing its bytes by itself (see `losses.choices`); the other disks have
    their two ends.
    """
    each = [list(_losses(disk.state, mixed=True)) for disk in machine.disks.values()]
    for states in _stars(each, [list(_losses(disk.state)) for disk in machine.disks.values()]):
        yield dict(zip(machine.disks, states, strict=True))


def _stars(each: list[list[State]], others: list[list[State]]) -> Iterator[tuple[State, ...]]:
    """Every state of one disk with the first and the last of the others, for each disk."""
    ends = [states[:1] + states[-1:] if len(states) > 1 else states for states in others]
    for chosen, states in enumerate(each):
        yield from itertools.product(*(states if place == chosen else end for place, end in enumerate(ends)))


def _losses(state: State, mixed: bool = False) -> Iterator[State]:
    """The one that kept most first, the one that lost most last."""
    for kept in range(len(state.journal), -1, -1):
        dirty = dirty_files(state, kept)
        count = len(dirty)
        for chosen in choices(count) if mixed else dict.fromkeys(((True,) * count, (False,) * count)):
            files = itertools.compress(dirty, chosen)
            yield after_loss(state, kept, {inode.number: inode.written(len(inode.pending)) for inode in files})


class Recorder:
    """Collects the worlds that crashes during a life would leave, each once by its `key`.

    `seen` may be shared, so that what was found elsewhere does not count again. `product`: see `power_losses`. Of the
    points at which a crash may come those `wanted` are looked at; `away` is what disks hold that are not there. With
    `mixed` the worlds of `mixed_losses` are taken too, each once by this key.
    """

    def __init__(
        self,
        seen: set[int] | None = None,
        *,
        key: Callable[[World], int] = World.key,
        mixed: Callable[[World], int] | None = None,
        product: bool = True,
        wanted: Callable[[int], bool] | None = None,
        away: Mapping[str, State] | None = None,
    ) -> None:
        self.seen: set[int] = set() if seen is None else seen
        self.worlds: list[World] = []
        self.points = 0
        self.left = 0
        """How many worlds there were, those that were seen before included."""
        self._key = key
        self._mixed = mixed
        self._product = product
        self._wanted = wanted
        self._away = away or {}

    def take(self, machine: Machine, truth: Truth, at: str) -> None:
        """The machine may crash here."""
        self.points += 1
        if self._wanted is not None and not self._wanted(self.points):
            return
        self._add(World(machine.snapshot(), truth, f"killed before {at}", self.points))
        after = replace(truth, needed=min(truth.needed, truth.flushed))
        for number, disks in enumerate(power_losses(machine, self._product)):
            self._add(World(disks, after, f"power loss {number} before {at}", self.points))
        if self._mixed is not None:
            for number, disks in enumerate(mixed_losses(machine)):
                self._add(World(disks, after, f"power loss, mixed {number}, before {at}", self.points), self._mixed)

    def _add(self, world: World, key_of: Callable[[World], int] | None = None) -> None:
        self.left += 1
        if self._away:
            world = replace(world, disks=dict(sorted({**world.disks, **self._away}.items())))
        key = (key_of or self._key)(world)
        if key not in self.seen:
            self.seen.add(key)
            self.worlds.append(world)


class _LooseDisk(Disk):
    """What POSIX promises of a flush: of a file its bytes, of a folder its own names; nothing in any other folder."""

    def flush(self, inode: Inode) -> None:
        if not inode.is_dir:
            inode.flushed()
            return
        state = self.state
        mine = [all(folder is inode for folder, _, _ in op) for op in state.journal]
        for op in itertools.compress(state.journal, mine):
            for folder, name, child in op:
                set_name(folder.durable_entries, name, child)
        state.journal[:] = [op for op, own in zip(state.journal, mine, strict=True) if not own]
        state.forced += sum(mine)


class Arena:
    """A machine, and production turned to it without threads, for as many lives as one likes, one after the other.

    `loose`: its disks have no journal that keeps more than what was flushed.
    """

    def __init__(self, *names: str, loose: bool = False) -> None:
        self.machine = Machine(*names, names_follow=not loose)
        for disk in self.machine.disks.values() if loose else ():
            disk.__class__ = _LooseDisk
        self._disks = dict(self.machine.disks)
        self._ids = Ids()
        self._stack = ExitStack()

    def __enter__(self) -> Arena:
        self._stack.enter_context(simulated(self.machine))
        self._stack.enter_context(threadless(self._ids))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def put(self, world: World) -> None:
        """Switch the machine on with the disks of a world; the process of the life before is gone."""
        machine = self.machine
        machine.before = None
        machine.disks = dict(self._disks)
        for disk in machine.disks.values():
            disk.heal()
            disk.capacity = None
        machine.restore(world.disks)
        self._ids.restart(world.truth.life + 1)


class Life:
    """One run of the node on a world's disks, in an arena.

    `order` is log.dirs.
    """

    def __init__(
        self, arena: Arena, world: World, recorder: Recorder | None = None, order: Sequence[str] | None = None
    ) -> None:
        self.truth = replace(world.truth, life=world.truth.life + 1)
        self.machine = arena.machine
        self.order = list(order or world.disks)
        self.controller = Controller(world.truth.image)
        self.node: QuietNode
        self._recorder = recorder
        self._when: tuple[str, str, Callable[[], None]] | None = None
        arena.put(world)
        self.machine.before = self._before

    def _before(self, step: Step) -> None:
        if self._recorder is not None:
            self._recorder.take(self.machine, self.truth, f"{step.op} {step.path}")
        if self._when is not None:
            op, path, action = self._when
            if step.op == op and path in step.path:
                self._when = None
                action()

    def when(self, op: str, path: str, action: Callable[[], None]) -> None:
        """Do something just before the first operation of this kind on such a path."""
        self._when = (op, path, action)

    def end(self, at: str = "the end") -> World:
        """The world as a kill leaves it now."""
        if self._recorder is not None:
            self._recorder.take(self.machine, self.truth, at)
        return World(self.machine.snapshot(), self.truth, at)

    def start(self) -> None:
        """Start the production node; raises what `Node.start` raises."""
        self.node = QuietNode(config_for([self.machine.path(name) for name in self.order]))
        self.node.start()

    # What clients do

    @property
    def online(self) -> bool:
        partition = self.node.served
        return partition is not None and not partition.offline and partition.topic_id == self.truth.topic_id

    def append(self, count: int = 1, *, flush: bool = False) -> None:
        """Produce records; nothing happens while the partition is offline."""
        for _ in range(count):
            partition = self.node.served
            if partition is None or not self.online:
                return
            value = record(len(self.truth.acked), self.truth.life)
            self.truth = replace(self.truth, tried=value.value)
            try:
                partition.append(value.batch)
            except (StorageError, RequestRefused) as error:
                if isinstance(error, StorageError):
                    self.node.storage_failed(error)
                return
            acked = (*self.truth.acked, value.value)
            self.truth = replace(self.truth, acked=acked, needed=len(acked), tried=b"")
        if flush:
            self.flush()

    def flush(self) -> None:
        """What flush.ms does; what was acknowledged is then on the disk."""
        partition = self.node.served
        if partition is None or not self.online:
            return
        try:
            partition.log.flush()
        except StorageError as error:
            self.node.storage_failed(error)
            return
        self._note_flushed()

    def _note_flushed(self) -> None:
        partition = self.node.served
        if partition is not None and self.online:
            flushed = min(partition.log.recovery_point, len(self.truth.acked))
            self.truth = replace(self.truth, flushed=max(self.truth.flushed, flushed))

    def delete_records(self, before: int) -> None:
        """DeleteRecords."""
        partition = self.node.served
        if partition is not None and self.online and before <= len(self.truth.acked):
            self.truth = replace(self.truth, start=max(self.truth.start, before))
            with suppress(StorageError, RequestRefused):
                partition.delete_records(before)

    # What the controller does

    def _image(self) -> None:
        self.truth = replace(self.truth, image=self.controller.image)

    def create_topic(self) -> None:
        """A topic of this name; after a deletion another one."""
        if TP.topic in self.controller.image.topics:
            self.hear()
            self.tell()
            return
        topic_id = TOPIC_IDS[len(self.controller.image.gone)]
        self.controller.create_topic(topic_id)
        self.truth = replace(
            self.truth,
            topic_id=topic_id,
            acked=(),
            flushed=0,
            needed=0,
            start=0,
            tried=b"",
            image=self.controller.image,
        )
        self.hear()
        self.tell()

    def delete_topic(self) -> None:
        """The topic goes; its records may be there until the node hears of it."""
        if TP.topic in self.controller.image.topics:
            self.controller.delete_topic()
            self.truth = replace(self.truth, topic_id="", image=self.controller.image)
        self.hear()

    def hear(self) -> None:
        """The controller pushes its image."""
        self.node.hear(self.controller)

    def tell(self) -> None:
        """The node tells where its replicas are."""
        self.node.tell(self.controller)
        self._image()

    # What a move does; each step looks at what is there and does what is missing

    def request(self, target: str) -> bool:
        """AlterReplicaLogDirs; True when there is a move to go on with."""
        partition = self.node.served
        if partition is None or not self.online:
            return False
        engine = self.node.engine
        path = self.machine.path(target)
        status = engine.status(TP)
        if status is not None and self.node.moving:
            if status.directory == path:
                return True
            self.cancel()
        if partition.directory.name == path:
            return False
        raised = self.controller.raise_generation(partition.generation, partition.directory.id)
        if raised is None:
            return False
        self._image()
        try:
            self.hear()
            claim = engine.next_claim(TP)
            engine.create(TP, path, claim=claim, generation=raised)
        except (StorageError, RequestRefused) as error:
            self._failed(error)
            return False
        return True

    def copy(self) -> bool:
        """The copy, until it has caught up."""
        status = self.node.engine.status(TP)
        if status is None or not self.node.moving:
            return False
        try:
            self.node.engine.start_copy(TP, status.claim)
            self.node.copy()
            return self.node.engine.wait(TP, status.claim, 0).state is MoveState.CAUGHT_UP
        except (StorageError, RequestRefused) as error:
            self._failed(error)
            return False

    def swap(self) -> bool:
        """The swap; True when it is done."""
        status = self.node.engine.status(TP)
        if status is None or not self.node.moving:
            return False
        try:
            # A producer appends as soon as the lock is given back, before the markers have their final words.
            with failpoints.active({swap.AFTER_REFERENCES: lambda: self.append(flush=True)}):
                done = self.node.engine.swap(TP, status.claim, status.generation).outcome == "swapped"
        except (StorageError, RequestRefused) as error:
            self._failed(error)
            return False
        if done:
            self._note_flushed()
        return done

    def cancel(self) -> None:
        """A cancel by request."""
        try:
            self.node.engine.cancel(TP, None, "cancelled by request")
        except (StorageError, RequestRefused) as error:
            self._failed(error)

    def delete_due(self) -> None:
        """Every `.delete` is due."""
        self.node.delete_what_is_due()

    def _failed(self, error: Exception) -> None:
        if isinstance(error, StorageError) and not isinstance(error, LogDirectoryOffline):
            self.node.storage_failed(error)
