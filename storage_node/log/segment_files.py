"""The files of a segment: creating, opening on demand, renaming and removing.

The .log is opened on first use and may be closed between two uses (see `open_files`). It is then reopened by its
present name and must be the same file: a symbolic link or another file in its place is an error.
"""

from __future__ import annotations

import errno
import os

from storage_node import failpoints
from storage_node.directories.atomic import NoRoom
from storage_node.errors import NotLeaderOrFollower
from storage_node.failpoints import failpoint
from storage_node.log.files import Handle, Home

LOG = ".log"
INDEX = ".index"
TIME_INDEX = ".timeindex"
DELETED = ".deleted"
SUFFIXES = (LOG, INDEX, TIME_INDEX, ".txnindex")
DIGITS = 20
"""Digits of the offset in a file's name."""

CREATE_AFTER_LOG = failpoints.register("log.create_after_log")


class LogClosed(NotLeaderOrFollower):
    """The log was closed during the call: its replica moved or was deleted, or the node is stopping."""


def file_name(base_offset: int, suffix: str) -> str:
    """Return the name of a segment's file."""
    return f"{base_offset:020d}{suffix}"


def offset_of(name: str, suffix: str) -> int | None:
    """Return the offset in the name of a segment's file or a snapshot; None if the name does not have that suffix."""
    stem = name.removesuffix(suffix)
    return int(stem) if stem != name and len(stem) == DIGITS and stem.isascii() and stem.isdigit() else None


def _create(home: Home, base_offset: int) -> Handle:
    """Create all of a segment's files or none; an existing .log is never overwritten."""
    log = home.open(file_name(base_offset, LOG), os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        failpoint(CREATE_AFTER_LOG)
        for suffix in (INDEX, TIME_INDEX):
            home.open(file_name(base_offset, suffix), os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    except OSError:
        for suffix in (LOG, INDEX, TIME_INDEX):
            home.unlink(file_name(base_offset, suffix))
        raise
    return log


class SegmentFiles:
    """A segment's files; raises OSError."""

    def __init__(self, home: Home, base_offset: int, *, create: bool) -> None:
        self.home = home
        self.base_offset = base_offset
        self.removed = False
        self.dirty = False
        """Whether bytes of the .log or index entries may not be on disk."""
        self._closed = False
        self._file: Handle | None = _create(home, base_offset) if create else None
        found = os.fstat(self._file.fd) if self._file is not None else home.look(file_name(base_offset, LOG))
        self._inode = found.st_ino
        self.size = found.st_size
        if self._file is not None:
            home.opened.segments.keep(self, self._file)

    @property
    def file(self) -> Handle:
        """The open .log, reopened if necessary; raises `LogClosed`, OSError. Hold it while its descriptor is used."""
        handle = self._file
        if handle is None:
            return self._open()
        handle.used = True
        return handle

    def _open(self) -> Handle:
        """Reopen the .log by its present name, and check that it is the same file."""
        while not self._closed:
            removed = self.removed
            handle = self._open_as(removed)
            if handle is None:
                if removed == self.removed:
                    break
                continue
            if os.fstat(handle.fd).st_ino != self._inode:
                name = file_name(self.base_offset, LOG)
                raise OSError(errno.EINVAL, "it was replaced by another file while the log was open", name)
            # Two threads may open it concurrently: each uses its own handle, and the last one's is kept.
            self._file = handle
            self.home.opened.segments.keep(self, handle)
            if self._closed:
                self._file = None
            return handle
        raise LogClosed(f"segment {self.base_offset} is closed")

    def _open_as(self, removed: bool) -> Handle | None:
        """Return the file, opened by the name that it has before or after `remove`; None if it was purged."""
        name = file_name(self.base_offset, LOG)
        for each in (name + DELETED, name, name + DELETED) if removed else (name,):
            try:
                return self.home.open(each)
            except FileNotFoundError:
                if not self.removed:
                    raise
        return None

    def kept_open(self) -> Handle | None:
        return self._file

    def let_go(self, handle: Handle) -> None:
        if self._file is handle:
            self._file = None

    def close(self) -> None:
        """Close the .log for good; a read in progress holds it open until it ends."""
        self._closed = True
        self._file = None

    def remove(self) -> None:
        """Rename the files to `.deleted`; this object can still read them until `purge`."""
        self.removed = True
        for suffix in SUFFIXES:
            name = file_name(self.base_offset, suffix)
            try:
                self.home.rename(name, name + DELETED)
            except NoRoom:
                # The directory has no room for a longer name: unlinking makes room, and readers have the file open.
                self.home.unlink(name)

    def purge(self) -> None:
        """Remove the files that `remove` renamed."""
        self.close()
        for suffix in SUFFIXES:
            self.home.unlink(file_name(self.base_offset, suffix) + DELETED)

    def modified_ms(self) -> int:
        """Return when the .log was last modified."""
        return self.home.look(file_name(self.base_offset, LOG)).st_mtime_ns // 1_000_000
