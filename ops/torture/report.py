"""The report of a run: verdict, summary, the command that repeats it. Values and their rendering."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console

from ops.cli import output
from ops.torture.checks import beside_disks
from ops.torture.checks.facts import Evidence
from ops.torture.checks.index import Index
from ops.torture.checks.table import CHECKS, Finding
from ops.torture.history import ASSIGN, DELETE, INFO, MARKS, OK, POLL, SEND, SESSION
from storage_node.model.moves import Outcome


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of one run. `problems` are errors of the torture itself; `again` is the command that repeats it."""

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
    """The faults by the container engine's own count, with `--containers`."""
    replicas: Mapping[str, int] = field(default_factory=dict)
    """Reassignments and leader epochs, where partitions are replicated."""
    unchecked: Mapping[str, str] = field(default_factory=dict)
    """The checks whose evidence could not be gathered, by id, with the reason."""
    disks: Mapping[str, int] = field(default_factory=dict)
    """The disk faults, by action and outcome."""

    @property
    def verdict(self) -> str:
        """The verdict in one sentence."""
        if self.findings:
            broken = _ids(finding.check for finding in self.findings)
            verdict = f"{len(self.findings)} findings in {self.operations:,} operations ({broken})"
        else:
            verdict = f"no violation in {self.operations:,} operations, {len(CHECKS) - len(self.unchecked)} checks" + (
                ", interrupted" if self.interrupted else ""
            )
        reasons: dict[str, list[str]] = {}
        for check, why in self.unchecked.items():
            reasons.setdefault(why, []).append(check)
        lacking = ", ".join(f"{_ids(ids)} ({why})" for why, ids in reasons.items())
        return f"{verdict}; not checked: {lacking}" if lacking else verdict

    def as_json(self) -> dict[str, Any]:
        row = asdict(self)
        row["findings"] = [asdict(finding) for finding in self.findings]
        row["verdict"] = self.verdict
        row["checks"] = {check.id: check.title for check in CHECKS}
        return row


def _ids(checks: Iterable[str]) -> str:
    return ", ".join(sorted(set(checks), key=lambda check: int(check[1:])))


def count(evidence: Evidence) -> tuple[int, dict[str, int]]:
    """Return the number of operations in the history, and the counts by kind."""
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
            kinds["producer epoch bumps"] += 1
        elif event.op == DELETE:
            kinds["deletions of records" + (" (outcome unknown)" if event.type == INFO else "")] += 1
    kinds["records read at the end"] = sum(len(read.records) for read in evidence.final.values())
    kinds["batches compared at swaps"] = sum(swap.compared for swap in evidence.swaps)
    kinds["swaps compared byte by byte"] = len(evidence.swaps)
    if beside := beside_disks.judged(Index(evidence)):
        kinds["sends judged beside a failing disk"] = beside
    if evidence.batches:
        kinds["batches compared by leader epoch"] = evidence.batches
    return len(evidence.history), dict(kinds)


def replicas(evidence: Evidence) -> dict[str, int]:
    """Return counts of reassignment requests by response, of runs by status, and of leader epochs."""
    found: Counter[str] = Counter()
    for fact in evidence.asked:
        what = "cancels by Temporal" if fact.by != "api" else "cancels" if fact.target is None else "reassignments"
        outcome = {OK: "accepted", INFO: "without a response"}.get(fact.type, "rejected")
        found[what if fact.by != "api" else f"{what} {outcome}"] += 1
    for run in evidence.reassignments:
        found[f"runs {run.status}"] += 1
    terms = {(fact.place, fact.topic_id, fact.epoch) for fact in evidence.leaders}
    if any(topic.replicas > 1 for topic in evidence.topics.values()):
        found["leader epochs seen"] = len(terms)
    return dict(found)


def disks(evidence: Evidence) -> dict[str, int]:
    """Return counts of the disk faults, by action and the node's reaction."""
    return dict(
        Counter(f"{fault.kind}: {fault.outcome if fault.hits else 'no operation failed'}" for fault in evidence.faults)
    )


def moves(evidence: Evidence) -> dict[str, int]:
    """Return counts of runs by status and of replicas by outcome."""
    found: Counter[str] = Counter()
    for run in evidence.runs:
        found[f"runs {run.status}"] += 1
        for row in run.rows:
            what = f"replicas {row.outcome}"
            found[f"{what} ({row.error})" if row.outcome == Outcome.FAILED else what] += 1
    return dict(found)


def unseen(evidence: Evidence) -> list[str]:
    """Return a sentence for each check whose evidence is empty although the run should have produced some."""
    blind: list[str] = []
    swapped = sum(row.outcome in (Outcome.SWAPPED, Outcome.DELETED) for run in evidence.runs for row in run.rows)
    if swapped and not any(swap.compared for swap in evidence.swaps):
        blind.append(f"{swapped} replicas were swapped, and none could be compared with its source: C6 saw only CRCs")
    if swapped and not evidence.samples:
        blind.append(f"{swapped} replicas were copied, and no node reported a rate: C10 saw nothing")
    if not evidence.leaders and any(topic.replicas > 1 for topic in evidence.topics.values()):
        blind.append("no node reported a leader: C15 saw only the batches on disk")
    if not evidence.faults:
        blind.append("no disk fault was injected: C9 saw only that no directory was offline without one, C19 nothing")
    elif not beside_disks.judged(Index(evidence)):
        blind.append("no client sent during a disk fault without other faults: C19 saw only moves and directories")
    return blind


def show(report: Report, screen: Console) -> None:
    """Print the table, the findings, the verdict, and the command that repeats the run."""
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
    lines.append(["minutes", "total", f"{report.seconds / 60:.1f}"])
    screen.print(output.table(("", "what", "number"), lines))
    for finding in report.findings:
        screen.print(f"VIOLATION {finding}", soft_wrap=True, markup=False)
    for problem in report.problems:
        screen.print(f"note: {problem}", soft_wrap=True, markup=False)
    screen.print(f"verdict: {report.verdict}", soft_wrap=True, markup=False)
    screen.print(f"repeat it with: {report.again}", soft_wrap=True, markup=False)
    if report.folder:
        screen.print(f"histories and the log of all events: {report.folder}", soft_wrap=True, markup=False)
