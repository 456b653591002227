"""A client that produces one record at a time at a constant rate and records the latency of each request.

`python -m ops.bench.clients.pacer HOST:PORT TOPIC RATE FILE` runs until its standard input closes, in a process of its
own, so that no other work delays it. One request is in flight at a time, so the longest latency is the longest wait of
a client. FILE gets a line per request: when it was sent (by the monotonic clock, which all processes share) and its
latency in seconds, -1 for an error.
"""

from __future__ import annotations

import gc
import os
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ops.bench import ROOT
from storage_node.log.batches.batch import build_batch

_VERSION = 7
_RECORD = 1024
_ERROR = struct.Struct(">ih")


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def _frame(topic: str) -> bytes:
    batch = build_batch([bytes(_RECORD)], timestamp=time.time_ns() // 1_000_000)
    head = struct.pack(">hhi", 0, _VERSION, 0) + _string("pacer")
    body = struct.pack(">hhi", -1, 1, 30_000) + struct.pack(">i", 1) + _string(topic)
    body += struct.pack(">iii", 1, 0, len(batch)) + batch
    return struct.pack(">i", len(head + body)) + head + body


def _receive(connection: socket.socket) -> bytes:
    data = connection.recv(4096)
    while len(data) < 4 or len(data) < 4 + struct.unpack_from(">i", data)[0]:
        more = connection.recv(4096)
        if not more:
            raise ConnectionError("the server closed the connection")
        data += more
    return data


def run(host: str, port: int, topic: str, rate: float, out: Path) -> None:
    """Produce to partition 0 until standard input closes."""
    frame, error_at = _frame(topic), 4 + 4 + 4 + 2 + len(topic.encode()) + 4
    rows: list[tuple[float, float]] = []
    with socket.create_connection((host, port), timeout=30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        gc.disable()
        print("ready", flush=True)
        stdin = [sys.stdin]
        due = time.monotonic()
        while not select.select(stdin, [], [], 0)[0]:
            sent = time.monotonic()
            connection.sendall(frame)
            response = _receive(connection)
            took = time.monotonic() - sent
            rows.append((sent, took if _ERROR.unpack_from(response, error_at)[1] == 0 else -1.0))
            # A closed loop: late requests are not sent in a burst afterwards.
            due = max(due + 1 / rate, time.monotonic())
            left = due - time.monotonic()
            if left > 0:
                time.sleep(left)
    out.write_text("".join(f"{sent:.6f} {took:.6f}\n" for sent, took in rows))


@dataclass(slots=True)
class Paced:
    """The client's results, available after the block: (sent, seconds) of every request; seconds is -1 for an error."""

    requests: list[tuple[float, float]]

    def longest_around(self, moment: float, seconds: float) -> float:
        """Return the longest latency of the requests in flight within `seconds` of a moment; 0 if there were none."""
        near = (took for sent, took in self.requests if sent <= moment + seconds and sent + took >= moment - seconds)
        return max(near, default=0.0)

    def latencies(self) -> list[float]:
        """Return the latencies of all successful requests, sorted."""
        return sorted(took for _, took in self.requests if took >= 0)

    @property
    def errors(self) -> int:
        """The number of failed requests."""
        return sum(took < 0 for _, took in self.requests)


@contextmanager
def paced(bootstrap: str, topic: str, rate: float, out: Path, cores: Set[int] = frozenset()) -> Iterator[Paced]:
    """Run the client while the block runs, on `cores` alone if given. Raises RuntimeError if it exits early."""
    command = [sys.executable, "-m", "ops.bench.clients.pacer", bootstrap, topic, str(rate), str(out)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True)
    if cores:
        os.sched_setaffinity(process.pid, cores)
    found = Paced([])
    try:
        assert process.stdin is not None and process.stdout is not None
        if process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"the client of {bootstrap} did not start")
        yield found
        process.stdin.close()
        if process.wait(30):
            raise RuntimeError(f"the client of {bootstrap} exited with code {process.returncode}")
        for line in out.read_text().splitlines():
            sent, took = line.split()
            found.requests.append((float(sent), float(took)))
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    host, _, port = sys.argv[1].rpartition(":")
    run(host, int(port), sys.argv[2], float(sys.argv[3]), Path(sys.argv[4]))
