"""The activities of a reassignment on one node: noting the preferred log directory of a new replica, observing it until
it is in sync, and awaiting the deletion of a removed one.

None of them changes the reassignment: the metadata does, and the node applies its image. Each reads the node's image
and disks first, so that it may be retried at any time, also after all has happened.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from temporalio import activity

from activities import reports
from activities.errors import classify, expected, given_up, raise_application_error
from storage_node.directories import names as directories
from storage_node.directories.directory import LogDirectory
from storage_node.errors import RequestRefused, StorageError
from storage_node.model.error_types import ErrorType
from storage_node.model.ids import TopicPartition
from storage_node.model.image import ClusterImage
from storage_node.model.reassignments import ReplicaOutcome, ReplicaState
from storage_node.replication.following import Kind
from storage_node.wire.client.log_sizes import log_sizes
from workflows.model import calls
from workflows.model.calls import AssignedReplica, ReassignCall, ReassignResult, ReplicaRow
from workflows.model.reassignment.runs import PartitionView, judge, read_rows
from workflows.model.reports import NEXT_REPORT, ReplicaReport

if TYPE_CHECKING:
    from storage_node.node import Node

log = logging.getLogger(__name__)

HEARTBEAT = 4.0  # seconds between two heartbeats: there may be hundreds of these
REPORT_PATIENCE = 2.0  # seconds for a report to arrive
FIRST_SIGNAL = 2.0  # seconds until the first report to the run
QUICKEST_LOOK, SLOWEST_LOOK = 0.05, 1.0  # seconds between two checks; grows with the time the step takes
DISK_LOOK = 1.0  # seconds between two listings of the disks
DISK_PATIENCE = 10.0  # seconds for the listing of a directory
SIZES_PATIENCE = 5.0  # seconds for a leader to respond with the sizes of its logs
RATE_SPAN = 2.0  # seconds over which a rate is measured, at least

Blocking = Callable[..., Awaitable[Any]]


class ReassignActivities:
    """The activities of one running node; `blocking` runs a call on a pool of threads."""

    def __init__(self, node: Node, blocking: Blocking) -> None:
        self._node, self._blocking = node, blocking
        self._steps: set[_Observation] = set()
        node.catching_up = self._catching_up

    def _catching_up(self) -> list[dict[str, Any]]:
        """Return a row for each replica that a step follows now; thread-safe."""
        return [asdict(row) for step in tuple(self._steps) if isinstance(step, _CatchingUp) for row in step.reports()]

    @property
    def short(self) -> list[Callable[..., Any]]:
        """Return the activities of the node's own queue."""
        return [self.place_replicas]

    @property
    def long(self) -> list[Callable[..., Any]]:
        """Return the activities of the queue of moves, which may take long."""
        return [self.catch_up, self.await_deletion]

    @activity.defn(name=calls.PLACE_REPLICAS)
    async def place_replicas(self, call: ReassignCall) -> ReassignResult:
        """Return the replicas' directories; note the preferred one of a replica that does not exist yet.

        Unless `call.wish` is set, a replica that does not exist is a failed row: it was in sync before.
        """
        try:
            return ReassignResult(await self._blocking(self._place, call))
        except Exception as error:
            raise_application_error(error, "preferred log directories cannot be noted")

    def _place(self, call: ReassignCall) -> list[ReplicaRow]:
        node, rows = self._node, []
        preferred: list[tuple[TopicPartition, LogDirectory]] = []
        for one in call.replicas:
            tp = TopicPartition(one.topic, one.partition)
            row = ReplicaRow(one.topic, one.partition, call.node, ReplicaOutcome.HELD, attempts=1)
            held = node.replicas.served.get(tp)
            try:
                target = node.dirs.by_path(one.directory)
                if held is not None:
                    rows.append(replace(row, directory=held.directory.name))
                    continue
                if tp in node.replicas.offline:
                    raise RequestRefused(f"{tp} is offline on node {node.id}: {node.replicas.offline[tp]}")
                if not call.wish:
                    raise RequestRefused(f"node {node.id} no longer hosts a replica of {tp}")
                target.check_online()
                preferred.append((tp, target))
                rows.append(replace(row, outcome=ReplicaOutcome.PREFERRED, directory=target.name))
            except (RequestRefused, StorageError) as error:
                found = classify(error)
                rows.append(replace(row, outcome=ReplicaOutcome.FAILED, error=found.type, message=found.message))
        if preferred:
            node.preferred_log_dirs.remember(preferred)
        return rows

    @activity.defn(name=calls.CATCH_UP)
    async def catch_up(self, call: ReassignCall) -> ReassignResult:
        """Observe the replicas until every reassignment has ended in the metadata."""
        return await self._observe(_CatchingUp(call, self._node, self._blocking), "observing replicas failed")

    @activity.defn(name=calls.AWAIT_DELETION)
    async def await_deletion(self, call: ReassignCall) -> ReassignResult:
        """Wait until this node has deleted the replicas that it no longer hosts."""
        return await self._observe(_Deleting(call, self._node, self._blocking), "awaiting deletions failed")

    async def _observe(self, step: _Observation, doing: str) -> ReassignResult:
        self._steps.add(step)
        try:
            return await step.run()
        except asyncio.CancelledError:
            if (error := given_up()) is not None:
                raise error from None
            raise
        except Exception as error:
            raise_application_error(error, doing)
        finally:
            self._steps.discard(step)


@dataclass(slots=True)
class _Seen:
    """One partition as this attempt observes it; `base` is the row of earlier attempts. Seconds, bytes."""

    assigned: AssignedReplica
    tp: TopicPartition
    base: ReplicaRow
    row: ReplicaRow
    since: float  # when it entered the state
    state: ReplicaState = ReplicaState.PENDING
    message: str = ""
    rate: float = 0.0
    marked: tuple[float, int] | None = None  # time and bytes from which the rate is measured


class _Observation(ABC):
    """One attempt of a step that observes its partitions until all have ended."""

    def __init__(self, call: ReassignCall, node: Node, blocking: Blocking) -> None:
        self._call, self._node, self._blocking = call, node, blocking
        self._pair = (call.generation, call.version)
        known = read_rows(call.facts)
        details = activity.info().heartbeat_details
        if details and isinstance(details[0], list):
            known |= read_rows(details[0])
        now = time.monotonic()
        self._open: list[_Seen] = []
        self._done: dict[TopicPartition, ReplicaRow] = {}
        for one in call.replicas:
            tp = TopicPartition(one.topic, one.partition)
            base = known.get((one.topic, one.partition)) or ReplicaRow(one.topic, one.partition, call.node, None)
            base = replace(base, outcome=None, error="", message="", attempts=base.attempts + 1)
            self._open.append(_Seen(one, tp, base, base, now))

    async def run(self) -> ReassignResult:
        """Return the rows in the order of the call."""
        started = beaten = time.monotonic()
        due = started + FIRST_SIGNAL
        activity.heartbeat(self._facts())
        while True:
            await self._look()
            if not self._open:
                return ReassignResult([self._done[TopicPartition(r.topic, r.partition)] for r in self._call.replicas])
            now = time.monotonic()
            if now - beaten >= HEARTBEAT:
                beaten = now
                activity.heartbeat(self._facts())
            if now >= due:
                pause = reports.pause(now - started)
                due = now + pause
                await self._measure()
                await self._report(pause)
            if activity.is_worker_shutdown():
                activity.heartbeat(self._facts())
                raise expected("the node stops", ErrorType.NODE_RESTARTED)
            await asyncio.sleep(min(SLOWEST_LOOK, max(QUICKEST_LOOK, (now - started) / 20)))

    @abstractmethod
    async def _look(self) -> None:
        """Check all open partitions once, and end those that have ended."""

    @abstractmethod
    async def _measure(self) -> None:
        """Measure the values that only reports need."""

    def _enter(self, seen: _Seen, state: ReplicaState, message: str = "") -> None:
        seen.message = message
        if seen.state != state:
            seen.state, seen.since, seen.marked, seen.rate = state, time.monotonic(), None, 0.0

    def _end(self, seen: _Seen, outcome: ReplicaOutcome, image: ClusterImage, message: str = "") -> None:
        row = image.partition(seen.tp)
        generation, version = image.pair
        self._done[seen.tp] = replace(
            seen.row,
            outcome=outcome,
            replicas=list(row.replicas) if row is not None else [],
            generation=generation,
            version=version,
            message=message,
        )
        self._open.remove(seen)

    def _spent(self, seen: _Seen, before: float) -> float:
        """Return the seconds before, with those in the current state."""
        return round(before + time.monotonic() - seen.since, 3)

    def _facts(self) -> list[ReplicaRow]:
        return [*(seen.row for seen in self._open), *self._done.values()]

    async def _report(self, next_in: float) -> None:
        """Signal the progress of the replicas to the run."""
        await reports.send(self.reports(next_in), REPORT_PATIENCE)

    def reports(self, next_in: float = NEXT_REPORT) -> list[ReplicaReport]:
        """Return the progress of the replicas that have not ended; thread-safe."""
        return [
            ReplicaReport(
                topic=seen.tp.topic,
                partition=seen.tp.partition,
                node=self._call.node,
                state=seen.state,
                message=seen.message,
                directory=seen.row.directory,
                bytes_total=seen.row.bytes_total,
                bytes_copied=seen.row.bytes_copied,
                rate=round(seen.rate, 1),
                seconds_placing=seen.row.seconds_placing,
                seconds_catching_up=seen.row.seconds_catching_up,
                seconds_deleting=seen.row.seconds_deleting,
                seconds_throttled=seen.row.seconds_throttled,
                attempts=seen.row.attempts,
                next_in=round(next_in, 3),
            )
            for seen in tuple(self._open)
        ]


class _CatchingUp(_Observation):
    """Observes replicas until each reassignment has ended in the metadata."""

    async def _look(self) -> None:
        image = self._node.metadata.image
        if image.pair < self._pair:
            for seen in self._open:
                self._enter(seen, ReplicaState.PENDING, "the node's metadata does not have the reassignment yet")
            return
        for seen in tuple(self._open):
            verdict = judge(
                seen.assigned.topic_id, seen.assigned.target, seen.assigned.original, partition_view(image, seen.tp)
            )
            self._observe_replica(seen, image)
            if verdict is not None:
                self._end(seen, verdict, image)

    def _observe_replica(self, seen: _Seen, image: ClusterImage) -> None:
        held = self._node.replicas.served.get(seen.tp)
        row = image.partition(seen.tp)
        self._count(seen)
        if held is None:
            reason = self._node.replicas.offline.get(seen.tp)
            if reason is not None:
                self._enter(seen, ReplicaState.OFFLINE, f"the replica on node {self._node.id} is offline: {reason}")
            elif row is not None and self._node.id in row.replicas:
                self._enter(seen, ReplicaState.PLACING)
            return
        size = held.log.size
        in_sync = row is not None and self._node.id in row.isr
        limit = None if in_sync else self._throttled_by(seen.tp)
        self._enter(seen, ReplicaState.IN_SYNC if in_sync else ReplicaState.CATCHING_UP, limit or "")
        total = size if in_sync else max(seen.row.bytes_total, size)
        seen.row = replace(seen.row, directory=held.directory.name, bytes_copied=size, bytes_total=total)
        self._measure_rate(seen, size)

    def _throttled_by(self, tp: TopicPartition) -> str | None:
        """Return the sentence for operators while this node's throttle delays the replica, else None."""
        place, quota = self._node.replica_fetchers.following(tp), self._node.quotas.follower
        if place is None or place.kind is not Kind.THROTTLED or quota.rate is None or quota.wait_seconds() <= 0:
            return None
        return f"the throttle of node {self._node.id} lets {quota.rate} bytes per second pass"

    def _count(self, seen: _Seen) -> None:
        """Add the time that has passed to the partition's state."""
        now = time.monotonic()
        spent, seen.since = now - seen.since, now
        row = seen.row
        if seen.state in (ReplicaState.PENDING, ReplicaState.PLACING):
            seen.row = replace(row, seconds_placing=round(row.seconds_placing + spent, 3))
        elif seen.state in (ReplicaState.CATCHING_UP, ReplicaState.OFFLINE):
            throttled = spent if seen.state is ReplicaState.CATCHING_UP and seen.message else 0.0
            seen.row = replace(
                row,
                seconds_catching_up=round(row.seconds_catching_up + spent, 3),
                seconds_throttled=round(row.seconds_throttled + throttled, 3),
            )
        elif seen.state is ReplicaState.IN_SYNC:
            seen.row = replace(row, seconds_in_sync=round(row.seconds_in_sync + spent, 3))

    @staticmethod
    def _measure_rate(seen: _Seen, size: int) -> None:
        now = time.monotonic()
        if seen.marked is None:
            seen.marked = now, size
            return
        since, before = seen.marked
        if now - since >= RATE_SPAN:
            latest = max(0, size - before) / (now - since)
            seen.rate = latest if seen.rate == 0 else 0.5 * (seen.rate + latest)
            seen.marked = now, size

    async def _measure(self) -> None:
        """Request the sizes of the leaders' logs, which are the bytes to copy."""
        image = self._node.metadata.image
        by_leader: dict[int, list[_Seen]] = {}
        for seen in self._open:
            row = image.partition(seen.tp)
            if row is not None and row.leader not in (-1, self._node.id):
                by_leader.setdefault(row.leader, []).append(seen)
        for leader, partitions in by_leader.items():
            where = image.nodes.get(leader)
            if where is None:
                continue
            try:
                sizes: dict[TopicPartition, int] = await self._blocking(
                    log_sizes, where.host, where.port, [seen.tp for seen in partitions], SIZES_PATIENCE
                )
            except (OSError, StorageError) as error:
                log.debug("node %d did not respond with the sizes of its logs: %s", leader, error)
                continue
            for seen in partitions:
                if seen.tp in sizes:
                    seen.row = replace(seen.row, bytes_total=max(sizes[seen.tp], seen.row.bytes_copied))


class _Deleting(_Observation):
    """Waits until the partitions are not on this node's disks, or the node hosts them again."""

    _looked = 0.0

    async def _look(self) -> None:
        image = self._node.metadata.image
        for seen in self._open:
            spent = self._spent(seen, seen.row.seconds_deleting)
            seen.since = time.monotonic()
            seen.row = replace(seen.row, seconds_deleting=spent)
            seen.state = ReplicaState.DELETING if image.pair >= self._pair else ReplicaState.PENDING
        if image.pair < self._pair or time.monotonic() - self._looked < DISK_LOOK:
            return
        left = await self._on_disk({seen.tp for seen in self._open})
        self._looked = time.monotonic()
        offline = [directory.name for directory in self._node.dirs.directories if not directory.online]
        for seen in tuple(self._open):
            row = image.partition(seen.tp)
            if row is not None and self._node.id in row.replicas:
                self._end(seen, ReplicaOutcome.KEPT, image)
            elif seen.tp in left:
                seen.message = f"{left[seen.tp]} on node {self._node.id} is not deleted yet"
            else:
                note = f"{', '.join(offline)} on node {self._node.id} is offline and may hold a copy" if offline else ""
                self._end(seen, ReplicaOutcome.DELETED, image, note)

    async def _measure(self) -> None:
        """Do nothing: deletions have no values to measure."""

    async def _on_disk(self, wanted: Collection[TopicPartition]) -> dict[TopicPartition, str]:
        """Return the folders of these partitions in online directories, also those of replicas that wait for their
        removal.

        A directory that does not respond may hold all of them.
        """
        found: dict[TopicPartition, str] = {}
        for directory in self._node.dirs.online():
            try:
                listing = asyncio.wrap_future(directory.submit(_replicas_in, directory))
                held = await asyncio.wait_for(listing, DISK_PATIENCE)
            except StorageError:
                continue  # The directory went offline.
            except (TimeoutError, OSError) as error:
                log.info("%s cannot be listed: %s", directory.path, error)
                found |= {tp: f"{directory.path}, which cannot be listed," for tp in wanted if tp not in found}
                continue
            found |= {tp: f"{directory.path}/{name}" for tp, name in held.items() if tp in wanted}
        return found


def _replicas_in(directory: LogDirectory) -> dict[TopicPartition, str]:
    """Return the partitions with a folder in a directory, with its name."""
    parsed = ((entry.name, directories.parse(entry.name).tp) for entry in directory.path.iterdir())
    return {tp: name for name, tp in parsed if tp is not None}


def partition_view(image: ClusterImage, tp: TopicPartition) -> PartitionView | None:
    """Return a partition in a node's image, None if it does not exist."""
    topic, row = image.topics.get(tp.topic), image.partition(tp)
    if topic is None or row is None:
        return None
    held = row.assignment
    sets = (held.replicas, held.adding, held.removing, held.original)
    return PartitionView(tp.topic, tp.partition, topic.id, *sets, row.isr, row.leader)
