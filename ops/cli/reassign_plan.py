"""What a reassignment file asks for, against what the cluster has: pure decisions of `rehome reassign`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ops.cli.kafka_admin import LogDirectoryView, Reassignment
from ops.cli.log_dirs import Wish
from ops.cli.reassign_look import Reported
from ops.stack.errors import UsageError
from storage_node.types import TopicPartition
from workflows.model import plan
from workflows.model.fields import BadField
from workflows.model.plan import PlannedPartition

# What is to be done with a partition, and what became of it.
IN_PLACE = "in_place"  # it is as the file says
UNDER_WAY = "under_way"  # on its way there already
TO_CHANGE = "to_change"
STARTED = "started"
DONE = "done"
CANCELLED = "cancelled"
NOTHING = "nothing_under_way"  # there is nothing to cancel
SUPERSEDED = "superseded"  # another target was requested meanwhile
FAILED = "failed"
REFUSED = "refused"
BAD = (SUPERSEDED, FAILED, REFUSED)
#: Outcomes of a started reassignment that does not reach the file's target.
NOT_REACHED = (*BAD, CANCELLED)


@dataclass(frozen=True, slots=True)
class Row:
    """One partition of the file: from which nodes to which, and how it stands."""

    partition: TopicPartition
    source: tuple[int, ...]
    target: tuple[int, ...]
    outcome: str
    message: str = ""

    def as_json(self) -> dict[str, Any]:
        """For --json."""
        return {
            "topic": self.partition.topic,
            "partition": self.partition.partition,
            "from": list(self.source),
            "to": list(self.target),
            "outcome": self.outcome,
            "message": self.message,
        }

    def cells(self) -> list[str]:
        """For the table."""
        return [str(self.partition), listed(self.source), listed(self.target), self.outcome, self.message]


COLUMNS = ("partition", "from", "to", "outcome", "why")
_SEE = "what it looks like: rehome reassign --help"


def listed(nodes: Iterable[int]) -> str:
    """Nodes for people: 1,2,3."""
    return ",".join(map(str, nodes)) or "-"


def read(file: Path) -> tuple[PlannedPartition, ...]:
    """The partitions of a file. Raises `UsageError` naming the path of the bad field."""
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        decoding = isinstance(error, UnicodeDecodeError)
        why = "it is no text" if decoding else getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cannot read the plan {file}: {why}; {_SEE}") from error
    try:
        return plan.parse_reassignment(text)
    except BadField as error:
        raise UsageError(f"the plan {file} cannot be used: {error}; {_SEE}") from error


def partition_of(entry: PlannedPartition) -> TopicPartition:
    """The entry's partition."""
    return TopicPartition(entry.topic, entry.partition)


def problems(
    entries: Sequence[PlannedPartition],
    held: Mapping[TopicPartition, Sequence[int]],
    nodes: Collection[int],
    views: Sequence[LogDirectoryView],
) -> list[str]:
    """Why the file cannot be meant, a sentence each: partitions, nodes or directories that are not there.

    `held` are the partitions that there are; `nodes` all that the cluster knows; `views` the directories of those that
    answered: what the others have is not known.
    """
    found: list[str] = []
    paths: dict[int, list[str]] = {}
    for view in views:
        paths.setdefault(view.node, []).append(view.path)
    for entry in entries:
        tp = partition_of(entry)
        if tp not in held:
            found.append(f"there is no partition {tp}; see: rehome topic list, rehome topic describe {tp.topic}")
            continue
        unknown = [node for node in entry.replicas if node not in nodes]
        if unknown:
            found.append(f"{tp} is to be on node {listed(unknown)}, but the cluster has {listed(sorted(nodes))}")
        for wish in wishes(entry):
            if wish.node in paths and wish.directory not in paths[wish.node]:
                has = ", ".join(paths[wish.node])
                found.append(f"{tp}: {wish.directory} is not one of the log.dirs of node {wish.node}, which are {has}")
    return found


def wishes(entry: PlannedPartition) -> list[Wish]:
    """The directories that an entry asks for."""
    pairs = zip(entry.replicas, entry.log_dirs, strict=True)
    return [Wish(partition_of(entry), node, directory) for node, directory in pairs if directory != plan.ANY]


def misplaced(entry: PlannedPartition, views: Sequence[LogDirectoryView]) -> list[Wish]:
    """The directories asked for in which the replica is not, or not yet."""
    held = {(r.node, r.partition): r.directory for view in views for r in view.replicas if not r.future}
    return [wish for wish in wishes(entry) if held.get((wish.node, wish.partition)) != wish.directory]


def standing(
    entry: PlannedPartition,
    replicas: Sequence[int],
    under_way: Reassignment | None,
    views: Sequence[LogDirectoryView] = (),
) -> Row:
    """How a partition stands to the file: in place, on its way, or to be changed."""
    tp = partition_of(entry)
    if under_way is not None:
        outcome = UNDER_WAY if under_way.target == entry.replicas else TO_CHANGE
        return Row(tp, under_way.source, entry.replicas, outcome)
    there = tuple(replicas) == entry.replicas and not misplaced(entry, views)
    return Row(tp, tuple(replicas), entry.replicas, IN_PLACE if there else TO_CHANGE)


def ended(row: Row, replicas: Sequence[int] | None, under_way: Reassignment | None) -> Row | None:
    """Return how a started partition has ended by the metadata; None while it is under way.

    One that is back on its earlier nodes was cancelled, by this command or another client.
    """
    if replicas is None:
        return replaced(row, FAILED, "its topic was deleted")
    if under_way is not None and under_way.target == row.target:
        return None
    if under_way is not None:
        return replaced(row, SUPERSEDED, f"it goes to {listed(under_way.target)} now")
    if tuple(replicas) == row.target:
        return replaced(row, DONE)
    if set(replicas) == set(row.source):
        return cancelled(row, replicas)
    return replaced(row, SUPERSEDED, f"it is on {listed(replicas)} now: another target was requested")


def cancelled(row: Row, replicas: Iterable[int]) -> Row:
    """The row of a partition whose reassignment was cancelled, and that is on these nodes now."""
    return replaced(row, CANCELLED, f"cancelled: back on node {listed(replicas)}")


def replaced(row: Row, outcome: str, message: str = "") -> Row:
    """The row with another outcome."""
    return Row(row.partition, row.source, row.target, outcome, message)


# --- the table of what is under way


@dataclass(frozen=True, slots=True)
class Line:
    """One reassignment under way. Bytes of all added replicas; `eta` in seconds, None if unknown; `by` is the client
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
        """For --json."""
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
    """Return a reassignment with what the nodes hold (`sizes`) and report of it, and its run. `missed`: unavailable
    nodes, each with a sentence or "".
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
    """What holds it, in a sentence; "" while it gets on."""
    missing = [missed[node] or f"node {node} is unavailable" for node in one.target if node in missed]
    if missing:
        return "; ".join(missing)
    return "it has no leader" if leader < 0 else reported


def measured(now: Sequence[Line], before: Sequence[Line], seconds: float) -> list[Line]:
    """The lines with a rate and an ETA from an earlier look, where no run tells them."""
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
        found.append(Line(**values | {"rate": rate, "eta": left / rate if rate else None}))
    return found
