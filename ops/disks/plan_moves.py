"""Plan the offline moves of a command: which replicas, from where, to which directory, with what room."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from ops.disks import offline_move
from ops.disks.copying import CopyFailed
from ops.disks.found import DirectoryFound, Folder, FolderKind
from ops.disks.moving import MoveRefused, assign, lacking, usable
from ops.disks.offline_move import Move
from ops.disks.reading import log_size
from storage_node.directories.io_faults import reason_of
from storage_node.model.ids import TopicPartition

__all__ = ["plan", "sizes"]

_UNFINISHED = (FolderKind.FUTURE, FolderKind.MOVE)


def plan(
    found: Sequence[DirectoryFound],
    targets: Sequence[str],
    source: str | None,
    wanted: Sequence[TopicPartition],
    *,
    keep: bool,
) -> tuple[list[Move], list[TopicPartition], dict[TopicPartition, str]]:
    """Return the moves, the replicas that are in a target already, and why others cannot be moved.

    All replicas of `source`, or those that are `wanted`. Raises MoveRefused, OSError if nothing can be moved.
    """
    by_path = {directory.path: directory for directory in found}
    begun = offline_move.begun(found)
    where: defaultdict[TopicPartition, list[str]] = defaultdict(list)
    for directory in found:
        for copy in directory.copies:
            where[copy.tp].append(directory.path)
    if source is not None:
        if by_path[source].unreadable or by_path[source].meta.state == "missing":
            raise MoveRefused(f"{source} cannot be read: {by_path[source].unreadable or 'it does not exist'}")
        here = {copy.tp for copy in by_path[source].copies}
        wanted = sorted(here | {tp for tp, (from_, _) in begun.items() if from_ == source})
    for path in targets:
        usable(by_path[path], [each for each in found if each.path != path])
    sources: dict[TopicPartition, str] = {}
    there: list[TopicPartition] = []
    failed: dict[TopicPartition, str] = {}
    for tp in dict.fromkeys(wanted):
        from_, to = begun.get(tp, ("", ""))
        # The note of an older move counts only while the replica is where that move has left it.
        if from_ in by_path and to in targets and where[tp] and {*where[tp]} <= {from_, to}:
            sources[tp] = from_
        elif not where[tp]:
            failed[tp] = "no log directory has it"
        elif len(where[tp]) > 1:
            listed = ", ".join(where[tp])
            failed[tp] = f"it is in several directories ({listed}); run: rehome storage repair -c FILE"
        elif where[tp][0] in targets and source is None:
            there.append(tp)
        else:
            sources[tp] = where[tp][0]
    rooms = [offline_move.room(path) for path in targets]
    estimate = {tp: log_size(Path(path) / str(tp)) for tp, path in sources.items()}
    chosen = assign(estimate, rooms, {tp: to for tp, (_, to) in begun.items() if to in targets})
    unfinished = _unfinished(found)
    moves = [Move(tp, by_path[sources[tp]], by_path[chosen[tp]], keep, tuple(unfinished[tp])) for tp in sorted(sources)]
    exact = sizes(moves, failed)
    for path, need, free in lacking(exact, chosen, rooms):
        raise MoveRefused(
            f"{path} has room for {free} bytes, and {need} are to be copied; free space, or name another directory"
        )
    return moves, there, failed


def sizes(moves: Iterable[Move], failed: dict[TopicPartition, str]) -> dict[TopicPartition, int]:
    """Return the bytes that each move still copies; a replica that cannot be read is added to `failed`."""
    left = {}
    for move in moves:
        if move.tp in failed:
            continue
        try:
            left[move.tp] = offline_move.left_to_copy(move)
        except CopyFailed as error:
            failed[move.tp] = str(error)
        except OSError as error:
            failed[move.tp] = reason_of(error)
    return left


def _unfinished(found: Iterable[DirectoryFound]) -> defaultdict[TopicPartition, list[Folder]]:
    folders: defaultdict[TopicPartition, list[Folder]] = defaultdict(list)
    for directory in found:
        for folder in directory.folders:
            if folder.kind in _UNFINISHED and folder.tp is not None:
                folders[folder.tp].append(folder)
    return folders
