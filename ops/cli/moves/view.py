"""The table of moves: the copies that the nodes report, joined with the open runs. Pure."""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ops.cli import node_health, output
from ops.cli.moves.open_runs import OpenRun, Step
from ops.cli.nodes import Reach, Unreachable
from ops.stack.errors import OpsError
from storage_node.model.fields import BadField
from storage_node.model.moves import Phase, StallReason
from storage_node.move import stall as stalls
from workflows.model.move.moves import STEPS
from workflows.model.move.parameter import ParsedMoves, parse_moves
from workflows.model.phases import PAUSED
from workflows.model.reports import LiveMoveRow

#: The node of a run whose parameter is unknown.
NO_NODE = -1
#: Node, topic, partition.
ReplicaKey = tuple[int, str, int]


@dataclass(frozen=True, slots=True)
class MoveLine:
    """One replica's move. Sizes in bytes, rates in bytes per second, `eta` in seconds (None: unknown, or never).

    `append_rate` is the growth of the source. `stall` is the reason of a stalled move, `stall_message` a sentence about
    it; both are "" for a move that makes progress.
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


#: The columns of the table.
COLUMNS = ("id", "replica", "node", "from", "to", "phase", "copied", "of", "rate", "ETA", "attempt", "held by")
#: Stall reasons in the words of the table.
_WORDS: Mapping[str, str] = {
    StallReason.RUN_LIMIT: "its limit",
    StallReason.NODE_LIMIT: "node's limit",
    StallReason.QUEUED: "other moves",
    StallReason.STOPPED: "stopped by operator",
    StallReason.PAUSED_BY_SERVER: "Temporal",
}


def cells(line: MoveLine, shared: str = "") -> list[str]:
    """Return one row of the table; `shared` is a folder common to all paths, which is omitted."""
    share = f" {100 * line.bytes_copied // line.bytes_total}%" if line.bytes_total else ""
    return [
        line.id or "-",
        f"{line.topic}-{line.partition}",
        str(line.node) if line.node != NO_NODE else "-",
        line.source.removeprefix(shared) or "-",
        line.directory.removeprefix(shared),
        line.phase,
        output.size(line.bytes_copied) + share,
        output.size(line.bytes_total),
        output.rate(line.rate) if line.rate else "-",
        output.to_go(line.eta, line.bytes_copied, line.bytes_total),
        str(line.attempt) if line.attempt else "-",
        held_by(line.stall) or "-",
    ]


def held_by(stall: str) -> str:
    """Return a stall reason in the words of the table; "" for none."""
    return _WORDS.get(stall, stall.replace("_", " "))


def reasons(lines: Iterable[MoveLine], shared: str = "") -> list[str]:
    """Return a sentence for each stalled move; `shared` as in `cells`."""
    held = [line for line in lines if line.stall_message]
    return [
        f"{line.topic}-{line.partition}: {line.stall_message.replace(shared, '') if shared else line.stall_message}"
        for line in held
    ]


def shared_folder(lines: Iterable[MoveLine]) -> str:
    """Return the folder common to all directories, with its slash, or "" if there is none but /."""
    paths = [path for line in lines for path in (line.source, line.directory) if path.startswith("/")]
    if len(paths) < 2:
        return ""
    folder = posixpath.commonpath([posixpath.dirname(path) for path in paths])
    return "" if folder == "/" else folder + "/"


def eta(total: int, copied: int, rate: float, append_rate: float = 0.0, stall: str = "") -> float | None:
    """Return the seconds until the copy has caught up with its growing source; None if unknown or never.

    Of an empty replica they are unknown: it has no bytes to copy, and waits for a slot or the swap all the same.
    """
    if total <= 0:
        return None
    return stalls.eta(total - copied, rate, append_rate, stall)


def of_node(node: int, statuses: Iterable[Mapping[str, Any]]) -> list[MoveLine]:
    """Return the lines of one node's response to "moves"."""
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


@dataclass(frozen=True, slots=True)
class NodeMoves:
    """The nodes' reports: copies, and the replicas that these are of; the `.delete` folders of swaps by node and
    replica; how each node responds; nodes with stopped moves; fenced nodes; sentences for the operator, and those of
    them that are about nodes that did not respond.
    """

    lines: tuple[MoveLine, ...] = ()
    copied: frozenset[ReplicaKey] = frozenset()
    delete_delays: Mapping[ReplicaKey, Mapping[str, Any]] = field(default_factory=dict)
    reach: Mapping[int, Reach] = field(default_factory=dict)
    stopped: list[int] = field(default_factory=list)
    fenced: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()

    @staticmethod
    def of(responses: Mapping[int, Mapping[str, Any] | OpsError]) -> NodeMoves:
        """Read the responses of all nodes to "moves"; the fenced nodes are those of the newest metadata."""
        lines: list[MoveLine] = []
        delayed: dict[ReplicaKey, Mapping[str, Any]] = {}
        reach: dict[int, Reach] = {}
        stopped: list[int] = []
        notes: list[str] = []
        missed: list[str] = []
        newest: tuple[int, int] = (-1, -1)
        fenced: frozenset[int] = frozenset()
        for node, response in responses.items():
            if isinstance(response, OpsError):
                reach[node] = response.reach if isinstance(response, Unreachable) else Reach.CLOSED
                notes.append(str(response))
                missed.append(str(response))
                continue
            reach[node] = Reach.RESPONDS
            lines += of_node(node, response.get("moves", []))
            delayed |= {
                (node, str(row["topic"]), int(row["partition"])): row for row in response.get("delete_delays", [])
            }
            notes += [
                f"log directory {one['path']} of node {node} is offline ({one['reason']}); repair it and restart "
                "the node"
                for one in response.get("offline", [])
            ]
            if response.get("stopped"):
                stopped.append(node)
                notes.append(f"the moves of node {node} are stopped; resume them with: rehome node resume-moves {node}")
            version = (int(response.get("generation", 0)), int(response.get("version", 0)))
            if version > newest:
                newest, fenced = version, frozenset(map(int, response.get("fenced", [])))
        copied = frozenset((line.node, line.topic, line.partition) for line in lines)
        return NodeMoves(tuple(lines), copied, delayed, reach, stopped, fenced, tuple(notes), tuple(missed))

    def with_fenced(self, nodes: Collection[int]) -> NodeMoves:
        """Return the reports with more fenced nodes."""
        return replace(self, fenced=self.fenced | frozenset(nodes))

    def covers(self, key: ReplicaKey) -> bool:
        """Return whether a node reports the whole move of a replica."""
        return key in self.delete_delays or key in self.copied


def parameter_of(run: OpenRun) -> ParsedMoves | None:
    """Return the moves in a run's parameter; None if it was not read or is not valid."""
    try:
        return parse_moves(run.parameter) if run.parameter is not None else None
    except BadField:
        return None


def nodes_of(run: OpenRun) -> set[int]:
    """Return the node whose replicas a run moves, as a set; an empty one if it is unknown."""
    plan = parameter_of(run)
    return set() if plan is None else {plan.node}


def lacks(run: OpenRun, reported: NodeMoves) -> bool:
    """Return whether the nodes do not report all replicas of a run."""
    plan = parameter_of(run)
    return plan is None or not all(reported.covers((plan.node, each.topic, each.partition)) for each in plan.replicas)


def of_run(run: OpenRun) -> list[MoveLine]:
    """Return the lines of one open run by the server."""
    plan, step = parameter_of(run), run.step or Step()
    if plan is None:
        return [MoveLine(run.workflow_id, "?", 0, NO_NODE, "", "", "unknown", 0, 0, 0.0, None, step.attempt)]
    phase = _PHASES.get(step.activity, step.activity) or (Phase.DELETE_DELAY if run.step is not None else "")
    if step.cancelling or phase == Phase.CANCELLING:
        phase = Phase.CANCELLING
    elif run.paused or run.suspended:
        phase = PAUSED
    reported = {(row.topic, row.partition): row for row in step.rows}
    lines = []
    for each in plan.replicas:
        row = reported.get((each.topic, each.partition)) or LiveMoveRow(each.topic, each.partition, None)
        (line,) = of_node(plan.node, [asdict(row)])
        attempt = max(step.attempt, row.attempts)
        line = replace(line, id=run.workflow_id, phase=phase, attempt=attempt)
        lines.append(replace(line, directory=row.directory or each.directory))
    if phase != PAUSED:
        return lines
    return [_suspended(line) if run.suspended else _paused(line) for line in lines]


def join(reported: NodeMoves, runs: Iterable[OpenRun]) -> list[MoveLine]:
    """Return one line per replica and node. Nodes report bytes, rates and stall reasons; the server reports the open
    runs, and replaces the report of a node that does not respond.
    """
    lines = [line for run in runs for line in of_run(run)]
    unread = [line for line in lines if line.node == NO_NODE]
    by_replica = {(line.node, line.topic, line.partition): line for line in lines if line.node != NO_NODE}
    joined: list[MoveLine] = []
    for line in reported.lines:
        run = by_replica.pop((line.node, line.topic, line.partition), None)
        joined.append(line if run is None else _of_both(line, run))
    joined += [_of_run_alone(line, reported) for line in by_replica.values()]
    joined = [_alive(line, reported.reach.get(line.node), line.node in reported.fenced) for line in joined]
    joined += unread
    return sorted(joined, key=lambda line: (line.node, line.topic, line.partition, line.id))


def _of_both(line: MoveLine, run: MoveLine) -> MoveLine:
    """Join both lines: the node's is more recent, but only the server knows of pauses and cancels."""
    line = replace(line, id=line.id or run.id, attempt=max(line.attempt, run.attempt))
    if run.phase == PAUSED:
        line = replace(line, phase=PAUSED)
        return _suspended(line) if run.stall == StallReason.PAUSED_BY_SERVER else _paused(line)
    return replace(line, phase=Phase.CANCELLING if run.phase == Phase.CANCELLING else line.phase)


def _of_run_alone(line: MoveLine, reported: NodeMoves) -> MoveLine:
    """Return the line of a run's replica without a copy: it waits for the node, for a slot or for the delete delay."""
    if reported.reach.get(line.node) in (Reach.REFUSED, Reach.SILENT):
        return replace(
            line, phase=StallReason.UNAVAILABLE, rate=0.0, append_rate=0.0, eta=None, stall="", stall_message=""
        )
    left = reported.delete_delays.get((line.node, line.topic, line.partition))
    if left is not None and left["directory"] == line.directory:
        size = int(left["bytes_total"])
        phase = Phase.DELETE_DELAY if left["due"] > 0 else Phase.DELETING
        return replace(
            line, phase=phase, source=left["source"], bytes_total=size, bytes_copied=size, eta=0.0 if size else None
        )
    unread = Phase.CREATING if reported.reach.get(line.node) is Reach.RESPONDS else "open"
    return replace(line, phase=line.phase or unread)


def _paused(line: MoveLine) -> MoveLine:
    return replace(line, rate=0.0, eta=None, stall=StallReason.STOPPED, stall_message="the run is paused")


def _suspended(line: MoveLine) -> MoveLine:
    """Mark a run that the server paused. Its current step continues, so that the node's rate is valid."""
    resume = f"resume it with: temporal workflow unpause --workflow-id {shlex.quote(line.id)}"
    return replace(
        line, stall=StallReason.PAUSED_BY_SERVER, stall_message=f"the Temporal server has paused the run; {resume}"
    )


def _alive(line: MoveLine, reach: Reach | None, fenced: bool) -> MoveLine:
    """Add the reason why the node is unavailable; for a node that responds the copy's own reason takes precedence."""
    found = node_health.diagnose(line.node, reach, fenced)
    if found is None or (found[0] is StallReason.FENCED and line.stall):
        return line
    return replace(line, stall=str(found[0]), stall_message=found[1])


#: The phase of a run that waits for an activity.
_PHASES = {activity: phase for phase, activity in STEPS.items()}
