"""What a simulated disk holds, and what a crash may leave of it.

A `Disk` keeps, beside the tree that the process sees, what is durable: the journal of its metadata operations (create,
mkdir, rename, unlink, rmdir), of which a power loss keeps any prefix from the last forced point on, and for each file
the durable bytes and the writes since the last flush, which a power loss keeps or loses, file by file. So a file may be
there under its new name with no bytes in it. What is forced:

* a flush of a file: its bytes and its size, and (`names_follow`) the journal up to the file's own creation;
* a flush of a directory: the journal up to the last operation on that directory's names, and (`names_follow`) up to
  its own creation;
* nothing else: a rename of a directory, say, needs a flush of the directory above.

API::

    disk = Disk("a", capacity=1 << 20)         # in bytes; a file takes INODE_BYTES and whole blocks. None: unlimited
    disk.tree()                                # {"x/y": b"bytes", "x": None} as the process sees it
    disk.fail(EIO)                             # every operation from now on; Fault to heal, or disk.heal()
    disk.fail(EIO, WRITES, times=1)            # the next one that changes the disk
    disk.fail(EIO, FLUSHES, times=1, drop=True)  # fsyncgate: fails once, the bytes are lost, later flushes say "good"
    disk.snapshot() / disk.restore(snapshot)   # cheap copies, unflushed state included; restoring closes all files
    disk.power_loss_states(limit=...)          # iterator over what a power loss may leave, as snapshots, no two alike
    disk.power_loss(choose)                    # one of them: choose(n) answers 0 <= i < n (0: the most is kept)
    disk.wipe(), disk.unmount(), disk.mount()  # another empty disk; an empty folder in its place; back again

Crashes of the whole machine (all disks, descriptors, locks) are `Machine.kill` and `Machine.power_loss`.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from tests.simulation.inodes import Change, Inode, State, reachable, set_name
from tests.simulation.losses import after_loss, choices, dirty_files

__all__ = [
    "ALL",
    "BLOCK_BYTES",
    "FLUSHES",
    "INODE_BYTES",
    "READS",
    "WRITES",
    "Crash",
    "Disk",
    "Fault",
    "Inode",
    "State",
]

INODE_BYTES: Final = 256
"""What a file or folder takes of a disk's capacity beside its bytes."""
BLOCK_BYTES: Final = 4096
"""Bytes are taken in blocks: what grows within its last block needs no room, as on a real disk."""

FLUSHES: Final = frozenset({"fsync", "fdatasync", "fsync_dir"})
WRITES: Final = frozenset(
    {"create", "mkdir", "rename", "unlink", "rmdir", "link", "write", "truncate", "allocate", "utime"} | FLUSHES
)
READS: Final = frozenset({"open", "read", "stat", "listdir", "statvfs", "lock"})
ALL: Final = WRITES | READS


def blocks(size: int) -> int:
    """The room that so many bytes take."""
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


class Crash(BaseException):
    """The machine stops here: raised by a hook, and by every later operation until the machine is started again."""


@dataclass(eq=False, slots=True)
class Fault:
    """Operations that fail: which, with what, how often (None: always), and only where `path` is part of the name."""

    error: int
    ops: frozenset[str] = ALL
    times: int | None = None
    path: str = ""
    drop: bool = False
    """A flush that fails loses what it should have flushed, and the next one succeeds."""
    after: int = 0
    """So many operations are let through first."""
    hits: int = 0
    """How many have failed."""


class Disk:
    """See the module. `names_follow` False is POSIX's word alone: a flushed file may still have no name."""

    _devices = itertools.count(100)

    def __init__(self, name: str, *, capacity: int | None = None, names_follow: bool = True) -> None:
        self.name = name
        self.capacity = capacity
        self.names_follow = names_follow
        self.faults: list[Fault] = []
        self.used = 0
        self.closed: Callable[[Disk], None] | None = None
        """Told when the tree is replaced: the machine then closes what is open on the disk."""
        self._away: State | None = None
        self.state = self._fresh()

    def _fresh(self) -> State:
        return State(Inode(1, True, 0, 0), device=next(Disk._devices))

    def tree(self) -> dict[str, bytes | None]:
        """What the process sees: bytes of files, None for folders, by path below the disk."""
        return self.state.tree()

    # Faults

    def fail(
        self,
        error: int = errno.EIO,
        ops: frozenset[str] = ALL,
        *,
        times: int | None = None,
        path: str = "",
        drop: bool = False,
        after: int = 0,
    ) -> Fault:
        """Let operations fail from now on; see `Fault`."""
        fault = Fault(error, ops, times, path, drop, after)
        self.faults.append(fault)
        return fault

    def heal(self, fault: Fault | None = None) -> None:
        """Take back one fault, or all."""
        self.faults = [] if fault is None else [other for other in self.faults if other is not fault]

    def check(self, op: str, path: str, inode: Inode | None = None) -> None:
        """Raise what a fault has in store for an operation."""
        for fault in self.faults:
            if op in fault.ops and fault.path in path and fault.times != 0:
                if fault.after > 0:
                    fault.after -= 1
                    continue
                fault.hits += 1
                if fault.times is not None:
                    fault.times -= 1
                if fault.drop and inode is not None and op in FLUSHES:
                    inode.drop()
                raise OSError(fault.error, os.strerror(fault.error), path)

    # Room

    @property
    def free(self) -> int:
        """Bytes left."""
        return 1 << 40 if self.capacity is None else max(0, self.capacity - self.used)

    def take(self, count: int, path: str) -> None:
        """Take room for a new name; raises ENOSPC."""
        if self.capacity is not None and count > self.free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        self.used += count

    def released(self, inode: Inode) -> None:
        """Give back the room of an inode without a name that nobody holds open."""
        if inode.links == 0 and inode.opens == 0:
            inode.links = -1
            self.used -= INODE_BYTES + blocks(len(inode.content))

    # Journal

    def new(self, is_dir: bool, now_ns: int) -> Inode:
        """An inode whose name is the next operation of the journal."""
        state = self.state
        inode = Inode(state.next_number, is_dir, state.forced + len(state.journal) + 1, now_ns)
        state.next_number += 1
        return inode

    def log(self, *changes: Change) -> None:
        """Do a metadata operation and note it."""
        state = self.state
        state.journal.append(changes)
        number = state.forced + len(state.journal)
        for folder, name, inode in changes:
            set_name(folder.entries, name, inode)
            folder.touched = number

    def force(self, upto: int) -> None:
        """Make the journal durable up to an operation."""
        state = self.state
        count = upto - state.forced
        if count > 0:
            for op in state.journal[:count]:
                for folder, name, inode in op:
                    set_name(folder.durable_entries, name, inode)
            del state.journal[:count]
            state.forced = upto

    def flush(self, inode: Inode) -> None:
        """What a flush that succeeds makes durable."""
        if inode.is_dir:
            self.force(max(inode.touched, inode.born) if self.names_follow else inode.touched)
            return
        inode.flushed()
        if self.names_follow:
            self.force(inode.born)

    def sync(self) -> None:
        """Make everything durable."""
        self.force(self.state.forced + len(self.state.journal))
        for inode in reachable(self.state.root):
            if not inode.is_dir:
                inode.flushed()

    def evict(self) -> bool:
        """Forget in memory what failed flushes have lost, and show the disk; False if there was nothing."""
        lost = [inode for inode in reachable(self.state.root) if inode.dropped and not inode.pending]
        for inode in lost:
            inode.content[:] = inode.durable
            inode.dropped = False
        return bool(lost)

    # Crashes

    def snapshot(self) -> State:
        """A copy of all that the disk holds, what is not flushed included."""
        return self.state.copy()

    def restore(self, state: State) -> None:
        """Hold what a snapshot holds (it can be restored again); everything open on the disk is closed."""
        self._become(state.copy())

    def _become(self, state: State) -> None:
        self.state = state
        self.used = sum(INODE_BYTES + blocks(len(inode.content)) for inode in reachable(state.root)) - INODE_BYTES
        if self.closed is not None:
            self.closed(self)

    def power_loss(self, choose: Callable[[int], int]) -> None:
        """Lose what a power loss may: `choose(n)` decides how much, 0 being the least; see `power_loss_states`.

        Beyond what the enumeration has, a file may keep a part of its unflushed writes, or their sizes without their
        bytes.
        """
        state = self.state
        kept = len(state.journal) - choose(len(state.journal) + 1)
        contents: dict[int, bytes] = {}
        for inode in dirty_files(state, kept):
            what = choose(4)
            if what == 1:
                contents[inode.number] = inode.durable
            elif what == 2:
                contents[inode.number] = inode.zeroed()
            elif what == 3:
                count = choose(len(inode.pending) + 1)
                last = inode.pending[count - 1][1] if count else None
                contents[inode.number] = inode.written(count, None if last is None else choose(len(last) + 1))
            else:
                contents[inode.number] = inode.written(len(inode.pending))
        self._become(after_loss(state, kept, contents))

    def power_loss_states(self, limit: int | None = None) -> Iterator[State]:
        """What a power loss may leave, each tree once: every prefix of the journal, unflushed bytes lost or kept.

        Up to four unflushed files are combined in every way; of more, all are kept, all lost, one kept and one lost.
        The first is what a kill would leave (but with everything durable); then come all other states of the whole
        journal, then the shortest prefix, and so on. Ends after `limit` states.
        """
        seen: set[frozenset[tuple[str, bytes | None]]] = set()
        for state in self._power_loss_states():
            key = frozenset(state.tree().items())
            if key not in seen:
                seen.add(key)
                yield state
                if len(seen) == limit:
                    return

    def _power_loss_states(self) -> Iterator[State]:
        state = self.state
        length = len(state.journal)
        for kept in (length, *range(length)):
            dirty = dirty_files(state, kept)
            for chosen in choices(len(dirty)):
                contents = {
                    inode.number: inode.written(len(inode.pending)) if keep else inode.durable
                    for inode, keep in zip(dirty, chosen, strict=True)
                }
                yield after_loss(state, kept, contents)

    # Other disks in its place

    def wipe(self) -> None:
        """Another disk, empty."""
        self._become(self._fresh())

    def unmount(self) -> None:
        """An empty folder where the disk was."""
        self._away = self.state
        self._become(self._fresh())

    def mount(self) -> None:
        """The disk that was unmounted, as a clean unmount left it."""
        assert self._away is not None
        away, self._away = self._away, None
        self._become(away)
        self.sync()
