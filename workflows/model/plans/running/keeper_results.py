"""What the keepers of throttles and of slots return: results, and responses to queries and updates. Values only.

Times are epoch seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from workflows.model.versioned import Versioned


@dataclass(frozen=True)
class KeeperResult(Versioned):
    """The result of ThrottleKeeper and of SlotKeeper: nothing is held any more."""


# --- ThrottleKeeper


@dataclass(frozen=True)
class Holding:
    """What one run holds."""

    rates: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # by broker and config
    entries: Mapping[str, Mapping[str, list[str]]] = field(default_factory=dict)  # partition:broker, by topic and list


@dataclass(frozen=True)
class Claim:
    """A run's claim to a config of a broker."""

    holder: str  # the run's workflow id
    value: str  # that it holds


@dataclass(frozen=True)
class HeldRateRow:
    """A config of a broker that is held, or is being restored."""

    broker: int
    config: str
    before: str | None  # the value before the first holder, None: not set
    claims: list[Claim]  # the newest last, whose value applies; none: the value from before is being restored
    written: str | None  # the value that was last written, None before that
    theirs: bool  # whether another client has set another value since: it is left alone
    ours: list[str]  # the values of the keeper's own that a broker may return
    restored: bool  # whether the value from before is written, but not read yet


@dataclass(frozen=True)
class HeldEntryRow:
    """An entry of a topic's list of throttled replicas that is held, or is being removed."""

    topic: str
    config: str  # the list
    entry: str  # partition:broker
    holders: list[str]  # workflow ids; none: it is being removed
    tried: bool  # whether its write was sent
    written: bool  # whether its write is confirmed
    removed: bool  # whether its removal is written, but not read yet


@dataclass(frozen=True)
class ThrottleKeeperProgress(Versioned):
    """The response of ThrottleKeeper to `progress`."""

    workflow_id: str
    failed: dict[str, str]  # the brokers and topics that could not be written yet, or `cluster`, and why
    holdings: dict[str, Holding]  # by the holder's workflow id
    rates: list[HeldRateRow]
    entries: list[HeldEntryRow]


@dataclass(frozen=True)
class ThrottlesApplied(Versioned):
    """The response to `hold` and `release` of throttles: the cluster has them, or the values from before."""

    left_out: list[str]  # the brokers and topics that could not be written yet; the keeper tries again
    rejected: dict[str, str] = field(default_factory=dict)  # by the cluster, and why


@dataclass(frozen=True)
class ThrottlesForgotten(Versioned):
    """The response to `forget`."""

    before: dict[str, str | None]  # by config: the values that are no longer restored, None: not set


# --- SlotKeeper


@dataclass(frozen=True)
class LaneSlots:
    """A lane and the slots that it uses or requests."""

    lane: int  # its number in the plan
    slots: list[str]  # a disk as "1:/disk/a", a broker as "1", the cluster as ""


@dataclass(frozen=True)
class SlotWait:
    """A slot that a plan waits for."""

    slot: str
    since: float
    limit: int  # how many lanes of all plans may use it, 0 for no limit


@dataclass(frozen=True)
class PlanShare:
    """What one plan uses and waits for."""

    priority: int
    held: list[LaneSlots]
    waits: list[SlotWait]
    requested: float  # when it last requested lanes
    refused: list[LaneSlots]  # the requested lanes that may not begin yet
    turn: float  # when its last turn began, 0 for never


@dataclass(frozen=True)
class SlotKeeperProgress(Versioned):
    """The response of SlotKeeper to `progress`."""

    workflow_id: str
    plans: dict[str, PlanShare]  # by the plan's workflow id


@dataclass(frozen=True)
class SlotGrant(Versioned):
    """The response to `share`: the plan waits for the other lanes that it has requested."""

    lanes: list[int] = field(default_factory=list)  # the lanes that may begin
    taken: dict[str, int] = field(default_factory=dict)  # the slots that other plans use
    others: list[str] = field(default_factory=list)  # the plans that hold or await what the other lanes need


@dataclass(frozen=True)
class SlotsReleased(Versioned):
    """The response to `release` of slots."""

    holder: str  # the plan, which uses and awaits none any more
