"""What a run comes to: the verdict, the summary, how to repeat it. Values and their rendering."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console

from ops.cli import output
from ops.torture import checks_disks
from ops.torture.checks import CHECKS, Finding
from ops.torture.facts import Evidence
from ops.torture.history import ASSIGN, DELETE, INFO, MARKS, OK, POLL, SEND, SESSION
from ops.torture.index import Index


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of one run. `problems` say what the torture itself could not do; `again` repeats it."""

    seed: int
    minutes: float
    seconds: float
    interrupted: bool
    operations: int
    counts: Mapping[str, int]
    moves: Mapping[str, int]
    kills: Mapping[str, int]
    findings: Sequence[Finding]
    problems: Sequence[str]
    folder: str
    again: str
    engine: Mapping[str, int] = field(default_factory=dict)
    """What the container engine itself counted of the faults, where there is one."""
    replicas: Mapping[str, int] = field(default_factory=dict)
    """Reassignments and terms of leaders, where partitions are replicated."""
    unchecked: Mapping[str, str] = field(default_factory=dict)
    """Of checks that had nothing to look at because of an error, by id: what they lacked, and why."""
    disks: Mapping[str, int] = field(default_factory=dict)
    """The disks that were made to fail, by deed and outcome."""

    @property
    def verdict(self) -> str:
        """One sentence."""
        if self.findings:
            broken = _ids(finding.check for finding in self.findings)
            said = f"{len(self.findings)} findings in {self.operations:,} operations ({broken})"
        else:
            said = f"no violation in {self.operations:,} operations, {len(CHECKS) - len(self.unchecked)} checks" + (
                ", interrupted" if self.interrupted else ""
            )
        reasons: dict[str, list[str]] = {}
        for check, why in self.unchecked.items():
            reasons.setdefault(why, []).append(check)
        lacking = ", ".join(f"{_ids(ids)} ({why})" for why, ids in reasons.items())
        return f"{said}; not checked: {lacking}" if lacking else said

    def as_json(self) -> dict[str, Any]:
        row = asdict(self)
        row["findings"] = [asdict(finding) for finding in self.findings]
        row["verdict"] = self.verdict
        row["checks"] = {check.id: check.title for check in CHECKS}
        return row


def _ids(checks: Iterable[str]) -> str:
    return ", ".join(sorted(set(checks), key=lambda check: int(check[1:])))


def count(evidence: Evidence) -> tuple[int, dict[str, int]]:
    """The operations of a history, and what they were."""
    kinds: Counter[str] = Counter()
    for event in evidence.history:
        if event.op == SEND:
            kinds["sends acknowledged" if event.type == OK else f"sends {event.type}"] += 1
        elif event.op == POLL and event.type == OK:
            kinds["polls"] += 1
            kinds["records polled"] += len(event.records)
        elif event.op == POLL:
            kinds["polls with an error"] += 1
        elif event.op == MARKS:
            kinds["offset look-ups"] += 1
        elif event.op == ASSIGN:
            kinds["assignments"] += 1
        elif event.op == SESSION:
            kinds["producer epochs that clients began anew"] += 1
        elif event.op == DELETE:
            kinds["deletions of records" + (" (outcome open)" if event.type == INFO else "")] += 1
    kinds["records read at the end"] = sum(len(read.records) for read in evidence.final.values())
    kinds["batches compared at swaps"] = sum(swap.compared for swap in evidence.swaps)
    kinds["swaps compared byte by byte"] = len(evidence.swaps)
    if beside := checks_disks.judged(Index(evidence)):
        kinds["sends judged beside a failing disk"] = beside
    if evidence.batches:
        kinds["batches told apart by leader epoch"] = evidence.batches
    return len(evidence.history), dict(kinds)


def replicas(evidence: Evidence) -> dict[str, int]:
    """Reassignments as they were asked for and as their runs ended, and how often leaders changed."""
    found: Counter[str] = Counter()
    for fact in evidence.asked:
        what = "cancels by Temporal" if fact.by != "api" else "cancels" if fact.target is None else "reassignments"
        word = {OK: "taken", INFO: "without an answer"}.get(fact.type, "refused")
        found[what if fact.by != "api" else f"{what} {word}"] += 1
    for run in evidence.reassignments:
        found[f"runs {run.status}"] += 1
    terms = {(fact.place, fact.topic_id, fact.epoch) for fact in evidence.leaders}
    if any(topic.replicas > 1 for topic in evidence.topics.values()):
        found["leaders' terms seen"] = len(terms)
    return dict(found)


def disks(evidence: Evidence) -> dict[str, int]:
    """Return how often disks were made to fail, by deed and what the node made of it."""
    return dict(
        Counter(f"{fault.kind}: {fault.outcome if fault.hits else 'nothing met it'}" for fault in evidence.faults)
    )


def moves(evidence: Evidence) -> dict[str, int]:
    """Runs and replicas by what became of them."""
    found: Counter[str] = Counter()
    for run in evidence.runs:
        found[f"runs {run.status}"] += 1
        for row in run.rows:
            word = f"replicas {row.outcome}"
            found[f"{word} ({row.error})" if row.outcome == "failed" else word] += 1
    return dict(found)


def unseen(evidence: Evidence) -> list[str]:
    """What a check had nothing to look at in, though there was something: its silence says nothing then."""
    told: list[str] = []
    swapped = sum(row.outcome in ("swapped", "deleted") for run in evidence.runs for row in run.rows)
    if swapped and not any(swap.compared for swap in evidence.swaps):
        told.append(f"{swapped} replicas were swapped, and not one could be compared with its source: C6 saw only CRCs")
    if swapped and not evidence.samples:
        told.append(f"{swapped} replicas were copied, and no node told how fast: C10 saw nothing")
    if not evidence.leaders and any(topic.replicas > 1 for topic in evidence.topics.values()):
        told.append("nobody was seen to lead: C15 saw only what the disks hold")
    if not evidence.faults:
        told.append("no log directory was made to fail: C9 saw only that none was offline by itself, C19 nothing")
    elif not checks_disks.judged(Index(evidence)):
        told.append("no client sent beside a failing disk while nothing else had trouble: C19 saw only moves and disks")
    return told


def show(report: Report, screen: Console) -> None:
    """The tables, the findings, the verdict, and how to repeat it."""
    groups = (
        ("operations", report.counts),
        ("moves", report.moves),
        ("replicas", report.replicas),
        ("faults", report.kills),
        ("disks", report.disks),
        ("engine", report.engine),
    )
    lines = [
        [name if number == 0 else "", what, f"{amount:,}"]
        for name, values in groups
        for number, (what, amount) in enumerate(sorted(values.items()))
    ]
    lines.append(["minutes", "in all", f"{report.seconds / 60:.1f}"])
    screen.print(output.table(("", "what", "number"), lines))
    for finding in report.findings:
        screen.print(f"VIOLATION {finding}", soft_wrap=True, markup=False)
    for problem in report.problems:
        screen.print(f"note: {problem}", soft_wrap=True, markup=False)
    screen.print(f"verdict: {report.verdict}", soft_wrap=True, markup=False)
    screen.print(f"repeat it with: {report.again}", soft_wrap=True, markup=False)
    if report.folder:
        screen.print(f"histories and the log of all events: {report.folder}", soft_wrap=True, markup=False)
