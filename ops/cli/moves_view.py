"""The table of moves: what the nodes report of their copies, joined with the open runs. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ops.cli import absent, output
from ops.cli.nodes import Reach, Unreachable
from ops.cli.open_runs import OpenRun, Step
from ops.stack.errors import OpsError
from storage_node.move import stall as stalls
from workflows.model.absence import Absence
from workflows.model.fields import BadField
from workflows.model.moves import CANCELLING, CREATING, DELETING, STEPS, STOPPED, SUSPENDED, WAITING
from workflows.model.phases import PAUSED
from workflows.model.plan import MovePlan, parse_moves

#: The node of a run whose parameter was not read.
NO_NODE = -1
#: Node, topic, partition.
ReplicaKey = tuple[int, str, int]


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
_WORDS = {
    "run_limit": "its limit",
    "node_limit": "node's limit",
    "queued": "other moves",
    "stopped": "an order",
    SUSPENDED: "Temporal",
}


def cells(line: MoveLine, shared: str = "") -> list[str]:
    """One row of the table; `shared` is a folder that all paths have in common and that is left out."""
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
    """Seconds until the copy has caught up with its source, which grows; None if unknown or never."""
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


@dataclass(frozen=True, slots=True)
class NodeMoves:
    """What the nodes report: their copies, and of which replicas these are; by node and replica what swaps have left;
    how each node responds; the nodes with stopped moves; the fenced nodes; a sentence for each node that needs one.
    """

    lines: tuple[MoveLine, ...] = ()
    copied: frozenset[ReplicaKey] = frozenset()
    waiting: Mapping[ReplicaKey, Mapping[str, Any]] = field(default_factory=dict)
    reach: Mapping[int, Reach] = field(default_factory=dict)
    stopped: list[int] = field(default_factory=list)
    fenced: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()

    @staticmethod
    def of(answers: Mapping[int, Mapping[str, Any] | OpsError]) -> NodeMoves:
        """Read the responses of all nodes to "moves"; the newest metadata among them has the fenced nodes."""
        lines: list[MoveLine] = []
        waiting: dict[ReplicaKey, Mapping[str, Any]] = {}
        reach: dict[int, Reach] = {}
        stopped: list[int] = []
        notes: list[str] = []
        newest: tuple[int, int] = (-1, -1)
        fenced: frozenset[int] = frozenset()
        for node, answer in answers.items():
            if isinstance(answer, OpsError):
                reach[node] = answer.reach if isinstance(answer, Unreachable) else Reach.CLOSED
                notes.append(str(answer))
                continue
            reach[node] = Reach.RESPONDS
            lines += of_node(node, answer.get("moves", []))
            waiting |= {(node, str(row["topic"]), int(row["partition"])): row for row in answer.get("waiting", [])}
            notes += [
                f"log directory {one['path']} of node {node} is offline ({one['reason']}); repair it and start the "
                "node again"
                for one in answer.get("offline", [])
            ]
            if answer.get("stopped"):
                stopped.append(node)
                notes.append(f"the moves of node {node} are stopped; see: rehome node resume-moves {node}")
            version = (int(answer.get("generation", 0)), int(answer.get("version", 0)))
            if version > newest:
                newest, fenced = version, frozenset(map(int, answer.get("fenced", [])))
        copied = frozenset((line.node, line.topic, line.partition) for line in lines)
        return NodeMoves(tuple(lines), copied, waiting, reach, stopped, fenced, tuple(notes))

    def with_fenced(self, nodes: Collection[int]) -> NodeMoves:
        """Return the same with more fenced nodes."""
        return replace(self, fenced=self.fenced | frozenset(nodes))

    def tells_of(self, key: ReplicaKey) -> bool:
        """Whether a node reports all of a replica's move."""
        return key in self.waiting or key in self.copied


def plan_of(run: OpenRun) -> MovePlan | None:
    """The moves that a run was started with; None where they were not read, or cannot be."""
    try:
        return parse_moves(run.parameter) if run.parameter is not None else None
    except BadField:
        return None


def nodes_of(run: OpenRun) -> set[int]:
    """The node whose replicas a run moves."""
    plan = plan_of(run)
    return set() if plan is None else {plan.node}


def lacks(run: OpenRun, reported: NodeMoves) -> bool:
    """Whether the nodes do not report all replicas of a run."""
    plan = plan_of(run)
    return plan is None or not all(reported.tells_of((plan.node, each.topic, each.partition)) for each in plan.replicas)


def of_run(run: OpenRun) -> list[MoveLine]:
    """The lines of one open run, as the server has it."""
    plan, step = plan_of(run), run.step or Step()
    if plan is None:
        return [MoveLine(run.workflow_id, "?", 0, NO_NODE, "", "", "unknown", 0, 0, 0.0, None, step.attempt)]
    phase = _PHASES.get(step.activity, step.activity) or (WAITING if run.step is not None else "")
    if step.cancelling or phase == CANCELLING:
        phase = CANCELLING
    elif run.paused or run.suspended:
        phase = PAUSED
    reported = {(row.get("topic"), row.get("partition")): row for row in step.rows}
    lines = []
    for each in plan.replicas:
        row: dict[str, Any] = {"topic": each.topic, "partition": each.partition, "directory": each.directory}
        row |= reported.get((each.topic, each.partition), {})
        (line,) = of_node(plan.node, [row])
        attempt = max(step.attempt, int(row.get("attempts", 0)))
        lines.append(replace(line, id=run.workflow_id, phase=phase, attempt=attempt))
    if phase != PAUSED:
        return lines
    return [_suspended(line) if run.suspended else _paused(line) for line in lines]


def join(reported: NodeMoves, runs: Iterable[OpenRun]) -> list[MoveLine]:
    """One line per replica and node. Nodes know bytes, rates and what holds a copy; the server knows what was started,
    and the rest where a node does not respond.
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
        return _suspended(line) if run.stall == SUSPENDED else _paused(line)
    return replace(line, phase=CANCELLING if run.phase == CANCELLING else line.phase)


def _of_run_alone(line: MoveLine, reported: NodeMoves) -> MoveLine:
    """A run's replica of which no node has a copy: it waits for the node, for its turn or for the `.delete`."""
    if reported.reach.get(line.node) in (Reach.REFUSED, Reach.SILENT):
        return replace(line, phase=NODE_AWAY, rate=0.0, append_rate=0.0, eta=None, stall="", stall_message="")
    left = reported.waiting.get((line.node, line.topic, line.partition))
    if left is not None and left["directory"] == line.directory:
        size = int(left["bytes_total"])
        phase = WAITING if left["due"] > 0 else DELETING
        return replace(line, phase=phase, source=left["source"], bytes_total=size, bytes_copied=size, eta=0.0)
    unread = CREATING if reported.reach.get(line.node) is Reach.RESPONDS else "open"
    return replace(line, phase=line.phase or unread)


def _paused(line: MoveLine) -> MoveLine:
    return replace(line, rate=0.0, eta=None, stall=STOPPED, stall_message="the run is paused")


def _suspended(line: MoveLine) -> MoveLine:
    """A step that had begun goes on, so that the node's rate holds; the next one waits."""
    resume = f"resume it with: temporal workflow unpause --workflow-id {line.id}"
    return replace(line, stall=SUSPENDED, stall_message=f"the Temporal server has paused the run; {resume}")


def _alive(line: MoveLine, reach: Reach | None, fenced: bool) -> MoveLine:
    """The line with what is wrong with its node; for a node that responds the copy's own reason comes first."""
    found = absent.judge(line.node, reach, fenced)
    if found is None or (found[0] is Absence.FENCED and line.stall):
        return line
    return replace(line, stall=str(found[0]), stall_message=found[1])


#: The phase of a run that waits for an activity.
_PHASES = {activity: phase for phase, activity in STEPS.items()}
#: The phase of a move whose node does not respond.
NODE_AWAY = "node away"
