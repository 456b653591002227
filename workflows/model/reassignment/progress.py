"""The progress of a run of reassignments, as its query returns it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from storage_node.model.moves import StallReason
from storage_node.model.reassignments import ReassignmentPhase, ReplicaState
from workflows.model.absence import sentence
from workflows.model.move import moves
from workflows.model.phases import ENDED, Phases
from workflows.model.reassignment import limits
from workflows.model.reassignment.runs import PartitionRun, merge, of_live
from workflows.model.reports import NEXT_REPORT, ReplicaReport
from workflows.model.run_progress import NodeProgress, PartitionProgress, ReassignmentProgress


@dataclass(slots=True)
class NodeReports:
    """The nodes with a step in progress, and the times (epoch s) of their last reports."""

    requested: dict[int, float] = field(default_factory=dict)
    last_reports: dict[int, float] = field(default_factory=dict)
    promised: dict[int, float] = field(default_factory=dict)

    def note(self, node: int, now: float, next_in: float) -> None:
        """Note that a node has reported, and that its next report is due in `next_in` seconds."""
        self.last_reports[node], self.promised[node] = now, next_in

    def silent(self, now: float) -> list[int]:
        """Return the nodes whose reports are overdue."""
        return [
            node
            for node, since in sorted(self.requested.items())
            if now - max(since, self.last_reports.get(node, 0.0)) > self.promised.get(node, NEXT_REPORT) + moves.SILENCE
        ]


def eta(state: str, total: int, copied: int, rate: float) -> float | None:
    """Return the seconds until a replica that catches up is in sync; None when it cannot be predicted.

    A replica that is not in sync has bytes left to copy, also before its leader has reported how many.
    """
    return moves.eta(total, copied, rate) if state == ReplicaState.IN_SYNC or copied < total else None


def of_part(part: PartitionRun, phase: str, now: float, silent: Mapping[int, StallReason]) -> PartitionProgress:
    """Return the row of one partition in `progress`: bytes of all added replicas, and a row for each node.

    The state of a `silent` node is the reason, as far as the controller knows it.
    """
    nodes = [_of_node(part, node, now, silent.get(node) if part.open else None) for node in part.followed_at]
    added = [each for each in nodes if each.node in part.adding]
    etas = [each.eta_seconds for each in added if each.state != ReplicaState.IN_SYNC]
    return PartitionProgress(
        topic=part.topic,
        partition=part.partition,
        phase=phase if not part.outcome or phase not in (ReassignmentPhase.CATCHING_UP, ENDED) else part.outcome,
        outcome=part.outcome or "",
        by=part.by,
        original=list(part.original),
        target=list(part.target),
        adding=list(part.adding),
        removing=[node for node in part.touched if node not in part.target],
        bytes_total=sum(each.bytes_total for each in added),
        bytes_copied=sum(each.bytes_copied for each in added),
        rate=sum(each.rate for each in added),
        eta_seconds=slowest(etas) if etas else None,
        error=part.error,
        message=part.message or next((each.message for each in nodes if each.message), ""),
        nodes=nodes,
    )


def _of_node(part: PartitionRun, node: int, now: float, absence: StallReason | None) -> NodeProgress:
    row = merge(part.nodes.get(node), of_live(part, node))
    live = part.live.get(node)
    reported = live or ReplicaReport(part.topic, part.partition, message=row.message)
    rate = reported.rate if part.open and absence is None else 0.0
    state = str(absence or reported.state or row.outcome or ReplicaState.PENDING)
    return NodeProgress(
        node=node,
        state=state,
        directory=row.directory,
        bytes_total=row.bytes_total,
        bytes_copied=row.bytes_copied,
        rate=rate,
        eta_seconds=eta(state, row.bytes_total, row.bytes_copied, rate) if part.open else None,
        message=sentence(absence, f"node {node}") if absence else reported.message,
        report_age=round(max(0.0, now - part.last_reports[node]), 3) if node in part.last_reports else None,
    )


def slowest(etas: Sequence[float | None]) -> float | None:
    """Return the largest of these ETAs in seconds: 0 without any, None if one of them is unknown."""
    known = [each for each in etas if each is not None]
    return max(known, default=0.0) if len(known) == len(etas) else None


def of_run(
    parts: Sequence[PartitionRun],
    phases: Phases,
    waiting: Sequence[str],
    now: float,
    silent: Mapping[int, StallReason],
    *,
    workflow_id: str,
    started: float,
    cancelling: bool,
    throttles: Mapping[str, Any],
    paused: bool = False,
) -> ReassignmentProgress:
    """Return a run's `progress`: sums over its partitions, what it waits for, and a row for each partition."""
    rows = [of_part(part, phases.current, now, silent) for part in parts]
    return ReassignmentProgress(
        workflow_id=workflow_id,
        cancelling=cancelling,
        started=started,
        phase=phases.current,
        waiting_for=", ".join(waiting),
        bytes_total=sum(row.bytes_total for row in rows),
        bytes_copied=sum(row.bytes_copied for row in rows),
        rate=sum(row.rate for row in rows),
        eta_seconds=slowest([row.eta_seconds for row in rows if not row.outcome]),
        partitions=rows,
        phases=phases.spans(),
        throttles=throttles,
        paused=paused,
        throttle=limits.rate_of(throttles),
    )
