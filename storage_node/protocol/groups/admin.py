"""FindCoordinator, ListGroups, DescribeGroups, DeleteGroups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from storage_node.groups.group import Group
from storage_node.groups.offsets import MEMBERS
from storage_node.groups.values import GroupRefused, GroupState, Member
from storage_node.model.error_codes import ErrorCode
from storage_node.protocol.host import GroupsHost
from storage_node.protocol.network.framing import Answer
from storage_node.protocol.network.off_loop import off_loop_when
from storage_node.protocol.network.turns import in_turns
from storage_node.protocol.request import Request

_GROUP: Final = 0
"""FindCoordinator's type of key for groups."""

#: The error for a transaction's coordinator: librdkafka retries FindCoordinator for ever on any other one.
_REJECTED: Final = {1: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}

_CLASSIC: Final = "classic"
#: READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS: all operations on a group, since there is no authorizer.
_OPERATIONS: Final = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11
_NOT_REQUESTED: Final = -(2**31)


async def find_coordinator(node: GroupsHost, request: Request) -> Answer:
    """Return the coordinators of groups; rejects the keys of transactions and share groups."""
    call = request.decode()
    kind = getattr(call, "key_type", _GROUP)
    if request.version < 4:
        return request.encode(**_coordinator(node, call.key, kind))
    keys = call.coordinator_keys
    return request.encode_many(len(keys), lambda: {"coordinators": [_coordinator(node, key, kind) for key in keys]})


def _coordinator(node: GroupsHost, key: str, kind: int) -> dict[str, Any]:
    no_node = {"key": key, "node_id": -1, "host": "", "port": -1}
    if kind != _GROUP:
        message = "This cluster does not support transactions and share groups."
        return no_node | {"error_code": _REJECTED.get(kind, ErrorCode.INVALID_REQUEST), "error_message": message}
    found = node.groups.find(key)
    if found is None:
        message = "The coordinator is not available."
        return no_node | {"error_code": ErrorCode.COORDINATOR_NOT_AVAILABLE, "error_message": message}
    if found.node == node.id:
        # This node's current address: an image from before its last start may have an older one.
        return {"key": key, "node_id": node.id, "host": node.host, "port": node.port, "error_message": None}
    return {"key": key, "node_id": found.node, "host": found.host, "port": found.port, "error_message": None}


async def list_groups(node: GroupsHost, request: Request) -> Answer:
    """Return the groups that this node coordinates, filtered by state and type (both case-insensitive)."""
    call = request.decode()
    if not node.groups.loaded:
        return request.encode(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    states = await _lowered(getattr(call, "states_filter", None) or ())
    types = await _lowered(getattr(call, "types_filter", None) or ())
    if types and _CLASSIC not in types:
        return request.encode(groups=[])
    live, kept = node.groups.listed()

    def groups() -> dict[str, Any]:
        found = live | {
            name: (GroupState.EMPTY, (data.row[1] or "") if data.row is not None else "")
            for name, data in kept
            if name not in live
        }
        rows = [
            {"group_id": name, "protocol_type": protocol_type, "group_state": str(state), "group_type": _CLASSIC}
            for name, (state, protocol_type) in found.items()
            if (not states or state.lower() in states) and node.groups.is_own(name)
        ]
        return {"groups": rows}

    return request.encode_many(len(live) + len(kept), groups)


async def _lowered(names: Sequence[str]) -> set[str]:
    return await off_loop_when(len(names), lambda: {name.lower() for name in names})


async def describe_groups(node: GroupsHost, request: Request) -> Answer:
    """Return the state and members of groups; a group that does not exist is Dead."""
    call = request.decode()
    operations = _OPERATIONS if getattr(call, "include_authorized_operations", False) else _NOT_REQUESTED
    kept = node.groups.data
    # Snapshots of the groups that may change while a thread describes them.
    live = {name: _Seen.of(group) for name in call.groups if (group := node.groups.live(name)) is not None}
    elements = len(call.groups) + sum(len(seen.members) for seen in live.values())
    elements += sum(len(data.row[MEMBERS]) for name in call.groups if (data := kept.get(name)) and data.row)

    def described() -> dict[str, Any]:
        rows = [_describe(node, name, live.get(name), request.version) for name in call.groups]
        return {"groups": [{"authorized_operations": operations} | row for row in rows]}

    return request.encode_many(elements, described)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A snapshot of a group."""

    state: GroupState
    protocol_type: str | None
    protocol: str | None
    members: list[tuple[Member, bytes]]
    """Each member with its assignment."""

    @classmethod
    def of(cls, group: Group) -> _Seen:
        members = [(member, member.assignment) for member in group.members.values()]
        return cls(group.state, group.protocol_type, group.protocol, members)


def _describe(node: GroupsHost, name: str, seen: _Seen | None, version: int) -> dict[str, Any]:
    try:
        node.groups.check(name)
    except GroupRefused as refused:
        return {"group_id": name, "error_code": refused.code, "authorized_operations": _NOT_REQUESTED}
    if seen is None and (group := node.groups.at_rest(name)) is not None:
        seen = _Seen.of(group)
    if seen is not None:
        return {
            "group_id": name,
            "group_state": str(seen.state),
            "protocol_type": seen.protocol_type or "",
            "protocol_data": (seen.protocol or "") if seen.state is GroupState.STABLE else "",
            "members": _members(seen),
        }
    # Plain values only, also for errors: the garbage collector does not track such rows, of which there may be very
    # many.
    row: dict[str, Any] = {"group_id": name, "group_state": GroupState.DEAD.value}
    if version >= 6:
        row |= {"error_code": int(ErrorCode.GROUP_ID_NOT_FOUND), "error_message": f"Group {name} not found."}
    return row


def _members(seen: _Seen) -> list[dict[str, Any]]:
    stable = seen.state is GroupState.STABLE
    return [
        {
            "member_id": member.id,
            "group_instance_id": member.instance_id,
            "client_id": member.client_id,
            "client_host": member.host,
            "member_metadata": member.metadata(seen.protocol) if stable else b"",
            "member_assignment": assignment if stable else b"",
        }
        for member, assignment in seen.members
    ]


async def delete_groups(node: GroupsHost, request: Request) -> Answer:
    """Delete groups without members; each group has its own result."""
    call = request.decode()
    names = call.groups_names
    codes = await in_turns(_delete(node, name) for name in names)

    def rows() -> dict[str, Any]:
        return {
            "results": [{"group_id": name, "error_code": int(code)} for name, code in zip(names, codes, strict=True)]
        }

    return request.encode_many(len(names), rows)


async def _delete(node: GroupsHost, name: str) -> ErrorCode:
    try:
        node.groups.check(name)
    except GroupRefused as refused:
        return refused.code
    group = node.groups.look(name)
    if group is None:
        return ErrorCode.GROUP_ID_NOT_FOUND
    if group.state is not GroupState.EMPTY:
        return ErrorCode.NON_EMPTY_GROUP
    return await node.groups.delete(name)
