"""The table of a listener's connections: it enforces the limits on their number, idle time and unsent responses."""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import logging
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from storage_node.config.node_config import NodeConfig
from storage_node.descriptors import most_connections
from storage_node.protocol.network.reading_turns import Turns
from storage_node.protocol.network.request_memory import Holder, RequestMemory

log = logging.getLogger(__name__)

RECEIVE_BUFFER = 64 * 1024
#: Connections from the loopback beyond max.connections: an operator must reach a node that remote clients flood.
RESERVED = 8
#: Bytes of responses that clients have not read yet, of all connections. Beyond it a response drops the records that it
#: can read again from a log, and the listener closes the connections with the oldest other responses ...
MOST_UNSENT = 128 * 1024 * 1024
#: ... once they have waited for this many seconds, except those of at most SMALL bytes.
PATIENCE = 2.0
SMALL = 64 * 1024
LONGEST_LOOK = 1.0
#: Seconds between two log lines about rejected connections; each line has the count of those before it.
REFUSALS = 5.0


@dataclass(frozen=True, slots=True)
class Limits:
    """The connection settings of server.properties, in bytes and seconds; None for no limit."""

    connections: int
    per_address: int = 2**31 - 1
    overrides: Mapping[str, int] = field(default_factory=dict)
    """max.connections.per.ip.overrides, by address."""
    idle_seconds: float | None = None
    frame: int = 2**31 - 1
    """socket.request.max.bytes."""
    request_bytes: int | None = None
    """queued.max.request.bytes."""

    @classmethod
    def of(cls, config: NodeConfig) -> Limits:
        """Return a node's limits; resolves host names. Half of the file descriptors are reserved for the logs."""
        idle, queued = config.connections_max_idle_ms, config.queued_max_request_bytes
        return cls(
            connections=most_connections(config.max_connections),
            per_address=config.max_connections_per_ip,
            overrides={_resolved(host): most for host, most in config.max_connections_per_ip_overrides.items()},
            idle_seconds=idle / 1000 if idle >= 0 else None,
            frame=config.socket_request_max_bytes,
            request_bytes=queued if queued > 0 else None,
        )

    def at(self, address: str) -> int:
        """Return how many connections an address may have."""
        return self.overrides.get(address, self.per_address)


class OpenConnection(Holder, Protocol):
    """A connection, as its table uses it (`storage_node.protocol.network.framing.Connection`)."""

    @property
    def number(self) -> int:
        """Identifies the connection in its requests."""
        ...

    @property
    def active(self) -> float:
        """When bytes were last sent or received, by the loop's clock."""
        ...

    @property
    def under_way(self) -> str:
        """The name of the API whose request is being handled."""
        ...

    @property
    def transport(self) -> asyncio.Transport | None: ...

    def idle(self, now: float, seconds: float) -> bool:
        """Return whether no byte was sent or received for `seconds`, and no request is being handled."""
        ...

    def close(self) -> None:
        """Close the connection once the pending responses are sent."""
        ...

    def finish(self) -> None:
        """Finish the request under way, begin no further one, then close."""
        ...

    def cut(self, why: str, level: int = logging.WARNING) -> None:
        """Log the reason and close at once; unsent responses are dropped."""
        ...

    def view(self, now: float) -> dict[str, Any]:
        """Return the connection's row of the table, times in seconds."""
        ...


class Connections:
    """The open connections. Not thread-safe: use it on the listener's loop only, except for `view`."""

    def __init__(self, limits: Limits, closed: Callable[[int], None] = lambda number: None) -> None:
        """`closed` is called with the number of each connection that is closed."""
        self.limits = limits
        self.numbers = itertools.count(1)
        """The numbers of connections, which are never reused."""
        self._closed = closed
        self.memory = RequestMemory(limits.request_bytes, limits.frame)
        self.turns = Turns()
        self.receive_buffer = bytearray(RECEIVE_BUFFER)
        """The receive buffer of all connections: a connection needs it only during one read."""
        self.receive_view = memoryview(self.receive_buffer)
        self.closed_idle = 0
        self.refused = 0
        self._open: dict[OpenConnection, None] = {}
        self._by_address: Counter[str] = Counter()
        self._unsent: dict[OpenConnection, tuple[int, float]] = {}
        """Connections whose client does not read its responses: unsent bytes, and since when."""
        self._unsent_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Future[None] | None = None
        self._next_refusal = 0.0
        self._refused_before = 0

    def __len__(self) -> int:
        return len(self._open)

    def all(self) -> list[OpenConnection]:
        """Return the open connections."""
        return list(self._open)

    # Opening and closing

    def admit(self, connection: OpenConnection) -> bool:
        """Add a connection to the table; returns False, and logs it, when a limit is reached."""
        address, limits = connection.peer, self.limits
        most = limits.at(address)
        if self._by_address[address] >= most:
            self._refuse(address, f"the address has max.connections.per.ip={most} open connections")
            return False
        if len(self._open) >= limits.connections + (RESERVED if is_loopback(address) else 0):
            self._refuse(address, f"the listener has max.connections={limits.connections} open connections")
            return False
        self._open[connection] = None
        self._by_address[address] += 1
        self.memory.enter(connection)
        if self._timer is None:
            self._schedule_check()
        return True

    def _refuse(self, address: str, why: str) -> None:
        self.refused += 1
        now = asyncio.get_running_loop().time()
        if now >= self._next_refusal:
            others = self.refused - self._refused_before - 1
            log.warning("connection from %s closed: %s%s", address, why, f" (and {others} before it)" if others else "")
            self._next_refusal, self._refused_before = now + REFUSALS, self.refused

    def remove(self, connection: OpenConnection) -> None:
        """Remove a closed connection from the table."""
        if connection not in self._open:
            return
        del self._open[connection]
        self.taken(connection)
        self._by_address[connection.peer] -= 1
        if not self._by_address[connection.peer]:
            del self._by_address[connection.peer]
        self._closed(connection.number)
        if not self._open and self._emptied is not None and not self._emptied.done():
            self._emptied.set_result(None)

    async def emptied(self, seconds: float) -> None:
        """Wait until all connections are closed, at most `seconds`."""
        if self._open:
            self._emptied = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._emptied], timeout=seconds)

    def stop(self) -> None:
        """Stop the periodic check."""
        if self._timer is not None:
            self._timer.cancel()

    # The periodic check

    def not_taken(self, connection: OpenConnection, size: int) -> bool:
        """Record the unsent bytes of a client that does not read its response; returns whether the sum is too large."""
        before, since = self._unsent.get(connection, (0, asyncio.get_running_loop().time()))
        self._unsent[connection] = size, since
        self._unsent_bytes += size - before
        return self._unsent_bytes > MOST_UNSENT

    def taken(self, connection: OpenConnection) -> None:
        """Record that the client has read its responses, or that the connection is closed."""
        size, _ = self._unsent.pop(connection, (0, 0.0))
        self._unsent_bytes -= size

    def _schedule_check(self) -> None:
        idle = self.limits.idle_seconds
        seconds = LONGEST_LOOK if idle is None else min(LONGEST_LOOK, max(idle / 4, 0.01))
        self._timer = asyncio.get_running_loop().call_later(seconds, self._check)

    def _check(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        if self._unsent_bytes > MOST_UNSENT:
            self._close_slowest(now)
        idle = self.limits.idle_seconds
        if idle is not None:
            for connection in [each for each in self._open if now - each.active > idle and each.idle(now, idle)]:
                self.closed_idle += 1
                connection.cut(f"idle for connections.max.idle.ms={idle * 1000:.0f}", logging.INFO)
        if self._open:
            self._schedule_check()

    def _close_slowest(self, now: float) -> None:
        for connection, (size, since) in list(self._unsent.items()):
            if self._unsent_bytes <= MOST_UNSENT or now - since < PATIENCE:
                break
            if size > SMALL:
                self.taken(connection)
                connection.cut(f"the client has not read {size} bytes of responses for {now - since:.0f} s")

    # For operators

    def view(self, now: float) -> dict[str, Any]:
        """Return the table as plain values, times in seconds; any thread may call it."""
        limits, memory = self.limits, self.memory
        rows = [connection.view(now) for connection in list(self._open)]
        return {
            "limits": {
                "max.connections": limits.connections,
                "max.connections.per.ip": limits.per_address,
                "connections.max.idle.ms": -1 if limits.idle_seconds is None else int(limits.idle_seconds * 1000),
                "queued.max.request.bytes": -1 if limits.request_bytes is None else limits.request_bytes,
                "socket.request.max.bytes": limits.frame,
            },
            "open": len(rows),
            "refused": self.refused,
            "closed_idle": self.closed_idle,
            "request_bytes": memory.held,
            "request_bytes_highest": memory.highest,
            "waiting_for_room": memory.waiting,
            "unsent_bytes": self._unsent_bytes,
            "connections": sorted(rows, key=lambda row: -float(row["age"])),
        }


def plain_address(peer: str) -> str:
    """Return an address without the IPv6 prefix of a mapped IPv4 address."""
    return peer[7:] if peer.startswith("::ffff:") and "." in peer else peer


def is_loopback(peer: str) -> bool:
    """Return whether an address is a loopback address, also as an IPv4 address mapped into IPv6."""
    try:
        return ipaddress.ip_address(plain_address(peer)).is_loopback
    except ValueError:
        return False


def _resolved(host: str) -> str:
    """Resolve a host to an address; raises an OSError that names the host."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise OSError(error.errno, f"max.connections.per.ip.overrides: {host}: {error.strerror}") from error
