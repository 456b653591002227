"""The files of a segment: made, opened when they are used, renamed and removed.

The .log is opened by the first use and may be closed between two (see `open_files`). It is then opened again by the
name that it has, and must be the same file: a symbolic link or another file in its place is an error.
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

CREATE_AFTER_LOG = failpoints.register("log.create_after_log")


class LogClosed(NotLeaderOrFollower):
    """The log was closed under the caller: its replica moved, was deleted, or the node stops."""


def file_name(base_offset: int, suffix: str) -> str:
    """The name of a segment's file."""
    return f"{base_offset:020d}{suffix}"


def _create(home: Home, base_offset: int) -> Handle:
    """Make a segment's files, or none of them; what exists is never overwritten."""
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
        """Whether bytes of the .log, or entries of the indexes, may not have reached the disk."""
        self._closed = False
        self._file: Handle | None = _create(home, base_offset) if create else None
        found = os.fstat(self._file.fd) if self._file is not None else home.look(file_name(base_offset, LOG))
        self._inode = found.st_ino
        self.size = found.st_size
        if self._file is not None:
            home.opened.segments.keep(self, self._file)

    @property
    def file(self) -> Handle:
        """The open .log, opened if it is not; raises `LogClosed`, OSError. Hold it while its descriptor is used."""
        handle = self._file
        if handle is None:
            return self._open()
        handle.used = True
        return handle

    def _open(self) -> Handle:
        """Open the .log again, the same that was found or made, by the name that it has now."""
        while not self._closed:
            removed = self.removed
            handle = self._open_as(removed)
            if handle is None:
                if removed == self.removed:
                    break
                continue
            if os.fstat(handle.fd).st_ino != self._inode:
                name = file_name(self.base_offset, LOG)
                raise OSError(errno.EINVAL, "it is not the file any more that was found at the start", name)
            # Two threads may come here at once: each uses its own, the last one's stays.
            self._file = handle
            self.home.opened.segments.keep(self, handle)
            if self._closed:
                self._file = None
            return handle
        raise LogClosed(f"segment {self.base_offset} is closed")

    def _open_as(self, removed: bool) -> Handle | None:
        """The file by its name, or by the one that `remove` gives it or is about to; None if it is removed and gone."""
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
        """Let go of the .log for good; a read under way keeps it open until it is done."""
        self._closed = True
        self._file = None

    def remove(self) -> None:
        """Rename the files to `.deleted`; they stay readable here until `purge`."""
        self.removed = True
        for suffix in SUFFIXES:
            name = file_name(self.base_offset, suffix)
            try:
                self.home.rename(name, name + DELETED)
            except NoRoom:
                # A folder without room for a longer name: it goes at once, which makes room. Who reads it has it open.
                self.home.unlink(name)

    def purge(self) -> None:
        """Remove the files that `remove` renamed."""
        self.close()
        for suffix in SUFFIXES:
            self.home.unlink(file_name(self.base_offset, suffix) + DELETED)

    def modified_ms(self) -> int:
        """When the .log was last written to."""
        return self.home.look(file_name(self.base_offset, LOG)).st_mtime_ns // 1_000_000
