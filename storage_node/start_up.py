"""What a start does before it serves: what is found on disk is decided per partition, carried out, the logs are opened.

Never needs the controller. Logs of a directory that was stopped cleanly are opened without a scan.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from storage_node.directories import health, partition_metadata
from storage_node.directories.clean_shutdown import CleanShutdown
from storage_node.directories.directory import LogDirectory
from storage_node.directories.errors import MalformedFile
from storage_node.directories.latch import file_of, reason_of
from storage_node.directories.manager import DirectoryManager
from storage_node.errors import RequestRefused, StorageError
from storage_node.log.config import LogConfig
from storage_node.log.log import Log
from storage_node.metadata import ClusterImage, PartitionImage
from storage_node.move import boot, boot_apply, boot_scan
from storage_node.move import marker as markers
from storage_node.move.boot_plan import BootPlan, Copy, Found, Rename, WriteMarker
from storage_node.move.marker import Reason
from storage_node.partition import Partition
from storage_node.producer_bounds import OpenedLogs
from storage_node.topic_configs import topic_config
from storage_node.types import TopicPartition

log = logging.getLogger(__name__)

#: How long the opening of a replica may take once its directory is offline, and between two looks at that, seconds.
_PATIENCE = 3.0
_LOOK = 0.2


@dataclass(frozen=True, slots=True)
class Left:
    """Folders that are not served: the topic ids in them, whether the image has another topic of that name, and the
    partition epoch that is remembered by a copy without its replica (-1: none).
    """

    topic_ids: frozenset[str]
    stranger: bool
    epoch: int = -1

    def elsewhere(self, row: PartitionImage | None, node: int) -> bool:
        """Whether other nodes hold the partition, by a row that is newer than what is remembered."""
        return not self.stranger and _elsewhere(row, node, self.epoch)


@dataclass(slots=True)
class Started:
    """What came of it: replicas to serve with their plans, and those that are offline with the reason."""

    partitions: list[Partition] = field(default_factory=list)
    plans: list[BootPlan] = field(default_factory=list)
    offline: dict[TopicPartition, str] = field(default_factory=dict)
    files: dict[TopicPartition, str] = field(default_factory=dict)
    """Of those offline, the file or folder that failed, where it is known."""
    left: dict[TopicPartition, Left] = field(default_factory=dict)
    """What stays offline by decision, and why a newer image may decide otherwise."""
    recovered_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Offsets:
    """A directory's checkpoints, and whether it was stopped cleanly."""

    recovery_points: Mapping[TopicPartition, int]
    log_starts: Mapping[TopicPartition, int]
    high_watermarks: Mapping[TopicPartition, int]
    clean: bool


@dataclass(frozen=True, slots=True)
class Opened:
    """A log that was opened, or why it was not; `again`: another directory failed on the way, decide without it."""

    plan: BootPlan
    partition: Partition | None = None
    reason: str = ""
    again: bool = False
    file: str = ""
    """The file or folder that failed, where it is known."""


def start_up(
    dirs: DirectoryManager,
    clean: Mapping[str, CleanShutdown],
    image: ClusterImage,
    node: int,
    defaults: LogConfig,
    threads: int,
    alone: Callable[[bool], None] = lambda _: None,
) -> Started:
    """Decide, repair and open everything; `threads` logs are opened at a time in each directory.

    `alone(False)` is called once all directories have been looked at: from then on one that hangs holds up nobody,
    until `alone(True)` is.

    A directory that fails on the way is offline in `dirs`; its replicas are offline, the others are not affected: what
    was to be written there for one of them is decided again without it.
    """
    offsets = {}
    for directory in dirs.online():
        try:
            offsets[directory.name] = _offsets(directory, clean)
        except StorageError as error:
            directory.fail(error)
    scanned = boot_scan.scan(dirs.online())
    for path, why in scanned.unknown.items():
        log.warning("%s is left alone: %s", path, why)
    started, found = Started(), scanned.found
    while found:
        plans = _decide(dirs.missing_ids(), found, image, node, started.left, started.files)
        alone(False)
        opened = _carry_out(dirs, plans, offsets, image, node, defaults, threads)
        alone(True)
        # (Each round has taken one more directory offline.)
        again = {each.plan.tp for each in opened if each.again}
        found = boot_scan.scan(dirs.online(), again).found if again else {}
        for each in opened:
            if each.plan.tp not in found:
                _collect(started, each)
        # What this round has renamed was not closed as what it is now.
        offsets = {name: replace(known, clean=False) for name, known in offsets.items()}
    for directory in dirs.online():
        _lower(directory, started.partitions)
    return started


def take_up(
    dirs: DirectoryManager,
    tps: Collection[TopicPartition],
    image: ClusterImage,
    node: int,
    defaults: LogConfig,
    run: boot_scan.Run[Any],
) -> Started:
    """Do what a start does for a few replicas alone, of which an earlier image did not know enough, on a node that
    runs: everything that touches a disk is done by `run`, or in threads that nobody waits for once it is offline.

    Raises StorageError when a directory cannot be looked at: nothing was decided then.
    """
    online = dirs.online()
    offsets = {directory.name: run(directory, partial(_offsets, directory, {})) for directory in online}
    looks = {directory: run(directory, partial(boot_scan.look, directory, tps)) for directory in online}
    started, found = Started(), boot_scan.together(looks, run).found
    for directory in online:
        directory.check_online()
    plans = _decide(dirs.missing_ids(), found, image, node, started.left, started.files)
    for each in _carry_out(dirs, plans, offsets, image, node, defaults, 1):
        _collect(started, each)
    for directory in {partition.directory for partition in started.partitions}:
        run(directory, partial(_lower, directory, started.partitions))
    return started


def _carry_out(
    dirs: DirectoryManager,
    plans: Iterable[BootPlan],
    offsets: Mapping[str, Offsets],
    image: ClusterImage,
    node: int,
    defaults: LogConfig,
    threads: int,
) -> list[Opened]:
    """Carry all plans out, those of several directories side by side."""
    pools: dict[str, ThreadPoolExecutor] = {}
    jobs: list[_Job | Opened] = []
    waiting = _Waiting(dirs)
    plans = list(plans)
    logs = OpenedLogs(len(plans))
    try:
        for plan in plans:
            own = _directory(dirs, plan)
            known = offsets.get(own.name) if own is not None else None
            if own is None or known is None:
                jobs.append(Opened(plan, reason=plan.reason))
                continue
            if own.name not in pools:
                name = f"open-{own.path.name}"
                pools[own.name] = ThreadPoolExecutor(max_workers=threads, thread_name_prefix=name)
            touched, applied = _touched(dirs, plan), threading.Event()
            future = pools[own.name].submit(_open, plan, own, known, image, node, defaults, dirs, applied, logs)
            jobs.append(_Job(plan, own, touched, future, applied))
        return [job if isinstance(job, Opened) else waiting.result(job) for job in jobs]
    finally:
        for name, pool in pools.items():
            hangs = name in waiting.stuck or not dirs.by_path(name).online
            pool.shutdown(wait=not hangs, cancel_futures=hangs)


def _lower(directory: LogDirectory, partitions: Iterable[Partition]) -> None:
    """Note which logs end before their recovery points: the next start would take what is appended now for flushed."""
    points = {
        partition.tp: partition.log.recovery_point for partition in partitions if partition.directory is directory
    }
    try:
        directory.recovery_points.lower(points)
    except StorageError as error:
        directory.fail_on(error)


@dataclass(frozen=True, slots=True)
class _Job:
    """A plan that a thread of its own directory carries out; `applied`: only that one is touched any more."""

    plan: BootPlan
    own: LogDirectory
    touched: tuple[LogDirectory, ...]
    future: Future[Opened]
    applied: threading.Event


@dataclass(slots=True)
class _Waiting:
    """Nobody waits long for what is done in a directory that is offline, which may be because it hangs."""

    dirs: DirectoryManager
    stuck: set[str] = field(default_factory=set)
    """Directories whose threads are kept by one that hangs, perhaps another."""
    _deadlines: dict[str, float] = field(default_factory=dict)
    """Until when all replicas together are waited for that such a directory concerns."""

    def result(self, job: _Job) -> Opened:
        """What became of a replica. One whose plan hangs in another directory is not decided again: its thread may
        still change something.
        """
        wait = _LOOK
        while True:
            touched = (job.own,) if job.applied.is_set() else job.touched
            offline = next((directory for directory in touched if not directory.online), None)
            if offline is not None and offline.name in self._deadlines:
                wait = max(0.0, min(self._deadlines[offline.name] - time.monotonic(), _LOOK))
            try:
                return job.future.result(wait)
            except TimeoutError:
                pass
            if offline is None:
                if job.own.name in self.stuck and job.future.cancel():
                    return Opened(job.plan, reason="what was to open it hangs in another directory", again=True)
            elif time.monotonic() >= self._deadlines.setdefault(offline.name, time.monotonic() + _PATIENCE):
                self.stuck.add(job.own.name)
                return Opened(job.plan, reason=f"log directory {offline.path} is offline: {offline.failure}")


def _offsets(directory: LogDirectory, clean: Mapping[str, CleanShutdown]) -> Offsets:
    """Read the checkpoints; a malformed file counts as empty, which is only slower. Raises StorageError."""
    files = (directory.recovery_points, directory.log_start_offsets, directory.high_watermarks)
    (points, _), (starts, _), (watermarks, _) = read = [file.read_lenient() for file in files]
    for problem in filter(None, (problem for _, problem in read)):
        log.warning("%s", problem)
    found = clean.get(directory.name)
    return Offsets(points, starts, watermarks, found is not None and found.clean)


def _decide(
    missing: frozenset[str],
    found: Mapping[TopicPartition, Found],
    image: ClusterImage,
    node: int,
    left: dict[TopicPartition, Left],
    files: dict[TopicPartition, str],
) -> list[BootPlan]:
    plans = []
    for tp, all_found in found.items():
        row = image.partition(tp)
        mine = row is not None and node in row.replicas
        topic = image.topics.get(tp.topic)
        what, gone = _apart(all_found, image)
        if gone is not None:
            plans.append(boot.decide(gone, missing, None, gone=Reason.TOPIC))
        if what is None:
            continue
        unreadable = [each for each in (*what.current, *what.move, *what.deletes) if each.unreadable]
        if unreadable:
            # What it holds may decide what the others are, so nothing is done to any of them.
            files[tp] = str(unreadable[0].path)
            plans.append(BootPlan(tp, (), "offline", unreadable[0].unreadable))
            continue
        ids = _topic_ids(what)
        stranger = topic is not None and bool(ids) and topic.id not in ids
        epoch = _copied_under(what)
        if not stranger and _elsewhere(row, node, epoch):
            plans.append(boot.decide(what, missing, None, gone=Reason.REASSIGNED))
            continue
        plan = boot.decide(
            what,
            missing,
            row.directory_of(node) if row is not None and mine and not stranger else None,
            row.generation_of(node) if row is not None and mine and not stranger else 0,
        )
        if stranger:
            reason = (
                f"its directory holds topic id {', '.join(sorted(ids))}, the metadata has another topic of that name"
            )
            plan = BootPlan(tp, (), "offline", reason)
        if plan.state == "offline":
            left[tp] = Left(frozenset(ids), stranger, epoch)
        plans.append(plan)
    return plans


def _apart(found: Found, image: ClusterImage) -> tuple[Found | None, Found | None]:
    """What is to be looked at, and what was left by a deleted topic: one of the same name may have come after it."""
    topic = image.topics.get(found.tp.topic)

    def gone(copy: Copy) -> bool:
        topic_id = copy.topic_id
        if topic is None:
            return topic_id in image.gone
        begun = copy.marker is not None and copy.marker.reason == Reason.TOPIC
        return bool(topic_id) and topic_id != topic.id and (begun or topic_id in image.gone)

    flags = {copy.path: gone(copy) for copy in (*found.current, *found.move, *found.deletes)}

    def only(wanted: bool) -> Found | None:
        def pick(copies: tuple[Copy, ...]) -> tuple[Copy, ...]:
            return tuple(copy for copy in copies if flags[copy.path] is wanted)

        taken = frozenset(path for path in flags if flags[path] is not wanted)
        return Found(found.tp, pick(found.current), pick(found.move), pick(found.deletes), taken)

    return only(False) if False in flags.values() else None, only(True) if True in flags.values() else None


def _copied_under(found: Found) -> int:
    """The newest partition epoch that a copy without its replica remembers, -1 where none does, or the replica is there
    and remembers it by itself.
    """
    if found.current or any(copy.can_come_back for copy in found.deletes):
        return -1
    return max((copy.marker.partition_epoch for copy in found.move if copy.marker is not None), default=-1)


def _elsewhere(row: PartitionImage | None, node: int, epoch: int) -> bool:
    """Whether a row newer than this partition epoch, under which the node held it, has it on other nodes alone."""
    return row is not None and node not in row.replicas and 0 <= epoch < row.partition_epoch


def _topic_ids(found: Found) -> set[str]:
    """The topic ids that the copies name, of `.delete`s only where there is nothing else."""
    return {copy.topic_id for copy in (*found.current, *found.move) or found.deletes} - {""}


def _directory(dirs: DirectoryManager, plan: BootPlan) -> LogDirectory | None:
    """The directory whose thread carries the plan out."""
    if plan.directory_id:
        return dirs.by_id(plan.directory_id)
    for action in plan.actions:
        if isinstance(action, WriteMarker):
            return dirs.by_path(action.path.parent)
    return None


def _touched(dirs: DirectoryManager, plan: BootPlan) -> tuple[LogDirectory, ...]:
    """The directories in which a plan writes, or opens the replica."""
    paths = [action.path for action in plan.actions if isinstance(action, WriteMarker)]
    paths += [action.source for action in plan.actions if isinstance(action, Rename)]
    paths += [plan.path] if plan.path is not None else []
    return tuple(dirs.by_path(name) for name in sorted({str(path.parent) for path in paths}))


def _open(
    plan: BootPlan,
    directory: LogDirectory,
    offsets: Offsets,
    image: ClusterImage,
    node: int,
    defaults: LogConfig,
    dirs: DirectoryManager,
    applied: threading.Event,
    logs: OpenedLogs,
) -> Opened:
    def check() -> None:
        # A disk that answers after it was given up changes nothing more.
        for each in _touched(dirs, plan):
            each.check_online()

    try:
        boot_apply.apply(plan, check)
        check()
        applied.set()
        if plan.state != "online" or plan.path is None:
            return Opened(plan, reason=plan.reason)
        partition = _open_log(plan, plan.path, directory, offsets, image, node, defaults)
        logs.add(partition.log)
        return Opened(plan, partition)
    except StorageError as error:
        # A plan may begin in another directory than where its replica is: with the source of a swap, say.
        dirs.handle(error)
        elsewhere = error.directory != directory.name and error.directory not in {each.name for each in dirs.online()}
        file = str(file_of(error, plan.path)) if plan.path is not None else ""
        return Opened(plan, reason=reason_of(error), again=elsewhere, file=file)
    except (RequestRefused, MalformedFile, markers.MarkerCorrupt) as error:
        log.error("%s: %s", plan.tp, error)
        return Opened(plan, reason=str(error))
    except Exception as error:
        # Whatever it is, the other replicas are not to wait for it.
        log.exception("%s cannot be opened", plan.tp)
        return Opened(plan, reason=f"{type(error).__name__}: {error}")


def _open_log(
    plan: BootPlan,
    path: Path,
    directory: LogDirectory,
    offsets: Offsets,
    image: ClusterImage,
    node: int,
    defaults: LogConfig,
) -> Partition:
    tp = plan.tp
    topic = image.topics.get(tp.topic)
    row = image.partition(tp)
    known = partition_metadata.read(path, directory=directory.name)
    if known is None and topic is not None:
        partition_metadata.write(path, topic.id, directory=directory.name)
        known = topic.id
    if row is not None and row.offline_on(node) is not None:
        # It went offline for a folder that takes no files, say: it is to stay so, not to fail anew with the next roll.
        health.probe(path, health.FILE, directory.name)
    # A replica that a plan has just renamed was not closed as what it is now: its checkpoint is another directory's.
    settled = not any(isinstance(action, Rename) for action in plan.actions)
    marker = markers.read(path)
    # What DeleteRecords took between the checkpoint of a swap and its seal stands in the seal.
    sealed_start = marker.log_start if marker is not None else 0
    opened = Log.open(
        path,
        tp,
        topic_config(topic, defaults) if topic is not None else defaults,
        directory=directory.name,
        recovery_point=offsets.recovery_points.get(tp, 0),
        log_start_offset=max(offsets.log_starts.get(tp, 0), sealed_start),
        clean=offsets.clean and settled,
    )
    return Partition(
        tp,
        known or "",
        opened,
        directory,
        leader_epoch=row.leader_epoch if row is not None else 0,
        generation=plan.generation,
        is_leader=row is not None and row.leader == node and len(row.replicas) == 1,
        high_watermark=offsets.high_watermarks.get(tp, 0),
    )


def _collect(started: Started, opened: Opened) -> None:
    plan = opened.plan
    if opened.partition is not None:
        started.partitions.append(opened.partition)
        started.recovered_bytes += opened.partition.log.recovered_bytes
    elif plan.state != "absent":
        started.offline[plan.tp] = opened.reason or "it could not be opened"
        if opened.file:
            started.files[plan.tp] = opened.file
        log.error("%s is offline: %s", plan.tp, started.offline[plan.tp])
    started.plans.append(plan)
