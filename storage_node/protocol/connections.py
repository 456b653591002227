"""The table of a listener's connections: who may connect, who is idle for too long, who does not take his answers."""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import logging
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from storage_node.config import NodeConfig
from storage_node.descriptors import most_connections
from storage_node.protocol.reading_turns import Turns
from storage_node.protocol.request_memory import RequestMemory

if TYPE_CHECKING:
    from storage_node.protocol.framing import Connection

log = logging.getLogger(__name__)

RECEIVE_BUFFER = 64 * 1024
#: Places beyond max.connections for this machine itself: an operator must reach a node that strangers flood.
RESERVED = 8
#: Answers that peers have not taken yet may hold so many bytes together. Beyond it what can be read again from a log
#: is not kept for anybody, and of the other answers the oldest are thrown away with their connections ...
MOST_UNSENT = 128 * 1024 * 1024
#: ... when they have waited for so many seconds, unless they are small.
PATIENCE = 2.0
SMALL = 64 * 1024
LONGEST_LOOK = 1.0
#: Log lines about refused connections: one in so many seconds, with a count.
REFUSALS = 5.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What server.properties says about connections; bytes and seconds, None for no limit."""

    connections: int
    per_address: int = 2**31 - 1
    overrides: Mapping[str, int] = field(default_factory=dict)
    """By address: max.connections.per.ip.overrides."""
    idle_seconds: float | None = None
    frame: int = 2**31 - 1
    """socket.request.max.bytes."""
    request_bytes: int | None = None
    """queued.max.request.bytes."""

    @classmethod
    def of(cls, config: NodeConfig) -> Limits:
        """A node's limits: connections leave half of what may be open to the logs. Names are looked up here."""
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
        """How many connections one address may have."""
        return self.overrides.get(address, self.per_address)


class Connections:
    """Used on the listener's loop only, except for `view`."""

    def __init__(self, limits: Limits, closed: Callable[[int], None] = lambda number: None) -> None:
        """`closed` is called with the number of each connection that is closed."""
        self.limits = limits
        self.numbers = itertools.count(1)
        """By which connections are known: never the same twice."""
        self._closed = closed
        self.memory = RequestMemory(limits.request_bytes, limits.frame)
        self.turns = Turns()
        self.receive_buffer = bytearray(RECEIVE_BUFFER)
        """What is read goes here first, for all connections: between two reads nobody needs one of his own."""
        self.receive_view = memoryview(self.receive_buffer)
        self.closed_idle = 0
        self.refused = 0
        self._open: dict[Connection, None] = {}
        self._by_address: Counter[str] = Counter()
        self._unsent: dict[Connection, tuple[int, float]] = {}
        """Who does not take his answers: bytes, and since when."""
        self._unsent_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Future[None] | None = None
        self._next_refusal = 0.0
        self._refused_before = 0

    def __len__(self) -> int:
        return len(self._open)

    def all(self) -> list[Connection]:
        """Those that are open now."""
        return list(self._open)

    # Coming and going

    def admit(self, connection: Connection) -> bool:
        """Take a connection into the table; False when there are too many, with a line in the log."""
        address, limits = connection.peer, self.limits
        most = limits.at(address)
        if self._by_address[address] >= most:
            self._refuse(address, f"max.connections.per.ip={most} are open from there")
            return False
        if len(self._open) >= limits.connections + (RESERVED if is_loopback(address) else 0):
            self._refuse(address, f"max.connections={limits.connections} are open")
            return False
        self._open[connection] = None
        self._by_address[address] += 1
        self.memory.enter(connection)
        if self._timer is None:
            self._look_again()
        return True

    def _refuse(self, address: str, why: str) -> None:
        self.refused += 1
        now = asyncio.get_running_loop().time()
        if now >= self._next_refusal:
            others = self.refused - self._refused_before - 1
            log.warning("connection from %s closed: %s%s", address, why, f" (and {others} before it)" if others else "")
            self._next_refusal, self._refused_before = now + REFUSALS, self.refused

    def remove(self, connection: Connection) -> None:
        """It is gone."""
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
        """Wait until all are gone, `seconds` at most."""
        if self._open:
            self._emptied = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._emptied], timeout=seconds)

    def stop(self) -> None:
        """Look after nobody any more."""
        if self._timer is not None:
            self._timer.cancel()

    # Looking after them

    def not_taken(self, connection: Connection, size: int) -> bool:
        """A peer does not take its answer, which holds so many bytes now; whether all of them hold too much."""
        before, since = self._unsent.get(connection, (0, asyncio.get_running_loop().time()))
        self._unsent[connection] = size, since
        self._unsent_bytes += size - before
        return self._unsent_bytes > MOST_UNSENT

    def taken(self, connection: Connection) -> None:
        """It has taken them, or is gone."""
        size, _ = self._unsent.pop(connection, (0, 0.0))
        self._unsent_bytes -= size

    @property
    def unsent_bytes(self) -> int:
        """What the answers that were not taken hold."""
        return self._unsent_bytes

    def _look_again(self) -> None:
        idle = self.limits.idle_seconds
        seconds = LONGEST_LOOK if idle is None else min(LONGEST_LOOK, max(idle / 4, 0.01))
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
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
            self._look_again()

    def _close_slowest(self, now: float) -> None:
        for connection, (size, since) in list(self._unsent.items()):
            if self._unsent_bytes <= MOST_UNSENT or now - since < PATIENCE:
                break
            if size > SMALL:
                self.taken(connection)
                connection.cut(f"it does not take its answers: {size} bytes for {now - since:.0f} s")

    # For people

    def view(self, now: float) -> dict[str, Any]:
        """The table as plain values, times in seconds; may be called by any thread."""
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
    """An address as people write it: an IPv4 one that came mapped into IPv6 without its mapping."""
    return peer[7:] if peer.startswith("::ffff:") and "." in peer else peer


def is_loopback(peer: str) -> bool:
    """Whether a peer's address is this machine's loopback, also when it is an IPv4 address mapped into IPv6."""
    try:
        return ipaddress.ip_address(plain_address(peer)).is_loopback
    except ValueError:
        return False


def _resolved(host: str) -> str:
    """The address of a host; raises OSError that names it."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise OSError(error.errno, f"max.connections.per.ip.overrides: {host}: {error.strerror}") from error
