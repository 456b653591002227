"""Groups from outside: FindCoordinator, ListGroups, DescribeGroups, DeleteGroups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from storage_node.errors import ErrorCode
from storage_node.groups.coordinator import GroupRefused
from storage_node.groups.group import Group
from storage_node.groups.values import GroupState
from storage_node.protocol.framing import Answer
from storage_node.protocol.request import Request

if TYPE_CHECKING:
    from storage_node.node import Node

_GROUP: Final = 0
"""FindCoordinator's type of key for groups."""

#: librdkafka asks for a transaction's coordinator again for ever, whatever it is told but this.
_REFUSED: Final = {1: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}

_CLASSIC: Final = "classic"
#: READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS: everything there is, since everybody may do everything.
_OPERATIONS: Final = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11
_NOT_ASKED: Final = -(2**31)


async def find_coordinator(node: Node, request: Request) -> Answer:
    """The node that coordinates a group; keys of transactions and share groups are refused."""
    call = request.decode()
    keys = call.coordinator_keys if request.version >= 4 else [call.key]
    rows = [_coordinator(node, key, getattr(call, "key_type", _GROUP)) for key in keys]
    return request.encode(coordinators=rows) if request.version >= 4 else request.encode(**rows[0])


def _coordinator(node: Node, key: str, kind: int) -> dict[str, Any]:
    nobody = {"key": key, "node_id": -1, "host": "", "port": -1}
    if kind != _GROUP:
        message = "transactions and share groups are not offered by this cluster"
        return nobody | {"error_code": _REFUSED.get(kind, ErrorCode.INVALID_REQUEST), "error_message": message}
    found = node.groups.find(key)
    if found is None:
        message = "The coordinator is not available."
        return nobody | {"error_code": ErrorCode.COORDINATOR_NOT_AVAILABLE, "error_message": message}
    if found.node == node.id:
        # With the address it has now, which an image of its last start may not know.
        return {"key": key, "node_id": node.id, "host": node.host, "port": node.port, "error_message": None}
    return {"key": key, "node_id": found.node, "host": found.host, "port": found.port, "error_message": None}


async def list_groups(node: Node, request: Request) -> Answer:
    """The groups that this node coordinates, by state and type where these are given (in any case of letters)."""
    call = request.decode()
    if not node.groups.loaded:
        return request.encode(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    states = {state.lower() for state in getattr(call, "states_filter", None) or ()}
    types = {kind.lower() for kind in getattr(call, "types_filter", None) or ()}
    rows = [
        {"group_id": name, "protocol_type": protocol_type, "group_state": str(state), "group_type": _CLASSIC}
        for name, state, protocol_type in (node.groups.listed() if not types or _CLASSIC in types else ())
        if not states or state.lower() in states
    ]
    return request.encode(groups=rows)


async def describe_groups(node: Node, request: Request) -> Answer:
    """State and members of groups; one that is not there is Dead."""
    call = request.decode()
    operations = _OPERATIONS if getattr(call, "include_authorized_operations", False) else _NOT_ASKED
    rows = [{"authorized_operations": operations} | _describe(node, name, request.version) for name in call.groups]
    return request.encode(groups=rows)


def _describe(node: Node, name: str, version: int) -> dict[str, Any]:
    try:
        node.groups.check(name)
    except GroupRefused as refused:
        return {"group_id": name, "error_code": refused.code, "authorized_operations": _NOT_ASKED}
    group = node.groups.look(name)
    if group is not None:
        return {
            "group_id": name,
            "group_state": str(group.state),
            "protocol_type": group.protocol_type or "",
            "protocol_data": (group.protocol or "") if group.state is GroupState.STABLE else "",
            "members": _members(group),
        }
    row: dict[str, Any] = {"group_id": name, "group_state": str(GroupState.DEAD)}
    if version >= 6:
        row |= {"error_code": ErrorCode.GROUP_ID_NOT_FOUND, "error_message": f"Group {name} not found."}
    return row


def _members(group: Group) -> list[dict[str, Any]]:
    stable = group.state is GroupState.STABLE
    return [
        {
            "member_id": member.id,
            "group_instance_id": member.instance_id,
            "client_id": member.client_id,
            "client_host": member.host,
            "member_metadata": member.metadata(group.protocol) if stable else b"",
            "member_assignment": member.assignment if stable else b"",
        }
        for member in group.members.values()
    ]


async def delete_groups(node: Node, request: Request) -> Answer:
    """Delete groups without members, each with its own result."""
    call = request.decode()
    rows = [{"group_id": name, "error_code": await _delete(node, name)} for name in call.groups_names]
    return request.encode(results=rows)


async def _delete(node: Node, name: str) -> ErrorCode:
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
