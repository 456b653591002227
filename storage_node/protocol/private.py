"""The private API (key 32001, version 0): a JSON object in, a JSON object out, for the parts of this project on one
machine.

Not advertised, and answered only to the loopback unless configured otherwise (but for what nodes tell each other). It
works without the controller.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from storage_node.errors import ErrorCode, RequestRefused, StorageError
from storage_node.groups import giving
from storage_node.printable import printable
from storage_node.protocol import private_views
from storage_node.protocol.codec import MalformedRequest
from storage_node.protocol.connections import is_loopback
from storage_node.protocol.framing import Answer
from storage_node.protocol.receiving import CloseConnection
from storage_node.protocol.request import Request
from storage_node.types import TopicPartition

if TYPE_CHECKING:
    from storage_node.node import Node

log = logging.getLogger(__name__)

#: Two group ids, each character of which JSON may write in six bytes, and a little more.
LARGEST_CALL = 512 * 1024
#: Not the threads that make large answers for clients: an operator never waits behind those.
_POOL = ThreadPoolExecutor(max_workers=8, thread_name_prefix="private")


async def handle(node: Node, request: Request) -> Answer:
    """Answer one call; errors come as {"error": code, "message": sentence}."""
    call = _parse(request)
    near = node.config.private_api_from_anywhere or is_loopback(request.peer)
    if not near and call.get("op") not in BETWEEN_NODES:
        raise CloseConnection("the private API is answered to the loopback only")
    pool = BETWEEN_NODES.get(str(call.get("op")), _POOL)
    return [request.head(), await asyncio.get_running_loop().run_in_executor(pool, _answer, node, call)]


def _answer(node: Node, call: dict[str, Any]) -> bytes:
    return json.dumps(_carry_out(node, call), separators=(",", ":")).encode()


def _carry_out(node: Node, call: dict[str, Any]) -> dict[str, Any]:
    op = OPERATIONS.get(str(call.get("op", "")))
    if op is None:
        return {"error": int(ErrorCode.INVALID_REQUEST), "message": f"unknown op {call.get('op')!r}"}
    try:
        return op(node, call)
    except (RequestRefused, StorageError) as error:
        return {"error": int(error.code), "message": str(error)}
    except Exception as error:
        log.exception("private call %s failed", printable(call.get("op")))
        return {"error": int(ErrorCode.UNKNOWN_SERVER_ERROR), "message": repr(error)}


def _parse(request: Request) -> dict[str, Any]:
    size = len(request.frame) - request.position
    if size > LARGEST_CALL:
        raise MalformedRequest(f"a private call of {size} bytes")
    body = bytes(request.frame[request.position :])
    try:
        call = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise MalformedRequest(f"a private call that is no JSON: {error}") from error
    if not isinstance(call, dict):
        raise MalformedRequest("a private call that is no JSON object")
    return call


def _incarnation(node: Node, call: dict[str, Any]) -> dict[str, Any]:
    generation, version = node.metadata.image.age
    return {"node": node.id, "incarnation": node.incarnation, "generation": generation, "version": version}


def _stop_moves(node: Node, call: dict[str, Any]) -> dict[str, Any]:
    node.engine.stop_moves()
    return {"stopped": True}


def _resume_moves(node: Node, call: dict[str, Any]) -> dict[str, Any]:
    node.engine.resume_moves()
    return {"stopped": False}


def _status(node: Node, call: dict[str, Any]) -> dict[str, Any]:
    return node.status()


def _controller_client(node: Node, call: dict[str, Any]) -> dict[str, Any]:
    """How the node reaches its controller: an operator sees it although the controller is unavailable."""
    generation, version = node.metadata.image.age
    return {"node": node.id, "generation": generation, "version": version, "client": node.controller_client()}


def _connections(node: Node, call: dict[str, Any]) -> dict[str, Any]:
    return node.listener.view()


def _cancel_move(node: Node, call: dict[str, Any]) -> dict[str, Any]:
    topic, partition = call.get("topic"), call.get("partition")
    if not isinstance(topic, str) or not isinstance(partition, int):
        raise RequestRefused("cancel-move needs topic and partition", ErrorCode.INVALID_REQUEST)
    status = node.log_dirs.cancel(TopicPartition(topic, partition), "cancelled on the node")
    return {"cancelled": status is not None}


def _replicas_online(node: Node, call: dict[str, Any]) -> dict[str, Any]:
    """Open replicas again that are offline alone; one row each."""
    wanted = call.get("partitions")
    if not isinstance(wanted, list) or not wanted:
        raise RequestRefused("replicas-online needs partitions: [[topic, partition], ...]", ErrorCode.INVALID_REQUEST)
    tps = []
    for each in wanted:
        match each:
            case [str(topic), int(partition)]:
                tps.append(TopicPartition(topic, partition))
            case _:
                raise RequestRefused(f"{each!r} is not [topic, partition]", ErrorCode.INVALID_REQUEST)
    rows = []
    for tp in tps:
        try:
            outcome, message = "reopened" if node.images.reopen(tp) else "online", ""
        except (RequestRefused, StorageError) as error:
            outcome, message = "offline", str(error)
        rows.append({"topic": tp.topic, "partition": tp.partition, "outcome": outcome, "message": message})
    return {"replicas": rows}


def _offline_replicas(node: Node, call: dict[str, Any]) -> dict[str, Any]:
    """What nodes report offline, as the metadata here has it, of one topic or of all."""
    image = node.metadata.image
    name = call.get("topic")
    topics = image.topics.values() if name is None else [image.topics[name]] if name in image.topics else []
    paths = {(row.node, id_): path for row in image.nodes.values() for id_, path, _ in row.directories}
    rows = [
        {
            "topic": topic.name,
            "partition": row.partition,
            "node": number,
            "directory": paths.get((number, row.directory_of(number) or ""), ""),
            "file": file,
            "reason": reason,
        }
        for topic in topics
        for row in topic.partitions.values()
        for number, reason, file in row.offline
    ]
    return {"version": image.version, "replicas": rows}


Operation = Callable[["Node", dict[str, Any]], dict[str, Any]]

OPERATIONS: dict[str, Operation] = {
    "incarnation": _incarnation,
    "stop-moves": _stop_moves,
    "resume-moves": _resume_moves,
    "moves": private_views.moves,
    "reassignments": private_views.reassignments,
    "status": _status,
    "connections": _connections,
    "controller-client": _controller_client,
    "cancel-move": _cancel_move,
    "replicas-online": _replicas_online,
    "offline-replicas": _offline_replicas,
    giving.GIVE: giving.give,
    giving.TAKEN: giving.taken,
    giving.KEPT: giving.kept,
}

#: Answered to any host, since nodes are not on one machine. What groups-give and groups-kept return, any client has by
#: OffsetFetch and DescribeGroups as well; groups-taken does nothing without a token, which the other node confirms.
#: Each has threads of its own: a node that confirms is not to wait for one that waits for a confirmation, and no
#: operator for either.
BETWEEN_NODES = {
    op: ThreadPoolExecutor(max_workers=2, thread_name_prefix=op) for op in (giving.GIVE, giving.TAKEN, giving.KEPT)
}
