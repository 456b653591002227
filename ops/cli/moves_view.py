"""The table of moves: what the nodes say about their copies, joined with the open runs. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ops.cli import output
from ops.cli.runs import OpenRun


@dataclass(frozen=True, slots=True)
class MoveLine:
    """One replica's move. Sizes in bytes, `rate` in bytes per second, `eta` in seconds (None: not known)."""

    id: str
    topic: str
    partition: int
    node: int
    source: str
    directory: str
    phase: str
    bytes_total: int
    bytes_copied: int
    rate: float
    eta: float | None
    attempt: int
    message: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


#: What the table shows.
COLUMNS = ("id", "replica", "node", "from", "to", "phase", "copied", "of", "rate", "ETA", "attempt")


def cells(line: MoveLine, shared: str = "") -> list[str]:
    """One row of the table; `shared` is a folder that all paths have in common and that is left out."""
    share = f" {100 * line.bytes_copied // line.bytes_total}%" if line.bytes_total else ""
    return [
        line.id or "-",
        f"{line.topic}-{line.partition}",
        str(line.node),
        line.source.removeprefix(shared) or "-",
        line.directory.removeprefix(shared),
        line.phase,
        output.size(line.bytes_copied) + share,
        output.size(line.bytes_total),
        output.rate(line.rate) if line.rate else "-",
        output.duration(line.eta),
        str(line.attempt) if line.attempt else "-",
    ]


def shared_folder(lines: Iterable[MoveLine]) -> str:
    """The folder below which all directories lie, with its slash, or "" where there is none worth leaving out."""
    paths = [path for line in lines for path in (line.source, line.directory) if path.startswith("/")]
    if len(paths) < 2:
        return ""
    folder = posixpath.commonpath([posixpath.dirname(path) for path in paths])
    return "" if folder == "/" else folder + "/"


def eta(total: int, copied: int, rate: float) -> float | None:
    """Seconds until the copy has caught up at this rate, or None where there is no rate."""
    left = max(0, total - copied)
    if left == 0:
        return 0.0
    return left / rate if rate > 0 else None


def of_node(node: int, statuses: Iterable[Mapping[str, Any]]) -> list[MoveLine]:
    """The lines of one node's answer to "moves"."""
    lines: list[MoveLine] = []
    for status in statuses:
        total, copied = int(status.get("bytes_total", 0)), int(status.get("bytes_copied", 0))
        rate = float(status.get("rate", 0.0))
        lines.append(
            MoveLine(
                id=str(status.get("owner", "")),
                topic=str(status["topic"]),
                partition=int(status["partition"]),
                node=node,
                source=str(status.get("source", "")),
                directory=str(status.get("directory", "")),
                phase=str(status.get("state", "")),
                bytes_total=total,
                bytes_copied=min(copied, total) if total else copied,
                rate=rate,
                eta=eta(total, copied, rate),
                attempt=int(status.get("attempt", 0)),
                message=str(status.get("message", "")),
            )
        )
    return lines


def of_run(run: OpenRun) -> list[MoveLine]:
    """The lines of one open run, by its own account."""
    progress = run.progress
    if progress is None:
        return [MoveLine(run.workflow_id, "?", 0, 0, "", "", "no answer", 0, 0, 0.0, None, 0)]
    rows = progress.get("replicas", [])
    overall = "cancelling" if progress.get("cancelling") else ("paused" if progress.get("paused") else "")
    lines = of_node(int(progress.get("node", 0)), rows)
    return [
        _with(
            line,
            id=run.workflow_id,
            phase=overall or str(row.get("phase", "")),
            attempt=max(line.attempt, run.attempt),
        )
        for line, row in zip(lines, rows, strict=True)
    ]


def join(nodes: Sequence[MoveLine], runs: Sequence[OpenRun], away: Collection[int] = frozenset()) -> list[MoveLine]:
    """Nodes know bytes and rates best, runs know the phase when the node is away or has nothing to copy.

    One line per replica and node; `away` are the nodes that did not answer. A node's line without an owner gets the id
    of the run that names the replica.
    """
    by_replica = {(line.node, line.topic, line.partition): line for run in runs for line in of_run(run)}
    joined: list[MoveLine] = []
    seen: set[tuple[int, str, int]] = set()
    for line in nodes:
        key = (line.node, line.topic, line.partition)
        seen.add(key)
        run = by_replica.get(key)
        if run is None:
            joined.append(line)
            continue
        joined.append(
            _with(
                line, id=line.id or run.id, phase=_phase(run.phase, line.phase), attempt=max(run.attempt, line.attempt)
            )
        )
    for key, line in by_replica.items():
        if key not in seen:
            joined.append(_with(line, phase="node away", rate=0.0, eta=None) if line.node in away else line)
    return sorted(joined, key=lambda line: (line.node, line.topic, line.partition))


def _phase(of_run: str, of_node: str) -> str:
    """What the node does is nearer to the truth; the run knows of pauses, cancels and deletions not due yet."""
    return of_run if of_run and (not of_node or of_run in _RUN_SAYS) else of_node


_RUN_SAYS = frozenset({"paused", "cancelling", "waiting", "deleting"})


def _with(line: MoveLine, **changes: Any) -> MoveLine:
    return MoveLine(**(asdict(line) | changes))
