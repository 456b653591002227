"""Finds out why moves do not advance: reads what a view of the cluster lacks, once in a while, and only for these."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from activities.kafka_admin.admin import KafkaAdmin, LogDirectoryView
from activities.kafka_admin.errors import AdminError
from activities.kafka_admin.pool import AdminPool
from storage_node.model.ids import NO_LEADER, TopicPartition
from workflows.model.plans.running.stalls import Evidence
from workflows.model.plans.values import ClusterView, MoveKind, PlannedMove
from workflows.model.throttles import LISTS, MOVE_RATE, RATES

#: Seconds between two reads of the evidence.
EVIDENCE_AGE = 30.0


@dataclass
class EvidenceReader:
    """The evidence for the stalled moves of one step: at most one read of it every `EVIDENCE_AGE` seconds."""

    pool: AdminPool
    _read_at: float = float("-inf")
    _evidence: Evidence = field(default_factory=Evidence)
    _sizes: dict[int, dict[TopicPartition, int]] = field(default_factory=dict)

    async def of(self, moves: Collection[PlannedMove], view: ClusterView, now: float) -> Evidence:
        """Return the throttles that hold for moves, and the other copies of their brokers; what no broker returns is
        missing.
        """
        if now < self._read_at + EVIDENCE_AGE:
            return self._evidence
        self._read_at = now
        copying = {move.node for move in moves if move.kind == MoveKind.DIRECTORY}
        leaders = {view.partitions[move.partition].leader for move in moves if move.partition in view.partitions}
        throttled = {node for move in moves for node in (move.node, *move.after)} | leaders
        topics = sorted({move.partition.topic for move in moves if move.kind == MoveKind.REPLICAS})
        self._evidence = Evidence(
            await self._rates(sorted(throttled - {NO_LEADER})),
            await self._lists(topics),
            {node: found for node in sorted(copying) if (found := await self._copies(node)) is not None},
        )
        return self._evidence

    async def _rates(self, nodes: Iterable[int]) -> dict[int, dict[str, int]]:
        rates = {}
        for node in nodes:
            row = await self._overrides("broker", [str(node)], (*RATES, MOVE_RATE))
            rates[node] = {key: int(value) for key, value in row.get(str(node), {}).items() if value.isdecimal()}
        return rates

    async def _lists(self, topics: list[str]) -> dict[str, dict[str, tuple[str, ...]]]:
        found = await self._overrides("topic", topics, LISTS) if topics else {}
        return {topic: {key: tuple(text.split(",")) for key, text in row.items()} for topic, row in found.items()}

    async def _overrides(self, kind: str, names: list[str], keys: tuple[str, ...]) -> Mapping[str, Mapping[str, str]]:
        def call(admin: KafkaAdmin) -> dict[str, dict[str, str]]:
            return admin.overrides(kind, names, keys)

        try:
            return await self.pool.run(call)
        except AdminError:
            return {}

    async def _copies(self, node: int) -> dict[TopicPartition, bool | None] | None:
        """Return all future replicas of a broker, with whether each has grown since the read before."""

        def call(admin: KafkaAdmin) -> list[LogDirectoryView]:
            return admin.log_dirs([node])

        try:
            views = await self.pool.run(call)
        except AdminError:
            return None
        before = self._sizes.get(node)
        now = {each.partition: each.size for view in views for each in view.replicas if each.future}
        self._sizes[node] = now
        if before is None:
            return dict.fromkeys(now)
        # An empty copy that was not there before may not have begun.
        return {tp: size != before[tp] if tp in before else (size > 0 or None) for tp, size in now.items()}
