"""The table of moves: what the nodes say about their copies, joined with the open runs. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ops.cli import output
from ops.cli.runs import OpenRun
from storage_node.move import stall as stalls


@dataclass(frozen=True, slots=True)
class MoveLine:
    """One replica's move. Sizes in bytes, rates in bytes per second, `eta` in seconds (None: not known, or never).

    `append_rate` is how fast the source grows. `stall` is what holds the move in a word, `stall_message` in a sentence;
    both are "" while it gets on.
    """

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
    append_rate: float = 0.0
    stall: str = ""
    stall_message: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


#: What the table shows.
COLUMNS = ("id", "replica", "node", "from", "to", "phase", "copied", "of", "rate", "ETA", "attempt", "held by")
#: What holds a move, as the table has it.
_WORDS = {"run_limit": "its limit", "node_limit": "node's limit", "queued": "other moves", "stopped": "an order"}


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
        _WORDS.get(line.stall, line.stall.replace("_", " ")) or "-",
    ]


def reasons(lines: Iterable[MoveLine], shared: str = "") -> list[str]:
    """A sentence for each move that something holds; `shared` as in `cells`."""
    held = [line for line in lines if line.stall_message]
    return [
        f"{line.topic}-{line.partition}: {line.stall_message.replace(shared, '') if shared else line.stall_message}"
        for line in held
    ]


def shared_folder(lines: Iterable[MoveLine]) -> str:
    """The folder below which all directories lie, with its slash, or "" where there is none worth leaving out."""
    paths = [path for line in lines for path in (line.source, line.directory) if path.startswith("/")]
    if len(paths) < 2:
        return ""
    folder = posixpath.commonpath([posixpath.dirname(path) for path in paths])
    return "" if folder == "/" else folder + "/"


def eta(total: int, copied: int, rate: float, append_rate: float = 0.0, stall: str = "") -> float | None:
    """Seconds until the copy has caught up with its source, which grows; None where it cannot be told or never does."""
    return stalls.eta(total - copied, rate, append_rate, stall)


def of_node(node: int, statuses: Iterable[Mapping[str, Any]]) -> list[MoveLine]:
    """The lines of one node's answer to "moves"."""
    lines: list[MoveLine] = []
    for status in statuses:
        total, copied = int(status.get("bytes_total", 0)), int(status.get("bytes_copied", 0))
        rate, growth = float(status.get("rate", 0.0)), float(status.get("append_rate", 0.0))
        stall = str(status.get("stall", ""))
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
                eta=eta(total, copied, rate, growth, stall),
                attempt=int(status.get("attempt", 0)),
                message=str(status.get("message", "")),
                append_rate=growth,
                stall=stall,
                stall_message=str(status.get("stall_message", "")),
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


def join(
    nodes: Sequence[MoveLine],
    runs: Sequence[OpenRun],
    away: Collection[int] = frozenset(),
    fenced: Collection[int] = frozenset(),
) -> list[MoveLine]:
    """Nodes know bytes and rates best, runs know the phase when the node is away or has nothing to copy.

    One line per replica and node; `away` are the nodes that did not answer, `fenced` those that the controller does not
    take as alive. A node's line without an owner gets the id
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
        told = run if run.phase == "paused" else line
        joined.append(
            _with(
                line,
                id=line.id or run.id,
                phase=_phase(run.phase, line.phase),
                attempt=max(run.attempt, line.attempt),
                stall=told.stall,
                stall_message=told.stall_message,
            )
        )
    for key, line in by_replica.items():
        if key not in seen:
            gone = {"phase": "node away", "rate": 0.0, "append_rate": 0.0, "eta": None}
            joined.append(_with(line, **gone) if line.node in away else line)
    joined = [_alive(line, line.node in away, line.node in fenced) for line in joined]
    return sorted(joined, key=lambda line: (line.node, line.topic, line.partition))


def _alive(line: MoveLine, away: bool, fenced: bool) -> MoveLine:
    """The line with what is wrong with its node; of a node that answers the copy's own reason goes first."""
    if away:
        says = ", and the controller has fenced it" if fenced else ""
        return _with(line, stall="away", stall_message=f"node {line.node} does not answer{says}")
    if fenced and not line.stall:
        sentence = f"the controller does not take node {line.node} as alive (fenced), though it answers"
        return _with(line, stall="fenced", stall_message=sentence)
    return line


def _phase(of_run: str, of_node: str) -> str:
    """What the node does is nearer to the truth; the run knows of pauses, cancels and deletions not due yet."""
    return of_run if of_run and (not of_node or of_run in _RUN_SAYS) else of_node


_RUN_SAYS = frozenset({"paused", "cancelling", "waiting", "deleting"})


def _with(line: MoveLine, **changes: Any) -> MoveLine:
    return MoveLine(**(asdict(line) | changes))
