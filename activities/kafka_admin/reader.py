"""Reads a cluster through the admin API as a `ClusterView`, once for all concurrent callers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from activities.kafka_admin.admin import LogDirectoryView, Reassignment
from activities.kafka_admin.errors import AdminError, NoResponse
from activities.kafka_admin.pool import AdminPool
from storage_node.model.ids import TopicPartition
from workflows.model.plans.values import (
    ClusterView,
    DirectoryView,
    Disk,
    NodeView,
    PartitionState,
    PlacedReplica,
)

T = TypeVar("T")

MIN_ISR = "min.insync.replicas"
#: Seconds for which a topic's min.insync.replicas is remembered.
CONFIG_AGE = 300.0
#: Topics of one DescribeConfigs.
TOPICS_AT_ONCE = 500
#: The metadata of a large cluster is read again after this many times the seconds that a read takes.
REST = 8.0
#: Seconds for which a read of some partitions waits for other callers to join it.
GATHERING = 0.02
#: Seconds between the beginnings of two such reads: many callers do not mean more requests.
SPACING = 0.1
#: The log directories of a broker of which a read does not request them.
_NOT_ASKED: tuple[LogDirectoryView, ...] = ()


class ClusterReader:
    """Reads the whole cluster, its metadata alone, or some partitions; one read serves all concurrent callers.

    A read of the whole costs one DescribeCluster, one Metadata, one ListPartitionReassignments, and one DescribeLogDirs
    for each broker, and time in proportion to the cluster's replicas; one at some partitions costs requests for them
    alone, at most every `SPACING` seconds. The metadata is read again only after `REST` times as long as one takes.
    """

    def __init__(
        self,
        pool: AdminPool,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._pool, self._clock, self._sleep = pool, clock, sleep
        self._whole = _Looks(self._look, clock)
        self._metadata = _Looks(self._look_at_metadata, clock)
        self._next = _Wanted(set(), set())
        """The partitions and brokers that the next read includes."""
        self._part: tuple[float, _Wanted, ClusterView] | None = None
        self._part_begun = float("-inf")
        self._looking: asyncio.Task[None] | None = None
        self._min_isr: dict[str, tuple[float, int]] = {}

    async def view(self, max_age: float = 0.0) -> ClusterView:
        """Return the cluster as it was at most `max_age` seconds before the call. Raises `AdminError`."""
        return await self._whole.view(max_age)

    async def metadata(self, max_age: float) -> ClusterView:
        """Return the cluster without its log directories, at most `max_age` seconds old; in a cluster of which a read
        takes long, `REST` times as long. Raises `AdminError`.

        The next read begins after half of that time, and no caller waits for it.
        """
        oldest = max(max_age, REST * self._metadata.seconds)
        if self._metadata.age <= oldest:
            self._metadata.renew(oldest / 2)
        return await self._metadata.view(oldest)

    async def of(
        self, partitions: Collection[TopicPartition], nodes: Collection[int], max_age: float = 0.0
    ) -> ClusterView:
        """Return some partitions, and the log directories of some brokers with replicas of these alone, as they were
        at most `max_age` seconds before the call. There may be more in the view. Raises `AdminError`.
        """
        wanted = self._clock() - max_age
        while True:
            if self._part is not None and self._part[0] >= wanted and self._part[1].covers(partitions, nodes):
                return self._part[2]
            self._next.partitions.update(partitions)
            self._next.nodes.update(nodes)
            if self._looking is None:
                self._looking = asyncio.create_task(self._look_at_part())
            try:
                await asyncio.shield(self._looking)
            finally:
                if self._looking is not None and self._looking.done():
                    self._looking = None

    async def _look_at_part(self) -> None:
        await self._sleep(max(GATHERING, self._part_begun + SPACING - self._clock()))
        wanted, self._next = self._next, _Wanted(set(), set())
        self._part_begun = begun = self._clock()
        partitions, nodes = sorted(wanted.partitions), sorted(wanted.nodes)
        topics = sorted({tp.topic for tp in partitions})
        # The reassignments before the partitions: one that ends in between is described as ended.
        (cluster_id, racks), under_way = await asyncio.gather(
            self._pool.run(lambda admin: admin.cluster()),
            self._pool.run(lambda admin: admin.reassignments(partitions) if partitions else {}),
        )
        registered = [node for node in nodes if node in racks]
        rows, *described = await asyncio.gather(
            self._pool.run(lambda admin: admin.partitions(topics) if topics else {}),
            *(self._directories(node, partitions) for node in registered),
        )
        found = dict.fromkeys(racks, _NOT_ASKED) | dict(zip(registered, described, strict=True))
        held = {tp: rows[tp] for tp in partitions if tp in rows}
        self._part = begun, wanted, view_of(cluster_id, racks, held, under_way, found, {})

    async def _look(self) -> ClusterView:
        # The reassignments before the partitions: one that ends in between is described as ended.
        (cluster_id, racks), under_way = await self._of_cluster()
        rows = await self._pool.run(lambda admin: admin.partitions())
        # All replicas: a topic that this client must not describe, or that the responding broker does not know yet, has
        # no row, and is on the disks all the same.
        described = await asyncio.gather(*(self._directories(node, None) for node in sorted(racks)))
        found = dict(zip(sorted(racks), described, strict=True))
        min_isr = await self._min_isrs(rows)
        return await asyncio.to_thread(view_of, cluster_id, racks, rows, under_way, found, min_isr)

    async def _look_at_metadata(self) -> ClusterView:
        (cluster_id, racks), under_way = await self._of_cluster()
        rows = await self._pool.run(lambda admin: admin.partitions())
        min_isr = await self._min_isrs(rows)
        found = dict.fromkeys(racks, _NOT_ASKED)
        return await asyncio.to_thread(view_of, cluster_id, racks, rows, under_way, found, min_isr)

    async def _of_cluster(self) -> tuple[tuple[str, dict[int, str | None]], dict[TopicPartition, Reassignment]]:
        return await asyncio.gather(
            self._pool.run(lambda admin: admin.cluster()), self._pool.run(lambda admin: admin.reassignments())
        )

    async def _directories(
        self, node: int, partitions: Collection[TopicPartition] | None
    ) -> Sequence[LogDirectoryView] | None:
        """Return a broker's log directories with the replicas of some partitions, or (None) with all of them; None if
        it does not return them.
        """
        try:
            return await self._pool.run(lambda admin: admin.log_dirs([node], partitions))
        except AdminError:
            return None

    async def _min_isrs(self, rows: Mapping[TopicPartition, Mapping[str, Any]]) -> dict[str, int]:
        """Return min.insync.replicas of topics with a partition that lacks an in-sync replica; of others it says
        nothing.
        """
        short = {tp.topic for tp, row in rows.items() if len(row["isr"]) < len(row["replicas"])}
        now = self._clock()
        unknown = sorted(name for name in short if self._min_isr.get(name, (-CONFIG_AGE, 0))[0] <= now - CONFIG_AGE)
        for at in range(0, len(unknown), TOPICS_AT_ONCE):
            part = unknown[at : at + TOPICS_AT_ONCE]
            try:
                read = await self._pool.run(lambda admin, part=part: admin.effective(MIN_ISR, part))  # type: ignore[misc]
            except NoResponse:
                break
            self._min_isr |= {name: (now, int(value)) for name, value in read.items()}
        return {name: self._min_isr[name][1] for name in short if name in self._min_isr}


class _Looks:
    """Looks of one kind. `seconds` is how long the last one took."""

    def __init__(self, look: Callable[[], Awaitable[ClusterView]], clock: Callable[[], float]) -> None:
        self._look, self._clock = look, clock
        self._view: ClusterView | None = None
        self._begun = float("-inf")
        """When the last read began: what happened before it is in the view."""
        self._looking: asyncio.Task[ClusterView] | None = None
        self.seconds = 0.0

    @property
    def age(self) -> float:
        """Return the seconds since the read began that `view` returns at once."""
        return self._clock() - self._begun

    def renew(self, max_age: float) -> None:
        """Begin a read if the last one is older, and none is under way."""
        if self._looking is not None and self._looking.done():
            # Its failure concerns the callers that waited for it; the next read shows whether it lasts.
            if not self._looking.cancelled():
                self._looking.exception()
            self._looking = None
        if self._looking is None and self.age > max_age:
            self._looking = asyncio.create_task(self._take())

    async def view(self, max_age: float) -> ClusterView:
        wanted = self._clock() - max_age
        while self._view is None or self._begun < wanted:
            self.renew(max_age)
            assert self._looking is not None
            # A read that began before `wanted` does not suffice: the loop waits for it, and begins the next one.
            try:
                await asyncio.shield(self._looking)
            finally:
                if self._looking is not None and self._looking.done():
                    self._looking = None
        return self._view

    async def _take(self) -> ClusterView:
        begun = self._clock()
        self._view = await self._look()
        self._begun, self.seconds = begun, self._clock() - begun
        return self._view


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The partitions and brokers that a read of a part of the cluster includes."""

    partitions: set[TopicPartition]
    nodes: set[int]

    def covers(self, partitions: Collection[TopicPartition], nodes: Collection[int]) -> bool:
        return self.partitions.issuperset(partitions) and self.nodes.issuperset(nodes)


def view_of(
    cluster_id: str,
    racks: Mapping[int, str | None],
    rows: Mapping[TopicPartition, Mapping[str, Any]],
    under_way: Mapping[TopicPartition, Reassignment],
    described: Mapping[int, Sequence[LogDirectoryView] | None],
    min_isr: Mapping[str, int],
) -> ClusterView:
    """Return the admin API's responses as one value."""
    views = [view for found in described.values() if found is not None for view in found]
    placed: tuple[dict[tuple[int, TopicPartition], PlacedReplica], ...] = ({}, {})
    for view in views:
        for replica in view.replicas:
            placed[replica.future][view.node, replica.partition] = PlacedReplica(
                view.path, replica.size, replica.offset_lag
            )
    return ClusterView(
        cluster_id=cluster_id,
        nodes={node: NodeView(node, rack, described.get(node) is not None) for node, rack in racks.items()},
        directories={
            Disk(view.node, view.path): DirectoryView(Disk(view.node, view.path), view.total, view.usable, view.error)
            for view in views
        },
        partitions={
            tp: PartitionState(
                replicas=tuple(row["replicas"]),
                isr=tuple(row["isr"]),
                leader=row["leader"],
                adding=under_way[tp].adding if tp in under_way else (),
                removing=under_way[tp].removing if tp in under_way else (),
                min_isr=min_isr.get(tp.topic, 1),
            )
            for tp, row in rows.items()
        },
        replicas=placed[False],
        futures=placed[True],
    )
