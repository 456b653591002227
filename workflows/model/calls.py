"""Activities' names, parameters and results: the contract between the workflows that decide and the activities that do.

Times are seconds, sizes bytes. Rows are plain values, so that a history can be read by anything that reads JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

# Names of activities, as they stand in histories.
CREATE_MOVE = "create_move"
COPY = "copy"
SWAP = "swap"
CANCEL_MOVE = "cancel_move"
DELETE_REPLICA = "delete_replica"
APPLY_IMAGE = "apply_image"
HOLD_LEASE = "hold_lease"
PROBE_NODE = "probe_node"
EXPORT_HISTORIES = "export_histories"
PLACE_REPLICAS = "place_replicas"
CATCH_UP = "catch_up"
AWAIT_DELETION = "await_deletion"
AWAIT_MOVES = "await_moves"

# What became of one replica in one step (`MoveRow.outcome`).
CREATED = "created"  # `.move` and marker are on disk
CAUGHT_UP = "caught_up"  # the copy has reached the source, the swap can be tried
BEHIND = "behind"  # the source ran away before the lock was had: copy again
SWAPPED = "swapped"  # the replica is in the directory asked for
DELETED = "deleted"  # the source's `.delete` is gone
IN_PLACE = "in_place"  # it was there already: nothing to do
DROPPED = "dropped"  # cancelled; the `.move` is gone and the source serves on
FAILED = "failed"  # ended with a reason; the source serves on, or is offline
SUPERSEDED = "superseded"  # a newer generation is on disk: nothing was touched

# What a node says of one replica of a reassignment (`ReplicaRow.outcome`), beside FAILED and SUPERSEDED, which here
# means that the partition has a later target.
WISHED = "wished"  # the node will put the replica into the directory asked for when it makes it
HELD = "held"  # the node holds the replica, in the directory that the row names
JOINED = "joined"  # all of the target is in sync, the reassignment is complete
CANCELLED = "cancelled"  # the partition has its original replicas again
GONE = "gone"  # the topic was deleted
KEPT = "kept"  # nothing is to be deleted: the node is to hold the partition


@dataclass(frozen=True)
class ReplicaMove:
    """One replica of a run. `claim` and `generation` are 0 until the node has issued them."""

    topic: str
    partition: int
    directory: str
    claim: int = 0
    generation: int = 0


@dataclass(frozen=True)
class MoveCall:
    """The parameter of every step of a move: whose run this is, on which node, which replicas, at which limit (bytes/s
    or None).

    `facts` carries the rows of the step before, so that times and attempts add up over steps and restarts.
    """

    workflow_id: str
    run_id: str
    node: int
    replicas: list[ReplicaMove]
    throttle: int | None = None
    reason: str = ""
    facts: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class MoveRow:
    """One replica's outcome of one step, and the facts that a history alone would not hold."""

    topic: str
    partition: int
    outcome: str
    source: str = ""
    directory: str = ""
    claim: int = 0
    generation: int = 0
    error: str = ""  # a stable type: see workflows/errors.py
    message: str = ""  # one sentence: what, where, why, what next
    bytes_total: int = 0
    bytes_copied: int = 0  # moved by this run, resumed attempts included: what the copy holds
    bytes_resumed: int = 0  # of these, found valid on disk when a copy went on
    seconds_queued: float = 0.0
    seconds_copying: float = 0.0
    seconds_throttled: float = 0.0
    seconds_stalled: float = 0.0
    seconds_locked: float = 0.0  # how long the swap held the log
    attempts: int = 0
    delete_after: float = 0.0  # seconds until the `.delete` of this replica is due
    bytes_written: int = 0  # written by this run's copiers, over all attempts: what was found on disk is not among it
    #: Where the time went: copying, queued, run_limit, node_limit, slow_disk, growing_source, stopped, offline, as the
    #: node reports; dead, cut_off, fenced and away, in which the node did not report.
    seconds_by_reason: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class MoveResult:
    rows: list[MoveRow] = field(default_factory=list)


@dataclass(frozen=True)
class ImageCall:
    """Images for one node, each a delta or a whole (compressed JSON, see workflows/model/image.py), oldest first.

    `register` asks the node to register again with the image it has: the controller lost its memory and collects.
    `digest` is that of the controller's metadata at (`generation`, `version`), "" where it has none: a node that
    computes another one at the same pair requests the whole image.
    """

    node: int
    images: list[str]
    register: bool = False
    generation: int = 0
    version: int = 0
    digest: str = ""


@dataclass(frozen=True)
class ImageResult:
    """What the node knows after it; a higher pair than the controller's own means the controller lost its memory."""

    generation: int
    version: int
    incarnation: str = ""


@dataclass(frozen=True)
class LeaseCall:
    """One incarnation of a node."""

    cluster: str
    node: int
    incarnation: str


@dataclass(frozen=True)
class ProbeCall:
    """Ask a node at its address which incarnation it is, `timeout` seconds at most."""

    node: int
    host: str
    port: int
    timeout: float = 1.0


@dataclass(frozen=True)
class ProbeResult:
    """The incarnation that responded, or "" with the reason; `refused`: nothing listens at the node's address."""

    incarnation: str = ""
    reason: str = ""
    refused: bool = False


@dataclass(frozen=True)
class ExportCall:
    """Write the histories of a namespace below `directory`; `as_of` is a time stamp in ISO 8601 or "" for now.

    Exports there that were taken more than `keep_days` days ago are removed; 0 keeps them all.
    """

    directory: str
    query: str = ""
    as_of: str = ""
    keep_days: int = 0


@dataclass(frozen=True)
class ExportResult:
    """What one export wrote: counts, the manifest's path, and whether there was anything new."""

    manifest: str
    closed: int
    open: int
    events: int
    bytes: int


@dataclass(frozen=True)
class AssignedReplica:
    """One partition of a reassignment as one node is asked about it; `directory` is "" where any will do."""

    topic: str
    partition: int
    topic_id: str = ""
    target: list[int] = field(default_factory=list)
    original: list[int] = field(default_factory=list)
    directory: str = ""


@dataclass(frozen=True)
class ReassignCall:
    """The parameter of every step of a reassignment on one node.

    The node answers from an image at (`generation`, `version`) or later; `facts` are the rows of the step before. Where
    `wish` is false, a directory asked for a replica that is not there is no wish any more.
    """

    workflow_id: str
    run_id: str
    node: int
    replicas: list[AssignedReplica]
    generation: int = 0
    version: int = 0
    facts: list[dict[str, Any]] = field(default_factory=list)
    wish: bool = True


@dataclass(frozen=True)
class ReplicaRow:
    """What one node says of one partition of a reassignment, and the facts that a history alone would not hold.

    `replicas` are the partition's now, in the image at (`generation`, `version`). Bytes are of the replica's log.
    """

    topic: str
    partition: int
    node: int
    outcome: str
    directory: str = ""
    replicas: list[int] = field(default_factory=list)
    error: str = ""
    message: str = ""
    generation: int = 0
    version: int = 0
    bytes_total: int = 0
    bytes_copied: int = 0
    seconds_placing: float = 0.0  # until the node had made its replica
    seconds_catching_up: float = 0.0  # from then on until it was in sync
    seconds_waiting: float = 0.0  # from then on until the others were, too
    seconds_deleting: float = 0.0
    seconds_throttled: float = 0.0
    attempts: int = 0


@dataclass(frozen=True)
class ReassignResult:
    rows: list[ReplicaRow] = field(default_factory=list)


Replica = tuple[str, int]
"""Topic and partition."""


@dataclass(frozen=True)
class AwaitMovesCall:
    """Until nothing of these replicas, [topic, partition] each, is copied between directories of the node."""

    node: int
    replicas: list[list[Any]]


Row = TypeVar("Row", MoveRow, ReplicaRow)


def read_row(kind: type[Row], found: Any) -> Row | None:
    """A row that comes back as a plain object; None for what cannot be read. What a newer version tells beyond this
    one's fields is left out.
    """
    if not isinstance(found, Mapping):
        return None
    known = {each.name for each in fields(kind)}
    try:
        return kind(**{name: value for name, value in found.items() if name in known})
    except TypeError:
        return None
