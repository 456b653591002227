"""The values of a consumer group: what members ask, what they are answered, and its limits. Times are in seconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from storage_node.errors import ErrorCode

__all__ = [
    "CONSUMER",
    "NO_GENERATION",
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
]

#: The protocol type of consumers, whose subscriptions can be read (KIP-62's ConsumerProtocol).
CONSUMER: Final = "consumer"
NO_GENERATION: Final = -1

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
    offset.metadata.max.bytes.
    """

    initial_delay: float = 3.0
    min_session: float = 6.0
    max_session: float = 1800.0
    max_size: int = 2**31 - 1
    offset_metadata: int = 4096
    new_member: float = 300.0
    """How long a member that has no id yet may wait for its first answer: it cannot send heartbeats."""


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

    @property
    def static(self) -> bool:
        return self.instance_id is not None

    def metadata(self, protocol: str | None) -> bytes:
        """The metadata under a protocol's name; empty when the member does not have it."""
        return next((data for name, data in self.protocols if name == protocol), b"")

    def as_joined(self, protocol: str | None) -> JoinedMember:
        return JoinedMember(self.id, self.instance_id, self.metadata(protocol))
