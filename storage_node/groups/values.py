"""The values of a consumer group: its members' requests and responses. Times are in seconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from sys import getsizeof
from typing import Any, Final

from storage_node.model.error_codes import ErrorCode

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
    "Member",
    "Reply",
    "Sync",
    "SyncAnswer",
    "Token",
    "weight_of_pending",
]

#: The protocol type of consumers, whose metadata is a ConsumerProtocolSubscription.
CONSUMER: Final = "consumer"
NO_GENERATION: Final = -1

# Bytes of memory that a group's state machine and a member take, without their strings and bytes.
GROUP_WEIGHT: Final = 4096
_MEMBER_WEIGHT: Final = 1200
_PROTOCOL_WEIGHT: Final = 150


class GroupRefused(Exception):
    """The node rejects a request for a group; `code` is the error."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


#: Identifies a request that waits for its response: any value of the caller, never inspected.
Token = Any


class GroupState(StrEnum):
    """The states of a classic group, as in DescribeGroups and ListGroups."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


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
    """A dynamic member without an id first receives one, and joins with it (version 4, KIP-394)."""
    can_skip: bool = False
    """The leader supports SkipAssignment (version 9, KIP-814)."""

    @property
    def weight(self) -> int:
        """About how many bytes of memory the member takes at most; its id begins with the client's or instance's."""
        names = 2 * (getsizeof(self.client_id) + getsizeof(self.instance_id)) + getsizeof(self.host)
        return _MEMBER_WEIGHT + names + weight_of_protocols(self.protocols)


def weight_of_protocols(protocols: tuple[tuple[str, bytes], ...]) -> int:
    """Estimate the bytes of memory of a member's protocols."""
    return sum(_PROTOCOL_WEIGHT + len(name) + len(data) for name, data in protocols)


def weight_of_pending(member_id: str) -> int:
    """Estimate the bytes of memory of a pending member id."""
    return _PROTOCOL_WEIGHT + 2 * getsizeof(member_id)


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """A member in the leader's JoinGroup response."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    """A JoinGroup response; `members` for the leader only."""

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
    """A SyncGroup response, with the member's assignment."""

    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class Leaving:
    """A leaving member: named by its id, a static member also by its instance id alone (KIP-345)."""

    member_id: str
    instance_id: str | None = None


Reply = tuple[Token, JoinAnswer | SyncAnswer]


@dataclass(slots=True)
class Member:
    """A member of a group; `deadline`: when its session expires (None while it waits for a response)."""

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
    """It waits for its first response, and does not have its id yet."""
    deadline: float | None = None
    weighed: int = 0
    """The bytes of the member that its group's weight includes."""

    @property
    def weight(self) -> int:
        """About how many bytes of memory the member takes."""
        own = sum(map(getsizeof, (self.id, self.instance_id, self.client_id, self.host, self.assignment)))
        return _MEMBER_WEIGHT + own + weight_of_protocols(self.protocols)

    @property
    def static(self) -> bool:
        return self.instance_id is not None

    def metadata(self, protocol: str | None) -> bytes:
        """Return the metadata of a protocol; empty if the member does not support it."""
        return next((data for name, data in self.protocols if name == protocol), b"")

    def as_joined(self, protocol: str | None) -> JoinedMember:
        return JoinedMember(self.id, self.instance_id, self.metadata(protocol))
