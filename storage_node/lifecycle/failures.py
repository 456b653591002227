"""Record the failed log directories of this node, and report each to the controller until it is recorded there.

File `directory-failures` in every directory that is online: which directory failed, when and why, which replicas it
held, which moves that ended, and whether the controller has the report. A start forgets a directory that is online
again. If the file is lost, the next start finds the failures again, with a later time.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from storage_node.directories import atomic, json_file
from storage_node.directories.directory import LogDirectory
from storage_node.directories.manager import DirectoryManager
from storage_node.errors import StorageError
from storage_node.model.commands import DirectoryFailed, EndedMove, ReplicaDirectory
from storage_node.model.evidence import Sign, evidence_row, read_evidence, read_signs, sign_rows
from storage_node.model.ids import TopicPartition
from storage_node.model.image import ClusterImage
from storage_node.move.status import MoveStatus
from storage_node.replication.healing import MissingDirectory

log = logging.getLogger(__name__)

FILE: Final = "directory-failures"
VERSION: Final = 1
_PATIENCE: Final = 10.0  # seconds for one directory to write the file

Report = Callable[[DirectoryFailed, Callable[[], None]], None]


@dataclass(frozen=True, slots=True)
class _Known:
    failure: DirectoryFailed
    recorded: bool = False


@dataclass(slots=True)
class Failures:
    """The failed directories. Thread-safe.

    `report(failure, recorded)` is called for every failure that is not known to be recorded; it returns at once and
    calls `recorded` when the report cannot be lost any more.
    """

    incarnation: str
    report: Report
    now: Callable[[], float] = time.time
    _known: dict[str, _Known] = field(default_factory=dict)
    _replicas: dict[str, dict[TopicPartition, ReplicaDirectory]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _work: queue.SimpleQueue[Callable[[], None] | None] = field(default_factory=queue.SimpleQueue)
    _thread: threading.Thread | None = None
    _dirs: DirectoryManager | None = None
    _found: tuple[str, ...] = ()
    """The ids of the directories that were offline at the start."""

    # From start to stop

    def start(self, dirs: DirectoryManager, image: ClusterImage, node: int) -> None:
        """Read what earlier starts recorded, and record what has failed since the last of them.

        A directory whose meta.properties cannot be read gets the id that the image has for its path.
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
                        evidence=directory.evidence,
                    )
                )
            self._replicas[id_] = rows
        self._found = tuple(self._known)
        self._thread = threading.Thread(target=self._run, name="failures", daemon=True)
        self._thread.start()
        if self._known or noted:
            self._work.put(self._keep)

    def report_found(self, served: Collection[TopicPartition]) -> None:
        """Report the failures that `start` found, once the replicas are open; `served` are those in online directories.

        What is served is not in a failed directory: it was moved out of it without the controller's knowledge, or
        created again since. Reported as if it were, it would lose its leader.
        """
        with self._lock:
            self._drop(served)
            for known in [self._known[id_] for id_ in self._found if id_ in self._known]:
                if known.recorded:
                    continue
                kept = tuple(row for row in known.failure.replicas if row.partition not in served)
                failure = replace(known.failure, replicas=kept)
                self._known[failure.directory_id] = replace(known, failure=failure)
                self._work.put(partial(self._report, failure))

    def stop(self) -> None:
        """End; the next start reports what the controller has not recorded."""
        self._work.put(None)
        if self._thread is not None:
            self._thread.join(2 * _PATIENCE)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except Exception:
                log.exception("a failed log directory could not be reported or recorded")

    # News

    def note(
        self,
        directory: LogDirectory,
        reason: str,
        replicas: Iterable[ReplicaDirectory],
        moves: Iterable[MoveStatus],
        signs: tuple[Sign, ...] = (),
    ) -> None:
        """Record a failed directory: `replicas` were served from it, `moves` are those of the node, ended or not, and
        `signs` are what it showed before.

        One whose id is unknown is nowhere in the metadata, so there is nothing to report.
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
        failure = DirectoryFailed(
            directory.id, directory.name, reason, self.now(), self.incarnation, rows, ended, directory.evidence, signs
        )
        with self._lock:
            self._replicas.setdefault(directory.id, {}).update({row.partition: row for row in rows})
            if directory.id in self._known:
                return  # known since the start, or from an earlier failure
            self._known[directory.id] = _Known(failure)
        self._work.put(partial(self._report, failure))
        self._work.put(self._keep)

    def add_replicas(self, directory: LogDirectory, replicas: Iterable[ReplicaDirectory]) -> None:
        """Add replicas of a failed directory: those that were being created there when it failed.

        The metadata has no replicas of a directory without an id, so there is nothing to report.
        """
        if not directory.id:
            return
        with self._lock:
            self._replicas.setdefault(directory.id, {}).update({row.partition: row for row in replicas})

    def healed(self, directory_id: str) -> None:
        """Forget the failure of a directory that is online again, or was replaced."""
        with self._lock:
            self._replicas.pop(directory_id, None)
            known = self._known.pop(directory_id, None)
        if known is not None:
            self._work.put(self._keep)

    def missing(self, image: ClusterImage, node: int) -> tuple[MissingDirectory, ...]:
        """Return every known directory that is not online, and what the metadata and this node know of its failure."""
        dirs = self._dirs
        if dirs is None:
            return ()
        row, now = image.nodes.get(node), self.now()
        failed = {each.id for each in row.directories if not each.online} if row is not None else set()
        found = []
        with self._lock:
            noted = dict(self._known)
        for each in sorted(dirs.missing_ids()):
            directory, known = dirs.by_id(each), noted.get(each)
            path = directory.name if directory is not None else ""
            seconds = max(0.0, now - known.failure.noticed) if known is not None else 0.0
            found.append(MissingDirectory(each, path, known is not None and each in failed, seconds))
        return tuple(found)

    def _drop(self, served: Collection[TopicPartition]) -> None:
        for id_, rows in self._replicas.items():
            self._replicas[id_] = {tp: row for tp, row in rows.items() if tp not in served}

    def offline_replicas(self, served: Collection[TopicPartition]) -> tuple[ReplicaDirectory, ...]:
        """Return every replica in a directory that is offline, with that directory (KIP-858: the controller may not
        know), but those that are `served` from another one: they are not in it any more.
        """
        with self._lock:
            self._drop(served)
            return tuple(row for rows in self._replicas.values() for row in rows.values())

    def _report(self, failure: DirectoryFailed) -> None:
        self.report(failure, lambda: self._work.put(partial(self._note_recorded, failure)))

    def _note_recorded(self, failure: DirectoryFailed) -> None:
        with self._lock:
            known = self._known.get(failure.directory_id)
            if known is None or known.failure.noticed != failure.noticed:
                return
            self._known[failure.directory_id] = replace(known, recorded=True)
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
                log.warning("%s is not written: %s", FILE, error)
            except (FutureTimeout, RuntimeError):
                log.warning("%s is not written in %s, which does not respond", FILE, directory.path)


def _write(directory: LogDirectory, value: dict[str, Any] | None) -> None:
    if value is not None:
        json_file.write(directory, FILE, value)
        return
    with atomic.io_errors(directory.name, f"removing {FILE}"):
        atomic.remove(directory.path / FILE)


def _read(dirs: DirectoryManager) -> dict[str, _Known]:
    """Return the entries of all directories that are online: of two about one directory the later one."""
    found: dict[str, _Known] = {}
    for directory in dirs.online():
        for known in json_file.read(directory, FILE, _parse, list) or ():
            other = found.get(known.failure.directory_id)
            if other is None or (known.failure.noticed, known.recorded) > (other.failure.noticed, other.recorded):
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
        "evidence": None if one.evidence is None else evidence_row(one.evidence),
        "signs": sign_rows(one.signs),
        "recorded": known.recorded,
    }  # fmt: skip


def _known(row: Mapping[str, Any]) -> _Known:
    id_ = str(row["directory_id"])
    replicas = tuple(
        ReplicaDirectory(TopicPartition(str(topic), int(index)), str(topic_id), id_, int(generation))
        for topic, index, topic_id, generation in row["replicas"]
    )
    moves = tuple(EndedMove(TopicPartition(str(t), int(p)), *map(str, rest)) for t, p, *rest in row["moves"])
    failure = DirectoryFailed(
        id_,
        str(row["path"]),
        str(row["reason"]),
        float(row["noticed"]),
        str(row["incarnation"]),
        replicas,
        moves,
        read_evidence(row.get("evidence"), "$.evidence"),
        read_signs(row.get("signs"), "$.signs"),
    )
    return _Known(failure, bool(row["recorded"]))


def _identify(dirs: DirectoryManager, image: ClusterImage, node: int) -> None:
    registered = image.nodes.get(node)
    taken = {directory.id for directory in dirs.directories}
    for directory in dirs.directories:
        if not directory.id and registered is not None:
            named = [each.id for each in registered.directories if each.path == directory.name]
            ids = [each for each in named if each not in taken]
            directory.id = ids[0] if ids else ""


def assigned(image: ClusterImage, node: int, directory_id: str) -> list[ReplicaDirectory]:
    """Return the replicas that the metadata has in a directory."""
    return [
        ReplicaDirectory(TopicPartition(topic.name, row.index), topic.id, directory_id, row.generation_of(node))
        for topic in image.topics.values()
        for row in topic.partitions
        if row.directory_of(node) == directory_id
    ]
