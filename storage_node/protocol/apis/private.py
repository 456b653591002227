"""The private API (key 32001, version 0): JSON requests and responses between the processes of this project.

ApiVersions does not advertise it, and only clients on the loopback may call it, unless the node's configuration allows
others; the operations between nodes are an exception. It does not need the controller.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from storage_node.asking import RunsLoop
from storage_node.errors import RequestRefused, StorageError
from storage_node.groups import giving
from storage_node.groups.coordinator import GroupCoordinator
from storage_node.model.error_codes import ErrorCode
from storage_node.model.ids import TopicPartition
from storage_node.printable import printable
from storage_node.protocol.apis import private_views
from storage_node.protocol.apis.log_dirs import LogDirsHost
from storage_node.protocol.network.connections import is_loopback
from storage_node.protocol.network.framing import Answer
from storage_node.protocol.network.receiving import CloseConnection
from storage_node.protocol.request import Request
from storage_node.publisher.directory_changes import DirectoryChanges
from storage_node.publisher.metadata_publisher import MetadataPublisher
from storage_node.wire.codec import MalformedRequest

log = logging.getLogger(__name__)

#: Two group ids, with up to six bytes of JSON for each character, and a little more.
LARGEST_CALL = 512 * 1024
#: Not the threads for large requests: an operator's call never waits for a client's.
_POOL = ThreadPoolExecutor(max_workers=8, thread_name_prefix="private")


class ViewsConnections(RunsLoop, Protocol):
    """The listener, as operators see it."""

    def view(self) -> dict[str, Any]:
        """Return the table of connections as plain values; any thread may call it."""
        ...


class OperatorHost(private_views.ViewsHost, giving.GivingHost, LogDirsHost, Protocol):
    """The node, as operators and other nodes see it."""

    @property
    def incarnation(self) -> str: ...

    @property
    def groups(self) -> GroupCoordinator: ...

    @property
    def listener(self) -> ViewsConnections: ...

    @property
    def metadata_publisher(self) -> MetadataPublisher: ...

    @property
    def controller_client(self) -> Callable[[], dict[str, Any] | None]:
        """Returns the state of the client by which this node reaches its controller; None without a client."""
        ...

    def status(self) -> dict[str, Any]:
        """Return the directories, replicas, moves and metadata of the node."""
        ...

    @property
    def directory_changes(self) -> DirectoryChanges:
        """What operators change of the log directories while the node runs."""
        ...


async def handle(node: OperatorHost, request: Request) -> Answer:
    """Handle one call; the response to a failed one is {"error": code, "message": sentence}."""
    call = _parse(request)
    near = node.config.private_api_from_anywhere or is_loopback(request.peer)
    if not near and call.get("op") not in BETWEEN_NODES:
        raise CloseConnection("only clients on the loopback may call the private API")
    pool = BETWEEN_NODES.get(str(call.get("op")), _POOL)
    return [request.head(), await asyncio.get_running_loop().run_in_executor(pool, _response, node, call)]


def _response(node: OperatorHost, call: dict[str, Any]) -> bytes:
    return json.dumps(_call(node, call), separators=(",", ":")).encode()


def _call(node: OperatorHost, call: dict[str, Any]) -> dict[str, Any]:
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
        raise MalformedRequest(f"a private call that is not valid JSON: {error}") from error
    if not isinstance(call, dict):
        raise MalformedRequest("a private call that is not a JSON object")
    return call


def _incarnation(node: OperatorHost, call: dict[str, Any]) -> dict[str, Any]:
    generation, version = node.metadata.image.pair
    return {"node": node.id, "incarnation": node.incarnation, "generation": generation, "version": version}


def _stop_moves(node: OperatorHost, call: dict[str, Any]) -> dict[str, Any]:
    node.engine.stop_moves()
    return {"stopped": True}


def _resume_moves(node: OperatorHost, call: dict[str, Any]) -> dict[str, Any]:
    node.engine.resume_moves()
    return {"stopped": False}


def _status(node: OperatorHost, call: dict[str, Any]) -> dict[str, Any]:
    return node.status()


def _controller_client(node: OperatorHost, call: dict[str, Any]) -> dict[str, Any]:
    """Return the state of the node's connection to the controller, also while the controller is unavailable."""
    generation, version = node.metadata.image.pair
    return {"node": node.id, "generation": generation, "version": version, "client": node.controller_client()}


def _connections(node: OperatorHost, call: dict[str, Any]) -> dict[str, Any]:
    return node.listener.view()


def _cancel_move(node: OperatorHost, call: dict[str, Any]) -> dict[str, Any]:
    topic, partition = call.get("topic"), call.get("partition")
    if not isinstance(topic, str) or not isinstance(partition, int):
        raise RequestRefused("cancel-move needs topic and partition", ErrorCode.INVALID_REQUEST)
    status = node.log_dirs.cancel(TopicPartition(topic, partition), "cancelled on the node")
    return {"cancelled": status is not None}


def _replicas_online(node: OperatorHost, call: dict[str, Any]) -> dict[str, Any]:
    """Open replicas again that are offline in an online directory; returns a row for each."""
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
            outcome, message = "reopened" if node.metadata_publisher.reopen(tp) else "online", ""
        except (RequestRefused, StorageError) as error:
            outcome, message = "offline", str(error)
        rows.append({"topic": tp.topic, "partition": tp.partition, "outcome": outcome, "message": message})
    return {"replicas": rows}


def _directory_online(node: OperatorHost, call: dict[str, Any]) -> dict[str, Any]:
    return node.directory_changes.bring_online(_path(call))


def _directory_replace(node: OperatorHost, call: dict[str, Any]) -> dict[str, Any]:
    return node.directory_changes.replace(_path(call))


def _directory_losses(node: OperatorHost, call: dict[str, Any]) -> dict[str, Any]:
    return node.directory_changes.losses(_path(call))


def _directory_add(node: OperatorHost, call: dict[str, Any]) -> dict[str, Any]:
    return node.directory_changes.add(_path(call))


def _directory_remove(node: OperatorHost, call: dict[str, Any]) -> dict[str, Any]:
    return node.directory_changes.remove(_path(call))


def _directory_history(node: OperatorHost, call: dict[str, Any]) -> dict[str, Any]:
    return node.directory_changes.history(_path(call))


def _path(call: dict[str, Any]) -> str:
    path = call.get("path")
    if not isinstance(path, str) or not path:
        raise RequestRefused(f"{call.get('op')} needs the path of a log directory", ErrorCode.INVALID_REQUEST)
    return path


def _offline_replicas(node: OperatorHost, call: dict[str, Any]) -> dict[str, Any]:
    """Return the replicas of a topic, or of all, that nodes report offline, according to this node's metadata."""
    image = node.metadata.image
    name = call.get("topic")
    topics = image.topics.values() if name is None else [image.topics[name]] if name in image.topics else []
    paths = {(row.node, each.id): each.path for row in image.nodes.values() for each in row.directories}
    rows = [
        {
            "topic": topic.name,
            "partition": row.index,
            "node": each.node,
            "directory": paths.get((each.node, row.directory_of(each.node) or ""), ""),
            "file": each.file,
            "reason": each.reason,
        }
        for topic in topics
        for row in topic.partitions
        for each in row.offline
    ]
    return {"version": image.version, "replicas": rows}


Operation = Callable[[OperatorHost, dict[str, Any]], dict[str, Any]]

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
    "directory-online": _directory_online,
    "directory-replace": _directory_replace,
    "directory-losses": _directory_losses,
    "directory-add": _directory_add,
    "directory-remove": _directory_remove,
    "directory-history": _directory_history,
    giving.GIVE: giving.give,
    giving.TAKEN: giving.taken,
    giving.KEPT: giving.kept,
}

#: Operations that any host may call, since nodes run on several machines. A client can read the data of groups-give and
#: groups-kept by OffsetFetch and DescribeGroups too; groups-taken requires a token, which the other node confirms.
#: Each operation has its own threads: a confirmation must not wait for calls that wait for a confirmation, and an
#: operator's call must not wait for either.
BETWEEN_NODES = {
    op: ThreadPoolExecutor(max_workers=2, thread_name_prefix=op) for op in (giving.GIVE, giving.TAKEN, giving.KEPT)
}
