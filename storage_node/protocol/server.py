"""The listener: a thread with a uvloop of its own, and the way of a frame to its handler.

Temporal's client never shares this loop, and no handler blocks it: what touches a disk runs in the directory's pool.
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
from typing import TYPE_CHECKING, Any

import uvloop

from storage_node.descriptors import most_connections
from storage_node.protocol import (
    cluster,
    configs,
    fetch,
    group_admin,
    group_offsets,
    groups,
    log_dirs,
    metadata,
    offsets,
    private,
    probe,
    produce,
    producers,
    reassignments,
    topics,
)
from storage_node.protocol.codec import MalformedRequest, prepare, prepared
from storage_node.protocol.connections import Connections, Limits
from storage_node.protocol.framing import Answer, Connection, Effect
from storage_node.protocol.off_loop import off_loop
from storage_node.protocol.receiving import CloseConnection, Frame
from storage_node.protocol.request import LARGE, Deferred, Request, read_client_id, read_header
from storage_node.protocol.side_loop import SideLoop
from storage_node.protocol.table import API_VERSIONS, APIS, CHANGING, FETCH, JOINING, PRIVATE, PRODUCE
from storage_node.small_first import SMALL_FIRST

if TYPE_CHECKING:
    from storage_node.node import Node

log = logging.getLogger(__name__)

Handler = Callable[["Node", Request], Awaitable[Answer]]

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
    "join_group": groups.join_group,
    "sync_group": groups.sync_group,
    "heartbeat": groups.heartbeat,
    "leave_group": groups.leave_group,
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

#: Handlers that go through much of the cluster's metadata, or wait for the controller, and never run on the listener's
#: loop.
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
#: Of these only large requests are kept from the listener's loop.
ASIDE_IF_LARGE = frozenset(
    {"metadata", "list_offsets", "offset_for_leader_epoch", "delete_records", "find_coordinator", "api_versions"}
)
#: Always on the same loop, since its requests wait for one another.
IN_ORDER = "alter_replica_log_dirs"

#: Handlers that read their requests without kio.
READS_BY_ITSELF = (PRODUCE, FETCH, PRIVATE)

BACKLOG = 1024
#: Requests that may wait for others for long: a node that stops does not wait for them.
PATIENT = frozenset({"fetch", "join_group", "sync_group"})
#: Characters of a client's name and version that are kept.
LONGEST_NAME = 100
#: What is being answered when a node stops has so many seconds.
LAST_ANSWERS = 1.0


class Listener:
    """Serves one node's Kafka listener from `start` to `stop`."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._limits: Limits
        self._socket: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._stopped: asyncio.Event | None = None
        self._failure: BaseException | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.port = 0
        self.connections: Connections | None = None
        """The table of connections, once the listener has started; its loop's alone but for what says otherwise."""
        self.probe = probe.wanted()
        """What times the callbacks of the loop, where the environment asks for it."""
        self._admin: SideLoop | None = None
        """Requests of ASIDE that are not large, so that an operator's do not wait for a client's large ones."""
        self._large: SideLoop | None = None

    def bind(self) -> None:
        """Take the address; raises OSError that names it when it cannot be had. Who connects waits for `start`."""
        host, port = self._node.config.listener.host, self._node.config.listener.port
        self._limits = Limits.of(self._node.config)
        try:
            self._socket = _bind(host, port)
        except OSError as error:
            raise OSError(error.errno, f"listeners: {host or '*'}:{port}: {error.strerror}") from error
        self.port = self._socket.getsockname()[1]

    def start(self) -> None:
        """Serve on a thread of its own; `bind` came before."""
        assert self._socket is not None
        ready = threading.Event()
        name = f"listener-{self._node.id}"
        self._thread = threading.Thread(target=self._run, args=(self._socket, ready), name=name, daemon=True)
        self._thread.start()
        ready.wait()
        if self._failure is not None:
            raise self._failure

    def limit(self, connections: int, per_address: int) -> None:
        """Hold so many connections from now on, those of one address among them; what is open stays. On any thread."""
        most = most_connections(connections)
        self._limits = replace(self._limits, connections=most, per_address=per_address)
        if self.connections is not None:
            self.connections.limits = self._limits

    def view(self) -> dict[str, Any]:
        """The table of connections as plain values; may be called by any thread."""
        loop, table = self.loop, self.connections
        return table.view(loop.time()) if loop is not None and table is not None else {}

    def stop(self) -> None:
        """Take no more requests, close the connections, end the thread."""
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
        return uvloop.new_event_loop() if self.probe is None else probe.loop_with(self.probe)

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
        # Give what is under way, and what is written, a moment; what then is still open is dropped with the loop.
        await table.emptied(LAST_ANSWERS)
        table.stop()
        self._node.groups.detach()
        for connection in table.all():
            if connection.transport is not None:
                connection.transport.abort()

    def _connect(self) -> Connection:
        assert self.connections is not None
        connection = Connection(self._begin, _together, _effect, self.connections)
        return connection if self.probe is None else probe.watch(connection, self.probe)

    def _disconnected(self, number: int) -> None:
        self._node.fetch_sessions.disconnected(number)

    def _begin(self, frames: list[Frame], connection: Connection) -> None:
        """Answer frames: produce requests without a task, everything else in one. Raises CloseConnection."""
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
        """Read the headers of frames up to the first that cannot be answered; returns as well why it cannot."""
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
                    request = replace(request, many=True)
            side = self._side(request)
            if request.version < 0:
                answer = await self._handle(request, connection)
            elif side is not None:
                answer = await side.run(self._handle_aside(request, connection))
            else:
                if request.large and request.api not in READS_BY_ITSELF:
                    request = replace(request, decoded=await off_loop(request.decode))
                answer = await self._handle(request, connection)
                if isinstance(answer, Deferred):
                    answer = await off_loop(answer.make)
        except MalformedRequest as error:
            connection.failed(CloseConnection(str(error)))
        except Exception as error:
            connection.failed(error)
        else:
            connection.answered([answer])

    def _side(self, request: Request) -> SideLoop | None:
        """The loop that runs the handler of a request; None for the listener's."""
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
        """The same on a side loop, where everything may take its time."""
        answer = await self._handle(replace(request, decoded=request.decode()), connection)
        return answer.make() if isinstance(answer, Deferred) else answer

    def _read(self, frame: Frame, connection: Connection) -> Request:
        header = read_header(frame)
        api = PRIVATE if header.key == PRIVATE.key else APIS.get(header.key)
        if api is None:
            raise CloseConnection(f"API key {header.key} is not offered")
        if not api.min_version <= header.version <= api.max_version:
            if api is not API_VERSIONS:
                raise CloseConnection(f"version {header.version} of API {api.name} is not offered")
            # A client newer than this node: the answer in version 0 tells it what there is.
            return Request(api, -1, header.correlation, "", frame, header.position, connection.peer)
        client_id, position = read_client_id(frame, header.position, header.version >= api.flexible)
        peer = connection.peer
        return Request(
            api, header.version, header.correlation, client_id, frame, position, peer, connection=connection.number
        )


def _software(request: Request) -> str:
    """What a client says it is, and of which version; raises MalformedRequest."""
    call = request.decode()
    return f"{call.client_software_name} {call.client_software_version}".strip()[:LONGEST_NAME]


def _together(first: Frame, second: Frame) -> bool:
    """Whether two frames are begun together: produce requests (key 0), which share the way to the disk and back."""
    return first[0] == first[1] == second[0] == second[1] == 0


#: Keys as they are in a request's first two bytes.
_EFFECTS = {
    **{api.key.to_bytes(2, "big"): Effect.CHANGE for api in CHANGING},
    **{api.key.to_bytes(2, "big"): Effect.MEMBERSHIP for api in JOINING},
}


def _effect(frame: Frame) -> Effect:
    """What a request does besides being answered."""
    return _EFFECTS.get(bytes(frame[:2]), Effect.NONE)


def _bind(host: str, port: int) -> socket.socket:
    """A bound socket; with no host on every interface, IPv6 and IPv4 where both are there."""
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
