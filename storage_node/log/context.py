"""What the parts of one log share: whose log it is, its directory, its config, and whether it takes writes."""

from __future__ import annotations

import time

from storage_node.directories.atomic import NoRoom
from storage_node.errors import LogAppendError, NotEnoughSpace, StorageError
from storage_node.log.config import LogConfig
from storage_node.log.files import Home
from storage_node.log.segment_files import LogClosed
from storage_node.model.ids import TopicPartition


def wall_ms() -> int:
    """Return the milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class LogContext:
    """The context of one log. `directory` is the absolute log directory, named in errors; `home` the log's own."""

    __slots__ = ("broken", "closed", "config", "directory", "home", "names_dirty", "tp")

    def __init__(self, tp: TopicPartition, directory: str, home: Home, config: LogConfig) -> None:
        self.tp = tp
        self.directory = directory
        self.home = home
        self.config = config
        self.names_dirty = False
        """Whether files were created, renamed or removed since the log's directory was last flushed."""
        self.closed = False
        self.broken = False
        """Whether the files may hold a part of a failed append."""

    def refuse_closed(self) -> None:
        """Raise `LogClosed` if the log is closed, `LogAppendError` if a failed append was not cut off."""
        if self.closed:
            raise LogClosed(f"the log of {self.tp} in {self.directory} is closed")
        if self.broken:
            raise LogAppendError(self.directory, f"writing to the log of {self.tp}: a failed append was not cut off")

    def wrapped(self, error: type[StorageError], exc: OSError, doing: str, room: str = "") -> Exception:
        """Return what the log raises for an OSError: `error`, or with `room` NotEnoughSpace where the disk was full.

        `doing` and `room` are the operations before the partition's name: "rolling the log of", "to append to".
        """
        if room and isinstance(exc, NoRoom):
            return NotEnoughSpace(f"no space left on {self.directory} {room} {self.tp}")
        return error(self.directory, f"{doing} {self.tp}")
