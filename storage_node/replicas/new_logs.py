"""Create the empty logs of new replicas in a log directory."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from storage_node.directories import names, partition_metadata
from storage_node.directories.atomic import fsync_dir, full_is_no_room, io_errors
from storage_node.directories.directory import LogDirectory
from storage_node.directories.io_faults import Fault, fault_of, reason_of
from storage_node.directories.layout import linked
from storage_node.errors import LogFlushError, RequestRefused, StorageError
from storage_node.log.config import LogConfig
from storage_node.log.log import Log
from storage_node.model.ids import TopicPartition
from storage_node.replicas import marker as markers
from storage_node.replicas.marker import Marker

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NewReplica:
    """A replica to create; a `generation` above 0 is written to its marker.

    So is `created_epoch`, which is -1 where all directories are online: see `Marker`.
    """

    tp: TopicPartition
    topic_id: str
    config: LogConfig
    generation: int = 0
    created_epoch: int = -1


Created = tuple[TopicPartition, str, Log]
"""A partition, its topic id, and its new log."""


def create_logs(
    directory: LogDirectory,
    wanted: Iterable[NewReplica],
    made: list[Created],
    refused: dict[TopicPartition, str],
) -> list[Created]:
    """Create new, empty logs in one directory, durable when this returns; runs in the directory's pool.

    Appends each to `made`, which it returns and whose growth others may watch. What cannot be created for reasons of
    its own (its name is taken, the disk is full) is left out, and `refused` gets the reason. Raises StorageError.
    """
    directory.check_online()
    for new in wanted:
        tp, topic_id, config = new.tp, new.topic_id, new.config
        path = directory.path / names.replica_name(tp)
        ours = False
        try:
            _mkdir(directory, path)
            ours = True
            if new.generation or new.created_epoch >= 0:
                markers.write(path, _marker(new, directory))
            if topic_id:
                partition_metadata.write(path, topic_id, directory=directory.name)
            made.append((tp, topic_id, Log.open(path, tp, config, directory=directory.name, clean=True)))
        except (RequestRefused, StorageError) as error:
            if isinstance(error, StorageError) and fault_of(error) is Fault.DISK:
                raise
            # A failure of one name, or of its space, does not prevent the others.
            log.error("%s cannot be created in %s: %s", tp, directory.path, reason_of(error))
            refused[tp] = reason_of(error)
            if ours:
                _unmake(path)
    if made:
        with io_errors(directory.name, "flushing the names of new replicas", LogFlushError):
            fsync_dir(directory.path)
    return made


def _marker(new: NewReplica, directory: LogDirectory) -> Marker:
    """Return the marker that makes this replica newer than what a failed directory may have of it."""
    return Marker(
        new.tp.topic,
        new.tp.partition,
        topic_id=new.topic_id,
        source_id=directory.id,
        generation=new.generation,
        created_epoch=new.created_epoch,
    )


def _mkdir(directory: LogDirectory, path: Path) -> None:
    with io_errors(directory.name, f"creating {path}"):
        try:
            with full_is_no_room():
                path.mkdir()
        except FileExistsError:
            # A crash left the folder during its creation, before anything was written to it: otherwise the start would
            # have served it.
            if path.is_symlink() or not path.is_dir():
                why = linked(path) or f"{path} is not a directory; inspect it and move it away"
                raise RequestRefused(why) from None
            if any(entry.suffix == ".log" for entry in path.iterdir()):
                raise RequestRefused(f"{path} holds a log already; inspect it and move it away") from None


def _unmake(path: Path) -> None:
    """Remove a replica's folder whose creation failed: the replica may be created elsewhere, and must not exist twice.

    If even this fails, a start recognizes the folder by its missing segments.
    """
    with contextlib.suppress(OSError):
        for entry in path.iterdir():
            entry.unlink()
        path.rmdir()
