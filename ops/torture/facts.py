"""What is found out beside the clients' history: final reads, disks, swaps, runs, rates, throttles. Values only.

Directories are named as on their node; times are the history's monotonic nanoseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ops.torture.history import Event

Place = tuple[str, int]
"""Topic label and partition."""


@dataclass(frozen=True, slots=True)
class TopicFact:
    """One life of a topic. `retention_bytes` None: nothing but DeleteRecords may move its log start.

    `segment_bytes` bounds by how much retention may come below `retention_bytes`; `replicas` is the replication factor
    with which it was made; `used`: clients use it, so that it is read back at the end.
    """

    label: str
    name: str
    partitions: int
    retention_bytes: int | None = None
    segment_bytes: int = 1 << 30
    deleted: bool = False
    replicas: int = 1
    used: bool = True


@dataclass(frozen=True, slots=True)
class FinalRead:
    """All that a fresh consumer reads of a partition from its log start `low` to its end `high`."""

    low: int
    high: int
    records: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """A record batch as it stands in a segment file: its offsets and the CRC-32C of all its bytes, header included."""

    base: int
    last: int
    digest: int


@dataclass(frozen=True, slots=True)
class Scan:
    """One replica's folder as it stands on a disk. `size` counts the segments' bytes.

    `problems` are sentences on what is no batch or has another CRC than it says, naming file and offset.
    """

    node: int
    directory: str
    place: Place
    batches: tuple[Batch, ...] = ()
    records: tuple[tuple[int, str], ...] = ()
    size: int = 0
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SwapFact:
    """A swap as the disks showed it: the sealed source (`.delete`) beside the copy that serves now.

    `seal_end`, `seal_high` and `log_start` are the marker's (at the seal: log end, high watermark, log start); `end`
    is the copy's end when it was looked at, `first` its first offset. `differences` are (offset, digest in the source,
    digest in the copy) of batches between `log_start` and `seal_end` that are not the same; None: no such batch.
    """

    at: int
    node: int
    place: Place
    source: str
    target: str
    generation: int
    log_start: int
    seal_end: int
    seal_high: int
    first: int
    end: int
    compared: int
    differences: tuple[tuple[int, int | None, int | None], ...] = ()


@dataclass(frozen=True, slots=True)
class RowFact:
    """What a run says became of one replica."""

    place: Place
    outcome: str
    directory: str
    generation: int = 0
    error: str = ""
    message: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class RunFact:
    """A MoveReplica run at the end: Temporal's status in lower case, its reason if it failed, its rows if it has any.

    `waiting` says what an open run waits for. It ran from `since` until `until`, 0 where that is not known.
    """

    workflow_id: str
    node: int
    status: str
    reason: str = ""
    rows: tuple[RowFact, ...] = ()
    waiting: str = ""
    since: int = 0
    until: int = 0


@dataclass(frozen=True, slots=True)
class DirectoryFact:
    """A log directory at the end: what DescribeLogDirs says (`error` "" when well) and the folders on its disk."""

    node: int
    path: str
    error: str = ""
    replicas: tuple[Place, ...] = ()
    futures: tuple[Place, ...] = ()
    folders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Home:
    """Where a partition is by the controller's metadata at the end.

    `directories` (paths) and `generations` stand in the order of the replicas.
    """

    replicas: tuple[int, ...]
    directories: tuple[str, ...]
    generations: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    leader: int = -1
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    def directory(self, node: int) -> str:
        """The directory of a node's replica; "" where it has none."""
        return dict(zip(self.replicas, self.directories, strict=False)).get(node, "")


@dataclass(frozen=True, slots=True)
class LeaderFact:
    """Somebody said first at `at` who leads a partition under a leader epoch: `who` is the node that was asked."""

    place: Place
    topic_id: str
    epoch: int
    leader: int
    who: str
    at: int


@dataclass(frozen=True, slots=True)
class ClashFact:
    """Two different batches at one offset under one leader epoch, as the disks showed them: two nodes have led in it.

    Each side is (node, digest, when it was seen first).
    """

    place: Place
    topic_id: str
    epoch: int
    offset: int
    first: tuple[int, int, int]
    second: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class ReassignFact:
    """Somebody asked for other replicas of a partition (`target` None: for an end of its reassignment).

    `type` is the history's: ok, fail (refused), info (nobody knows). `by` says over which way it was asked.
    """

    place: Place
    target: tuple[int, ...] | None
    type: str
    invoked: int
    completed: int
    error: str = ""
    by: str = "api"


@dataclass(frozen=True, slots=True)
class ReassignRunFact:
    """A PartitionReassignment run at the end: Temporal's status in lower case, and why if it failed or is open."""

    workflow_id: str
    status: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RateSample:
    """How much of each copy one node had written, asked at `invoked`, answered at `completed`.

    A copy is (topic, partition, directory, claim, run's limit or None): bytes that it had written since it began.
    """

    node: int
    invoked: int
    completed: int
    copied: tuple[tuple[tuple[str, int, str, int], int, int | None], ...]


@dataclass(frozen=True, slots=True)
class LimitFact:
    """A node's limit for moves was set between `invoked` and `completed` (bytes per second, None: none)."""

    node: int
    invoked: int
    completed: int
    rate: int | None
    certain: bool = True


@dataclass(frozen=True, slots=True)
class ThrottleFact:
    """A config of a node at the end, and what it may be: what the last ones who set it asked for."""

    node: int
    name: str
    value: str
    allowed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FaultFact:
    """A directory that was made to fail from `since` until `until`: by which deed, and what the node made of it.

    `places` are the partitions of which anything was in the directory meanwhile; `offline` are other directories of the
    node that it reported offline meanwhile, in one of `looks` looks. `hits` counts the operations that failed or hung.
    `back` is when the node served all of the directory again, 0 if that was not seen.
    """

    node: int
    directory: str
    since: int
    until: int
    kind: str = ""
    outcome: str = ""
    places: tuple[Place, ...] = ()
    offline: tuple[str, ...] = ()
    looks: int = 0
    hits: int = 0
    back: int = 0


@dataclass(frozen=True, slots=True)
class TroubleFact:
    """A process of the cluster was killed, frozen, cut off or restarted, and worked again at `until`."""

    name: str
    since: int
    until: int


@dataclass(frozen=True, slots=True)
class RoleFact:
    """A process of the cluster at the end of the run: whether it works, and if not, why."""

    name: str
    works: bool
    why: str = ""


@dataclass(frozen=True, slots=True)
class Boot:
    """What stood on the disks after a start that followed a kill -9, per (node, directory, folder): one line."""

    what: Mapping[tuple[int, str, str], str]


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that the checks look at. `initial` is what a partition's replicas were before anything was done; `batches`
    counts those whose leader epoch was looked at while they were written; `listed` are the partitions that
    ListPartitionReassignments still answers at the end. `missing` says of checks (by id) what they could not look at,
    and why.
    """

    history: Sequence[Event] = ()
    topics: Mapping[str, TopicFact] = field(default_factory=dict)
    final: Mapping[Place, FinalRead] = field(default_factory=dict)
    scans: Sequence[Scan] = ()
    swaps: Sequence[SwapFact] = ()
    runs: Sequence[RunFact] = ()
    directories: Sequence[DirectoryFact] = ()
    homes: Mapping[Place, Home] = field(default_factory=dict)
    samples: Sequence[RateSample] = ()
    limits: Sequence[LimitFact] = ()
    throttles: Sequence[ThrottleFact] = ()
    faults: Sequence[FaultFact] = ()
    troubles: Sequence[TroubleFact] = ()
    roles: Sequence[RoleFact] = ()
    boots: Sequence[Boot] = ()
    leaders: Sequence[LeaderFact] = ()
    clashes: Sequence[ClashFact] = ()
    batches: int = 0
    initial: Mapping[Place, tuple[int, ...]] = field(default_factory=dict)
    asked: Sequence[ReassignFact] = ()
    reassignments: Sequence[ReassignRunFact] = ()
    listed: Sequence[Place] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
