"""A run of reassignments as data: its parameter, what became of each partition, who is to delete what, how far it is
and how it ends. All pure.

The metadata and the in-sync replicas complete a reassignment without any run. A run looks on: it compares what the
metadata says of a partition with what was asked for (`judge`), and never takes its own memory for the state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from workflows.model import calls
from workflows.model.calls import AssignedReplica, ReplicaRow
from workflows.model.moves import Verdict
from workflows.model.outcome import Reassigned
from workflows.model.plan import ANY

#: What `judge` says of a partition on its way.
UNDER_WAY = "under_way"

# Phases of a run.
ASKING = "asking"  # the controller is asked for the change
CATCHING_UP = "catching_up"  # new replicas are made, fetch, and join the ISR
DELETING = "deleting"  # the replica set is final; the data of dropped replicas goes
DIRECTING = "directing"  # replicas that came into another directory than the one asked for are moved
VERIFYING = "verifying"  # the controller is asked for the last time

# How a partition ends.
DONE = "done"
CANCELLED = calls.CANCELLED
SUPERSEDED = calls.SUPERSEDED
FAILED = calls.FAILED

_ENDS = {
    calls.JOINED: DONE,
    calls.CANCELLED: CANCELLED,
    calls.SUPERSEDED: SUPERSEDED,
    calls.GONE: FAILED,
    FAILED: FAILED,
}
Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Standing:
    """A partition as the metadata has it now."""

    topic: str
    partition: int
    topic_id: str
    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    original: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    leader: int = -1

    @property
    def key(self) -> Key:
        """Topic and partition."""
        return self.topic, self.partition

    @property
    def reassigning(self) -> bool:
        """Whether a reassignment is under way."""
        return bool(self.adding or self.removing)

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas once what is under way is complete."""
        return tuple(node for node in self.replicas if node not in self.removing)

    def row(self) -> list[Any]:
        """As signals carry it."""
        return [
            self.topic,
            self.partition,
            self.topic_id,
            list(self.replicas),
            list(self.adding),
            list(self.removing),
            list(self.original),
            list(self.isr),
            self.leader,
        ]

    @staticmethod
    def of(row: Sequence[Any]) -> Standing:
        """The partition of such a row."""
        topic, partition, topic_id, replicas, adding, removing, original, isr, leader = row
        return Standing(
            str(topic),
            int(partition),
            str(topic_id),
            tuple(replicas),
            tuple(adding),
            tuple(removing),
            tuple(original),
            tuple(isr),
            int(leader),
        )


def judge(topic_id: str, target: Sequence[int], original: Sequence[int], now: Standing | None) -> str:
    """What became of a change to `target`: UNDER_WAY, or one of JOINED, CANCELLED, SUPERSEDED, GONE.

    `topic_id` "" is any; `now` is None when there is no such partition. A partition that has its original replicas and
    nothing under way was cancelled, by whichever way; one with any other target has a later one.
    """
    if now is None or (topic_id and now.topic_id != topic_id):
        return calls.GONE
    if now.target == tuple(target):
        return UNDER_WAY if now.reassigning else calls.JOINED
    if not now.reassigning and set(now.replicas) == set(original):
        return calls.CANCELLED
    return calls.SUPERSEDED


# --- a partition of a run


@dataclass(frozen=True, slots=True)
class Part:
    """One partition of a run: what is asked for, what became of it, and what the nodes say.

    `directories` stands in the order of `target`. `touched` are all nodes that had to do with it. `verdict` is "" until
    `judge` says how it ends; `replicas`, `isr` and `leader` are the metadata's last word.
    """

    topic: str
    partition: int
    target: tuple[int, ...]
    directories: tuple[str, ...] = ()
    topic_id: str = ""
    original: tuple[int, ...] = ()
    touched: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    by: str = ""
    verdict: str = ""
    error: str = ""
    message: str = ""
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    leader: int = -1
    nodes: Mapping[int, ReplicaRow] = field(default_factory=dict)
    live: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    heard: Mapping[int, float] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """Topic and partition."""
        return self.topic, self.partition

    @property
    def open(self) -> bool:
        """Whether the replica set is not final yet."""
        return not self.verdict

    @property
    def outcome(self) -> str:
        """How it ends, "" while it is open."""
        return _ENDS.get(self.verdict, "")

    @property
    def wishes(self) -> dict[int, str]:
        """The directories asked for, by node."""
        pairs = zip(self.target, self.directories, strict=False)
        return {node: directory for node, directory in pairs if directory != ANY}

    @property
    def followed_at(self) -> tuple[int, ...]:
        """The nodes to look on at: those that are added, else the first of the target."""
        return self.adding or self.target[:1]

    @property
    def to_clear(self) -> tuple[int, ...]:
        """The nodes that are to have deleted their data, once the replica set is final."""
        if self.verdict not in (calls.JOINED, calls.CANCELLED, calls.SUPERSEDED) or not self.replicas:
            return ()
        return tuple(node for node in self.touched if node not in self.replicas)

    def asked_at(self, node: int) -> AssignedReplica:
        """It, as the node is asked about it."""
        directory = self.wishes.get(node, "")
        return AssignedReplica(
            self.topic, self.partition, self.topic_id, list(self.target), list(self.original), directory
        )

    def begun(self, change: Reassigned) -> Part:
        """The part once the controller has made the change."""
        touched = {*change.original, *change.target, *change.adding, *change.removing}
        return replace(
            self,
            topic_id=change.topic_id,
            original=tuple(change.original),
            adding=tuple(change.adding),
            touched=tuple(sorted(touched)),
            by=change.by,
        )

    def judged(self, now: Standing | None) -> Part:
        """The part after a word of the metadata; what was decided before stays, as the first word that ended it."""
        if not self.open:
            return self
        verdict = judge(self.topic_id, self.target, self.original, now)
        held = self if now is None else replace(self, replicas=now.replicas, isr=now.isr, leader=now.leader)
        return held if verdict == UNDER_WAY else held._closed(verdict)

    def failed(self, error: str, message: str) -> Part:
        """The part that cannot be done."""
        return replace(self, verdict=FAILED, error=error, message=message) if self.open else self

    def refused(self, message: str) -> Part:
        """The part whose cancel the controller has refused; it goes on."""
        return replace(self, message=f"The cancel is refused for now: {message}") if self.open else self

    def unsaid(self, node: int) -> Part:
        """The part of which a dropped node has not said for long that its data is gone."""
        message = (
            f"Node {node} has not said that its data is gone; it deletes it by itself, when it is back at the latest"
        )
        return replace(self, message=f"{self.message}; {message}" if self.message else message)

    def _closed(self, verdict: str) -> Part:
        closed = replace(self, verdict=verdict, message="" if verdict == calls.CANCELLED else self.message)
        if verdict == calls.GONE:
            message = f"The topic {self.topic} was deleted while {self.topic}-{self.partition} was reassigned."
            return replace(closed, error="TopicDeleted", message=message)
        return closed

    def after(self, row: ReplicaRow, now: float) -> Part:
        """The part after a node's step: its facts added up, and what the node's image says of the end."""
        merged = merge(self.nodes.get(row.node), row)
        live = {node: each for node, each in self.live.items() if node != row.node}
        held = replace(self, nodes={**self.nodes, row.node: merged}, live=live, heard={**self.heard, row.node: now})
        if held.open and row.outcome in (calls.JOINED, calls.CANCELLED, calls.SUPERSEDED, calls.GONE):
            return replace(held, replicas=tuple(row.replicas))._closed(row.outcome)
        return held

    def reported(self, live: Mapping[str, Any], now: float) -> Part:
        """The part after a node's report of a step under way."""
        node = int(live.get("node", -1))
        return replace(self, live={**self.live, node: live}, heard={**self.heard, node: now})

    def row(self, directories: Sequence[Sequence[Any]] = ()) -> dict[str, Any]:
        """Its row of the run's result."""
        nodes = [merge(self.nodes.get(node), of_live(self, node)) for node in sorted({*self.nodes, *self.live})]
        copies = [each for each in nodes if each.node in self.adding] or nodes
        return {
            "topic": self.topic,
            "partition": self.partition,
            "topic_id": self.topic_id,
            "outcome": self.outcome,
            "error": self.error,
            "message": self.message,
            "by": self.by,
            "original": list(self.original),
            "target": list(self.target),
            "replicas": list(self.replicas),
            "isr": list(self.isr),
            "leader": self.leader,
            "bytes_total": sum(each.bytes_total for each in copies),
            "bytes_copied": sum(each.bytes_copied for each in copies),
            "seconds_placing": _longest(each.seconds_placing for each in copies),
            "seconds_catching_up": _longest(each.seconds_catching_up for each in copies),
            "seconds_deleting": _longest(each.seconds_deleting for each in nodes),
            "seconds_throttled": _longest(each.seconds_throttled for each in copies),
            "attempts": max((each.attempts for each in nodes), default=0),
            "directories": [list(each) for each in directories],
            "nodes": [_plain(each) for each in nodes],
        }


def _longest(seconds: Iterable[float]) -> float:
    return round(max(seconds, default=0.0), 3)


_FIELDS = frozenset(each.name for each in fields(ReplicaRow))


def of_live(part: Part, node: int) -> ReplicaRow:
    """What a node last reported, as a row; an empty one without a report."""
    blank = ReplicaRow(part.topic, part.partition, node, "")
    told = part.live.get(node)
    if told is None:
        return blank
    known = {name: value for name, value in told.items() if name in _FIELDS and name not in ("outcome", "replicas")}
    return replace(blank, **known)


def _plain(row: ReplicaRow) -> dict[str, Any]:
    skipped = ("topic", "partition", "generation", "version", "replicas")
    return {each.name: getattr(row, each.name) for each in fields(ReplicaRow) if each.name not in skipped}


def merge(before: ReplicaRow | None, after: ReplicaRow) -> ReplicaRow:
    """The later row with nothing lost: what it does not know (0 or "") stays; counts are totals, the larger holds."""
    if before is None:
        return after
    values: dict[str, Any] = {}
    for each in fields(ReplicaRow):
        old, new = getattr(before, each.name), getattr(after, each.name)
        counted = isinstance(new, int | float) and each.name not in ("partition", "node")
        values[each.name] = max(old, new) if counted else (new or old)
    values["error"], values["message"] = after.error, after.message
    return ReplicaRow(**values)


# --- the run


def verdict(parts: Sequence[Part], short: Iterable[Key] = ()) -> Verdict:
    """Cancelled when all were; failed when nothing but failures is left; else completed.

    `short` are the parts that did not reach the directories asked for: they count as failed.
    """
    missed = set(short)
    failed = [part for part in parts if part.outcome == FAILED or part.key in missed]
    if parts and all(part.outcome == CANCELLED for part in parts):
        return Verdict("cancelled")
    if len(failed) < len(parts) or not failed:
        return Verdict("completed")
    first = failed[0]
    message = first.message or f"{first.topic}-{first.partition} is not in the directory asked for."
    if len(parts) > 1:
        message = f"None of {len(parts)} partitions was reassigned; {first.topic}-{first.partition}: {message}"
    return Verdict("failed", first.error or "DirectoryNotReached", message)


def read_rows(found: Iterable[Any]) -> dict[Key, ReplicaRow]:
    """Rows that come back as plain objects; what cannot be read is left out."""
    rows = (calls.read_row(ReplicaRow, one) for one in found)
    return {(row.topic, row.partition): row for row in rows if row is not None}
