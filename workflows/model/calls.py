"""Activities' names, parameters and results: the contract between the workflows that decide and the activities that do.

Times are seconds, sizes bytes. Rows are plain values, so that any reader of JSON can read a history.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from storage_node.model.moves import Outcome
from storage_node.model.reassignments import ReplicaOutcome
from workflows.model.versioned import Versioned

# The names of activities in histories.
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


@dataclass(frozen=True)
class ReplicaMove:
    """One replica of a run. `claim` and `generation` are 0 until the node has issued them."""

    topic: str
    partition: int
    directory: str
    claim: int = 0
    generation: int = 0


@dataclass(frozen=True)
class MoveParameter:
    """One entry of MoveReplica's parameter, as programs send it; read by `workflows.model.move.parameter`."""

    topic: str
    partition: int
    node: int
    directory: str
    throttle: int | None = None
    claim: int = 0
    generation: int = 0


@dataclass(frozen=True)
class MoveCall:
    """The parameter of every step of a move: the run, the node, its replicas, and the limit (bytes/s or None).

    `facts` are the rows of the previous step, so that times and attempts add up over steps and restarts.
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
    outcome: Outcome | None  # an `Outcome`, None before the first step has ended
    source: str = ""
    directory: str = ""  # the target
    claim: int = 0
    generation: int = 0
    error: str = ""  # an `ErrorType`, or the type of a newer node's version
    message: str = ""  # one sentence: what, where, why, what next
    bytes_total: int = 0
    bytes_copied: int = 0  # moved by this run, resumed attempts included: what the copy holds
    bytes_resumed: int = 0  # of these, found valid on disk when a copy was resumed
    seconds_queued: float = 0.0
    seconds_copying: float = 0.0
    seconds_throttled: float = 0.0  # of these, held back by a limit
    seconds_stalled: float = 0.0
    seconds_locked: float = 0.0  # how long the swap held the log
    attempts: int = 0  # of its steps
    delete_after: float = 0.0  # seconds until the `.delete` of this replica is due
    bytes_written: int = 0  # written by this run's copiers, over all attempts, without the bytes found on disk
    seconds_by_reason: dict[str, float] = field(default_factory=dict)  # by `StallReason`, absences of the node included


@dataclass(frozen=True)
class MoveResult(Versioned):
    """The result of a step of a move."""

    rows: list[MoveRow] = field(default_factory=list)


@dataclass(frozen=True)
class ImageCall:
    """Images for one node, each a delta or a whole, oldest first (compressed JSON, see
    workflows/model/metadata/image.py).

    `register` requests that the node register again with its image: the controller lost its state and collects.
    `digest` is that of the controller's metadata at (`generation`, `version`), "" while it has none: a node that
    computes another one at the same pair requests the whole image.
    """

    node: int
    images: list[str]
    register: bool = False
    generation: int = 0
    version: int = 0
    digest: str = ""


@dataclass(frozen=True)
class ImageResult(Versioned):
    """The pair that the node has applied; one above the controller's means that the controller lost its state."""

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
    """Request a node's incarnation at its address, within `timeout` seconds."""

    node: int
    host: str
    port: int
    timeout: float = 1.0


@dataclass(frozen=True)
class ProbeResult(Versioned):
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
class ExportResult(Versioned):
    """What one export wrote; the result of ExportHistory as well."""

    manifest: str  # its path
    closed: int  # runs
    open: int  # runs
    events: int
    bytes: int
    oldest_closed: str = ""  # close time of its oldest run that was not exported before, ISO 8601
    retention_seconds: int = 0  # for which the server keeps closed runs; 0 if unknown


@dataclass(frozen=True)
class AssignedReplica:
    """One partition of a reassignment in a step on one node; `directory` is the preferred one, "" for any."""

    topic: str
    partition: int
    topic_id: str = ""
    target: list[int] = field(default_factory=list)
    original: list[int] = field(default_factory=list)
    directory: str = ""


@dataclass(frozen=True)
class ReassignCall:
    """The parameter of every step of a reassignment on one node.

    The node returns rows of an image at (`generation`, `version`) or later; `facts` are the rows of the previous step.
    If `wish` is false, the node does not note the preferred log directory of a replica that it does not host.
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
    """One node's row of one partition of a reassignment, and the facts that a history alone would not hold.

    `replicas` are the partition's in the image at (`generation`, `version`). Bytes are of the replica's log.
    """

    topic: str
    partition: int
    node: int
    outcome: ReplicaOutcome | None  # None before the first step has ended
    directory: str = ""
    replicas: list[int] = field(default_factory=list)
    error: str = ""
    message: str = ""
    generation: int = 0
    version: int = 0
    bytes_total: int = 0
    bytes_copied: int = 0
    seconds_placing: float = 0.0  # until the node had created its replica
    seconds_catching_up: float = 0.0  # from then on until it was in sync
    seconds_in_sync: float = 0.0  # from then on until the others were in sync as well
    seconds_deleting: float = 0.0
    seconds_throttled: float = 0.0
    attempts: int = 0


@dataclass(frozen=True)
class ReassignResult(Versioned):
    """The result of a step of a reassignment on one node."""

    rows: list[ReplicaRow] = field(default_factory=list)


Replica = tuple[str, int]
"""Topic and partition."""


@dataclass(frozen=True)
class AwaitMovesCall:
    """Wait until none of these replicas, [topic, partition] each, is copied between directories of the node."""

    node: int
    replicas: list[list[Any]]


Row = TypeVar("Row")


def read_row(kind: type[Row], found: Any) -> Row | None:
    """Return the row in a plain object, None if it is unreadable. Fields of a newer version are ignored."""
    if not isinstance(found, Mapping):
        return None
    known = {each.name for each in fields(kind)}  # type: ignore[arg-type]
    try:
        return kind(**{name: value for name, value in found.items() if name in known})
    except TypeError:
        return None
