"""What a loss of power leaves of a simulated disk; see `disks`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

from tests.simulation.inodes import Inode, State, set_name

__all__ = ["after_loss", "choices", "dirty_files"]

_WHOLE_PRODUCT: Final = 4  # up to so many unflushed files every combination of lost and kept is tried


def names_after(state: State, kept: int) -> dict[int, dict[str, Inode]]:
    """Names by folder when the first `kept` operations of the journal are durable; only folders that differ."""
    names: dict[int, dict[str, Inode]] = {}
    for op in state.journal[:kept]:
        for folder, name, inode in op:
            entries = names.get(folder.number)
            if entries is None:
                entries = names[folder.number] = dict(folder.durable_entries)
            set_name(entries, name, inode)
    return names


def dirty_files(state: State, kept: int) -> list[Inode]:
    """The files with unflushed bytes that would still have a name."""
    names = names_after(state, kept)
    found, todo, seen = list[Inode](), [state.root], set[int]()
    while todo:
        inode = todo.pop()
        if inode.number in seen:
            continue
        seen.add(inode.number)
        if inode.is_dir:
            todo.extend(names.get(inode.number, inode.durable_entries).values())
        elif inode.pending:
            found.append(inode)
    return sorted(found, key=lambda inode: inode.number)


def choices(count: int) -> Iterator[tuple[bool, ...]]:
    if count <= _WHOLE_PRODUCT:
        yield from itertools.product((True, False), repeat=count)
        return
    yield (True,) * count
    yield (False,) * count
    for value in (True, False):
        for number in range(count):
            yield tuple(value if other == number else not value for other in range(count))


def after_loss(state: State, kept: int, contents: dict[int, bytes]) -> State:
    """A disk that holds the first `kept` operations and these bytes of unflushed files, all of it durable."""
    names = names_after(state, kept)
    done: dict[int, Inode] = {}

    def build(inode: Inode, parent: Inode | None) -> Inode:
        made = done.get(inode.number)
        if made is not None:
            made.links += 1
            return made
        made = done[inode.number] = Inode(inode.number, inode.is_dir, 0, inode.mtime_ns)
        if inode.is_dir:
            made.parent = parent
            entries = names.get(inode.number, inode.durable_entries)
            made.entries = {name: build(child, made) for name, child in entries.items()}
            made.durable_entries = dict(made.entries)
        else:
            made.durable = contents.get(inode.number, inode.durable)
            made.content = bytearray(made.durable)
        return made

    return State(build(state.root, None), next_number=state.next_number, device=state.device)
