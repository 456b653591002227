"""Compares a reassignment file with the cluster: the pure decisions of `rehome reassign`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ops.cli import output
from ops.cli.kafka_admin import LogDirectoryView, Reassignment
from ops.cli.moves.log_dirs import RequestedMove
from ops.cli.plan.people_files import tolerant
from ops.cli.reassign.polling import Reported
from ops.stack.errors import UsageError
from storage_node.model.fields import BadField
from storage_node.model.ids import TopicPartition
from storage_node.model.moves import Outcome
from storage_node.model.reassignments import PartitionOutcome
from workflows.model.move import parameter
from workflows.model.move.parameter import ANY
from workflows.model.plans import document
from workflows.model.plans.document import PlannedPartition

# Outcomes of a partition of the file.
IN_PLACE = Outcome.IN_PLACE  # its replicas are those of the file
UNDER_WAY = "under_way"  # already being reassigned to the file's target
TO_CHANGE = "to_change"
STARTED = "started"
DONE = PartitionOutcome.DONE
CANCELLED = PartitionOutcome.CANCELLED
NOTHING = "nothing_under_way"  # no reassignment to cancel
SUPERSEDED = PartitionOutcome.SUPERSEDED  # another target was requested meanwhile
FAILED = PartitionOutcome.FAILED
REFUSED = "refused"
BAD = (SUPERSEDED, FAILED, REFUSED)
#: Outcomes of a started reassignment that does not reach the file's target.
NOT_REACHED = (*BAD, CANCELLED)


@dataclass(frozen=True, slots=True)
class Row:
    """One partition of the file: its current nodes, the requested ones, and its outcome."""

    partition: TopicPartition
    source: tuple[int, ...]
    target: tuple[int, ...]
    outcome: str
    message: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the row of --json."""
        return {
            "topic": self.partition.topic,
            "partition": self.partition.partition,
            "from": list(self.source),
            "to": list(self.target),
            "outcome": self.outcome,
            "message": self.message,
        }

    def cells(self) -> list[str]:
        """Return the row of the table."""
        return [str(self.partition), listed(self.source), listed(self.target), self.outcome, self.message]


COLUMNS = ("partition", "from", "to", "outcome", "why")
_SEE = "for the format see: rehome reassign --help"


def listed(nodes: Iterable[int]) -> str:
    """Format node ids: 1,2,3."""
    return ",".join(map(str, nodes)) or "-"


def read(file: Path) -> tuple[tuple[PlannedPartition, ...], float | None]:
    """Return the partitions of a file, and its SLA in seconds. Raises `UsageError` naming the path of the bad field."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        decoding = isinstance(error, UnicodeDecodeError)
        why = "it is not valid UTF-8 text" if decoding else getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cannot read the plan {file}: {why}; {_SEE}") from error
    try:
        found, notes = tolerant(text)
        sla = found.pop("sla_seconds", None) if isinstance(found, dict) else None
        entries = document.parse_reassignment(found)
        seconds = None if sla is None else parameter.seconds(sla, "$.sla_seconds")
    except BadField as error:
        raise UsageError(f"the plan {file} is not valid: {error}; {_SEE}") from error
    for note in notes:
        output.warn_once(f"the plan {file} {note}")
    return entries, seconds


def partition_of(entry: PlannedPartition) -> TopicPartition:
    """Return the entry's partition."""
    return TopicPartition(entry.topic, entry.partition)


def problems(
    entries: Sequence[PlannedPartition],
    held: Mapping[TopicPartition, Sequence[int]],
    nodes: Collection[int],
    views: Sequence[LogDirectoryView],
) -> list[str]:
    """Return a sentence for each partition, node or directory of the file that does not exist.

    `held` are the existing partitions, `nodes` all nodes of the cluster, `views` the directories of the nodes that
    responded: those of the others are not checked.
    """
    found: list[str] = []
    paths: dict[int, list[str]] = {}
    for view in views:
        paths.setdefault(view.node, []).append(view.path)
    for entry in entries:
        tp = partition_of(entry)
        if tp not in held:
            found.append(f"partition {tp} does not exist; see: rehome topic list, rehome topic describe {tp.topic}")
            continue
        unknown = [node for node in entry.replicas if node not in nodes]
        if unknown:
            found.append(f"{tp}: node {listed(unknown)} does not exist; the cluster has {listed(sorted(nodes))}")
        for move in requested_moves(entry):
            if move.node in paths and move.directory not in paths[move.node]:
                has = ", ".join(paths[move.node])
                found.append(
                    f"{tp}: {move.directory!r} is not one of the log.dirs of node {move.node}, which are {has}"
                )
    return found


def requested_moves(entry: PlannedPartition) -> list[RequestedMove]:
    """Return the directories that an entry requests."""
    pairs = zip(entry.replicas, entry.log_dirs, strict=True)
    return [RequestedMove(partition_of(entry), node, directory) for node, directory in pairs if directory != ANY]


Placed = Mapping[tuple[int, TopicPartition], str]
"""The directory of each replica, by node."""


def placed(views: Iterable[LogDirectoryView]) -> Placed:
    """Return the directories of the replicas, without future replicas."""
    return {(r.node, r.partition): r.directory for view in views for r in view.replicas if not r.future}


def misplaced(entry: PlannedPartition, held: Placed) -> list[RequestedMove]:
    """Return the requested directories that do not hold the replica, or not yet."""
    return [move for move in requested_moves(entry) if held.get((move.node, move.partition)) != move.directory]


def compare(
    entry: PlannedPartition,
    replicas: Sequence[int],
    under_way: Reassignment | None,
    directories: Placed,
) -> Row:
    """Compare a partition with the file: in place, already under way, or to be changed. `directories` are those of the
    replicas on the nodes that responded.
    """
    tp = partition_of(entry)
    if under_way is not None:
        outcome = UNDER_WAY if under_way.target == entry.replicas else TO_CHANGE
        return Row(tp, under_way.source, entry.replicas, outcome)
    in_place = tuple(replicas) == entry.replicas and not misplaced(entry, directories)
    return Row(tp, tuple(replicas), entry.replicas, IN_PLACE if in_place else TO_CHANGE)


def ended(row: Row, replicas: Sequence[int] | None, under_way: Reassignment | None) -> Row | None:
    """Return the outcome of a started reassignment by the metadata; None while it is in progress.

    A partition that is back on its earlier nodes was cancelled, by this command or another client.
    """
    if replicas is None:
        return replaced(row, FAILED, "its topic was deleted")
    if under_way is not None and under_way.target == row.target:
        return None
    if under_way is not None:
        return replaced(row, SUPERSEDED, f"its target is {listed(under_way.target)} now: another target was requested")
    if tuple(replicas) == row.target:
        return replaced(row, DONE)
    if set(replicas) == set(row.source):
        return cancelled(row, replicas)
    return replaced(row, SUPERSEDED, f"it is on {listed(replicas)} now: another target was requested")


def cancelled(row: Row, replicas: Iterable[int]) -> Row:
    """Return the row of a cancelled reassignment; `replicas` are the nodes of the partition now."""
    return replaced(row, CANCELLED, f"cancelled: back on node {listed(replicas)}")


def replaced(row: Row, outcome: str, message: str = "") -> Row:
    """Return the row with another outcome."""
    return Row(row.partition, row.source, row.target, outcome, message)


# --- the table of reassignments in progress


@dataclass(frozen=True, slots=True)
class Line:
    """One reassignment in progress. Bytes of all added replicas; `eta` in seconds, None if unknown; `by` is the client
    that requested it (client id and address), "" if no run reports it.
    """

    topic: str
    partition: int
    source: tuple[int, ...]
    target: tuple[int, ...]
    in_sync: tuple[int, ...]
    bytes_total: int
    bytes_copied: int
    rate: float = 0.0
    eta: float | None = None
    reason: str = ""
    id: str = ""
    by: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the row of --json."""
        return asdict(self)


def line(
    one: Reassignment,
    described: Mapping[str, Any] | None,
    sizes: Mapping[tuple[int, TopicPartition], int],
    missed: Mapping[int, str],
    reported: Reported | None = None,
    workflow_id: str = "",
    by: str = "",
) -> Line:
    """Return the line of a reassignment, from the nodes' replicas (`sizes`), their reports and its run. `missed`:
    unavailable nodes, each with a sentence or "".
    """
    described = described or {}
    isr = tuple(described.get("isr", ()))
    leader = int(described.get("leader", -1))
    whole = sizes.get((leader, one.partition), 0)
    copied = [min(sizes.get((node, one.partition), 0), whole) for node in one.adding]
    reported = reported or Reported()
    return Line(
        one.partition.topic,
        one.partition.partition,
        one.source,
        one.target,
        tuple(node for node in one.target if node in isr),
        whole * len(one.adding),
        sum(copied),
        reported.rate,
        reported.eta,
        _reason(one, leader, missed, reported.message),
        workflow_id,
        by,
    )


def _reason(one: Reassignment, leader: int, missed: Mapping[int, str], reported: str) -> str:
    """Return why the reassignment is stalled; "" while it makes progress."""
    missing = [missed[node] or f"node {node} is unavailable" for node in one.target if node in missed]
    if missing:
        return "; ".join(missing)
    return "the partition has no leader" if leader < 0 else reported


def measured(now: Sequence[Line], before: Sequence[Line], seconds: float) -> list[Line]:
    """Add a rate and an ETA, computed from earlier lines, to the lines for which no node reports a rate."""
    known = {(each.topic, each.partition): each for each in before}
    found: list[Line] = []
    for each in now:
        old = known.get((each.topic, each.partition))
        if each.rate or old is None or seconds <= 0:
            found.append(each)
            continue
        rate = max(0, each.bytes_copied - old.bytes_copied) / seconds
        left = each.bytes_total - each.bytes_copied
        values = {name: getattr(each, name) for name in Line.__slots__}
        found.append(Line(**values | {"rate": rate, "eta": left / rate if rate and left > 0 else None}))
    return found
