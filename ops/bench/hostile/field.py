"""What an attack works with: connections to the server, requests made by hand, and a tally of how each one ended."""

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

from storage_node.protocol.codec import MalformedRequest, read_response, write_request
from storage_node.protocol.exchange import receive_frame, request_frame

Address = tuple[str, int]

#: Outcomes of a request that are not one of Kafka's errors.
NONE = "NONE"
CLOSED = "closed"
OPEN = "left open"
SILENT = "no response"

#: Topics that every attack finds: small partitions, 100 partitions, one with a backlog, one with a dense batch.
ATTACKED, WIDE, BACKLOG, DENSE = "attacked", "wide", "backlog", "dense"
PARTITIONS, WIDE_PARTITIONS = 8, 100

PATIENCE = 20.0
_LARGEST = 1 << 30
#: A server's queue of connections that it has not accepted yet is short (50 by Kafka's default), and the system makes a
#: client wait for a second when it is full.
_BURST, _PAUSE = 20, 0.005
_RESET = struct.pack("ii", 1, 0)


def frame(key: int, version: int, values: Mapping[str, Any] | None = None, correlation: int = 1) -> bytes:
    """A request with its size and header; `values` go by kio's field names, what is missing is the default."""
    body = write_request(key, version, values or {})
    return raw_frame(key, version, body, correlation)


def raw_frame(key: int, version: int, body: bytes, correlation: int = 1) -> bytes:
    """A request whose body is given as bytes."""
    flexible = bool(load_request_schema(key, version).__flexible__)
    return request_frame(key, version, body, flexible=flexible, client="hostile", correlation=correlation)


HELLO = frame(18, 3, {"client_software_name": "hostile", "client_software_version": "1"})


def errors(response: Any) -> set[str]:
    """The names of the errors anywhere in a response; {NONE} when it holds no error."""
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
    """One connection; every wait for the server ends after `patience` seconds with TimeoutError."""

    def __init__(self, address: Address, source: str | None = None, patience: float = PATIENCE) -> None:
        self.socket = socket.create_connection(address, patience, (source, 0) if source else None)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, key: int, version: int, /, **values: Any) -> Any:
        """The response to a request. Raises OSError when the connection ends or nothing comes."""
        return self.ask_frame(key, version, frame(key, version, values))

    def ask_frame(self, key: int, version: int, data: bytes) -> Any:
        """The response to a request that is encoded already."""
        self.socket.sendall(data)
        return self.receive(key, version)

    def receive(self, key: int, version: int) -> Any:
        """The next response. Raises ConnectionError when it is not one of Kafka's."""
        try:
            return read_response(key, version, self.skip()[4:])
        except MalformedRequest as error:
            raise ConnectionError(f"a response that cannot be read: {error}") from error

    def skip(self) -> bytes:
        """The next response, undecoded."""
        return receive_frame(self.socket, _LARGEST)

    def reset(self) -> None:
        """Close by a reset: the port of this side is free at once."""
        with contextlib.suppress(OSError):
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.socket.close()

    def ended(self) -> bool:
        """Whether the server has closed the connection; what it sent before is thrown away."""
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
    """One attack on one server: its address, its time, its scale, and the tally of outcomes."""

    def __init__(
        self, address: Address, seconds: float, scale: float, away: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """`scale`: 1 is the full size; `away`: ends the controller while the block runs."""
        self.address, self.seconds, self.away = address, seconds, away
        self.tally: Counter[str] = Counter()
        self._scale = scale
        self._until = time.monotonic() + seconds
        self._lock = threading.Lock()
        self._sources = 0

    def size(self, full: int) -> int:
        """A count of the full attack at this scale."""
        return max(1, int(full * self._scale))

    @property
    def over(self) -> bool:
        """Whether the time of the attack is up."""
        return time.monotonic() >= self._until

    def rest(self) -> None:
        """Sleep until the time of the attack is up."""
        time.sleep(max(0.0, self._until - time.monotonic()))

    def note(self, *outcomes: str) -> None:
        """Count how one request or connection ended."""
        with self._lock:
            self.tally.update(outcomes)

    def connect(self, patience: float = PATIENCE) -> Line:
        """A connection. Sources go round through 127.1.0.0/16, so that no address runs out of ports."""
        with self._lock:
            self._sources += 1
            number = self._sources
        return Line(self.address, f"127.1.{number // 250 % 200}.{number % 250 + 1}", patience)

    @contextlib.contextmanager
    def many(self, count: int, first: bytes = b"") -> Iterator[list[Line]]:
        """`count` connections, or as many as the server takes, which send `first`; reset at the end.

        Those that the server closed by then are counted as such, the others as left open.
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
        """Repeat `work` on `count` connections at once until the time is up, and do it once in any case.

        A connection that ends is counted as closed, or as without response, and replaced.
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
        """Work for `crowd`: a request with the values of `make`, its errors counted."""

        def work(line: Line) -> None:
            self.note(*errors(line.ask(key, version, **make())))

        return work

    def sender(self, key: int, version: int, data: bytes, decoded: int = 3) -> Callable[[Line], None]:
        """Work for `crowd`: an encoded request; only the first responses are decoded and counted, for it takes long."""
        left = [decoded]

        def work(line: Line) -> None:
            if left[0] > 0:
                left[0] -= 1
                self.note(*errors(line.ask_frame(key, version, data)))
            else:
                line.socket.sendall(data)
                line.skip()

        return work
