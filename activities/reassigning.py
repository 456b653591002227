"""The activities of a reassignment on one node: noting where its replica is to be made, looking on while it catches up,
and waiting until a dropped one is deleted.

None of them changes the reassignment: the metadata does, and the node follows its image. Each looks at the node's image
and disks first, so that it may be tried again at any time, and be right when everything happened before.
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
from activities.errors import classify, disowned, expected, raise_application_error
from activities.log_sizes import log_sizes
from storage_node.directories import names as directories
from storage_node.directories.directory import LogDirectory
from storage_node.errors import RequestRefused, StorageError
from storage_node.metadata import ClusterImage
from storage_node.replication.following import Kind
from storage_node.types import TopicPartition
from workflows import errors as types
from workflows.model import calls
from workflows.model.calls import AssignedReplica, ReassignCall, ReassignResult, ReplicaRow
from workflows.model.reassignment_runs import UNDER_WAY, Standing, judge, read_rows

if TYPE_CHECKING:
    from storage_node.node import Node

log = logging.getLogger(__name__)

HEARTBEAT = 4.0  # seconds between two heartbeats: there may be hundreds of these
REPORT_PATIENCE = 2.0  # seconds for a report to arrive
FIRST_SIGNAL = 2.0  # seconds after which the run hears of a step for the first time
QUICKEST_LOOK, SLOWEST_LOOK = 0.05, 1.0  # seconds between two looks; grows with the time the step takes
DISK_LOOK = 1.0  # seconds between two looks at the disks
DISK_PATIENCE = 10.0  # seconds for a directory to say what it holds
SIZES_PATIENCE = 5.0  # seconds for a leader to say how large its logs are
RATE_SPAN = 2.0  # seconds over which a rate is measured, at least

# What a replica is at (`state` in reports).
UNTOLD = "untold"  # the node has not heard of the reassignment yet
PLACING = "placing"  # there is no replica yet
OFFLINE = "offline"  # there is one, or should be, and its directory is offline
CATCHING_UP = "catching_up"
IN_SYNC = "in_sync"  # the others are waited for
DELETING = "deleting"

Blocking = Callable[..., Awaitable[Any]]


class ReassignActivities:
    """Bound to one running node; `blocking` runs a call on a pool of threads."""

    def __init__(self, node: Node, blocking: Blocking) -> None:
        self._node, self._blocking = node, blocking
        self._steps: set[_LookingOn] = set()
        node.catching_up = self._catching_up

    def _catching_up(self) -> list[dict[str, Any]]:
        """A row for each replica that a step sees now; on any thread."""
        return [row for step in tuple(self._steps) if isinstance(step, _CatchingUp) for row in step.rows()]

    @property
    def short(self) -> list[Callable[..., Any]]:
        """What the node's own queue serves."""
        return [self.place_replicas]

    @property
    def long(self) -> list[Callable[..., Any]]:
        """What the queue of copies serves: it takes as long as it takes."""
        return [self.catch_up, self.await_deletion]

    @activity.defn(name=calls.PLACE_REPLICAS)
    async def place_replicas(self, call: ReassignCall) -> ReassignResult:
        """Say where the replicas are; a directory asked for a replica that is not there yet is remembered, unless the
        call says that there is one (it was in sync): then the row has failed.
        """
        try:
            return ReassignResult(await self._blocking(self._place, call))
        except Exception as error:
            raise_application_error(error, "directories cannot be noted")

    def _place(self, call: ReassignCall) -> list[ReplicaRow]:
        node, rows = self._node, []
        wishes: list[tuple[TopicPartition, LogDirectory]] = []
        for one in call.replicas:
            tp = TopicPartition(one.topic, one.partition)
            row = ReplicaRow(one.topic, one.partition, call.node, calls.HELD, attempts=1)
            held = node.replicas.served.get(tp)
            try:
                target = node.dirs.by_path(one.directory)
                if held is not None:
                    rows.append(replace(row, directory=held.directory.name))
                    continue
                if tp in node.replicas.offline:
                    raise RequestRefused(f"{tp} is offline on node {node.id}: {node.replicas.offline[tp]}")
                if not call.wish:
                    raise RequestRefused(f"node {node.id} holds no replica of {tp} any more")
                target.check_online()
                wishes.append((tp, target))
                rows.append(replace(row, outcome=calls.WISHED, directory=target.name))
            except (RequestRefused, StorageError) as error:
                found = classify(error)
                rows.append(replace(row, outcome=calls.FAILED, error=found.type, message=found.message))
        if wishes:
            node.wishes.remember(wishes)
        return rows

    @activity.defn(name=calls.CATCH_UP)
    async def catch_up(self, call: ReassignCall) -> ReassignResult:
        """Look on until the metadata says of every partition how its reassignment ends."""
        return await self._looking_on(_CatchingUp(call, self._node, self._blocking), "catching up is not seen")

    @activity.defn(name=calls.AWAIT_DELETION)
    async def await_deletion(self, call: ReassignCall) -> ReassignResult:
        """Wait until this node has deleted what it is not to hold any more."""
        return await self._looking_on(_Deleting(call, self._node, self._blocking), "deletions are not seen")

    async def _looking_on(self, step: _LookingOn, doing: str) -> ReassignResult:
        self._steps.add(step)
        try:
            return await step.run()
        except asyncio.CancelledError:
            if (error := disowned()) is not None:
                raise error from None
            raise
        except Exception as error:
            raise_application_error(error, doing)
        finally:
            self._steps.discard(step)


@dataclass(slots=True)
class _Seen:
    """One partition as this attempt has seen it; `base` is what earlier attempts knew. Seconds, bytes."""

    asked: AssignedReplica
    tp: TopicPartition
    base: ReplicaRow
    row: ReplicaRow
    since: float  # when the state was entered
    state: str = UNTOLD
    message: str = ""
    rate: float = 0.0
    marked: tuple[float, int] | None = None  # from when and how many bytes the rate is measured


class _LookingOn(ABC):
    """One attempt at a step that looks on until all of its partitions have ended."""

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
            base = known.get((one.topic, one.partition)) or ReplicaRow(one.topic, one.partition, call.node, "")
            base = replace(base, outcome="", error="", message="", attempts=base.attempts + 1)
            self._open.append(_Seen(one, tp, base, base, now))

    async def run(self) -> ReassignResult:
        """Rows in the order asked for."""
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
                raise expected("the node stops", types.NODE_RESTARTED)
            await asyncio.sleep(min(SLOWEST_LOOK, max(QUICKEST_LOOK, (now - started) / 20)))

    @abstractmethod
    async def _look(self) -> None:
        """Look at everything once, and end what has ended."""

    @abstractmethod
    async def _measure(self) -> None:
        """Find out what is only worth the trouble for a report."""

    def _enter(self, seen: _Seen, state: str, message: str = "") -> None:
        seen.message = message
        if seen.state != state:
            seen.state, seen.since, seen.marked, seen.rate = state, time.monotonic(), None, 0.0

    def _end(self, seen: _Seen, outcome: str, image: ClusterImage, message: str = "") -> None:
        row = image.partition(seen.tp)
        generation, version = image.age
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
        """Seconds of a kind, with those that pass now."""
        return round(before + time.monotonic() - seen.since, 3)

    def _facts(self) -> list[dict[str, Any]]:
        return [asdict(seen.row) for seen in self._open] + [asdict(row) for row in self._done.values()]

    async def _report(self, next_in: float) -> None:
        """Tell the run how far the replicas are."""
        await reports.tell([{**row, "next_in": round(next_in, 3)} for row in self.rows()], REPORT_PATIENCE)

    def rows(self) -> list[dict[str, Any]]:
        """Return the progress of the replicas that have not ended; on any thread."""
        return [
            {
                "topic": seen.tp.topic,
                "partition": seen.tp.partition,
                "node": self._call.node,
                "state": seen.state,
                "message": seen.message,
                "directory": seen.row.directory,
                "bytes_total": seen.row.bytes_total,
                "bytes_copied": seen.row.bytes_copied,
                "rate": round(seen.rate, 1),
                "seconds_placing": seen.row.seconds_placing,
                "seconds_catching_up": seen.row.seconds_catching_up,
                "seconds_deleting": seen.row.seconds_deleting,
                "seconds_throttled": seen.row.seconds_throttled,
                "attempts": seen.row.attempts,
            }
            for seen in tuple(self._open)
        ]


class _CatchingUp(_LookingOn):
    """Until the metadata says how each reassignment ends."""

    async def _look(self) -> None:
        image = self._node.metadata.image
        if image.age < self._pair:
            for seen in self._open:
                self._enter(seen, UNTOLD, "the node has not heard of the reassignment yet")
            return
        for seen in tuple(self._open):
            verdict = judge(seen.asked.topic_id, seen.asked.target, seen.asked.original, standing(image, seen.tp))
            self._look_at(seen, image)
            if verdict != UNDER_WAY:
                self._end(seen, verdict, image)

    def _look_at(self, seen: _Seen, image: ClusterImage) -> None:
        held = self._node.replicas.served.get(seen.tp)
        row = image.partition(seen.tp)
        self._count(seen)
        if held is None:
            reason = self._node.replicas.offline.get(seen.tp)
            if reason is not None:
                self._enter(seen, OFFLINE, f"the replica on node {self._node.id} is offline: {reason}")
            elif row is not None and self._node.id in row.replicas:
                self._enter(seen, PLACING)
            return
        size = held.log.size
        in_sync = row is not None and self._node.id in row.isr
        limit = None if in_sync else self._held_by(seen.tp)
        self._enter(seen, IN_SYNC if in_sync else CATCHING_UP, limit or "")
        total = size if in_sync else max(seen.row.bytes_total, size)
        seen.row = replace(seen.row, directory=held.directory.name, bytes_copied=size, bytes_total=total)
        self._measure_rate(seen, size)

    def _held_by(self, tp: TopicPartition) -> str | None:
        """The sentence that says so while this node's throttle holds the replica up."""
        place, quota = self._node.fetchers.following(tp), self._node.quotas.follower
        if place is None or place.kind is not Kind.THROTTLED or quota.rate is None or quota.wait_seconds() <= 0:
            return None
        return f"the throttle of node {self._node.id} lets {quota.rate} bytes per second pass"

    def _count(self, seen: _Seen) -> None:
        """Add up the time in the state that it is in."""
        now = time.monotonic()
        spent, seen.since = now - seen.since, now
        row = seen.row
        if seen.state in (UNTOLD, PLACING):
            seen.row = replace(row, seconds_placing=round(row.seconds_placing + spent, 3))
        elif seen.state in (CATCHING_UP, OFFLINE):
            throttled = spent if seen.state == CATCHING_UP and seen.message else 0.0
            seen.row = replace(
                row,
                seconds_catching_up=round(row.seconds_catching_up + spent, 3),
                seconds_throttled=round(row.seconds_throttled + throttled, 3),
            )
        elif seen.state == IN_SYNC:
            seen.row = replace(row, seconds_waiting=round(row.seconds_waiting + spent, 3))

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
        """Ask the leaders how large their logs are: that is what there is to copy."""
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
                log.debug("node %d does not say how large its logs are: %s", leader, error)
                continue
            for seen in partitions:
                if seen.tp in sizes:
                    seen.row = replace(seen.row, bytes_total=max(sizes[seen.tp], seen.row.bytes_copied))


class _Deleting(_LookingOn):
    """Until nothing of the partitions is on this node's disks, or the node is to hold them again."""

    _looked = 0.0

    async def _look(self) -> None:
        image = self._node.metadata.image
        for seen in self._open:
            spent = self._spent(seen, seen.row.seconds_deleting)
            seen.since = time.monotonic()
            seen.row = replace(seen.row, seconds_deleting=spent)
            seen.state = DELETING if image.age >= self._pair else UNTOLD
        if image.age < self._pair or time.monotonic() - self._looked < DISK_LOOK:
            return
        left = await self._on_disk({seen.tp for seen in self._open})
        self._looked = time.monotonic()
        offline = [directory.name for directory in self._node.dirs.directories if not directory.online]
        for seen in tuple(self._open):
            row = image.partition(seen.tp)
            if row is not None and self._node.id in row.replicas:
                self._end(seen, calls.KEPT, image)
            elif seen.tp in left:
                seen.message = f"{left[seen.tp]} on node {self._node.id} is not deleted yet"
            else:
                note = f"{', '.join(offline)} on node {self._node.id} is offline and may hold a copy" if offline else ""
                self._end(seen, calls.DELETED, image, note)

    async def _measure(self) -> None:
        """There is nothing to measure."""

    async def _on_disk(self, wanted: Collection[TopicPartition]) -> dict[TopicPartition, str]:
        """Where something of these partitions is, in directories that are online; a copy that waits for its removal
        counts.

        A directory that does not answer may hold all of them.
        """
        found: dict[TopicPartition, str] = {}
        for directory in self._node.dirs.online():
            try:
                listing = asyncio.wrap_future(directory.submit(_replicas_in, directory))
                there = await asyncio.wait_for(listing, DISK_PATIENCE)
            except StorageError:
                continue  # offline by now
            except (TimeoutError, OSError) as error:
                log.info("%s cannot be looked into: %s", directory.path, error)
                found |= {tp: f"whatever {directory.path} holds" for tp in wanted if tp not in found}
                continue
            found |= {tp: f"{directory.path}/{name}" for tp, name in there.items() if tp in wanted}
        return found


def _replicas_in(directory: LogDirectory) -> dict[TopicPartition, str]:
    """The partitions of which there is something in a directory, by the name of it."""
    parsed = ((entry.name, directories.parse(entry.name).tp) for entry in directory.path.iterdir())
    return {tp: name for name, tp in parsed if tp is not None}


def standing(image: ClusterImage, tp: TopicPartition) -> Standing | None:
    """A partition as a node's image has it."""
    topic, row = image.topics.get(tp.topic), image.partition(tp)
    if topic is None or row is None:
        return None
    return Standing(
        tp.topic, tp.partition, topic.id, row.replicas, row.adding, row.removing, row.original, row.isr, row.leader
    )
