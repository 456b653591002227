"""The evidence beside the clients' history: final reads, disks, swaps, runs, rates, throttles. Values only.

Directories are the paths on their node; times are the history's monotonic nanoseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ops.torture.history import Event

Place = tuple[str, int]
"""Topic label and partition."""


@dataclass(frozen=True, slots=True)
class TopicFact:
    """One life of a topic. `retention_bytes` None: only DeleteRecords may move its log start.

    `segment_bytes` bounds how far retention may go below `retention_bytes`; `replicas` is the replication factor at
    its creation; `used`: clients use the topic, so it is read back at the end.
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
    """The records that a new consumer reads of a partition from its log start `low` to its end `high`."""

    low: int
    high: int
    records: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class Batch:
    """A record batch in a segment file: its offsets and the CRC-32 of all its bytes, header included."""

    base: int
    last: int
    digest: int


@dataclass(frozen=True, slots=True)
class Scan:
    """A replica's folder on disk. `size` is the sum of its segments' bytes.

    `problems` are sentences on invalid batches and CRC mismatches, with file and offset.
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
    """A swap on disk: the sealed source (`.delete`) and the copy that has become the replica.

    `seal_end`, `seal_high` and `log_start` are the marker's (at the seal: log end, high watermark, log start); `end`
    is the copy's end when it was read, `first` its first offset. `differences` are (offset, digest in the source,
    digest in the copy) of the batches from `log_start` to `seal_end` that differ; None: no batch at this offset.
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
    """A run's row: the outcome of one replica."""

    place: Place
    outcome: str
    directory: str
    generation: int = 0
    error: str = ""
    message: str = ""
    source: str = ""


@dataclass(frozen=True, slots=True)
class RunFact:
    """A MoveReplica run at the end: Temporal's status in lower case, the reason of a failure, the rows of its result.

    `waiting` is what an open run waits for. The run started at `since` and closed at `until`, 0 if unknown.
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
    """A log directory at the end: DescribeLogDirs' response (`error` "" if online) and the folders on its disk."""

    node: int
    path: str
    error: str = ""
    replicas: tuple[Place, ...] = ()
    futures: tuple[Place, ...] = ()
    folders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Home:
    """A partition in the controller's metadata at the end.

    `directories` (paths) and `generations` are in the order of `replicas`.
    """

    replicas: tuple[int, ...]
    directories: tuple[str, ...]
    generations: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    leader: int = -1
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    def directory(self, node: int) -> str:
        """Return the directory of a node's replica; "" if it has none."""
        return dict(zip(self.replicas, self.directories, strict=False)).get(node, "")


@dataclass(frozen=True, slots=True)
class LeaderFact:
    """The first report, at `at` in the metadata of `who`, of a partition's leader in a leader epoch."""

    place: Place
    topic_id: str
    epoch: int
    leader: int
    who: str
    at: int


@dataclass(frozen=True, slots=True)
class ClashFact:
    """Two different batches on disk at one offset in one leader epoch: two nodes have led in it.

    Each side is (node, digest, time of the first read).
    """

    place: Place
    topic_id: str
    epoch: int
    offset: int
    first: tuple[int, int, int]
    second: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class ReassignFact:
    """A request to reassign a partition to the replicas `target` (None: to cancel its reassignment).

    `type` is the history's: ok, fail (rejected), info (outcome unknown). `by` is "api" or "temporal".
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
    """A PartitionReassignment run at the end: Temporal's status in lower case, and why it failed or is open."""

    workflow_id: str
    status: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RateSample:
    """The bytes that one node's copies had written, requested at `invoked`, received at `completed`.

    `copied` has for each copy its (topic, partition, directory, claim), the bytes written since it began, and its run's
    limit or None.
    """

    node: int
    invoked: int
    completed: int
    copied: tuple[tuple[tuple[str, int, str, int], int, int | None], ...]


@dataclass(frozen=True, slots=True)
class LimitFact:
    """A node's move limit, set between `invoked` and `completed` (bytes per second, None: unlimited)."""

    node: int
    invoked: int
    completed: int
    rate: int | None
    certain: bool = True


@dataclass(frozen=True, slots=True)
class ThrottleFact:
    """A node's config at the end, and the values that it may have: those of the last concurrent changes."""

    node: int
    name: str
    value: str
    allowed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FaultFact:
    """A fault of a directory from `since` until `until`; `kind` is the nemesis' action, `outcome` the node's reaction.

    `places` are the partitions with a replica or copy in the directory meanwhile; `offline` are other directories that
    the node reported offline in any of `looks` status requests. `hits` counts the operations that failed or hung.
    `back` is when the node hosted the directory's replicas again, 0 if that was not observed.
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
    """A process was killed, frozen, disconnected or restarted at `since`, and worked again at `until`."""

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
    """The disks after a SIGKILL and a restart: one line per (node, directory, folder)."""

    what: Mapping[tuple[int, str, str], str]


@dataclass(frozen=True, slots=True)
class Evidence:
    """The input of all checks. `initial` has each partition's replicas at its creation; `batches` counts the batches
    that the write watch compared; `listed` are the partitions that ListPartitionReassignments returns at the end.
    `missing` has, by check id, the evidence that could not be gathered, and why.
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
