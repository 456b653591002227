"""The values of a consumer group: what members ask, what they are answered, and its limits. Times are in seconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from sys import getsizeof
from typing import Any, Final

from storage_node.errors import ErrorCode

__all__ = [
    "CONSUMER",
    "GROUP_WEIGHT",
    "NO_GENERATION",
    "GroupRefused",
    "GroupState",
    "Join",
    "JoinAnswer",
    "JoinedMember",
    "Leaving",
    "Limits",
    "Member",
    "Reply",
    "Sync",
    "SyncAnswer",
    "Token",
    "weight_of_pending",
]

#: The protocol type of consumers, whose subscriptions can be read (KIP-62's ConsumerProtocol).
CONSUMER: Final = "consumer"
NO_GENERATION: Final = -1

# Bytes of memory that a group's state machine and a member take, without their strings and bytes.
GROUP_WEIGHT: Final = 4096
_MEMBER_WEIGHT: Final = 1200
_PROTOCOL_WEIGHT: Final = 150


class GroupRefused(Exception):
    """A group cannot be asked here, now: `code` says why, in Kafka's words for it."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


#: Who waits for an answer: whatever the caller handed in, never looked at.
Token = Any


class GroupState(StrEnum):
    """As DescribeGroups and ListGroups spell them."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class Limits:
    """group.initial.rebalance.delay.ms, group.min/max.session.timeout.ms (seconds here), group.max.size,
    offset.metadata.max.bytes, and what follows.
    """

    initial_delay: float = 3.0
    min_session: float = 6.0
    max_session: float = 1800.0
    max_size: int = 2**31 - 1
    offset_metadata: int = 4096
    new_member: float = 300.0
    """How long a member that has no id yet may wait for its first answer: it cannot send heartbeats."""
    retention: float = 604_800.0
    """offsets.retention.minutes, in seconds: how long offsets of a group without members are kept (KIP-211)."""
    retention_check: float = 600.0
    """offsets.retention.check.interval.ms, in seconds."""
    state_bytes: int = 32 << 20
    """group.state.max.bytes: about how much memory the offsets and members of all groups may take."""


@dataclass(frozen=True, slots=True)
class Join:
    """A JoinGroup request; `protocols` in the member's order of preference, each with its metadata."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    session: float
    rebalance: float
    id_required: bool = False
    """A dynamic member without an id is first told one, and joins with it (version 4, KIP-394)."""
    can_skip: bool = False
    """The leader understands that it has nothing to assign (version 9, KIP-814)."""

    @property
    def weight(self) -> int:
        """About how many bytes of memory the member will take at most: its id is made of the client's or instance's."""
        names = 2 * (getsizeof(self.client_id) + getsizeof(self.instance_id)) + getsizeof(self.host)
        return _MEMBER_WEIGHT + names + weight_of_protocols(self.protocols)


def weight_of_protocols(protocols: tuple[tuple[str, bytes], ...]) -> int:
    """About how many bytes of memory a member's protocols take."""
    return sum(_PROTOCOL_WEIGHT + len(name) + len(data) for name, data in protocols)


def weight_of_pending(member_id: str) -> int:
    """About how many bytes of memory an id takes that was handed out."""
    return _PROTOCOL_WEIGHT + 2 * getsizeof(member_id)


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """A member as its leader sees it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    """What a member that joined is told; `members` for the leader only."""

    error: ErrorCode = ErrorCode.NONE
    member_id: str = ""
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()
    skip: bool = False


@dataclass(frozen=True, slots=True)
class Sync:
    """A SyncGroup request; `assignments` (member id -> bytes) from the leader only."""

    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SyncAnswer:
    """A member's assignment."""

    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class Leaving:
    """Who leaves: a member by its id, a static one also by its instance id alone (KIP-345)."""

    member_id: str
    instance_id: str | None = None


Reply = tuple[Token, JoinAnswer | SyncAnswer]


@dataclass(slots=True)
class Member:
    """A member as the group holds it; `deadline` is when it is gone unless it is heard of (None: it waits for us)."""

    id: str
    instance_id: str | None
    client_id: str
    host: str
    protocols: tuple[tuple[str, bytes], ...]
    session: float
    rebalance: float
    assignment: bytes = b""
    joining: Token = None
    syncing: Token = None
    nameless: bool = False
    """It waits for its first answer, and does not know its id."""
    deadline: float | None = None
    weighed: int = 0
    """What of it is in its group's weight."""

    @property
    def weight(self) -> int:
        """About how many bytes of memory the member takes."""
        own = sum(map(getsizeof, (self.id, self.instance_id, self.client_id, self.host, self.assignment)))
        return _MEMBER_WEIGHT + own + weight_of_protocols(self.protocols)

    @property
    def static(self) -> bool:
        return self.instance_id is not None

    def metadata(self, protocol: str | None) -> bytes:
        """The metadata under a protocol's name; empty when the member does not have it."""
        return next((data for name, data in self.protocols if name == protocol), b"")

    def as_joined(self, protocol: str | None) -> JoinedMember:
        return JoinedMember(self.id, self.instance_id, self.metadata(protocol))
