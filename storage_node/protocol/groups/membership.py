"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup."""

from __future__ import annotations

from typing import Any

from storage_node.groups.values import GroupRefused, Join, JoinAnswer, Leaving, Sync, SyncAnswer
from storage_node.model.error_codes import ErrorCode
from storage_node.protocol.host import GroupsHost
from storage_node.protocol.network.framing import Answer
from storage_node.protocol.network.off_loop import off_loop_when
from storage_node.protocol.network.turns import in_slices
from storage_node.protocol.request import Request
from storage_node.wire.codec import milliseconds

#: The first versions whose JoinGroup response has a nullable protocol, and whose SyncGroup request names the protocol.
_NULLABLE = 7
_NAMED = 5


async def join_group(node: GroupsHost, request: Request) -> Answer:
    """Join a group, and wait until a generation begins. Only the leader's response has the members."""
    call = request.decode()
    session = milliseconds(call.session_timeout) / 1000
    count = len(call.protocols)
    protocols = await off_loop_when(count, lambda: tuple((one.name, bytes(one.metadata)) for one in call.protocols))
    ask = Join(
        call.member_id,
        getattr(call, "group_instance_id", None),
        request.client_id,
        f"/{request.peer}",
        call.protocol_type,
        protocols,
        session,
        milliseconds(call.rebalance_timeout) / 1000 if request.version >= 1 else session,
        id_required=request.version >= 4,
        can_skip=request.version >= 9,
    )
    try:
        response = await node.groups.join(_named(call), ask)
    except GroupRefused as refused:
        response = JoinAnswer(refused.code, ask.member_id)
    return request.encode_many(len(response.members), lambda: _joined(request, response))


def _joined(request: Request, response: JoinAnswer) -> dict[str, Any]:
    return {
        "error_code": response.error,
        "generation_id": response.generation,
        "protocol_type": response.protocol_type,
        "protocol_name": response.protocol if request.version >= _NULLABLE else response.protocol or "",
        "leader": response.leader,
        "skip_assignment": response.skip,
        "member_id": response.member_id,
        "members": [
            {"member_id": one.member_id, "group_instance_id": one.instance_id, "metadata": one.metadata}
            for one in response.members
        ],
    }


async def sync_group(node: GroupsHost, request: Request) -> Answer:
    """Set the assignments of all members (the leader), and return the member's own one."""
    call = request.decode()
    count = len(call.assignments)
    assignments = await off_loop_when(count, lambda: {one.member_id: bytes(one.assignment) for one in call.assignments})
    ask = Sync(
        call.member_id,
        getattr(call, "group_instance_id", None),
        call.generation_id,
        getattr(call, "protocol_type", None),
        getattr(call, "protocol_name", None),
        assignments,
    )
    try:
        name = _named(call)
        if request.version >= _NAMED and (ask.protocol_type is None or ask.protocol is None):
            raise GroupRefused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        response = await node.groups.sync(name, ask)
    except GroupRefused as refused:
        response = SyncAnswer(refused.code)
    return request.encode(
        error_code=response.error,
        protocol_type=response.protocol_type,
        protocol_name=response.protocol,
        assignment=response.assignment,
    )


async def heartbeat(node: GroupsHost, request: Request) -> Answer:
    """Extend a member's session; the error REBALANCE_IN_PROGRESS requests it to join again."""
    call = request.decode()
    try:
        instance = getattr(call, "group_instance_id", None)
        error = node.groups.heartbeat(_named(call), call.member_id, instance, call.generation_id)
    except GroupRefused as refused:
        error = refused.code
    return request.encode(error_code=error)


async def leave_group(node: GroupsHost, request: Request) -> Answer:
    """Remove a member, or (from version 3 on, KIP-345) several by their ids."""
    call = request.decode()
    if request.version < 3:
        leaving = [Leaving(call.member_id)]
    else:
        members = call.members
        leaving = await off_loop_when(
            len(members), lambda: [Leaving(one.member_id, one.group_instance_id) for one in members]
        )
    try:
        name = _named(call)
        results = await in_slices(leaving, lambda some: node.groups.leave(name, list(some)))
    except GroupRefused as refused:
        return request.encode(error_code=refused.code)
    if request.version < 3:
        return request.encode(error_code=results[0])

    def rows() -> list[dict[str, Any]]:
        return [
            {"member_id": one.member_id, "group_instance_id": one.instance_id, "error_code": error}
            for one, error in zip(leaving, results, strict=True)
        ]

    return request.encode(members=await off_loop_when(len(leaving), rows))


def _named(call: Any) -> str:
    """Return the group's name; raises GroupRefused if it is empty: such a group cannot have members."""
    if not call.group_id:
        raise GroupRefused(ErrorCode.INVALID_GROUP_ID)
    return str(call.group_id)
