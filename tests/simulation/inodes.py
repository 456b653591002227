"""Files and folders of a simulated disk: what the process sees, and what is durable; see `disks`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

__all__ = ["Change", "Inode", "State", "apply_to", "reachable", "set_name"]


class Inode:
    """A file or a folder. `entries` and `content` are what the process sees, `durable_*` what is on the disk."""

    __slots__ = (
        "born",
        "content",
        "dropped",
        "durable",
        "durable_entries",
        "entries",
        "is_dir",
        "links",
        "mtime_ns",
        "number",
        "opens",
        "parent",
        "pending",
        "touched",
    )

    def __init__(self, number: int, is_dir: bool, born: int, mtime_ns: int) -> None:
        self.number = number
        self.is_dir = is_dir
        self.born = born
        """The journal's operation that gave it its first name."""
        self.touched = born
        """The last operation on a folder's names."""
        self.mtime_ns = mtime_ns
        self.entries: dict[str, Inode] = {}
        self.durable_entries: dict[str, Inode] = {}
        self.content = bytearray()
        self.durable = b""
        self.pending: list[tuple[int, bytes | None]] = []
        """Since the last flush: (position, bytes), or (size, None) for a change of size."""
        self.dropped = False
        """A failed flush has lost bytes that the process still sees."""
        self.links = 1
        self.opens = 0
        self.parent: Inode | None = None

    def change(self, position: int, data: bytes | None) -> None:
        """Write `data` at `position`, or make the file `position` bytes long."""
        apply_to(self.content, position, data)
        self.pending.append((position, data))

    def flushed(self) -> None:
        """All that is pending is durable now."""
        if not self.dropped:
            if self.pending:
                self.durable = bytes(self.content)
        else:
            self.durable = self.written(len(self.pending))
        self.pending.clear()

    def drop(self) -> None:
        """All that is pending never gets to the disk, although it can still be read."""
        self.dropped = self.dropped or bool(self.pending)
        self.pending.clear()

    def written(self, count: int, cut: int | None = None) -> bytes:
        """The durable bytes with the first `count` pending changes, the last one cut to `cut` bytes."""
        data = bytearray(self.durable)
        for number, (position, change) in enumerate(self.pending[:count], 1):
            if number == count and cut is not None and change is not None:
                change = change[:cut]
            apply_to(data, position, change)
        return bytes(data)

    def zeroed(self) -> bytes:
        """All sizes of the pending changes, none of their bytes."""
        data = bytearray(self.durable)
        for position, change in self.pending:
            apply_to(data, position, None if change is None else bytes(len(change)))
        return bytes(data)


def apply_to(data: bytearray, position: int, change: bytes | None) -> None:
    """Make one change of a file's content."""
    if len(data) < position:
        data.extend(bytes(position - len(data)))
    if change is None:
        del data[position:]
    else:
        data[position : position + len(change)] = change


Change = tuple[Inode, str, Inode | None]
"""A folder, a name in it, and what it leads to from now on."""


@dataclass(slots=True)
class State:
    """All that a disk holds; `forced` operations of the journal are durable and not in `journal` any more."""

    root: Inode
    journal: list[tuple[Change, ...]] = field(default_factory=list)
    forced: int = 0
    next_number: int = 2
    device: int = 0

    def copy(self) -> State:
        """The same, sharing nothing that can change."""
        return _Copier().state(self)

    def tree(self) -> dict[str, bytes | None]:
        """Names as the process sees them, with the bytes of files and None for folders."""
        found: dict[str, bytes | None] = {}
        todo = [("", self.root)]
        while todo:
            prefix, folder = todo.pop()
            for name, inode in folder.entries.items():
                found[prefix + name] = None if inode.is_dir else bytes(inode.content)
                if inode.is_dir:
                    todo.append((f"{prefix}{name}/", inode))
        return found


class _Copier:
    """Copies inodes once each, whatever refers to them."""

    def __init__(self) -> None:
        self.done: dict[int, Inode] = {}

    def state(self, state: State) -> State:
        journal = [
            tuple((self.inode(d), name, None if i is None else self.inode(i)) for d, name, i in op)
            for op in state.journal
        ]
        return State(self.inode(state.root), journal, state.forced, state.next_number, state.device)

    def inode(self, inode: Inode) -> Inode:
        copied = self.done.get(inode.number)
        if copied is not None:
            return copied
        copied = self.done[inode.number] = Inode(inode.number, inode.is_dir, inode.born, inode.mtime_ns)
        copied.touched = inode.touched
        copied.links = inode.links
        if inode.is_dir:
            copied.entries = {name: self.inode(child) for name, child in inode.entries.items()}
            copied.durable_entries = {name: self.inode(child) for name, child in inode.durable_entries.items()}
            copied.parent = None if inode.parent is None else self.inode(inode.parent)
        else:
            copied.content = bytearray(inode.content)
            copied.durable = inode.durable
            copied.pending = list(inode.pending)
            copied.dropped = inode.dropped
        return copied


def set_name(entries: dict[str, Inode], name: str, inode: Inode | None) -> None:
    """Let a name lead to an inode, or to nothing."""
    if inode is None:
        entries.pop(name, None)
    else:
        entries[name] = inode


def reachable(root: Inode) -> Iterator[Inode]:
    """All inodes below a folder as the process sees them, itself included, each once."""
    todo, seen = [root], set()
    while todo:
        inode = todo.pop()
        if inode.number not in seen:
            seen.add(inode.number)
            yield inode
            todo.extend(inode.entries.values())
