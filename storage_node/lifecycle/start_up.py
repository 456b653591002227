"""Start a node before it serves: decide per partition what is on disk, carry that out, and open the logs.

It never needs the controller. Logs of a directory that was stopped cleanly are opened without a scan.
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

from storage_node.config.changes import topic_config
from storage_node.directories import partition_metadata, probing
from storage_node.directories.clean_shutdown import CleanShutdown
from storage_node.directories.directory import LogDirectory
from storage_node.directories.errors import MalformedFile
from storage_node.directories.io_faults import file_of, reason_of
from storage_node.directories.manager import DirectoryManager
from storage_node.errors import LogStartBeyondEnd, RequestRefused, StorageError
from storage_node.log.config import LogConfig
from storage_node.log.log import Log
from storage_node.model.ids import TopicPartition
from storage_node.model.image import ClusterImage
from storage_node.model.metadata import PartitionImage
from storage_node.partitions.partition import Partition
from storage_node.partitions.producer_bounds import OpenedLogs
from storage_node.replicas import marker as markers
from storage_node.replicas.boot import apply, scan, table
from storage_node.replicas.boot.actions import Action, BootPlan, Copy, Found, Rename, WriteMarker
from storage_node.replicas.marker import Reason
from storage_node.replication import lost_replicas

log = logging.getLogger(__name__)

#: Seconds that the opening of a replica may take once its directory is offline, and between two checks of that.
_PATIENCE = 3.0
_LOOK = 0.2


@dataclass(frozen=True, slots=True)
class Left:
    """Folders that are not served: the topic ids in them, and whether the image has another topic of that name.

    `epoch` is the partition epoch in the marker of a copy without its replica (-1: none). `beyond`: all records lie
    below the log start offset, and are given up once another node is known to have them.
    """

    topic_ids: frozenset[str]
    stranger: bool
    epoch: int = -1
    beyond: bool = False

    def elsewhere(self, row: PartitionImage | None, node: int) -> bool:
        """Return whether other nodes hold the partition, by a row newer than `epoch`."""
        return not self.stranger and _elsewhere(row, node, self.epoch)


@dataclass(slots=True)
class Started:
    """The result of a start: replicas to serve with their plans, and those that are offline with the reason."""

    partitions: list[Partition] = field(default_factory=list)
    plans: list[BootPlan] = field(default_factory=list)
    offline: dict[TopicPartition, str] = field(default_factory=dict)
    files: dict[TopicPartition, str] = field(default_factory=dict)
    """Of offline replicas, the file or folder that failed, where it is known."""
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
    beyond: bool = False
    """See `Left`."""


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

    `alone(False)` is called once all directories have been read: from then on one that hangs does not block the start,
    until `alone(True)` is called.

    A directory that fails on the way is offline in `dirs`; its replicas are offline, and the others are not affected:
    what was to be written there for one of them is decided again without it.
    """
    offsets = {}
    for directory in dirs.online():
        try:
            offsets[directory.name] = _offsets(directory, clean)
        except StorageError as error:
            directory.fail(error)
    scanned = scan.scan(dirs.online())
    for path, why in scanned.unknown.items():
        log.warning("%s is left alone: %s", path, why)
    started, found = Started(), scanned.found
    while found:
        plans = _decide(dirs, found, image, node, started.left, started.files)
        alone(False)
        # The image on the disks may be older than the last change of the ISR.
        opened = _carry_out(dirs, plans, offsets, image, node, defaults, threads, registered=False)
        alone(True)
        # (Each round has taken one more directory offline.)
        again = {each.plan.tp for each in opened if each.again}
        found = scan.scan(dirs.online(), again).found if again else {}
        for each in opened:
            if each.plan.tp not in found:
                _collect(started, each)
        # A log that this round has renamed was not closed under its present name.
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
    run: scan.Run[Any],
    *,
    registered: bool = False,
) -> Started:
    """Start only a few replicas, about which an earlier image knew too little, on a running node.

    `registered`: the image comes from a controller that has registered this start of the node.
    Everything that touches a disk is done by `run`, or in threads that are not waited for once their disk is offline.
    Raises StorageError when a directory is unreadable, and then decides nothing.
    """
    online = dirs.online()
    offsets = {directory.name: run(directory, partial(_offsets, directory, {})) for directory in online}
    looks = {directory: run(directory, partial(scan.look, directory, tps)) for directory in online}
    started, found = Started(), scan.together(looks, run).found
    for directory in online:
        directory.check_online()
    plans = _decide(dirs, found, image, node, started.left, started.files)
    for each in _carry_out(dirs, plans, offsets, image, node, defaults, 1, registered=registered):
        _collect(started, each)
    for directory in {partition.directory for partition in started.partitions}:
        run(directory, partial(_lower, directory, started.partitions))
    return started


def set_aside_in(
    directory: LogDirectory,
    dirs: DirectoryManager,
    served: Mapping[TopicPartition, Path],
    image: ClusterImage,
    node: int,
    run: scan.Run[Any],
) -> tuple[list[BootPlan], dict[TopicPartition, str]]:
    """Decide about folders in a directory that has come back, of replicas that are `served` from another one, by path.

    A plan is carried out only in that directory, and only if it serves what is served already: it discards an older
    replica, and continues or cancels a copy. The second result has why the other folders are left to the next start.
    Raises StorageError.
    """
    looks = {each: run(each, partial(scan.look, each, served.keys())) for each in dirs.online()}
    plans: list[BootPlan] = []
    left: dict[TopicPartition, str] = {}
    for plan in _decide(dirs, scan.together(looks, run).found, image, node, {}, {}):
        if plan.state != "online" or plan.path != served[plan.tp]:
            left[plan.tp] = plan.reason or "what it holds is not older than the replica that is served"
            continue
        here = tuple(action for action in plan.actions if _in(action).parent == directory.path)
        plans.append(replace(plan, actions=here))
        run(directory, partial(apply.apply, plans[-1], directory.check_online))
    return plans, left


def _in(action: Action) -> Path:
    return action.source if isinstance(action, Rename) else action.path


def _carry_out(
    dirs: DirectoryManager,
    plans: Iterable[BootPlan],
    offsets: Mapping[str, Offsets],
    image: ClusterImage,
    node: int,
    defaults: LogConfig,
    threads: int,
    *,
    registered: bool,
) -> list[Opened]:
    """Carry all plans out, those of several directories in parallel."""
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
            row = image.partition(plan.tp) if registered else None
            missing = dirs.missing_ids()
            refetch = row is not None and not lost_replicas.why_not(row, node, registered=True, missing=missing)
            future = pools[own.name].submit(
                _open, plan, own, known, image, node, defaults, dirs, applied, logs, refetch
            )
            jobs.append(_Job(plan, own, touched, future, applied))
        return [job if isinstance(job, Opened) else waiting.result(job) for job in jobs]
    finally:
        for name, pool in pools.items():
            hangs = name in waiting.stuck or not dirs.by_path(name).online
            pool.shutdown(wait=not hangs, cancel_futures=hangs)


def _lower(directory: LogDirectory, partitions: Iterable[Partition]) -> None:
    """Lower the recovery points of logs that end before them: otherwise the next start would take what is appended now
    for flushed.
    """
    points = {
        partition.tp: partition.log.recovery_point for partition in partitions if partition.directory is directory
    }
    try:
        directory.recovery_points.lower(points)
    except StorageError as error:
        directory.fail_on(error)


@dataclass(frozen=True, slots=True)
class _Job:
    """A plan that a thread of its own directory carries out; `applied`: it touches only that directory from now on."""

    plan: BootPlan
    own: LogDirectory
    touched: tuple[LogDirectory, ...]
    future: Future[Opened]
    applied: threading.Event


@dataclass(slots=True)
class _Waiting:
    """The waits for jobs, short for those in a directory that is offline, which may be because it hangs."""

    dirs: DirectoryManager
    stuck: set[str] = field(default_factory=set)
    """Directories whose threads are blocked by one that hangs, perhaps another."""
    _deadlines: dict[str, float] = field(default_factory=dict)
    """The deadline for all replicas together that use such a directory."""

    def result(self, job: _Job) -> Opened:
        """Return the result for a replica. A plan that hangs in another directory is not decided again: its thread may
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
    dirs: DirectoryManager,
    found: Mapping[TopicPartition, Found],
    image: ClusterImage,
    node: int,
    left: dict[TopicPartition, Left],
    files: dict[TopicPartition, str],
) -> list[BootPlan]:
    plans = []
    missing, visible = dirs.missing_ids(), frozenset(directory.id for directory in dirs.online())
    for tp, all_found in found.items():
        row = image.partition(tp)
        mine = row is not None and node in row.replicas
        topic = image.topics.get(tp.topic)
        what, gone = _apart(_without_links(all_found, mine), image)
        if gone is not None:
            plans.append(table.decide(gone, missing, None, gone=Reason.TOPIC))
        if what is None:
            continue
        unreadable = [each for each in (*what.current, *what.move, *what.deletes) if each.unreadable]
        if unreadable:
            # Its content may decide what the others are, so nothing is done to any of them.
            files[tp] = str(unreadable[0].path)
            plans.append(BootPlan(tp, (), "offline", unreadable[0].unreadable))
            continue
        ids = _topic_ids(what)
        stranger = topic is not None and bool(ids) and topic.id not in ids
        epoch = _copied_under(what)
        if not stranger and _elsewhere(row, node, epoch):
            plans.append(table.decide(what, missing, None, gone=Reason.REASSIGNED))
            continue
        plan = table.decide(
            what,
            missing,
            row.directory_of(node) if row is not None and mine and not stranger else None,
            row.generation_of(node) if row is not None and mine and not stranger else 0,
            visible=visible,
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


def _without_links(found: Found, mine: bool) -> Found:
    """Return what counts: a symlink under the replica's name does if it is in the place of a replica of this node."""
    folders = tuple(copy for copy in found.current if not copy.link)
    return found if mine and not folders else replace(found, current=folders)


def _apart(found: Found, image: ClusterImage) -> tuple[Found | None, Found | None]:
    """Return what to decide, and what a deleted topic left: a topic of the same name may have been created after it."""
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
    """Return the newest partition epoch in the marker of a copy without its replica; -1 without one, or with its
    replica, which has its own.
    """
    if found.current or any(copy.can_come_back for copy in found.deletes):
        return -1
    return max((copy.marker.partition_epoch for copy in found.move if copy.marker is not None), default=-1)


def _elsewhere(row: PartitionImage | None, node: int, epoch: int) -> bool:
    """Return whether a row newer than `epoch`, under which the node held the partition, has it only on other nodes."""
    return row is not None and node not in row.replicas and 0 <= epoch < row.partition_epoch


def _topic_ids(found: Found) -> set[str]:
    """Return the topic ids that the copies name; those of `.delete`s only where there is nothing else."""
    return {copy.topic_id for copy in (*found.current, *found.move) or found.deletes} - {""}


def _directory(dirs: DirectoryManager, plan: BootPlan) -> LogDirectory | None:
    """Return the directory whose thread carries the plan out."""
    if plan.directory_id:
        return dirs.by_id(plan.directory_id)
    for action in plan.actions:
        if isinstance(action, WriteMarker):
            return dirs.by_path(action.path.parent)
    return None


def _touched(dirs: DirectoryManager, plan: BootPlan) -> tuple[LogDirectory, ...]:
    """Return the directories in which a plan writes, or opens the replica."""
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
    refetch: bool,
) -> Opened:
    def check() -> None:
        # A disk that responds after it was given up must not change anything more.
        for each in _touched(dirs, plan):
            each.check_online()

    try:
        with directory.working():
            apply.apply(plan, check)
            check()
            applied.set()
            if plan.state != "online" or plan.path is None:
                return Opened(plan, reason=plan.reason)
            partition = _open_log(plan, plan.path, directory, offsets, image, node, defaults, refetch)
            logs.add(partition.log)
            return Opened(plan, partition)
    except StorageError as error:
        # A plan may begin in another directory than its replica's: with the source of a swap, for example.
        dirs.handle(error)
        elsewhere = error.directory != directory.name and error.directory not in {each.name for each in dirs.online()}
        file = str(file_of(error, plan.path)) if plan.path is not None else ""
        return Opened(plan, reason=reason_of(error), again=elsewhere, file=file)
    except LogStartBeyondEnd as error:
        reason = _beyond(error, plan.tp, directory, offsets, image.partition(plan.tp), node)
        return Opened(plan, reason=reason, beyond=True)
    except (RequestRefused, MalformedFile, markers.MarkerCorrupt) as error:
        log.error("%s: %s", plan.tp, error)
        return Opened(plan, reason=str(error))
    except Exception as error:
        # The other replicas must not wait, whatever the error is.
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
    refetch: bool,
) -> Partition:
    tp = plan.tp
    topic = image.topics.get(tp.topic)
    row = image.partition(tp)
    known = partition_metadata.read(path, directory=directory.name)
    if known is None and topic is not None:
        partition_metadata.write(path, topic.id, directory=directory.name)
        known = topic.id
    if row is not None and row.offline_on(node) is not None:
        # It went offline because its folder was not writable, for example: it must stay offline, and not fail again
        # with the next roll.
        probing.probe(path, directory.name, name=probing.FILE)
    # A replica that a plan has just renamed was not closed under this name: its checkpoint is another directory's.
    settled = not any(isinstance(action, Rename) for action in plan.actions)
    marker = markers.read(path)
    opened = Log.open(
        path,
        tp,
        topic_config(topic, defaults) if topic is not None else defaults,
        directory=directory.name,
        recovery_point=offsets.recovery_points.get(tp, 0),
        log_start_offset=offsets.log_starts.get(tp, 0),
        sealed_start=(marker.log_start, marker.leader_epoch) if marker is not None else (0, -1),
        clean=offsets.clean and settled,
        refetch=refetch,
    )
    if refetch and offsets.log_starts.get(tp, 0) > opened.log_end_offset:
        # Otherwise the next start would find the records that are fetched from now on below it.
        directory.log_start_offsets.update({}, (tp,))
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


def _beyond(
    error: LogStartBeyondEnd,
    tp: TopicPartition,
    directory: LogDirectory,
    offsets: Offsets,
    row: PartitionImage | None,
    node: int,
) -> str:
    """Return why a replica is offline whose records all lie below its log start offset, and what ends that."""
    if row is not None and set(row.isr) != {node}:
        return f"{error.message}, until another node leads and this replica is out of the ISR: then it is fetched again"
    advice = "no other replica in sync has the records: put the newer copy of the folder back"
    if offsets.log_starts.get(tp, 0) == error.start:
        file = directory.log_start_offsets.path
        advice += f", or remove the replica's line from {file} and lower the number in its second line by one"
    return f"{error.message}; {advice}, and run: rehome replicas online {node} {tp}"


def _collect(started: Started, opened: Opened) -> None:
    plan = opened.plan
    if opened.partition is not None:
        started.partitions.append(opened.partition)
        started.recovered_bytes += opened.partition.log.recovered_bytes
    elif plan.state != "absent":
        started.offline[plan.tp] = opened.reason or "it could not be opened"
        if opened.beyond:
            started.left[plan.tp] = Left(frozenset(), stranger=False, beyond=True)
        if opened.file:
            started.files[plan.tp] = opened.file
        log.error("%s is offline: %s", plan.tp, started.offline[plan.tp])
    started.plans.append(plan)
