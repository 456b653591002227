"""The tools of an attack: connections to the server, encoded requests, and a tally of their outcomes."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any

from kio.index import load_request_schema
from kio.schema.errors import ErrorCode

from storage_node.wire.client.exchange import receive_frame, request_frame
from storage_node.wire.codec import MalformedRequest, read_response, write_request

Address = tuple[str, int]

#: Outcomes of a request other than Kafka's errors.
NONE = "NONE"
CLOSED = "closed"
OPEN = "left open"
SILENT = "no response"

#: The topics of all attacks: with small partitions, with 100 partitions, with a backlog, with a dense batch.
ATTACKED, WIDE, BACKLOG, DENSE = "attacked", "wide", "backlog", "dense"
PARTITIONS, WIDE_PARTITIONS = 8, 100

PATIENCE = 20.0
_LARGEST = 1 << 30
#: A server's listen backlog is short (50 by Kafka's default), and the kernel delays a client by a second when it is
#: full.
_BURST, _PAUSE = 20, 0.005
_RESET = struct.pack("ii", 1, 0)


def frame(key: int, version: int, values: Mapping[str, Any] | None = None, correlation: int = 1) -> bytes:
    """Encode a request with its size and header; `values` are by kio's field names, others have their defaults."""
    body = write_request(key, version, values or {})
    return raw_frame(key, version, body, correlation)


def raw_frame(key: int, version: int, body: bytes, correlation: int = 1) -> bytes:
    """Return a request with an encoded body."""
    flexible = bool(load_request_schema(key, version).__flexible__)
    return request_frame(key, version, body, flexible=flexible, client="hostile", correlation=correlation)


HELLO = frame(18, 3, {"client_software_name": "hostile", "client_software_version": "1"})


def errors(response: Any) -> set[str]:
    """Return the names of all errors in a response; {NONE} if there are none."""
    found: set[str] = set()
    _collect(response, found)
    return found - {NONE} or {NONE}


def _collect(value: Any, found: set[str]) -> None:
    if isinstance(value, tuple):
        for each in value:
            _collect(each, found)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            _collect(getattr(value, field.name), found)
    elif isinstance(value, ErrorCode):
        found.add(value.name.upper())


class Line:
    """One connection; a wait for the server raises TimeoutError after `patience` seconds."""

    def __init__(self, address: Address, source: str | None = None, patience: float = PATIENCE) -> None:
        self.socket = socket.create_connection(address, patience, (source, 0) if source else None)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, key: int, version: int, /, **values: Any) -> Any:
        """Send a request and return the response. Raises OSError if the connection ends, or after `patience`."""
        return self.ask_frame(key, version, frame(key, version, values))

    def ask_frame(self, key: int, version: int, data: bytes) -> Any:
        """Send an encoded request and return the response."""
        self.socket.sendall(data)
        return self.receive(key, version)

    def receive(self, key: int, version: int) -> Any:
        """Receive the next response. Raises ConnectionError if it cannot be decoded."""
        try:
            return read_response(key, version, self.skip()[4:])
        except MalformedRequest as error:
            raise ConnectionError(f"cannot decode the response: {error}") from error

    def skip(self) -> bytes:
        """Receive the next response without decoding it."""
        return receive_frame(self.socket, _LARGEST)

    def reset(self) -> None:
        """Reset the connection, which frees the local port at once."""
        with contextlib.suppress(OSError):
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.socket.close()

    def ended(self) -> bool:
        """Return whether the server has closed the connection; discard the data that it sent before."""
        self.socket.setblocking(False)
        try:
            while self.socket.recv(1 << 16):
                pass
            return True
        except BlockingIOError:
            return False
        except OSError:
            return True


class Field:
    """One attack on one server: its address, duration, scale, and the tally of outcomes."""

    def __init__(
        self, address: Address, seconds: float, scale: float, away: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """`scale`: 1 is the full size; `away`: a context manager that kills the controller and restarts it."""
        self.address, self.seconds, self.away = address, seconds, away
        self.tally: Counter[str] = Counter()
        self._scale = scale
        self._until = time.monotonic() + seconds
        self._lock = threading.Lock()
        self._sources = 0

    def size(self, full: int) -> int:
        """Scale a count of the full attack."""
        return max(1, int(full * self._scale))

    @property
    def over(self) -> bool:
        """Whether the attack's duration is over."""
        return time.monotonic() >= self._until

    def rest(self) -> None:
        """Sleep until the attack's duration is over."""
        time.sleep(max(0.0, self._until - time.monotonic()))

    def note(self, *outcomes: str) -> None:
        """Count the outcomes of one request or connection."""
        with self._lock:
            self.tally.update(outcomes)

    def connect(self, patience: float = PATIENCE) -> Line:
        """Open a connection, from source addresses in 127.1.0.0/16 in turn: each has a limited number of ports."""
        with self._lock:
            self._sources += 1
            number = self._sources
        return Line(self.address, f"127.1.{number // 250 % 200}.{number % 250 + 1}", patience)

    @contextlib.contextmanager
    def many(self, count: int, first: bytes = b"") -> Iterator[list[Line]]:
        """Open up to `count` connections that send `first`, and reset them at the end.

        Connections that the server has closed by then count as closed, the others as left open.
        """
        lines: list[Line] = []
        try:
            for number in range(count):
                if self.over:
                    break
                if number % _BURST == 0:
                    time.sleep(_PAUSE)
                try:
                    line = self.connect(2.0)
                    lines.append(line)
                    line.socket.sendall(first)
                except OSError:
                    self.note(CLOSED)
            yield lines
        finally:
            for line in lines:
                self.note(CLOSED if line.ended() else OPEN)
                line.reset()

    def crowd(self, count: int, work: Callable[[Line], object]) -> None:
        """Repeat `work` on `count` concurrent connections until the attack's duration is over, at least once.

        A connection that ends counts as closed, or as without response, and is replaced.
        """

        def attacker() -> None:
            line: Line | None = None
            first = True
            while first or not self.over:
                first = False
                try:
                    line = line or self.connect()
                    work(line)
                except TimeoutError:
                    self.note(SILENT)
                except OSError:
                    self.note(CLOSED)
                else:
                    continue
                if line is not None:
                    line.reset()
                line = None
            if line is not None:
                line.reset()

        with ThreadPoolExecutor(count, "attacker") as pool:
            for done in [pool.submit(attacker) for _ in range(count)]:
                done.result()

    def asker(self, key: int, version: int, make: Callable[[], Mapping[str, Any]]) -> Callable[[Line], None]:
        """Return work for `crowd`: send a request with the values of `make` and count its errors."""

        def work(line: Line) -> None:
            self.note(*errors(line.ask(key, version, **make())))

        return work

    def sender(self, key: int, version: int, data: bytes, decoded: int = 3) -> Callable[[Line], None]:
        """Return work for `crowd`: send an encoded request; only the first responses are decoded, which is slow."""
        left = [decoded]

        def work(line: Line) -> None:
            if left[0] > 0:
                left[0] -= 1
                self.note(*errors(line.ask_frame(key, version, data)))
            else:
                line.socket.sendall(data)
                line.skip()

        return work
