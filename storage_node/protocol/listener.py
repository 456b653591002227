"""The listener: a thread with its own uvloop, which dispatches requests to their handlers.

Temporal's client never shares this loop, and no handler blocks it: disk I/O runs in the directory's pool.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import uvloop

from storage_node.descriptors import most_connections
from storage_node.protocol.apis import (
    cluster,
    configs,
    log_dirs,
    metadata,
    offsets,
    private,
    producers,
    reassignments,
    topics,
)
from storage_node.protocol.fetch import handler as fetch
from storage_node.protocol.groups import admin as group_admin
from storage_node.protocol.groups import membership
from storage_node.protocol.groups import offsets as group_offsets
from storage_node.protocol.host import GroupsHost
from storage_node.protocol.network import loop_probe
from storage_node.protocol.network.connections import Connections, Limits
from storage_node.protocol.network.framing import Answer, Connection, Effect
from storage_node.protocol.network.off_loop import off_loop
from storage_node.protocol.network.receiving import CloseConnection, Frame
from storage_node.protocol.network.side_loop import SideLoop
from storage_node.protocol.produce import handler as produce
from storage_node.protocol.request import LARGE, Deferred, Request, read_client_id, read_header
from storage_node.small_first import SMALL_FIRST
from storage_node.wire.codec import MalformedRequest, prepare, prepared
from storage_node.wire.table import API_VERSIONS, APIS, CHANGING, FETCH, JOINING, PRIVATE, PRODUCE

log = logging.getLogger(__name__)


class NodeHost(
    configs.ConfigsHost,
    fetch.FetchHost,
    metadata.TopicsHost,
    offsets.OffsetsHost,
    private.OperatorHost,
    produce.ProduceHost,
    GroupsHost,
    Protocol,
):
    """The node, as the table of handlers sees it."""


Handler = Callable[[NodeHost, Request], Awaitable[Answer]]

HANDLERS: dict[str, Handler] = {
    "fetch": fetch.handle,
    "list_offsets": offsets.list_offsets,
    "init_producer_id": offsets.init_producer_id,
    "delete_records": offsets.delete_records,
    "offset_for_leader_epoch": offsets.offset_for_leader_epoch,
    "metadata": metadata.metadata,
    "describe_topic_partitions": metadata.describe_topic_partitions,
    "api_versions": cluster.api_versions,
    "sasl_handshake": cluster.sasl_handshake,
    "sasl_authenticate": cluster.sasl_authenticate,
    "find_coordinator": group_admin.find_coordinator,
    "join_group": membership.join_group,
    "sync_group": membership.sync_group,
    "heartbeat": membership.heartbeat,
    "leave_group": membership.leave_group,
    "offset_commit": group_offsets.offset_commit,
    "offset_fetch": group_offsets.offset_fetch,
    "offset_delete": group_offsets.offset_delete,
    "list_groups": group_admin.list_groups,
    "describe_groups": group_admin.describe_groups,
    "delete_groups": group_admin.delete_groups,
    "describe_cluster": cluster.describe_cluster,
    "describe_producers": producers.describe_producers,
    "alter_partition_reassignments": reassignments.alter_partition_reassignments,
    "elect_leaders": reassignments.elect_leaders,
    "list_partition_reassignments": reassignments.list_partition_reassignments,
    "create_topics": topics.create_topics,
    "delete_topics": topics.delete_topics,
    "create_partitions": topics.create_partitions,
    "describe_configs": configs.describe_configs,
    "incremental_alter_configs": configs.incremental_alter_configs,
    "alter_configs": configs.alter_configs,
    "list_config_resources": configs.list_config_resources,
    "alter_replica_log_dirs": log_dirs.alter_replica_log_dirs,
    "describe_log_dirs": log_dirs.describe_log_dirs,
    "private": private.handle,
}

#: Handlers that iterate over much of the cluster's metadata, or wait for the controller: they never run on the
#: listener's loop.
ASIDE = frozenset(
    {
        "describe_topic_partitions",
        "describe_cluster",
        "alter_partition_reassignments",
        "elect_leaders",
        "list_partition_reassignments",
        "create_topics",
        "delete_topics",
        "create_partitions",
        "describe_configs",
        "incremental_alter_configs",
        "alter_configs",
        "list_config_resources",
        "describe_log_dirs",
    }
)
#: Handlers whose large requests never run on the listener's loop.
ASIDE_IF_LARGE = frozenset(
    {"metadata", "list_offsets", "offset_for_leader_epoch", "delete_records", "find_coordinator", "api_versions"}
)
#: The handler that always runs on the same side loop, since its requests wait for one another.
IN_ORDER = "alter_replica_log_dirs"

#: APIs whose handlers decode their requests without kio.
READS_BY_ITSELF = (PRODUCE, FETCH, PRIVATE)

BACKLOG = 1024
#: Requests that may wait long for other clients: a node that stops does not wait for them.
PATIENT = frozenset({"fetch", "join_group", "sync_group"})
#: The characters kept of a client id, and of a client software's name and version.
LONGEST_NAME = 100
#: Seconds that a node which stops gives to the requests under way.
LAST_ANSWERS = 1.0


class Listener:
    """A node's Kafka listener, which serves from `start` to `stop`."""

    def __init__(self, node: NodeHost) -> None:
        self._node = node
        self._limits: Limits
        self._socket: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._stopped: asyncio.Event | None = None
        self._failure: BaseException | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.port = 0
        self.connections: Connections | None = None
        """The table of connections, once the listener has started; for its loop only, except where noted there."""
        self.probe = loop_probe.wanted()
        """Times the callbacks of the loop, if the environment enables it."""
        self._admin: SideLoop | None = None
        """Runs the requests of ASIDE that are not large: an operator's do not wait for a client's large ones."""
        self._large: SideLoop | None = None

    def bind(self) -> None:
        """Bind the address; raises an OSError that names it. Connections are accepted after `start`."""
        host, port = self._node.config.listener.host, self._node.config.listener.port
        self._limits = Limits.of(self._node.config)
        try:
            self._socket = _bind(host, port)
        except OSError as error:
            raise OSError(error.errno, f"listeners: {host or '*'}:{port}: {error.strerror}") from error
        self.port = self._socket.getsockname()[1]

    def start(self) -> None:
        """Serve on a new thread; requires a call of `bind` before."""
        assert self._socket is not None
        ready = threading.Event()
        name = f"listener-{self._node.id}"
        self._thread = threading.Thread(target=self._run, args=(self._socket, ready), name=name, daemon=True)
        self._thread.start()
        ready.wait()
        if self._failure is not None:
            raise self._failure

    def limit(self, connections: int, per_address: int) -> None:
        """Set the limits of connections, in total and per address; open ones stay. Any thread may call it."""
        most = most_connections(connections)
        self._limits = replace(self._limits, connections=most, per_address=per_address)
        if self.connections is not None:
            self.connections.limits = self._limits

    def view(self) -> dict[str, Any]:
        """Return the table of connections as plain values; any thread may call it."""
        loop, table = self.loop, self.connections
        return table.view(loop.time()) if loop is not None and table is not None else {}

    def stop(self) -> None:
        """Accept no more requests, close the connections, end the thread."""
        if self.loop is None or self._thread is None:
            if self._socket is not None:
                self._socket.close()
            return
        stopped = self._stopped
        if stopped is not None:
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(stopped.set)
        self._thread.join(10)
        self._thread = None

    def _run(self, sock: socket.socket, ready: threading.Event) -> None:
        try:
            with asyncio.Runner(loop_factory=self._loop) as runner:
                runner.run(self._serve_until_stopped(sock, ready))
        except BaseException as error:
            self._failure = error
            log.exception("the listener ended")
        finally:
            for side in (self._admin, self._large):
                if side is not None:
                    side.stop()
            ready.set()

    def _loop(self) -> asyncio.AbstractEventLoop:
        return uvloop.new_event_loop() if self.probe is None else loop_probe.loop_with(self.probe)

    async def _serve_until_stopped(self, sock: socket.socket, ready: threading.Event) -> None:
        self.loop = asyncio.get_running_loop()
        table = self.connections = Connections(self._limits, self._disconnected)
        self._stopped = asyncio.Event()
        self._admin, self._large = SideLoop(f"admin-{self._node.id}"), SideLoop(f"large-{self._node.id}")
        self._node.groups.attach(self.loop)
        server = await self.loop.create_server(self._connect, sock=sock, backlog=BACKLOG)
        ready.set()
        await self._stopped.wait()
        server.close()
        for connection in table.all():
            if connection.under_way in PATIENT:
                connection.close()
            else:
                connection.finish()
        # The requests under way, and the responses being sent, have LAST_ANSWERS seconds before the connections abort.
        await table.emptied(LAST_ANSWERS)
        table.stop()
        self._node.groups.detach()
        for connection in table.all():
            if connection.transport is not None:
                connection.transport.abort()

    def _connect(self) -> Connection:
        assert self.connections is not None
        connection = Connection(self._begin, _together, _effect, self.connections)
        return connection if self.probe is None else loop_probe.watch(connection, self.probe)

    def _disconnected(self, number: int) -> None:
        self._node.fetch_sessions.disconnected(number)

    def _begin(self, frames: list[Frame], connection: Connection) -> None:
        """Begin to handle frames: produce requests without a task, any other in a task. Raises CloseConnection."""
        SMALL_FIRST.let_go()
        try:
            request = self._read(frames[0], connection)
            connection.under_way, connection.client_id = request.api.name, request.client_id[:LONGEST_NAME]
            if request.api is PRODUCE:
                others, error = self._read_others(frames[1:], connection)
                produce.begin(self._node, [request, *others], connection, error)
                return
        except MalformedRequest as error:
            raise CloseConnection(str(error)) from error
        assert self.loop is not None
        connection.task = self.loop.create_task(self._serve(request, connection), name=request.api.name)

    def _read_others(self, frames: list[Frame], connection: Connection) -> tuple[list[Request], CloseConnection | None]:
        """Decode the headers of frames up to the first malformed one; returns also why the node cannot handle that."""
        requests: list[Request] = []
        try:
            for frame in frames:
                requests.append(self._read(frame, connection))
        except MalformedRequest as error:
            return requests, CloseConnection(str(error))
        except CloseConnection as error:
            return requests, error
        return requests, None

    async def _serve(self, request: Request, connection: Connection) -> None:
        try:
            if request.api not in READS_BY_ITSELF and request.version >= 0:
                if not prepared(request.api.key, request.version):
                    await off_loop(partial(prepare, request.api.key, request.version))
                if len(request.frame) <= LARGE and request.holds_many():
                    request = request._replace(many=True)
            side = self._side(request)
            if request.version < 0:
                response = await self._handle(request, connection)
            elif side is not None:
                response = await side.run(self._handle_aside(request, connection))
            else:
                if request.large and request.api not in READS_BY_ITSELF:
                    request = request._replace(decoded=await off_loop(request.decode))
                response = await self._handle(request, connection)
                if isinstance(response, Deferred):
                    response = await off_loop(response.make)
        except MalformedRequest as error:
            connection.failed(CloseConnection(str(error)))
        except Exception as error:
            connection.failed(error)
        else:
            connection.answered([response])

    def _side(self, request: Request) -> SideLoop | None:
        """Return the side loop that runs the handler of a request; None for the listener's loop."""
        name = request.api.name
        if name == IN_ORDER:
            return self._admin
        if name in ASIDE:
            return self._large if request.large else self._admin
        return self._large if request.large and name in ASIDE_IF_LARGE else None

    async def _handle(self, request: Request, connection: Connection) -> Answer:
        if request.api is API_VERSIONS and request.version >= 3:
            connection.software = _software(request)
        return await HANDLERS[request.api.name](self._node, request)

    async def _handle_aside(self, request: Request, connection: Connection) -> Answer:
        """Handle a request on a side loop, which also decodes it and encodes the response."""
        response = await self._handle(request._replace(decoded=request.decode()), connection)
        return response.make() if isinstance(response, Deferred) else response

    def _read(self, frame: Frame, connection: Connection) -> Request:
        header = read_header(frame)
        api = PRIVATE if header.key == PRIVATE.key else APIS.get(header.key)
        if api is None:
            raise CloseConnection(f"API key {header.key} is not supported")
        if not api.min_version <= header.version <= api.max_version:
            if api is not API_VERSIONS:
                raise CloseConnection(f"version {header.version} of API {api.name} is not supported")
            # A client newer than this node: the response in version 0 has the supported versions (KIP-511).
            return Request(api, -1, header.correlation, "", frame, header.position, connection.peer)
        client_id, position = read_client_id(frame, header.position, header.version >= api.flexible)
        peer = connection.peer
        return Request(
            api, header.version, header.correlation, client_id, frame, position, peer, connection=connection.number
        )


def _software(request: Request) -> str:
    """Return the name and version of a client's software; raises MalformedRequest."""
    call = request.decode()
    return f"{call.client_software_name} {call.client_software_version}".strip()[:LONGEST_NAME]


def _together(first: Frame, second: Frame) -> bool:
    """Return whether two frames are begun together: produce requests (key 0), which share a hand-over to the disks."""
    return first[0] == first[1] == second[0] == second[1] == 0


#: The effects by API key, encoded as in a request's first two bytes.
_EFFECTS = {
    **{api.key.to_bytes(2, "big"): Effect.CHANGE for api in CHANGING},
    **{api.key.to_bytes(2, "big"): Effect.MEMBERSHIP for api in JOINING},
}


def _effect(frame: Frame) -> Effect:
    """Return the effect of a request."""
    return _EFFECTS.get(bytes(frame[:2]), Effect.NONE)


def _bind(host: str, port: int) -> socket.socket:
    """Return a bound socket; without a host on all interfaces, IPv4 and, if available, IPv6."""
    if not host:
        dual = socket.has_dualstack_ipv6()
        return socket.create_server(
            ("", port),
            family=socket.AF_INET6 if dual else socket.AF_INET,
            backlog=BACKLOG,
            dualstack_ipv6=dual,
        )
    found = {row[0] for row in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)}
    family = socket.AF_INET if socket.AF_INET in found else socket.AF_INET6
    return socket.create_server((host, port), family=family, backlog=BACKLOG)
