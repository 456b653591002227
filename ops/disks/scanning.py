"""Scan the log directories of a stopped broker, Apache Kafka's or a storage node's. Changes nothing."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from ops.disks import aside
from ops.disks.aside import NoteKind
from ops.disks.found import Copy, DirectoryFound, Folder, FolderKind
from ops.disks.reading import Read, fingerprint, read_log
from storage_node.directories import atomic, clean_shutdown, names, partition_metadata
from storage_node.directories.checkpoints import HIGH_WATERMARKS, LOG_START_OFFSETS, RECOVERY_POINTS, OffsetCheckpoint
from storage_node.directories.errors import MalformedCheckpoint, MalformedPartitionMetadata
from storage_node.directories.formatting import inspect
from storage_node.directories.io_faults import reason_of
from storage_node.errors import StorageError
from storage_node.model.ids import TopicPartition
from storage_node.replicas import marker as markers

__all__ = ["CHECKPOINTS", "CLEANER", "look", "read_logs"]

CLEANER = "cleaner-offset-checkpoint"
CHECKPOINTS = (RECOVERY_POINTS, HIGH_WATERMARKS, LOG_START_OFFSETS, CLEANER)
"""A log directory's files of offsets by partition; the last is Apache Kafka's log cleaner's."""

_QUIET = frozenset({"remote-log-index-cache"})
_SUFFIXES = {
    "-future": FolderKind.FUTURE,
    "-delete": FolderKind.DELETE,
    "-stray": FolderKind.STRAY,
    ".move": FolderKind.MOVE,
    ".delete": FolderKind.NODE_DELETE,
}


def look(paths: Iterable[str]) -> list[DirectoryFound]:
    """Scan log directories, without reading the logs in them. Never raises for what a disk holds."""
    return [_directory(path) for path in paths]


def _directory(path: str) -> DirectoryFound:
    found = DirectoryFound(path, inspect(path))
    if found.meta.state == "missing":
        return found
    try:
        clean = clean_shutdown.decode(atomic.read_bytes(Path(path) / clean_shutdown.FILE, 4096)).clean
    except OSError:
        clean = False
    starts, says = _checkpoints(path)
    copies: list[Copy] = []
    folders: list[Folder] = []
    try:
        with os.scandir(path) as entries:
            listed = sorted((e.name, e.is_symlink()) for e in entries if e.is_dir() or _links_replica(e))
    except OSError as error:
        return replace(found, unreadable=reason_of(error))
    for name, symlink in listed:
        tp = names.parse(name).tp
        if name in _QUIET:
            continue
        if name == names.CLUSTER_METADATA:
            folders.append(Folder(path, name, FolderKind.METADATA))
        elif names.parse(name).kind == "current" and tp is not None and not symlink:
            copies.append(_copy(tp, path, starts.get(tp, 0)))
        elif symlink:
            folders.append(Folder(path, name, FolderKind.SYMLINK, tp, _target(Path(path) / name)))
        else:
            folders.append(_folder(path, name))
    return replace(found, clean=clean, copies=tuple(copies), folders=tuple(folders), files_say=tuple(says))


def _links_replica(entry: os.DirEntry[str]) -> bool:
    return entry.is_symlink() and names.parse(entry.name).tp is not None


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError as error:
        return reason_of(error)


def _folder(directory: str, name: str) -> Folder:
    parsed = names.parse(name)
    note = aside.read_note(Path(directory) / name) if parsed.kind == "stray" else None
    if note is not None:
        kind = FolderKind.COPYING if note.kind is NoteKind.COPY else FolderKind.ASIDE
        return Folder(directory, name, kind, note.tp)
    if parsed.kind == "other" and not parsed.id:
        return Folder(directory, name, FolderKind.FOREIGN)
    kind = next((kind for suffix, kind in _SUFFIXES.items() if name.endswith(suffix)), FolderKind.FOREIGN)
    return Folder(directory, name, kind, parsed.tp)


def _checkpoints(directory: str) -> tuple[dict[TopicPartition, int], list[tuple[str, str]]]:
    """Return the log start offsets, and which checkpoint files cannot be used, with the reason."""
    starts: dict[TopicPartition, int] = {}
    says: list[tuple[str, str]] = []
    for name in CHECKPOINTS:
        try:
            offsets = OffsetCheckpoint(directory, name).read()
        except MalformedCheckpoint as error:
            says.append((error.path, error.reason))
        except StorageError as error:
            says.append((str(Path(directory) / name), reason_of(error)))
        else:
            if name == LOG_START_OFFSETS:
                starts = offsets
    return starts, says


def _copy(tp: TopicPartition, directory: str, log_start: int) -> Copy:
    copy = Copy(tp, directory, log_start=log_start)
    folder = Path(copy.folder)
    try:
        created = (folder / partition_metadata.FILE).lstat().st_mtime_ns
        copy = replace(copy, topic_id=partition_metadata.read(folder, directory=directory) or "", created_ns=created)
    except FileNotFoundError:
        pass
    except (MalformedPartitionMetadata, OSError) as error:
        copy = replace(copy, topic_id_says=str(error))
    except StorageError as error:
        copy = replace(copy, topic_id_says=reason_of(error))
    try:
        return replace(copy, marker=markers.read(folder))
    except (markers.MarkerCorrupt, StorageError):
        return copy


def read_logs(
    found: Sequence[DirectoryFound], read: Read = lambda _: None, wanted: Callable[[Copy], bool] = lambda _: True
) -> list[DirectoryFound]:
    """Read the logs of all copies, or of those that are wanted, one thread per directory; compare what is there twice.

    `read` is called from these threads.
    """

    def one(directory: DirectoryFound) -> DirectoryFound:
        copies = tuple(
            replace(copy, log=read_log(Path(copy.folder), read)) if wanted(copy) else copy for copy in directory.copies
        )
        return replace(directory, copies=copies)

    with ThreadPoolExecutor(max_workers=max(1, len(found))) as threads:
        done = list(threads.map(one, found))
    by_tp: defaultdict[TopicPartition, list[Copy]] = defaultdict(list)
    for directory in done:
        for copy in directory.copies:
            if wanted(copy):
                by_tp[copy.tp].append(copy)
    same = {copy.folder: _same(copy, copies) for copies in by_tp.values() if len(copies) > 1 for copy in copies}
    return [
        replace(each, copies=tuple(replace(copy, same_as=same.get(copy.folder, frozenset())) for copy in each.copies))
        for each in done
    ]


def _same(copy: Copy, copies: Iterable[Copy]) -> frozenset[str]:
    """Return the folders of the other copies that have the same batches up to the shorter one's end."""
    same: set[str] = set()
    for other in copies:
        if other.folder == copy.folder:
            continue
        below = min(copy.log.end, other.log.end)
        from_ = max(copy.log.start, other.log.start)
        try:
            if fingerprint(Path(copy.folder), from_, below) == fingerprint(Path(other.folder), from_, below):
                same.add(other.folder)
        except OSError:
            continue
    return frozenset(same)
