"""What the runs of plans return: results of plans, lanes, evacuations and alerts, and their responses to queries and
updates; those of the keepers are in `keeper_results`. Values only.

Times are epoch seconds, durations seconds, sizes bytes, rates bytes per second.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from workflows.model.plans.adaptive import Bounds, Decision
from workflows.model.plans.options import PlanOptions
from workflows.model.plans.running.calls import PlanCheck, PlanMoveRow, VerifyResult
from workflows.model.run_results import Span
from workflows.model.versioned import Versioned


class PlanOutcome(StrEnum):
    """How a plan, a lane or an evacuation ended."""

    DONE = "done"
    FAILED = "failed"
    """Some moves did not reach their targets, or the cluster is not as the plan says."""
    CANCELLED = "cancelled"
    ROLLED_BACK = "rolled_back"


# --- ReassignmentPlan


@dataclass(frozen=True)
class HourlyRate:
    """An entry of a plan's calendar: a throttle while its window is open."""

    window: str  # as "22:00-06:00 Europe/Berlin"
    rate: int


@dataclass(frozen=True)
class OptionsRow:
    """The options of a plan, as its parameter has them."""

    throttle_between_brokers: int | None  # of each broker, None for no limit (KIP-73)
    throttle_between_directories: int | None  # of each broker between its directories, None for no limit (KIP-113)
    slots_per_disk: int  # lanes that use a disk at the same time
    slots_per_broker: int | None  # lanes that use a broker, None for no limit
    slots_cluster: int | None  # lanes in the whole cluster, None for no limit
    lane_moves: int  # moves of a lane at most
    lane_bytes: int  # of a lane of several moves at most
    order: list[str]  # the `OrderRule`s by which lanes begin
    priority: int  # 0 to 100: which of two plans gets a slot that both want
    calendar_between_brokers: list[HourlyRate]  # the first open one takes the place of the throttle
    calendar_between_directories: list[HourlyRate]
    adaptive_between_brokers: Bounds | None  # of a throttle that follows the cluster's health, None without one
    adaptive_between_directories: Bounds | None
    window: str  # when lanes may begin, "" for always
    deadline: str  # when the plan should have ended, "" for none
    approval: str  # an `Approval`
    on_drift: str | None  # an `OnDrift`, None: a plan that was to be approved waits for it again
    alerts: str  # the name of a webhook, "" for none
    verify: bool  # whether the cluster is compared with the plan at the end
    health_gate: bool  # whether no lane begins while other partitions are under-replicated
    directories_only: bool  # whether the check refuses a plan that would change replicas or their order

    @staticmethod
    def of(options: PlanOptions) -> OptionsRow:
        """Return the row of some options."""
        brokers, directories = options.calendar_between_brokers, options.calendar_between_directories
        return OptionsRow(
            **options.as_json()
            | {
                "calendar_between_brokers": [HourlyRate(each.window.text, each.rate) for each in brokers],
                "calendar_between_directories": [HourlyRate(each.window.text, each.rate) for each in directories],
                "adaptive_between_brokers": options.adaptive_between_brokers,
                "adaptive_between_directories": options.adaptive_between_directories,
            }
        )


@dataclass(frozen=True)
class OpenLane:
    """A lane of a plan that is under way."""

    lane: int  # its number
    moves: list[str]  # the keys of its moves


@dataclass(frozen=True)
class PlanProgress(Versioned):
    """The response of ReassignmentPlan to `progress`."""

    workflow_id: str
    phase: str  # a `PlanPhase`, or `ended`
    paused: bool
    cancelling: bool
    rolling_back: bool  # whether it goes back, after a cancel
    started: float
    moves: int  # to make, 0 before the check
    lanes: int
    in_place: int  # partitions that were as the plan says at the check
    lanes_left: int  # that have not begun
    lanes_running: list[OpenLane]
    outcomes: dict[str, int]  # moves that have ended, by `MoveOutcome`
    bytes_total: int  # topics grow while a plan runs: as large as the replicas were at the last read
    bytes_copied: int
    read_at: float  # when `bytes_copied` was last read from the cluster, 0 before
    reasons: list[str]  # why no further lane begins
    adaptive: Decision | None  # the last decision about throttles that follow the cluster's health, None without any
    changes: list[str]  # large changes of the cluster since the check; in phase awaiting_approval to be approved
    warning: str  # that the deadline will be missed, and the rate that would meet it; "" otherwise
    stalled: list[PlanMoveRow]  # moves under way that do not advance, the first 20
    failures: list[PlanMoveRow]  # moves that missed their targets, the last 200
    skipped: list[str]  # the keys of moves that an operator has left out
    options: OptionsRow
    approvals: list[str]  # who has approved it
    check: PlanCheck | None  # None before the plan was compared with the cluster
    phases: list[Span]


@dataclass(frozen=True)
class PlanResult(Versioned):
    """The result of ReassignmentPlan."""

    outcome: str  # a `PlanOutcome`
    moves: int
    in_place: int  # partitions that were as the plan says at the check
    outcomes: dict[str, int]  # moves by `MoveOutcome`
    bytes_copied: int  # by moves that reached their targets
    failures: list[PlanMoveRow]  # moves that missed their targets, the last 200
    skipped: list[str]  # the keys of moves that an operator has left out
    verified: VerifyResult | None  # None where the plan was not compared with the cluster at its end
    rollback_ref: str  # the sha256 by which the workers have stored the plan that goes back
    phases: list[Span]
    plan: str = ""  # the sha256 by which the workers have stored the plan itself


@dataclass(frozen=True)
class PlanPaused(Versioned):
    """The response to `pause` of a plan."""

    paused: bool  # whether the plan is paused now
    mode: str  # a `PauseMode`: what becomes of the moves under way


@dataclass(frozen=True)
class PlanCancelling(Versioned):
    """The response to `cancel` of a plan: the moves under way are cancelled next."""

    cancelling: bool
    rollback: bool  # whether what is done is taken back as well


@dataclass(frozen=True)
class PlanApproved(Versioned):
    """The response to `approve`."""

    approvals: list[str]  # who has approved the plan so far


@dataclass(frozen=True)
class PlanOptionsSet(Versioned):
    """The response to `set_options`, `set_throttle` and `set_slots`."""

    options: OptionsRow  # all options that hold from now on


@dataclass(frozen=True)
class PlanSkipped(Versioned):
    """The response to `skip`."""

    skipped: list[str]  # the keys of all moves that are left out


@dataclass(frozen=True)
class PlanRetried(Versioned):
    """The response to `retry`."""

    lanes: int  # that begin again with their failed moves


# --- PlanLane


class LanePhase(StrEnum):
    """The phase of a lane."""

    REQUESTING = "requesting"
    FOLLOWING = "following"
    STALLED = "stalled"
    CANCELLING = "cancelling"


@dataclass(frozen=True)
class LaneProgress(Versioned):
    """The response of PlanLane to `progress`."""

    workflow_id: str
    plan: str  # the workflow id of its plan
    lane: int  # its number in the plan
    phase: str  # a `LanePhase`, or `ended`
    cancelling: bool
    rows: list[PlanMoveRow]  # one per move
    phases: list[Span]


@dataclass(frozen=True)
class LaneResult(Versioned):
    """The result of PlanLane."""

    rows: list[PlanMoveRow]  # one per move
    phases: list[Span]


# --- EvacuateDirectory


class EvacuationPhase(StrEnum):
    """The phase of an evacuation."""

    CORDONING = "cordoning"
    PLANNING = "planning"
    MOVING = "moving"
    VERIFYING = "verifying"
    RELEASING = "releasing"


@dataclass(frozen=True)
class EvacuationProgress(Versioned):
    """The response of EvacuateDirectory to `progress`."""

    workflow_id: str
    broker: int
    directory: str  # that is being emptied
    phase: str  # an `EvacuationPhase`, or `ended`
    cancelling: bool
    cordoned: bool  # whether no new replica can land in it (KIP-1066)
    rounds: int  # that have begun
    plan: str  # the workflow id of the last round's plan, "" before the first
    moved: int  # replicas, over all rounds
    bytes_copied: int  # over all rounds
    left: list[str]  # what the last round has not moved, and why
    phases: list[Span]


@dataclass(frozen=True)
class EvacuationResult(Versioned):
    """The result of EvacuateDirectory."""

    broker: int
    directory: str  # that was emptied
    empty: bool
    rounds: int
    moved: int  # replicas, over all rounds
    bytes_copied: int  # over all rounds
    cordoned: bool  # whether no new replica could land there meanwhile (KIP-1066); else the run only watched
    certificate: VerifyResult
    phases: list[Span]


# --- PlanAlert


@dataclass(frozen=True)
class AlertResult(Versioned):
    """The result of PlanAlert: the webhook has accepted the alert."""

    webhook: str  # its name
    event: str  # an `AlertEvent`
