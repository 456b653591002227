"""A group's membership as a row on disk and between nodes: JSON values, bytes in base64, times in milliseconds."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from storage_node.groups.values import Member

__all__ = ["Kept", "read", "write"]


@dataclass(frozen=True, slots=True)
class Kept:
    """A decoded membership; without members only the generation and the protocol type are set."""

    generation: int
    protocol_type: str | None
    protocol: str | None
    leader: str | None
    members: tuple[Member, ...]


def write(
    generation: int,
    protocol_type: str | None,
    protocol: str | None,
    leader: str | None,
    members: Iterable[Member],
    at: int | None = None,
) -> list[Any]:
    """Return the row; `at`: the time of the change, in milliseconds, at which an empty group's retention begins."""
    found = [
        [
            member.id,
            member.instance_id,
            member.client_id,
            member.host,
            round(member.session * 1000),
            round(member.rebalance * 1000),
            base64.b64encode(member.metadata(protocol)).decode(),
            base64.b64encode(member.assignment).decode(),
        ]
        for member in members
    ]
    return [generation, protocol_type, protocol, leader, found, *([] if at is None else [at])]


def read(row: list[Any]) -> Kept:
    """Return the membership of a row; raises ValueError, TypeError if the row is not valid."""
    generation, protocol_type, protocol, leader, found, *_ = row
    members = tuple(
        Member(
            id_,
            instance,
            client,
            host,
            ((protocol, base64.b64decode(metadata)),),
            session / 1000,
            rebalance / 1000,
            base64.b64decode(assignment),
        )
        for id_, instance, client, host, session, rebalance, metadata, assignment in found
    )
    return Kept(int(generation), protocol_type, protocol, leader, members)
