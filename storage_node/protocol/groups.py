"""Membership of groups: JoinGroup, SyncGroup, Heartbeat, LeaveGroup."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from storage_node.errors import ErrorCode
from storage_node.groups.values import GroupRefused, Join, JoinAnswer, Leaving, Sync, SyncAnswer
from storage_node.protocol.codec import milliseconds
from storage_node.protocol.framing import Answer
from storage_node.protocol.off_loop import off_loop_when
from storage_node.protocol.request import Request
from storage_node.protocol.turns import in_slices

if TYPE_CHECKING:
    from storage_node.node import Node

#: From these versions on answers have room for null where there is no protocol, and members name theirs.
_NULLABLE = 7
_NAMED = 5


async def join_group(node: Node, request: Request) -> Answer:
    """Join, and wait until a generation begins. The answer's members are for the leader."""
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
        answer = await node.groups.join(_named(call), ask)
    except GroupRefused as refused:
        answer = JoinAnswer(refused.code, ask.member_id)
    return request.encode_many(len(answer.members), lambda: _joined(request, answer))


def _joined(request: Request, answer: JoinAnswer) -> dict[str, Any]:
    return {
        "error_code": answer.error,
        "generation_id": answer.generation,
        "protocol_type": answer.protocol_type,
        "protocol_name": answer.protocol if request.version >= _NULLABLE else answer.protocol or "",
        "leader": answer.leader,
        "skip_assignment": answer.skip,
        "member_id": answer.member_id,
        "members": [
            {"member_id": one.member_id, "group_instance_id": one.instance_id, "metadata": one.metadata}
            for one in answer.members
        ],
    }


async def sync_group(node: Node, request: Request) -> Answer:
    """Hand in everybody's assignment (the leader), and get one's own."""
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
        answer = await node.groups.sync(name, ask)
    except GroupRefused as refused:
        answer = SyncAnswer(refused.code)
    return request.encode(
        error_code=answer.error,
        protocol_type=answer.protocol_type,
        protocol_name=answer.protocol,
        assignment=answer.assignment,
    )


async def heartbeat(node: Node, request: Request) -> Answer:
    """I am alive; the answer tells whether to join again."""
    call = request.decode()
    try:
        instance = getattr(call, "group_instance_id", None)
        error = node.groups.heartbeat(_named(call), call.member_id, instance, call.generation_id)
    except GroupRefused as refused:
        error = refused.code
    return request.encode(error_code=error)


async def leave_group(node: Node, request: Request) -> Answer:
    """Leave, or (since version 3) have members removed by their ids."""
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
    """The group's name. Raises GroupRefused: members need one."""
    if not call.group_id:
        raise GroupRefused(ErrorCode.INVALID_GROUP_ID)
    return str(call.group_id)
