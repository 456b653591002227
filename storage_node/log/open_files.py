"""A cache of the files that logs keep open: bounded per log directory, the least recently used closed first.

A segment's .log and a log's directory are opened on first use and stay open until there are too many. Each log
directory has its own share, so that opening a file never closes one on another disk, which may hang on close. A reader
holds the `Handle` that it uses; the descriptor is closed when the last holder releases it.

Eviction uses second chances (CLOCK): a use costs one assignment, and a file used since the last pass is skipped once.
So are segments with records that are not flushed, as long as others can be closed: Linux reports a failed write-back to
a process that opens the file later (since 4.13), but only while the kernel caches the inode.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from storage_node import descriptors
from storage_node.closing import Closer, close_quietly, closer_of

LEAST = 8
"""Files that a log directory may keep open, however low the descriptor limit is."""
FOLDERS = 64
"""Directories of logs that a log directory keeps open: needed only to create or open files."""
_LOOKED_AT = 64
"""Maximum number of files examined to find one to close."""


class Handle:
    """An open descriptor that is closed with its last reference, by `closer` where the directory has one.

    A user of `fd` must hold the handle in a variable meanwhile: in `home.folder().fd` the last reference may be dropped
    before the number is used, and the number may then be another file's.
    """

    __slots__ = ("_closer", "_counted", "fd", "used")

    def __init__(self, fd: int, closer: Closer | None = None) -> None:
        self.fd = fd
        self._closer = closer
        self.used = False
        """Whether the file was used since it was opened, or since the last search for a file to close."""
        self._counted: set[int] | None = None

    def count_in(self, counted: set[int]) -> None:
        """Add the descriptor to this set until it is closed."""
        self._counted = counted
        counted.add(self.fd)

    def __del__(self) -> None:
        if self._counted is not None:
            # Removed before the close, after which the number may be another file's.
            self._counted.discard(self.fd)
        if self._closer is not None:
            self._closer.close(self.fd)
        else:
            close_quietly(self.fd)


class Holder(Protocol):
    """An object with an open file that can be closed and reopened."""

    dirty: bool

    def kept_open(self) -> Handle | None:
        """Return the file that is open now."""

    def let_go(self, handle: Handle) -> None:
        """Drop this handle; the next use reopens the file."""


class Kept:
    """The open files of one kind (segments or directories) in one log directory."""

    def __init__(self, most: Callable[[], int]) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._holders: OrderedDict[int, weakref.ref[Holder]] = OrderedDict()
        self._open: set[int] = set()

    def __len__(self) -> int:
        """Return the number of open descriptors, including released ones that readers still hold."""
        return len(self._open)

    @property
    def crowded(self) -> bool:
        """Whether more files are open than may be kept; a caller that can reopen its file should not hold it then."""
        return len(self._open) > self._most()

    def keep(self, holder: Holder, handle: Handle) -> None:
        """Register a file that `holder` has just opened; close files not used lately if there are too many."""
        handle.count_in(self._open)
        key, holders = id(holder), self._holders
        # No lock: the garbage collector may run the callback anywhere, also inside the locked section below.
        reference = weakref.ref(holder, lambda _: holders.pop(key, None))
        most = self._most()
        with self._lock:
            holders[key] = reference
            holders.move_to_end(key)
            if len(self._open) > most:
                self._make_room(holder, most)

    def _make_room(self, newest: Holder, most: int) -> None:
        # At least half stay registered even if readers hold all others open; readers release theirs later.
        while len(self._open) > most and len(self._holders) > max(LEAST, most // 2):
            if not self._close_one(newest):
                return

    def _close_one(self, newest: Holder) -> bool:
        """Close a file that was not used lately, preferably one without unflushed records; return whether one was."""
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
            # The descriptor is closed here with the last reference, unless a reader holds it.
            holder.let_go(handle)
            return True
        if dirty is None:
            return False
        self._holders.pop(id(dirty), None)
        if (handle := dirty.kept_open()) is not None:
            dirty.let_go(handle)
        return True


class OpenFiles:
    """The open files of all logs in one log directory."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.segments = Kept(self._most)
        self.folders = Kept(lambda: min(FOLDERS, max(LEAST, self._most() // 8)))

    def handle(self, descriptor: int) -> Handle:
        """Return the owner of a file that was opened in the directory."""
        return Handle(descriptor, closer_of(self._directory))

    def _most(self) -> int:
        return max(LEAST, descriptors.most_kept_open() // max(1, len(_directories)))


_directories: weakref.WeakValueDictionary[str, OpenFiles] = weakref.WeakValueDictionary()
_directories_lock = threading.Lock()


def open_files(directory: str) -> OpenFiles:
    """Return the open files of the log directory with this path, shared by all its logs."""
    with _directories_lock:
        found = _directories.get(directory)
        if found is None:
            found = _directories[directory] = OpenFiles(directory)
        return found
