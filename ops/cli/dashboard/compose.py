"""Composes the live dashboard's board of the sources' facts. Pure but for the samples of the paces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ops.cli.dashboard.facts import (
    BROKERS,
    NODES,
    TEMPORAL,
    BrokersFacts,
    NodeFacts,
    NodesFacts,
    RunFacts,
    TemporalFacts,
)
from ops.cli.moves import view
from ops.cli.moves.view import MoveLine, NodeMoves, ReplicaKey
from ops.cli.node_health import diagnose
from ops.cli.nodes import Reach
from ops.cli.reassign import polling
from ops.cli.reassign.comparing import Line, listed
from ops.cli.reassign.polling import Snapshot
from ops.cli.reassign.reassignments import lines_of, parts_of
from ops.dashboards.live.board import Board, Fact, Freshness, Kind, Source, Work
from ops.dashboards.live.hub import Reading
from ops.stack.errors import OpsError
from storage_node.model.ids import TopicPartition
from storage_node.model.moves import Phase, StallReason
from workflows.model.pace import COPY, PLAN, Eta, Pace, Paces
from workflows.model.phases import PAUSED
from workflows.model.plans.running.plan_results import EvacuationProgress, PlanProgress
from workflows.model.plans.running.run import PlanPhase

#: Phases of a plan in which it waits for an operator.
_WAITS = {PlanPhase.AWAITING_APPROVAL: "approval"}
_MOVING = (PlanPhase.MOVING, PlanPhase.ROLLING_BACK)
_NO_WORKER = ("no worker", "no worker responds to the query progress")


class Composer:
    """Makes the board of one cluster; keeps the samples from which ETAs are taken, and the newest metadata."""

    def __init__(self, cluster: str, temporal_ui: str = "") -> None:
        self._cluster, self._ui = cluster, temporal_ui
        self._paces = Paces()
        self._snapshot = Snapshot()

    def compose(self, readings: Mapping[str, Reading], now: float) -> Board:
        """Return the board of the last reading of each source."""
        runs = readings.get(TEMPORAL, Reading())
        found = runs.value if isinstance(runs.value, TemporalFacts) else TemporalFacts()
        notes: list[str] = []
        sources = [
            runs.source(TEMPORAL, now) if TEMPORAL in readings else Source(TEMPORAL, Freshness.UNUSED),
        ]
        if sources[0].message:
            notes.append(sources[0].message)
        if BROKERS in readings:
            brokers = readings[BROKERS]
            sources.append(brokers.source(BROKERS, now))
            facts = brokers.value if isinstance(brokers.value, BrokersFacts) else BrokersFacts()
            notes += [*([sources[-1].message] if sources[-1].message else []), *facts.notes]
            at = brokers.as_of or now
            work = [self._move(line, _age("replicas", BROKERS, at), None) for line in facts.moves]
            work += self._reassignments(facts.reassignments, found, runs.as_of, lambda _: _age("replicas", BROKERS, at))
        else:
            reading = readings.get(NODES, Reading())
            nodes = reading.value if isinstance(reading.value, NodesFacts) else NodesFacts()
            sources += [_node_source(node, facts, reading, now) for node, facts in sorted(nodes.nodes.items())]
            if not nodes.nodes:
                sources.append(reading.source(NODES, now))
                notes += [sources[-1].message] if sources[-1].message else []
            work = self._of_nodes(nodes, found, runs.as_of)
            notes += [*reported(nodes).notes, *nodes.notes]
        work += [self._plan(each, now) for each in found.plans]
        work += [self._drain(each) for each in found.drains]
        self._paces.keep({each.key for each in work})
        return Board(now, self._cluster, tuple(sources), tuple(work), tuple(notes), self._ui)

    def _of_nodes(self, nodes: NodesFacts, found: TemporalFacts, runs_at: float | None) -> list[Work]:
        """Return the rows of what the nodes and the server report; of a silent node with its last figures."""
        current = reported(nodes)
        joined = {_key(line): line for line in view.join(current, found.moves)}
        for node, facts in nodes.nodes.items():
            if facts.problem is None or facts.moves is None:
                continue
            for last in view.of_node(node, facts.moves.get("moves", [])):
                joined[_key(last)] = _silent(last, joined.get(_key(last)), current)
        named = {key for node, facts in nodes.nodes.items() for key in _named(node, facts)}
        work = []
        for line in sorted(joined.values(), key=lambda each: (each.node, each.topic, each.partition, each.id)):
            at = nodes.nodes.get(line.node, NodeFacts()).as_of
            copied = _age("bytes, rate, phase", f"node {line.node}", at) if _key(line) in named else ()
            work.append(self._move(line, copied, runs_at))
        responses: dict[int, Mapping[str, Any] | OpsError] = {
            node: facts.problem or facts.reassignments or {} for node, facts in nodes.nodes.items()
        }
        self._snapshot = newer(self._snapshot, polling.of(responses), responses)
        ages = {node: facts.as_of for node, facts in nodes.nodes.items()}

        def copied_by(line: Line) -> tuple[Fact, ...]:
            adding = [node for node in line.target if node not in line.source] or list(line.target)
            oldest = min(adding, key=lambda node: ages.get(node) or 0.0)
            return _age("bytes, rate", f"node {oldest}", ages.get(oldest))

        return work + self._reassignments(self._snapshot, found, runs_at, copied_by)

    def _move(self, line: MoveLine, copied: tuple[Fact, ...], runs_at: float | None) -> Work:
        key = f"disk/{line.node}/{line.topic}-{line.partition}"
        eta = self._pace(key, copied, line.bytes_total, line.bytes_copied, COPY, line.eta)
        halted = StallReason(line.stall or StallReason.COPYING).halted
        run = _age("run", TEMPORAL, runs_at) if line.id else ()
        return Work(
            key=key,
            kind=Kind.DISK,
            title=f"{line.topic}-{line.partition}",
            phase=line.phase,
            id=line.id,
            origin=f"node {line.node}: {line.source}" if line.source else "",
            target=line.directory,
            bytes_total=line.bytes_total,
            bytes_copied=line.bytes_copied,
            rate=line.rate,
            eta_low=None if halted else eta.low,
            eta_high=None if halted else eta.high,
            held_by=view.held_by(line.stall) if line.stall != StallReason.COPYING else "",
            held_why=line.stall_message,
            detail=f"attempt {line.attempt}" if line.attempt > 1 else "",
            facts=(*copied, *run),
        )

    def _reassignments(
        self, seen: Snapshot, found: TemporalFacts, runs_at: float | None, copied_by: Callable[[Line], tuple[Fact, ...]]
    ) -> list[Work]:
        by_partition = {
            TopicPartition(part.topic, part.partition): (run, part)
            for run in found.reassignments
            for part in parts_of(run)
        }
        work = []
        for line in lines_of(seen, by_partition, {}):
            key = f"reassignment/{line.topic}-{line.partition}"
            copied = copied_by(line)
            eta = self._pace(key, copied, line.bytes_total, line.bytes_copied, COPY, line.eta)
            if line.bytes_copied >= line.bytes_total:  # It is not in sync yet, which no rate of copying tells.
                eta = Eta()
            work.append(
                Work(
                    key=key,
                    kind=Kind.REASSIGNMENT,
                    title=f"{line.topic}-{line.partition}",
                    phase="reassigning",
                    id=line.id,
                    origin=f"nodes {listed(line.source)}",
                    target=f"nodes {listed(line.target)}",
                    bytes_total=line.bytes_total,
                    bytes_copied=line.bytes_copied,
                    rate=line.rate,
                    eta_low=eta.low,
                    eta_high=eta.high,
                    held_by=_held_word(line.reason),
                    held_why=line.reason,
                    detail=f"in sync: {listed(line.in_sync)}" + (f"; requested by {line.by}" if line.by else ""),
                    facts=(*copied, *(_age("run", TEMPORAL, runs_at) if line.id else ())),
                )
            )
        return work

    def _plan(self, run: RunFacts[PlanProgress], now: float) -> Work:
        name = run.workflow_id.rpartition("/plan/")[2] or run.workflow_id
        key = f"plan/{run.workflow_id}"
        progress = run.progress
        if progress is None:
            held = _NO_WORKER if run.silent else ("", "")
            return Work(key, Kind.PLAN, name, "open", run.workflow_id, held_by=held[0], held_why=held[1])
        total, phase = progress.bytes_total, progress.phase
        copied = min(progress.bytes_copied, total)
        read_at = progress.read_at or run.as_of or now
        facts = (
            *_age("phase, moves", f"{TEMPORAL}, the plan's worker", run.as_of),
            *_age("bytes", "the cluster", read_at),
        )
        moving = phase in _MOVING
        eta = self._pace(key, facts[-1:], total, copied, PLAN, None) if moving else Eta()
        if copied >= total:  # The rest is more than copying: empty replicas, swaps, the comparison at the end.
            eta = Eta()
        elif eta.low is None and progress.check is not None and not progress.paused:
            low, high = progress.check.seconds_low, progress.check.seconds_high
            share = 1 - copied / total
            eta = Eta() if low is None else Eta(low * share, None if high is None else high * share)
        ended = sum(progress.outcomes.values())
        failed = len(progress.failures)
        lanes = progress.lanes_running
        under_way = sum(len(lane.moves) for lane in lanes)
        detail = f"{ended} of {progress.moves} moves ended, {under_way} under way in {len(lanes)} lanes"
        held_by, why = _plan_held(run, progress)
        return Work(
            key=key,
            kind=Kind.PLAN,
            title=name,
            phase=phase,
            id=run.workflow_id,
            bytes_total=total,
            bytes_copied=copied,
            rate=_plan_rate(progress, now) if moving else None,
            eta_low=eta.low,
            eta_high=eta.high,
            held_by=held_by,
            held_why=why,
            detail=detail + (f", {failed} failed" if failed else ""),
            facts=facts,
        )

    def _drain(self, run: RunFacts[EvacuationProgress]) -> Work:
        path = run.workflow_id.rpartition("/evacuate/")[2] or run.workflow_id
        key, held = f"drain/{run.workflow_id}", _NO_WORKER if run.silent else ("", "")
        progress = run.progress
        if progress is None:
            return Work(key, Kind.DRAIN, path, "open", run.workflow_id, held_by=held[0], held_why=held[1])
        if progress.left and not run.silent:
            held = ("not empty", progress.left[0])
        return Work(
            key=key,
            kind=Kind.DRAIN,
            title=path,
            phase="cancelling" if progress.cancelling else progress.phase,
            id=run.workflow_id,
            bytes_copied=progress.bytes_copied,
            held_by=held[0],
            held_why=held[1],
            detail=f"round {progress.rounds}, {progress.moved} moved"
            + (f", plan {progress.plan}" if progress.plan else ""),
            facts=_age("phase, moves", f"{TEMPORAL}, the run's worker", run.as_of),
        )

    def _pace(self, key: str, copied: Sequence[Fact], total: int, done: int, pace: Pace, single: float | None) -> Eta:
        """Return the ETA's range, or the single figure of the node while there are not enough samples.

        That of an empty replica is unknown: no rate tells when it ends.
        """
        if total <= 0:
            return Eta()
        if copied:
            self._paces.add(key, copied[0].as_of, max(0, total - done), pace)
        eta = self._paces.eta(key, max(0, total - done), pace)
        return eta if eta.low is not None else Eta(single, single)


def reported(nodes: NodesFacts) -> NodeMoves:
    """Return what the nodes that respond report of their moves, and why the others do not."""
    return NodeMoves.of({node: facts.problem or facts.moves or {} for node, facts in nodes.nodes.items()})


def newer(last: Snapshot, found: Snapshot | None, responses: Mapping[int, Mapping[str, Any] | OpsError]) -> Snapshot:
    """Return the newest snapshot: never an older state than the last one, and with the last sizes of silent nodes."""
    if found is None or found.version < last.version:
        return replace(last, reach=NodeMoves.of(responses).reach if found is None else found.reach)
    silent = {node for node, reach in found.reach.items() if reach is not Reach.RESPONDS}
    kept = {key: size for key, size in last.sizes.items() if key[0] in silent}
    return replace(found, sizes={**kept, **found.sizes})


def _node_source(node: int, facts: NodeFacts, reading: Reading, now: float) -> Source:
    name = f"node {node}"
    state = replace(reading, as_of=facts.as_of, problem=str(facts.problem or reading.problem)).source(name, now)
    return replace(state, state=Freshness.STALE) if facts.problem is not None else state


def _silent(last: MoveLine, now: MoveLine | None, current: NodeMoves) -> MoveLine:
    """Return the line of a move whose node is silent: the last figures of the node, and why it is silent."""
    found = diagnose(last.node, current.reach.get(last.node), last.node in current.fenced)
    stall, message = found if found is not None else (StallReason.UNAVAILABLE, f"node {last.node} does not respond")
    line = replace(
        last,
        rate=0.0,
        append_rate=0.0,
        eta=None,
        stall=str(stall),
        stall_message=message,
        id=last.id or (now.id if now else ""),
    )
    return replace(line, phase=now.phase) if now is not None and now.phase in (PAUSED, Phase.CANCELLING) else line


def _key(line: MoveLine) -> ReplicaKey:
    return line.node, line.topic, line.partition


def _named(node: int, facts: NodeFacts) -> set[ReplicaKey]:
    """Return the replicas that a node's last response names."""
    response = facts.moves or {}
    rows: Iterable[Mapping[str, Any]] = [*response.get("moves", []), *response.get("delete_delays", [])]
    return {(node, str(row["topic"]), int(row["partition"])) for row in rows}


def _age(what: str, source: str, at: float | None) -> tuple[Fact, ...]:
    return () if at is None else (Fact(what, source, at),)


def _held_word(reason: str) -> str:
    """Return one word for a sentence about a reassignment that waits."""
    for word in ("dead", "cut off", "fenced"):
        if word in reason:
            return word
    return "waits" if reason else ""


def _plan_held(run: RunFacts[PlanProgress], progress: PlanProgress) -> tuple[str, str]:
    if run.silent:
        return _NO_WORKER
    if progress.paused:
        return "paused", "an operator has paused the plan"
    if progress.warning:
        return "deadline", progress.warning
    if progress.phase in _WAITS:
        return _WAITS[PlanPhase(progress.phase)], "; ".join(progress.reasons) or "the plan waits for an approval"
    if progress.reasons:
        return "waits", "; ".join(progress.reasons)
    return "", ""


def _plan_rate(progress: PlanProgress, now: float) -> float | None:
    """Return the mean rate of a plan while it was moving."""
    spent = sum((end or now) - begin for phase, begin, end in progress.phases if phase in _MOVING)
    return progress.bytes_copied / spent if spent >= 5 else None
