"""Hold the configs of consumer groups in one value for the coordinator. Times are in seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of groups: group.initial.rebalance.delay.ms, group.min/max.session.timeout.ms (seconds here),
    group.max.size, offset.metadata.max.bytes, and what follows.
    """

    initial_delay: float = 3.0
    min_session: float = 6.0
    max_session: float = 1800.0
    max_size: int = 2**31 - 1
    offset_metadata: int = 4096
    new_member: float = 300.0
    """How long a member without an id may wait for its first response: it cannot send heartbeats."""
    retention: float = 604_800.0
    """offsets.retention.minutes, in seconds: how long offsets of a group without members are kept (KIP-211)."""
    retention_check: float = 600.0
    """offsets.retention.check.interval.ms, in seconds."""
    state_bytes: int = 32 << 20
    """group.state.max.bytes: about how much memory the offsets and members of all groups may take."""
