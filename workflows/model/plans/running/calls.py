"""The activities of a plan: their names, parameters and results. Sizes are bytes, times seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from dataclasses import fields as fields_of
from typing import Any

from storage_node.model import fields
from storage_node.model.fields import BadField
from storage_node.model.ids import NO_LEADER, TopicPartition
from workflows.model.plans.running.following import REACHED, MoveOutcome
from workflows.model.plans.running.stalls import StallReason
from workflows.model.plans.values import Disk, MoveKind, PlannedMove

KEEP_PLAN = "keep_plan"
CHECK_PLAN = "check_plan"
CHOOSE_LANES = "choose_lanes"
REQUEST_MOVES = "request_moves"
FOLLOW_MOVES = "follow_moves"
CANCEL_MOVES = "cancel_moves"
VERIFY_PLAN = "verify_plan"
RELEASE_SLOTS = "release_slots"
SEND_ALERT = "send_alert"
READ_CORDON = "read_cordon"
SET_CORDON = "set_cordon"
PLAN_DRAIN = "plan_drain"
VERIFY_DRAINED = "verify_drained"
HOLD_THROTTLES = "hold_throttles"
RELEASE_THROTTLES = "release_throttles"
READ_THROTTLES = "read_throttles"
WRITE_THROTTLES = "write_throttles"

MOST_PROBLEMS = 100
_INT = (1 << 31) - 1


@dataclass(frozen=True)
class KeepCall:
    """Store a text; `packed` is `packing.pack` of it."""

    packed: str


@dataclass(frozen=True)
class KeepResult:
    """`sha256` names the stored text."""

    sha256: str


@dataclass(frozen=True)
class CheckCall:
    """Compare a stored plan with the cluster, and store its lanes.

    `cluster_id` is the id that the cluster had when the plan was submitted, "" if unknown; `skipped` are keys of moves.
    `undoes` names the stored plan that this one takes back, "" for none: a partition that cannot go back refuses then
    no other one.
    """

    cluster: str
    plan: str
    options: dict[str, Any]
    cluster_id: str = ""
    skipped: list[str] = field(default_factory=list)
    undoes: str = ""


@dataclass(frozen=True)
class DiskRow:
    """A disk of a plan: its bytes before, at the worst moment, and after."""

    broker: int
    path: str  # the log directory
    used: int  # bytes used before
    usable: int  # bytes that can be used before, -1 if unknown
    used_worst: int  # bytes used at the worst moment
    used_after: int


@dataclass(frozen=True)
class PlanCheck:
    """What a plan means for the cluster, as it was when the plan was compared with it."""

    cluster_id: str  # Kafka's own id of the cluster
    moves: int = 0
    lanes: int = 0
    in_place: int = 0  # partitions that are already as the plan says
    bytes_total: int = 0  # to copy
    leaders_moved: int = 0  # moves after which another broker leads, by the preferred replica
    lanes_ref: str = ""  # the sha256 by which the workers have stored the lanes
    rollback_ref: str = ""  # the same of the plan that goes back
    rollback_path: str = ""  # the file of the plan that goes back, where a worker has stored it
    problems: list[str] = field(default_factory=list)  # why the cluster cannot carry it out, the first 100
    problem_count: int = 0
    disks: list[DiskRow] = field(default_factory=list)
    brokers: list[int] = field(default_factory=list)  # whose disks the plan reads or writes
    seconds_low: float | None = None  # the expected duration at least, None if unknown
    seconds_high: float | None = None  # and at most
    topics: list[str] = field(default_factory=list)  # that move, as far as a search attribute holds them
    searchable: bool = False  # whether the server knows the search attributes


@dataclass(frozen=True)
class CheckResult(PlanCheck):
    """The result of a check: the texts of its lanes and of the plan that goes back, packed, if they are small enough to
    travel with the run.

    Of a plan that takes another one back: `plan` names what is left of it to do, "" if nothing is, `outcomes` counts
    what stays as it is, and `failures` has the reasons, the first 100.
    """

    lanes_packed: str = ""
    rollback_packed: str = ""
    plan: str = ""
    plan_packed: str = ""
    outcomes: dict[str, int] = field(default_factory=dict)
    failures: list[PlanMoveRow] = field(default_factory=list)

    @property
    def shown(self) -> PlanCheck:
        """Return it without the texts, which only the run needs."""
        return PlanCheck(**{each.name: getattr(self, each.name) for each in fields_of(PlanCheck)})


@dataclass(frozen=True)
class ChooseCall:
    """Which lanes begin now? `states` is `packing.pack_states` of all lanes; `running` are numbers of open lanes.

    `rate` is how fast the plan has copied so far, in bytes/s; 0 if that is unknown.
    """

    cluster: str
    workflow_id: str
    lanes_ref: str
    options: dict[str, Any]
    states: str
    running: list[int] = field(default_factory=list)
    finishing: list[int] = field(default_factory=list)
    """The open lanes that leave their slots to the next lane, see `PlanRun.finishing`."""
    skipped: list[str] = field(default_factory=list)
    most: int = 20
    """How many lanes may begin; 0: the plan only looks after those that run."""
    rate: float = 0.0
    shares: bool = False
    """The keeper of slots holds some for the plan."""
    adaptive: dict[str, Any] = field(default_factory=dict)
    """The last decision about throttles that follow the cluster's health: see `adaptive.Decision`."""
    recheck: dict[str, Any] | None = None
    """Compare all lanes that have not begun with the cluster: {seen, accepted, waits}, see `Rechecks.request`."""


@dataclass(frozen=True)
class MoveSpec:
    """A move on the wire, see `PlannedMove`."""

    kind: str
    topic: str
    partition: int
    size: int
    node: int = NO_LEADER
    source: str = ""
    target: str = ""
    before: list[int] = field(default_factory=list)
    after: list[int] = field(default_factory=list)
    directories: dict[str, str] = field(default_factory=dict)
    reads: list[list[Any]] = field(default_factory=list)
    writes: list[list[Any]] = field(default_factory=list)
    """Both empty for a move between directories that reads its source and writes its target."""

    @staticmethod
    def of(move: PlannedMove) -> MoveSpec:
        derived = move.kind == MoveKind.DIRECTORY and (move.reads, move.writes) == _disks_of(move)
        return MoveSpec(
            str(move.kind),
            move.partition.topic,
            move.partition.partition,
            move.size,
            move.node,
            move.source,
            move.target,
            list(move.before),
            list(move.after),
            {str(node): path for node, path in sorted(move.directories.items())},
            [] if derived else _rows(move.reads),
            [] if derived else _rows(move.writes),
        )

    def row(self) -> dict[str, Any]:
        """Return what travels: without what is as by default, since a plan's runs hold every move several times."""
        return {name: value for name in _SPEC if (value := getattr(self, name)) or name in _ALWAYS}

    def move(self) -> PlannedMove:
        """Return the value; raises BadField for a kind, a node or a disk that is none."""
        try:
            kind = MoveKind(self.kind)
            directories = {int(node): path for node, path in self.directories.items()}
            disks = tuple(
                tuple(Disk(int(node), str(path)) for node, path in rows) for rows in (self.reads, self.writes)
            )
        except ValueError as error:
            raise BadField("$.moves", f"is not valid: {error}") from error
        if kind == MoveKind.DIRECTORY and disks == ((), ()):
            disks = (Disk(self.node, self.source),), (Disk(self.node, self.target),)
        return PlannedMove(
            kind,
            TopicPartition(self.topic, self.partition),
            self.size,
            self.node,
            self.source,
            self.target,
            tuple(self.before),
            tuple(self.after),
            directories,
            disks[0],
            disks[1],
        )


_SPEC = tuple(MoveSpec.__dataclass_fields__)
_ALWAYS = ("partition", "size", "node")


def _disks_of(move: PlannedMove) -> tuple[tuple[Disk, ...], tuple[Disk, ...]]:
    return (Disk(move.node, move.source),), (Disk(move.node, move.target),)


def _rows(disks: Sequence[Disk]) -> list[list[Any]]:
    return [[disk.node, disk.path] for disk in disks]


@dataclass(frozen=True)
class LaneSpec:
    """A lane that begins now; each move is `MoveSpec.row`."""

    number: int
    moves: list[dict[str, Any]]


@dataclass(frozen=True)
class ChooseResult:
    """The lanes to begin, and why nothing more begins (sentences).

    `copied` are bytes that the open lanes have copied, `total` all bytes of open and of pending lanes, as large as the
    open lanes' replicas are now.
    """

    lanes: list[LaneSpec] = field(default_factory=list)
    copied: int = 0
    total: int = 0
    reasons: list[str] = field(default_factory=list)
    done: bool = False
    """No lane is left that has not begun."""
    closed: list[int] = field(default_factory=list)
    """The running lanes whose runs have ended."""
    between_brokers: int | None = None
    """The throttles that hold now, in bytes/s (KIP-73, KIP-113)."""
    between_directories: int | None = None
    opens_in: float | None = None
    """Seconds until the plan's window opens; None while it is open."""
    changes_in: float | None = None
    """Seconds until a throttle may change by the plan's calendar."""
    warning: str = ""
    """That the deadline will be missed, and the rate that would meet it."""
    adaptive: dict[str, Any] | None = None
    """The decision about throttles that follow the cluster's health, with its inputs: see `adaptive.Decision`."""
    shares: bool = False
    """The plan holds slots of the cluster's keeper, and has to release them."""
    change: dict[str, Any] | None = None
    """How the cluster has changed since the plan was checked, if that was requested: see `recheck.Change`."""
    large_changes: list[str] = field(default_factory=list)
    """The same in words, as far as it is more than was accepted."""


@dataclass(frozen=True)
class MovesCall:
    """Request, follow or cancel the moves of a lane; each is `MoveSpec.row`."""

    cluster: str
    workflow_id: str
    moves: list[dict[str, Any]]
    requested: float = 0.0
    """When the lane requested them, epoch seconds; 0 before."""
    stalled: list[dict[str, Any]] = field(default_factory=list)
    """The rows of the moves that an earlier step found stalled, or has requested again."""
    finishing_at: int = 0
    """The step that follows returns once so few moves are open: another lane may begin beside them. What ends while
    they are requested is not worth another step."""


@dataclass(frozen=True)
class PlanMoveRow:
    """One move of a plan."""

    key: str  # its name within the plan, as orders-0 or (between directories) orders-0@1
    outcome: str = ""  # a `MoveOutcome`, "" while it is open
    state: str = ""  # a `MoveState`, of an open move
    copied: int = 0  # bytes, of all added replicas
    total: int = 0
    seconds: float = 0.0  # from its request to its end
    reason: str = ""  # one sentence: what holds it, or why it missed its target
    stalled: str = ""  # why it does not advance, a `StallReason`; "" while it does
    since: float = 0.0  # when a stalled move last advanced, epoch seconds
    repeats: int = 0  # how often a stalled move was cancelled and requested again

    @property
    def reached(self) -> bool:
        """Return whether the replica is where the plan wants it."""
        return self.outcome in REACHED

    def row(self) -> dict[str, Any]:
        """Return what travels: a plan's runs hold every row several times, and few moves have ever stalled."""
        return {
            name: value for name, value in asdict(self).items() if value or name not in ("stalled", "since", "repeats")
        }


@dataclass(frozen=True)
class MovesResult:
    """A row per move."""

    rows: list[PlanMoveRow] = field(default_factory=list)


@dataclass(frozen=True)
class VerifyCall:
    """Compare the cluster with a stored plan at its end; `skipped` are keys of moves that were left out.

    `holder` is the plan's run, which has released its throttles of `brokers` and of the plan's topics. `throttled`: it
    had some.
    """

    cluster: str
    plan: str
    skipped: list[str] = field(default_factory=list)
    holder: str = ""
    brokers: list[int] = field(default_factory=list)
    throttled: bool = False


@dataclass(frozen=True)
class VerifyResult:
    """The certificate: what was compared at the end, and what differs."""

    ok: bool  # whether the cluster is as the plan says
    partitions: int = 0  # that were compared
    differences: list[str] = field(default_factory=list)  # the first 100
    count: int = 0  # of all differences
    path: str = ""  # the certificate's file, where a worker has stored it


@dataclass(frozen=True)
class DirectoryCall:
    """A log directory of a broker that is being emptied; `cordoned` is wanted by `set_cordon` (KIP-1066)."""

    cluster: str
    broker: int
    path: str
    cordoned: bool = True


@dataclass(frozen=True)
class CordonResult:
    """Whether the broker knows cordoned log directories, and whether this one is cordoned."""

    supported: bool
    cordoned: bool = False
    message: str = ""


@dataclass(frozen=True)
class DrainResult:
    """The name of the stored plan that empties the directory, "" if it is empty; or why there is none."""

    plan: str = ""
    packed: str = ""
    bytes: int = 0
    partitions: int = 0
    reasons: list[str] = field(default_factory=list)
    searchable: bool = False


@dataclass(frozen=True)
class HoldCall:
    """Have the cluster's keeper hold throttles for a run, or (for release) hold none; see `throttling.Holding`."""

    cluster: str
    holder: str
    rates: dict[str, dict[str, str]] = field(default_factory=dict)
    entries: dict[str, dict[str, list[str]]] = field(default_factory=dict)


@dataclass(frozen=True)
class ReleaseSlotsCall:
    """Release all slots of a plan, by its workflow id."""

    cluster: str
    holder: str


@dataclass(frozen=True)
class HoldResult:
    """The brokers and topics whose configs could not be written yet; the keeper tries again. `rejected` are those of
    them of which the cluster rejects it, each with why.
    """

    left_out: list[str] = field(default_factory=list)
    rejected: dict[str, str] = field(default_factory=dict)

    def why_not(self, kind: str, names: Iterable[str]) -> list[str]:
        """Return a sentence for each of these brokers or topics that the cluster rejects."""
        keys = {f"{kind} {name}" for name in names}
        return [f"the throttle is not set: {why}" for key, why in self.rejected.items() if key in keys]


@dataclass(frozen=True)
class ReadThrottlesCall:
    """Read the throttles of brokers and topics; `holders` are runs that hold throttles."""

    cluster: str
    nodes: list[str]
    topics: list[str]
    holders: list[str]


@dataclass(frozen=True)
class ReadThrottlesResult:
    """Configs that are set, by broker and by topic (lists as entries); `closed` holders have no open run."""

    rates: dict[str, dict[str, str]] = field(default_factory=dict)
    lists: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    silent: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class WriteThrottlesCall:
    """Write configs: rows of `throttling.Change`."""

    cluster: str
    changes: list[list[Any]]


@dataclass(frozen=True)
class WriteThrottlesResult:
    """The rows that were written, a sentence for each broker or topic that was not, by name, and those of these topics
    that the controller does not know. `rejected` are the names for which another attempt will fail as well.
    """

    written: list[list[Any]] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)
    rejected: list[str] = field(default_factory=list)


def _stall_reason(value: Any, path: str) -> str:
    found = fields.a_note(value, path)
    if found and found not in set(StallReason):
        raise BadField(path, f"is {fields.shown(found)!r}, but must be one of {', '.join(StallReason)}")
    return found


_ROW: Mapping[str, Callable[[Any, str], Any]] = {
    "key": fields.a_string,
    "outcome": fields.a_note,
    "state": lambda value, path: fields.shown(fields.a_note(value, path)),
    "reason": lambda value, path: fields.shown(fields.a_note(value, path)),
    "copied": fields.a_number,
    "total": fields.a_number,
    "seconds": fields.a_measure,
    "stalled": _stall_reason,
    "since": fields.a_measure,
    "repeats": fields.a_number,
}


def move_rows(value: Any, path: str = "$.rows") -> list[PlanMoveRow]:
    """Read the rows of a lane's step. Raises BadField."""
    found = []
    for at, each in enumerate(fields.a_list(value, path)):
        here = f"{path}[{at}]"
        row = fields.an_object(each, here)
        fields.need(row, "key", here)
        read: Mapping[str, Any] = {
            name: reader(row[name], f"{here}.{name}") for name, reader in _ROW.items() if name in row
        }
        if read.get("outcome") and read["outcome"] not in set(MoveOutcome):
            raise BadField(f"{here}.outcome", f"is {read['outcome']!r}, but must be one of {', '.join(MoveOutcome)}")
        found.append(PlanMoveRow(**read))
    return found
