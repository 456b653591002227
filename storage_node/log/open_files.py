"""The files that logs keep open between two uses: no more than the process may have, the least recently used closed.

A segment's .log and a log's folder are opened when they are used and stay open until there are too many of them. Each
log directory has a share of its own, so that opening a file never closes one on another disk, which may hang in that.
A reader holds the `Handle` that it uses: its descriptor is closed when the last holder lets go of it.

Second chances stand for the order of use: a use costs one assignment, and whoever was used since the last look is
passed over once. So are segments with records that are not flushed, where others can be closed: Linux reports a write
that failed in the background to who opens the file afterwards (since 4.13), but only while it remembers the file.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from storage_node import descriptors

LEAST = 8
"""Files that a log directory may keep open, however low the limit is."""
FOLDERS = 64
"""Folders that a log directory keeps open: only files that are made or opened need them."""
_LOOKED_AT = 64
"""How many files are looked at, at most, to close one that was not used lately."""


class Handle:
    """An open descriptor that closes with its last reference.

    Whoever uses `fd` holds the handle meanwhile, by a name: in `home.folder().fd` the last reference may be gone before
    the number is used, and the number be another file's.
    """

    __slots__ = ("_counted", "fd", "used")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.used = False
        """Whether it was used again since it was opened, or since somebody looked for a file to close."""
        self._counted: set[int] | None = None

    def count_in(self, counted: set[int]) -> None:
        """Be one of these descriptors until it is closed."""
        self._counted = counted
        counted.add(self.fd)

    def __del__(self) -> None:
        if self._counted is not None:
            # Before the number can be another file's.
            self._counted.discard(self.fd)
        # What had to be durable was flushed before; there is nobody left to tell.
        with contextlib.suppress(OSError):
            os.close(self.fd)


class Holder(Protocol):
    """What has a file open that may be closed and opened again."""

    dirty: bool

    def kept_open(self) -> Handle | None:
        """The file as it is open now."""

    def let_go(self, handle: Handle) -> None:
        """Forget this handle; it is opened again by the next use."""


class Kept:
    """What one kind of holders in one log directory has open."""

    def __init__(self, most: Callable[[], int]) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._holders: OrderedDict[int, weakref.ref[Holder]] = OrderedDict()
        self._open: set[int] = set()

    def __len__(self) -> int:
        """Descriptors that are open, those included that were let go of and are still read from."""
        return len(self._open)

    @property
    def crowded(self) -> bool:
        """Whether more are open than may be kept: whoever can open his file again should not hold it."""
        return len(self._open) > self._most()

    def keep(self, holder: Holder, handle: Handle) -> None:
        """`holder` has just opened this; others that were not used lately let go of theirs where there are too many."""
        handle.count_in(self._open)
        key, holders = id(holder), self._holders
        # Without the lock: memory may be tidied up anywhere, also below.
        reference = weakref.ref(holder, lambda _: holders.pop(key, None))
        most = self._most()
        with self._lock:
            holders[key] = reference
            holders.move_to_end(key)
            if len(self._open) > most:
                self._make_room(holder, most)

    def _make_room(self, newest: Holder, most: int) -> None:
        # Half of them are kept, even if all others are held by readers: they let go in their time.
        while len(self._open) > most and len(self._holders) > max(LEAST, most // 2):
            if not self._close_one(newest):
                return

    def _close_one(self, newest: Holder) -> bool:
        """Have one that was not used lately let go, if possible one without records to be flushed."""
        dirty: Holder | None = None
        for _ in range(min(_LOOKED_AT, len(self._holders))):
            key, reference = self._holders.popitem(last=False)
            holder = reference()
            handle = holder.kept_open() if holder is not None else None
            if holder is None or handle is None:
                return True
            if handle.used or holder.dirty or holder is newest:
                if not handle.used and holder is not newest:
                    dirty = dirty or holder
                handle.used = False
                self._holders[key] = reference
                continue
            # The descriptor closes here, with the last reference, unless it is in use.
            holder.let_go(handle)
            return True
        if dirty is None:
            return False
        self._holders.pop(id(dirty), None)
        if (handle := dirty.kept_open()) is not None:
            dirty.let_go(handle)
        return True


class OpenFiles:
    """What the logs of one log directory keep open."""

    def __init__(self) -> None:
        self.segments = Kept(self._most)
        self.folders = Kept(lambda: min(FOLDERS, max(LEAST, self._most() // 8)))

    def _most(self) -> int:
        return max(LEAST, descriptors.most_kept_open() // max(1, len(_directories)))


_directories: weakref.WeakValueDictionary[str, OpenFiles] = weakref.WeakValueDictionary()
_directories_lock = threading.Lock()


def open_files(directory: str) -> OpenFiles:
    """What the logs in the folder of this path keep open; shared by all of them."""
    with _directories_lock:
        found = _directories.get(directory)
        if found is None:
            found = _directories[directory] = OpenFiles()
        return found
