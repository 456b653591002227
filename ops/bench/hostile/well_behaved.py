"""A well-behaved client: it produces, fetches what it has produced, and opens a new connection at times.

`python -m ops.bench.hostile.well_behaved HOST:PORT TOPIC RATE` runs in a process of its own until its standard input
ends. The duration of a round counts from the time at which it is due, so a pause of the server delays every round due
meanwhile. For each step it prints a line: when it was due (monotonic clock), its name, the seconds until it succeeded,
and the first error before that.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import random
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import pyarrow

from ops.bench.hostile.batches import GZIP, ZSTD, batch
from ops.bench.hostile.field import HELLO, NONE, Address, Line, errors, frame
from storage_node.log.batches.batch import HEADER_SIZE, build_batch

PRODUCE, FETCH, CONNECT = "produce", "fetch", "connect"
#: One of this many rounds opens a new connection.
EVERY = 20
PATIENCE = 5.0
PAUSE = 0.05


@dataclass(frozen=True, slots=True)
class Sample:
    """One step: when it was due, its name, its duration, and the error before it succeeded."""

    due: float
    what: str
    seconds: float
    error: str

    @classmethod
    def parse(cls, text: str) -> Sample:
        """Parse a line of the process's output."""
        due, what, seconds, error = text.split()
        return cls(float(due), what, float(seconds), error)


def batches_to_produce() -> list[bytes]:
    """Return the batches produced in turn: small ones, and compressed ones not validated on the append path."""
    plain = build_batch([bytes(100)])
    records = build_batch([random.Random(4).randbytes(6_000).hex().encode()])[HEADER_SIZE:]
    zstandard = bytes(pyarrow.compress(records, codec="zstd", asbytes=True))
    return [plain, batch(gzip.compress(records), 1, GZIP), plain, batch(zstandard, 1, ZSTD)]


def _produced(topic: str, records: bytes) -> bytes:
    data = {"name": topic, "partition_data": [{"index": 0, "records": records}]}
    return frame(0, 9, {"acks": -1, "timeout": timedelta(seconds=30), "topic_data": [data]})


class Client:
    """One connection, replaced when it ends."""

    def __init__(self, address: Address, topic: str) -> None:
        self._address, self._topic = address, topic
        self._line: Line | None = None
        self._produce = itertools.cycle(_produced(topic, records) for records in batches_to_produce())
        self._offset = 0

    def _request(self, key: int, version: int, data: bytes) -> tuple[object, str]:
        if self._line is None:
            self._line = Line(self._address, patience=PATIENCE)
        response = self._line.ask_frame(key, version, data)
        return response, ",".join(sorted(errors(response)))

    def produce(self) -> str:
        """Produce a record; return the error."""
        response, error = self._request(0, 9, next(self._produce))
        self._offset = response.responses[0].partition_responses[0].base_offset  # type: ignore[attr-defined]
        return error

    def fetch(self) -> str:
        """Fetch the record produced last; return the error."""
        row = {"partition": 0, "fetch_offset": self._offset, "current_leader_epoch": -1, "partition_max_bytes": 1 << 20}
        values = {
            "replica_id": -1,
            "max_wait": timedelta(milliseconds=500),
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "session_epoch": -1,
            "topics": [{"topic": self._topic, "partitions": [row]}],
        }
        return self._request(1, 12, frame(1, 12, values))[1]

    def connect(self) -> str:
        """Send ApiVersions on a new connection; return the error."""
        line = Line(self._address, patience=PATIENCE)
        try:
            return ",".join(errors(line.ask_frame(18, 3, HELLO)))
        finally:
            line.socket.close()

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._line is not None:
            self._line.socket.close()
            self._line = None


def run(address: Address, topic: str, rate: float, stop: threading.Event, out: Callable[[Sample], None]) -> None:
    """Run rounds until `stop` is set."""
    client = Client(address, topic)
    begun, number = time.monotonic(), 0
    while not stop.is_set():
        due = begun + number / rate
        time.sleep(max(0.0, due - time.monotonic()))
        since = due
        steps = {PRODUCE: client.produce, FETCH: client.fetch}
        for what, step in (steps | {CONNECT: client.connect} if number % EVERY == 0 else steps).items():
            error = _done(client, step, stop, once=what == CONNECT)
            now = time.monotonic()
            out(Sample(due, what, now - since, error))
            since = now
        number += 1


def _done(client: Client, step: Callable[[], str], stop: threading.Event, *, once: bool) -> str:
    """Repeat a step until it succeeds; return the first error, NONE if there was none."""
    first = NONE
    while not stop.is_set():
        try:
            error = step()
        except OSError as problem:
            error = type(problem).__name__
            if not once:
                client.close()
        if error == NONE or once:
            return error if first == NONE else first
        first = error if first == NONE else first
        time.sleep(PAUSE)
    return first


def main() -> None:
    """Run until standard input ends."""
    host, _, port = sys.argv[1].rpartition(":")
    stop = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=listen, daemon=True).start()

    def out(sample: Sample) -> None:
        print(f"{sample.due:.6f} {sample.what} {sample.seconds:.6f} {sample.error}", flush=True)

    with contextlib.suppress(BrokenPipeError):
        run((host, int(port)), sys.argv[2], float(sys.argv[3]), stop, out)


if __name__ == "__main__":
    main()
