"""What this node knows of its failed log directories: told to the controller until it is taken, over a restart too.

File `directory-failures` in every directory that is online: which directory failed, when and why, which replicas it
held, which moves that ended, and whether the controller's side has taken the news. A directory that is online again at
a start is forgotten there. What is lost of the file is found out anew by the next start, with a later time.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from storage_node.directories import atomic, json_file
from storage_node.directories.directory import LogDirectory
from storage_node.directories.manager import DirectoryManager
from storage_node.errors import StorageError
from storage_node.metadata import ClusterImage
from storage_node.move.status import MoveStatus
from storage_node.ports import DirectoryFailed, EndedMove, ReplicaDirectory
from storage_node.types import TopicPartition

log = logging.getLogger(__name__)

FILE: Final = "directory-failures"
VERSION: Final = 1
_PATIENCE: Final = 10.0  # seconds for one directory to keep the file

Tell = Callable[[DirectoryFailed, Callable[[], None]], None]


@dataclass(frozen=True, slots=True)
class _Known:
    failure: DirectoryFailed
    told: bool = False


@dataclass(slots=True)
class Failures:
    """Thread-safe. `tell(failure, taken)` is called for every failure that is not known to be taken; it returns at once
    and calls `taken` when the news cannot be lost any more.
    """

    incarnation: str
    tell: Tell
    now: Callable[[], float] = time.time
    _known: dict[str, _Known] = field(default_factory=dict)
    _lost: dict[str, dict[TopicPartition, ReplicaDirectory]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _work: queue.SimpleQueue[Callable[[], None] | None] = field(default_factory=queue.SimpleQueue)
    _thread: threading.Thread | None = None
    _dirs: DirectoryManager | None = None

    # From start to stop

    def start(self, dirs: DirectoryManager, image: ClusterImage, node: int) -> None:
        """Read what earlier starts noted, and note what is offline now without having been online in between.

        A directory whose meta.properties cannot be read gets the id that the image knows for its path.
        """
        self._dirs = dirs
        _identify(dirs, image, node)
        noted = _read(dirs)
        offline = {directory.id: directory for directory in dirs.directories if directory.id and not directory.online}
        self._known = {id_: known for id_, known in noted.items() if id_ in offline}
        for id_, directory in offline.items():
            rows = {row.partition: row for row in assigned(image, node, id_)}
            if id_ in self._known:
                rows |= {row.partition: row for row in self._known[id_].failure.replicas}
            else:
                self._known[id_] = _Known(
                    DirectoryFailed(
                        id_,
                        directory.name,
                        directory.failure or "it was offline when the node started",
                        self.now(),
                        self.incarnation,
                        tuple(rows.values()),
                    )
                )
            self._lost[id_] = rows
        self._thread = threading.Thread(target=self._run, name="failures", daemon=True)
        self._thread.start()
        if self._known or noted:
            self._work.put(self._keep)
        for known in self._known.values():
            if not known.told:
                self._work.put(partial(self._tell, known.failure))

    def stop(self) -> None:
        """End; what is not taken yet is told by the next start."""
        self._work.put(None)
        if self._thread is not None:
            self._thread.join(2 * _PATIENCE)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except Exception:
                log.exception("a failed log directory could not be told or noted")

    # News

    def note(
        self,
        directory: LogDirectory,
        reason: str,
        replicas: Iterable[ReplicaDirectory],
        moves: Iterable[MoveStatus],
    ) -> None:
        """A directory has failed: `replicas` were served from it, `moves` are those of the node, ended or not.

        One whose id nobody knows is nowhere in the metadata, so there is nothing to tell of it.
        """
        if not directory.id:
            log.warning("%s is offline, and its directory id is not known: %s", directory.path, reason)
            return
        ended = tuple(
            EndedMove(move.tp, move.source, move.directory, move.owner, move.run_id, move.message)
            for move in moves
            if directory.name in (move.source, move.directory)
        )
        rows = tuple(replicas)
        failure = DirectoryFailed(directory.id, directory.name, reason, self.now(), self.incarnation, rows, ended)
        with self._lock:
            self._lost.setdefault(directory.id, {}).update({row.partition: row for row in rows})
            if directory.id in self._known:
                return  # known since the start, or from an earlier one
            self._known[directory.id] = _Known(failure)
        self._work.put(partial(self._tell, failure))
        self._work.put(self._keep)

    def lose(self, directory: LogDirectory, replicas: Iterable[ReplicaDirectory]) -> None:
        """More replicas of a failed directory: those that were being made there when it failed."""
        with self._lock:
            self._lost.setdefault(directory.id, {}).update({row.partition: row for row in replicas})

    def lost(self) -> tuple[ReplicaDirectory, ...]:
        """Every replica in a directory that is offline, with that directory (KIP-858: the controller may not have heard
        of it).
        """
        with self._lock:
            return tuple(row for rows in self._lost.values() for row in rows.values())

    def _tell(self, failure: DirectoryFailed) -> None:
        self.tell(failure, lambda: self._work.put(partial(self._taken, failure)))

    def _taken(self, failure: DirectoryFailed) -> None:
        with self._lock:
            known = self._known.get(failure.directory_id)
            if known is None or known.failure.noticed != failure.noticed:
                return
            self._known[failure.directory_id] = replace(known, told=True)
        self._keep()

    # The file

    def _keep(self) -> None:
        with self._lock:
            rows = [_row(known) for known in self._known.values()]
        value = {"version": VERSION, "failures": rows} if rows else None
        assert self._dirs is not None
        for directory in self._dirs.online():
            try:
                directory.submit(_write, directory, value).result(_PATIENCE)
            except StorageError as error:
                log.warning("%s is not kept: %s", FILE, error)
            except (FutureTimeout, RuntimeError):
                log.warning("%s is not kept in %s, which does not answer", FILE, directory.path)


def _write(directory: LogDirectory, value: dict[str, Any] | None) -> None:
    if value is not None:
        json_file.write(directory, FILE, value)
        return
    with atomic.io_errors(directory.name, f"removing {FILE}"):
        atomic.remove(directory.path / FILE)


def _read(dirs: DirectoryManager) -> dict[str, _Known]:
    """The entries of all directories that are online: of two about one directory the later one."""
    found: dict[str, _Known] = {}
    for directory in dirs.online():
        for known in json_file.read(directory, FILE, _parse, list) or ():
            other = found.get(known.failure.directory_id)
            if other is None or (known.failure.noticed, known.told) > (other.failure.noticed, other.told):
                found[known.failure.directory_id] = known
    return found


def _parse(value: Any) -> list[_Known]:
    return [_known(row) for row in value["failures"]]


def _tp(partition: TopicPartition) -> tuple[str, int]:
    return partition.topic, partition.partition


def _row(known: _Known) -> dict[str, Any]:
    one = known.failure
    return {
        "directory_id": one.directory_id,
        "path": one.path,
        "reason": one.reason,
        "noticed": one.noticed,
        "incarnation": one.incarnation,
        "replicas": [[*_tp(row.partition), row.topic_id, row.generation] for row in one.replicas],
        "moves": [[*_tp(move.partition), move.source, move.directory, move.owner, move.run_id, move.message]
                  for move in one.moves],
        "told": known.told,
    }  # fmt: skip


def _known(row: Mapping[str, Any]) -> _Known:
    id_ = str(row["directory_id"])
    replicas = tuple(
        ReplicaDirectory(TopicPartition(str(topic), int(index)), str(topic_id), id_, int(generation))
        for topic, index, topic_id, generation in row["replicas"]
    )
    moves = tuple(EndedMove(TopicPartition(str(t), int(p)), *map(str, rest)) for t, p, *rest in row["moves"])
    failure = DirectoryFailed(
        id_, str(row["path"]), str(row["reason"]), float(row["noticed"]), str(row["incarnation"]), replicas, moves
    )
    return _Known(failure, bool(row["told"]))


def _identify(dirs: DirectoryManager, image: ClusterImage, node: int) -> None:
    registered = image.nodes.get(node)
    taken = {directory.id for directory in dirs.directories}
    for directory in dirs.directories:
        if not directory.id and registered is not None:
            ids = [id_ for id_, path, _ in registered.directories if path == directory.name and id_ not in taken]
            directory.id = ids[0] if ids else ""


def assigned(image: ClusterImage, node: int, directory_id: str) -> list[ReplicaDirectory]:
    """The replicas that the metadata has in a directory."""
    return [
        ReplicaDirectory(TopicPartition(topic.name, row.partition), topic.id, directory_id, row.generation_of(node))
        for topic in image.topics.values()
        for row in topic.partitions.values()
        if row.directory_of(node) == directory_id
    ]
