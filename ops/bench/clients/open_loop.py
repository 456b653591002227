"""An open-loop client: it produces small records over several connections at fixed times, independent of the server.

`python -m ops.bench.clients.open_loop HOST:PORT TOPIC PARTITIONS CONNECTIONS RATE SECONDS FILE` runs in a process of
its own. A request's latency counts from the time at which it is due, not from its actual send, so a pause of the
server (or of this client) delays every request due meanwhile: no coordinated omission. Requests use the connections in
turn and are pipelined. FILE gets JSON: the sorted latencies of all requests due after WARM_UP, the number of responses
per connection, and the number of errors.
"""

from __future__ import annotations

import gc
import json
import select
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from ops.bench import ROOT
from storage_node.log.batches.batch import build_batch

_VERSION = 7
_RECORD = 100
_ERROR = struct.Struct(">ih")
_LENGTH = struct.Struct(">i")
WARM_UP = 5.0
#: Seconds to wait for the last responses.
_LAST = 10.0


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def _frame(topic: str, partition: int) -> bytes:
    batch = build_batch([bytes(_RECORD)], timestamp=time.time_ns() // 1_000_000)
    head = struct.pack(">hhi", 0, _VERSION, 0) + _string("open-loop")
    body = struct.pack(">hhi", -1, 1, 30_000) + struct.pack(">i", 1) + _string(topic)
    body += struct.pack(">iii", 1, partition, len(batch)) + batch
    return struct.pack(">i", len(head + body)) + head + body


class _Connection:
    """One connection: its requests in flight, and the latencies of its responses."""

    def __init__(self, address: tuple[str, int], topic: str, partition: int) -> None:
        self.socket = socket.create_connection(address, timeout=30)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frame = _frame(topic, partition)
        self._error_at = 4 + 4 + 4 + 2 + len(topic.encode()) + 4
        self._due: deque[float] = deque()
        self._data = b""
        self.responses: list[tuple[float, float, int]] = []
        """When each request was due, its latency, and its error code."""

    def send(self, due: float) -> None:
        self._due.append(due)
        self.socket.sendall(self._frame)

    def receive(self) -> None:
        data = self.socket.recv(65536)
        if not data:
            raise ConnectionError("the server closed the connection")
        now = time.monotonic()
        data = self._data + data
        while len(data) >= 4 and len(data) >= 4 + (size := int(_LENGTH.unpack_from(data)[0])):
            due = self._due.popleft()
            self.responses.append((due, now - due, _ERROR.unpack_from(data, self._error_at)[1]))
            data = data[4 + size :]
        self._data = data

    @property
    def under_way(self) -> int:
        return len(self._due)


def run(address: tuple[str, int], topic: str, partitions: int, count: int, rate: float, seconds: float) -> Measured:
    """Produce for WARM_UP and `seconds`, and measure the latter. Raises OSError if a connection ends."""
    connections = [_Connection(address, topic, number % partitions) for number in range(count)]
    by_file = {each.socket.fileno(): each for each in connections}
    files = list(by_file)
    gc.disable()
    began = time.monotonic() + 0.1
    total, sent = int((WARM_UP + seconds) * rate), 0
    while sent < total:
        due = began + sent / rate
        now = time.monotonic()
        while due <= now and sent < total:
            connections[sent % count].send(due)
            sent += 1
            due = began + sent / rate
        ready, _, _ = select.select(files, (), (), max(due - time.monotonic(), 0))
        for file in ready:
            by_file[file].receive()
    until = time.monotonic() + _LAST
    while any(each.under_way for each in connections) and time.monotonic() < until:
        for file in select.select(files, (), (), 0.1)[0]:
            by_file[file].receive()
    # A new topic may not have its leaders yet: errors during the warm-up do not count.
    first = began + WARM_UP
    responses = [[row for row in each.responses if row[0] >= first] for each in connections]
    return Measured(
        sorted(seconds for rows in responses for _, seconds, _ in rows),
        [len(rows) for rows in responses],
        sum(error != 0 for rows in responses for _, _, error in rows),
        sum(each.under_way for each in connections),
    )


@dataclass(frozen=True, slots=True)
class Measured:
    """The results of a run."""

    seconds: list[float]
    """The latencies of all requests due after the warm-up that have a response, sorted."""
    responses: list[int]
    """The number of these per connection."""
    errors: int
    missing: int


def measure(
    bootstrap: str, topic: str, partitions: int, count: int, rate: float, seconds: float, out: Path
) -> Measured:
    """Run the client in a process of its own. Raises RuntimeError if it fails, or a response is an error or missing."""
    numbers = (partitions, count, rate, seconds)
    command = [sys.executable, "-m", "ops.bench.clients.open_loop", bootstrap, topic, *map(str, numbers), str(out)]
    patience = WARM_UP + seconds + _LAST + 60
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience, cwd=ROOT, check=False)
    if done.returncode:
        raise RuntimeError(f"the client of {bootstrap} failed: {done.stderr.strip()[-300:]}")
    found = Measured(**json.loads(out.read_text()))
    if found.errors or found.missing:
        raise RuntimeError(f"{found.errors} errors and {found.missing} requests without a response at {bootstrap}")
    return found


if __name__ == "__main__":
    _host, _, _port = sys.argv[1].rpartition(":")
    _found = run(
        (_host, int(_port)), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]), float(sys.argv[6])
    )
    Path(sys.argv[7]).write_text(
        json.dumps(
            {
                "seconds": _found.seconds,
                "responses": _found.responses,
                "errors": _found.errors,
                "missing": _found.missing,
            }
        )
    )
