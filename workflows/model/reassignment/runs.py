"""A run of reassignments as data: its parameter, the outcome of each partition, the nodes that must delete data, and
the run's end. Pure.

The metadata and the in-sync replicas complete a reassignment without any run. A run only observes: it compares a
partition in the metadata with the requested target (`judge`), and does not rely on its own memory of the state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from storage_node.model.error_types import ErrorType
from storage_node.model.reassignments import PartitionOutcome, ReplicaOutcome
from workflows.model import calls
from workflows.model.calls import AssignedReplica, ReplicaRow
from workflows.model.metadata.outcome import Reassigned
from workflows.model.move.moves import RunEnd, Verdict
from workflows.model.move.parameter import ANY
from workflows.model.reports import ReplicaReport
from workflows.model.run_results import NodeRow, PartitionRow

_ENDS = {
    ReplicaOutcome.JOINED: PartitionOutcome.DONE,
    ReplicaOutcome.CANCELLED: PartitionOutcome.CANCELLED,
    ReplicaOutcome.SUPERSEDED: PartitionOutcome.SUPERSEDED,
    ReplicaOutcome.GONE: PartitionOutcome.FAILED,
    ReplicaOutcome.FAILED: PartitionOutcome.FAILED,
}
Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class PartitionView:
    """A partition as the metadata has it now."""

    topic: str
    partition: int
    topic_id: str
    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    original: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    leader: int = -1

    @property
    def key(self) -> Key:
        """Return topic and partition."""
        return self.topic, self.partition

    @property
    def reassigning(self) -> bool:
        """Return whether a reassignment is in progress."""
        return bool(self.adding or self.removing)

    @property
    def target(self) -> tuple[int, ...]:
        """Return the replicas after the reassignment in progress."""
        return tuple(node for node in self.replicas if node not in self.removing)

    def row(self) -> list[Any]:
        """Return the row for signals."""
        return [
            self.topic,
            self.partition,
            self.topic_id,
            list(self.replicas),
            list(self.adding),
            list(self.removing),
            list(self.original),
            list(self.isr),
            self.leader,
        ]

    @staticmethod
    def of(row: Sequence[Any]) -> PartitionView:
        """Return the partition of such a row."""
        topic, partition, topic_id, replicas, adding, removing, original, isr, leader = row
        return PartitionView(
            str(topic),
            int(partition),
            str(topic_id),
            tuple(replicas),
            tuple(adding),
            tuple(removing),
            tuple(original),
            tuple(isr),
            int(leader),
        )


def judge(
    topic_id: str, target: Sequence[int], original: Sequence[int], now: PartitionView | None
) -> ReplicaOutcome | None:
    """Return how a change to `target` ended: JOINED, CANCELLED, SUPERSEDED or GONE, or None while it is in progress.

    `topic_id` "" is any; `now` is None if the partition does not exist. A partition with its original replicas and no
    reassignment in progress was cancelled, by the run or through Kafka's API; any other target is a later one.
    """
    if now is None or (topic_id and now.topic_id != topic_id):
        return ReplicaOutcome.GONE
    if now.target == tuple(target):
        return None if now.reassigning else ReplicaOutcome.JOINED
    if not now.reassigning and set(now.replicas) == set(original):
        return ReplicaOutcome.CANCELLED
    return ReplicaOutcome.SUPERSEDED


# --- a partition of a run


@dataclass(frozen=True, slots=True)
class PartitionRun:
    """One partition of a run: its target, its outcome, and the nodes' reports.

    `directories` has the order of `target`. `touched` are all nodes of the original and the new replicas. `verdict` is
    None until `judge` returns how it ended; `replicas`, `isr` and `leader` are the metadata's last ones.
    """

    topic: str
    partition: int
    target: tuple[int, ...]
    directories: tuple[str, ...] = ()
    topic_id: str = ""
    original: tuple[int, ...] = ()
    touched: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    by: str = ""
    verdict: ReplicaOutcome | None = None
    error: str = ""
    message: str = ""
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    leader: int = -1
    nodes: Mapping[int, ReplicaRow] = field(default_factory=dict)
    live: Mapping[int, ReplicaReport] = field(default_factory=dict)
    last_reports: Mapping[int, float] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """Return topic and partition."""
        return self.topic, self.partition

    @property
    def open(self) -> bool:
        """Return whether the replica set is not final yet."""
        return self.verdict is None

    @property
    def outcome(self) -> PartitionOutcome | None:
        """Return how it ended, None while it is open."""
        return None if self.verdict is None else _ENDS[self.verdict]

    @property
    def preferred_dirs(self) -> dict[int, str]:
        """Return the preferred log directories by node."""
        pairs = zip(self.target, self.directories, strict=False)
        return {node: directory for node, directory in pairs if directory != ANY}

    @property
    def followed_at(self) -> tuple[int, ...]:
        """Return the nodes to follow: those that are added, else the first of the target."""
        return self.adding or self.target[:1]

    @property
    def to_clear(self) -> tuple[int, ...]:
        """Return the nodes that must delete their data, once the replica set is final."""
        if (
            self.verdict not in (ReplicaOutcome.JOINED, ReplicaOutcome.CANCELLED, ReplicaOutcome.SUPERSEDED)
            or not self.replicas
        ):
            return ()
        return tuple(node for node in self.touched if node not in self.replicas)

    def assigned_to(self, node: int) -> AssignedReplica:
        """Return the partition for a step on the node."""
        directory = self.preferred_dirs.get(node, "")
        return AssignedReplica(
            self.topic, self.partition, self.topic_id, list(self.target), list(self.original), directory
        )

    def begun(self, change: Reassigned) -> PartitionRun:
        """Return the partition after the controller has applied the change."""
        touched = {*change.original, *change.target, *change.adding, *change.removing}
        return replace(
            self,
            topic_id=change.topic_id,
            original=tuple(change.original),
            adding=tuple(change.adding),
            touched=tuple(sorted(touched)),
            by=change.by,
        )

    def judged(self, now: PartitionView | None) -> PartitionRun:
        """Return the partition by its state in the metadata; the first verdict stays."""
        if not self.open:
            return self
        verdict = judge(self.topic_id, self.target, self.original, now)
        held = self if now is None else replace(self, replicas=now.replicas, isr=now.isr, leader=now.leader)
        return held if verdict is None else held._closed(verdict)

    def failed(self, error: str, message: str) -> PartitionRun:
        """Return the partition as failed, unless it has ended."""
        return replace(self, verdict=ReplicaOutcome.FAILED, error=error, message=message) if self.open else self

    def cancel_rejected(self, message: str) -> PartitionRun:
        """Return the partition after the controller has rejected its cancel; the reassignment continues."""
        return replace(self, message=f"The cancel is refused for now: {message}") if self.open else self

    def deletion_unconfirmed(self, node: int) -> PartitionRun:
        """Return the partition after a removed node has not confirmed its deletion in time."""
        message = (
            f"Node {node} has not confirmed that its data is deleted; it deletes it by itself, after its next start at "
            "the latest"
        )
        return replace(self, message=f"{self.message}; {message}" if self.message else message)

    def _closed(self, verdict: ReplicaOutcome) -> PartitionRun:
        closed = replace(self, verdict=verdict, message="" if verdict == ReplicaOutcome.CANCELLED else self.message)
        if verdict == ReplicaOutcome.GONE:
            message = f"The topic {self.topic} was deleted while {self.topic}-{self.partition} was reassigned."
            return replace(closed, error=ErrorType.TOPIC_DELETED, message=message)
        return closed

    def after(self, row: ReplicaRow, now: float) -> PartitionRun:
        """Return the partition after a node's step: with the row's facts, and its verdict by the node's image."""
        merged = merge(self.nodes.get(row.node), row)
        live = {node: each for node, each in self.live.items() if node != row.node}
        held = replace(
            self, nodes={**self.nodes, row.node: merged}, live=live, last_reports={**self.last_reports, row.node: now}
        )
        if held.open and row.outcome is not None and row.outcome.final:
            return replace(held, replicas=tuple(row.replicas))._closed(row.outcome)
        return held

    def reported(self, live: ReplicaReport, now: float) -> PartitionRun:
        """Return the partition after a node's report of a step in progress."""
        node = live.node
        return replace(self, live={**self.live, node: live}, last_reports={**self.last_reports, node: now})

    def row(self, directories: Iterable[tuple[int, str, bool]] = ()) -> PartitionRow:
        """Return the partition's row of the run's result."""
        nodes = [merge(self.nodes.get(node), of_live(self, node)) for node in sorted({*self.nodes, *self.live})]
        copies = [each for each in nodes if each.node in self.adding] or nodes
        return PartitionRow(
            topic=self.topic,
            partition=self.partition,
            topic_id=self.topic_id,
            outcome=self.outcome or "",
            error=self.error,
            message=self.message,
            by=self.by,
            original=list(self.original),
            target=list(self.target),
            replicas=list(self.replicas),
            isr=list(self.isr),
            leader=self.leader,
            bytes_total=sum(each.bytes_total for each in copies),
            bytes_copied=sum(each.bytes_copied for each in copies),
            seconds_placing=_longest(each.seconds_placing for each in copies),
            seconds_catching_up=_longest(each.seconds_catching_up for each in copies),
            seconds_deleting=_longest(each.seconds_deleting for each in nodes),
            seconds_throttled=_longest(each.seconds_throttled for each in copies),
            attempts=max((each.attempts for each in nodes), default=0),
            directories=list(directories),
            nodes=[_node_row(each) for each in nodes],
        )


def _longest(seconds: Iterable[float]) -> float:
    return round(max(seconds, default=0.0), 3)


_FIELDS = frozenset(each.name for each in fields(ReplicaRow))
_REPORTED = tuple(each.name for each in fields(ReplicaReport) if each.name in _FIELDS)


def of_live(part: PartitionRun, node: int) -> ReplicaRow:
    """Return a node's last report as a row; an empty one without a report."""
    blank = ReplicaRow(part.topic, part.partition, node, None)
    live = part.live.get(node)
    if live is None:
        return blank
    known: dict[str, Any] = {name: getattr(live, name) for name in _REPORTED}
    return replace(blank, **known)


def _node_row(row: ReplicaRow) -> NodeRow:
    values: dict[str, Any] = {each.name: getattr(row, each.name) for each in fields(NodeRow)}
    return NodeRow(**{**values, "outcome": row.outcome or ""})


def merge(before: ReplicaRow | None, after: ReplicaRow) -> ReplicaRow:
    """Return the later row, with the earlier one's facts that it lacks (0 or ""); of counts, which are totals, the
    larger.
    """
    if before is None:
        return after
    values: dict[str, Any] = {}
    for each in fields(ReplicaRow):
        old, new = getattr(before, each.name), getattr(after, each.name)
        counted = isinstance(new, int | float) and each.name not in ("partition", "node")
        values[each.name] = max(old, new) if counted else (new or old)
    values["error"], values["message"] = after.error, after.message
    return ReplicaRow(**values)


# --- the run


def verdict(parts: Sequence[PartitionRun], short: Iterable[Key] = ()) -> Verdict:
    """Return how the run ends: cancelled if all partitions were, failed if all failed, else completed.

    `short` are the partitions that are not in their preferred log directories: they count as failed.
    """
    missed = set(short)
    failed = [part for part in parts if part.outcome is PartitionOutcome.FAILED or part.key in missed]
    if parts and all(part.outcome is PartitionOutcome.CANCELLED for part in parts):
        return Verdict(RunEnd.CANCELLED)
    if len(failed) < len(parts) or not failed:
        return Verdict(RunEnd.COMPLETED)
    first = failed[0]
    message = first.message or f"{first.topic}-{first.partition} is not in its preferred log directory."
    if len(parts) > 1:
        message = f"None of {len(parts)} partitions was reassigned; {first.topic}-{first.partition}: {message}"
    return Verdict(RunEnd.FAILED, first.error or ErrorType.DIRECTORY_NOT_REACHED, message)


def read_rows(found: Iterable[Any]) -> dict[Key, ReplicaRow]:
    """Return the rows in plain objects, without unreadable ones."""
    rows = (calls.read_row(ReplicaRow, one) for one in found)
    return {(row.topic, row.partition): row for row in rows if row is not None}
