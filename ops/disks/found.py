"""What the disks of a stopped broker hold, as values: directories, folders, and what reading a log found. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from storage_node.directories.meta.problems import Found as MetaFound
from storage_node.log.leader_epochs import LeaderEpochs
from storage_node.model.ids import TopicPartition
from storage_node.replicas.marker import Marker

__all__ = ["Copy", "Damage", "DamageKind", "DirectoryFound", "Folder", "FolderKind", "LogFound"]


class DamageKind(StrEnum):
    """What is wrong with a file of a log."""

    BATCH = "damaged batch"  # its CRC, its header or its offsets are wrong
    TRUNCATED = "truncated segment"  # batches are missing at the end of a segment that is not the last
    TORN_TAIL = "torn tail"  # the last segment ends with an unfinished batch or zeros
    UNREADABLE = "unreadable"  # an I/O error
    INDEX = "broken index"
    EPOCHS = "broken leader epochs"


#: What a log that has any of these is not whole by; the other kinds lose no records.
FATAL = frozenset({DamageKind.BATCH, DamageKind.TRUNCATED, DamageKind.UNREADABLE})


@dataclass(frozen=True, slots=True)
class Damage:
    """A damage: the file's name, the position in it in bytes, and the offset of the first record behind it."""

    kind: DamageKind
    file: str
    says: str
    position: int = 0
    offset: int = -1


_NO_EPOCHS: Final = LeaderEpochs()


@dataclass(frozen=True, slots=True)
class LogFound:
    """What reading all of a log found.

    `start` is the first segment's base offset, `end` the offset after the last batch before the first fatal damage,
    `reach` that after the last valid batch anywhere. `size` is the bytes of all .log files, `epochs` the (leader epoch,
    offset) at each change in the batches. `sparse`: offsets are missing inside segments, as after a compaction.
    """

    start: int = 0
    end: int = 0
    reach: int = 0
    size: int = 0
    batches: int = 0
    segments: int = 0
    epochs: LeaderEpochs = _NO_EPOCHS
    sparse: bool = False
    damages: tuple[Damage, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether every batch is valid and none is known to be missing; a torn tail is cut off by a start."""
        return not any(damage.kind in FATAL for damage in self.damages)


#: A log that was not read.
NOT_READ: Final = LogFound()


@dataclass(frozen=True, slots=True)
class Copy:
    """A folder under a replica's plain name.

    `topic_id` is "" without a partition.metadata, `topic_id_says` why that file cannot be used. `created_ns` is when
    it was written: the younger of two copies is the target of a move. `log_start` is that of the directory's
    checkpoint. `marker` is that of a storage node's move, None in Apache Kafka's folders. `same_as` has the folders of
    other copies whose batches, up to the shorter one's end, have the same offsets and CRCs.
    """

    tp: TopicPartition
    directory: str
    topic_id: str = ""
    topic_id_says: str = ""
    created_ns: int = 0
    log_start: int = 0
    log: LogFound = NOT_READ
    marker: Marker | None = None
    same_as: frozenset[str] = frozenset()

    @property
    def folder(self) -> str:
        return str(Path(self.directory) / str(self.tp))

    @property
    def start(self) -> int:
        """The first offset that the copy holds; a checkpoint beyond all records says nothing about that."""
        return self.log.start if self.starts_beyond else max(self.log.start, self.log_start)

    @property
    def starts_beyond(self) -> bool:
        """Whether the checkpointed log start offset lies beyond all of its records."""
        return self.log.size > 0 and self.log_start > self.log.reach


class FolderKind(StrEnum):
    """What a folder of a log directory is, apart from replicas."""

    FUTURE = "-future"
    DELETE = "-delete"
    STRAY = "-stray"
    MOVE = ".move"
    NODE_DELETE = ".delete"
    ASIDE = "set aside"  # by `rehome storage`, with the means to take it back
    COPYING = "unfinished copy"  # of `rehome storage move`
    METADATA = "metadata log"  # Apache Kafka's __cluster_metadata-0
    FOREIGN = "foreign"
    SYMLINK = "symlink"


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that is not a replica; `tp` is None where its name does not have it, `target` where a symlink leads."""

    directory: str
    name: str
    kind: FolderKind
    tp: TopicPartition | None = None
    target: str = ""

    @property
    def path(self) -> str:
        return str(Path(self.directory) / self.name)


@dataclass(frozen=True, slots=True)
class DirectoryFound:
    """A log directory: its meta.properties, how it was stopped, and its folders; `unreadable`: why it has none.

    `files_say` has the path and reason of each of its checkpoint files that is malformed.
    """

    path: str
    meta: MetaFound
    clean: bool = False
    copies: tuple[Copy, ...] = ()
    folders: tuple[Folder, ...] = ()
    unreadable: str = ""
    files_say: tuple[tuple[str, str], ...] = ()

    @property
    def id(self) -> str:
        """The directory id; "" if it is not known."""
        return (self.meta.properties.directory_id or "") if self.meta.properties else ""

    @property
    def of_node(self) -> bool:
        """Whether a storage node wrote its meta.properties (version 2), rather than Apache Kafka."""
        return self.meta.properties is not None and self.meta.properties.version >= 2
