"""Small produce requests at a fixed rate: on a few connections, and on many beside a thousand idle ones."""

from __future__ import annotations

import contextlib
import socket
import statistics
import struct
from collections.abc import Iterator

import psutil

from ops.bench.bench import Bench
from ops.bench.clients import librdkafka, open_loop
from ops.bench.clients.open_loop import Measured
from ops.bench.table import Figure, milliseconds, percentile

RATE = 2_000
SECONDS = 15.0
PARTITIONS = 8
FEW = 8
WANTED = 0.005
IDLE = 1_000
BUSY = 200
#: The share of the requests due on a connection that must have a response.
PROGRESS = 0.99
#: The only request of an idle client: ApiVersions, version 0.
_HELLO = struct.pack(">ihhih", 10, 18, 0, 1, -1)


def small_produce(bench: Bench) -> list[Figure]:
    """Measure the p99 of 2,000 produce requests a second, of one 100-byte record each, with acks=1."""
    bench.say(f"{RATE} small produce requests a second over {FEW} connections, Apache Kafka and rehome in turn ...")
    found: dict[str, list[Measured]] = {bench.kafka.bootstrap: [], bench.stack.bootstrap: []}
    for number in range(bench.rounds):
        for bootstrap in list(found) if number % 2 else list(found)[::-1]:
            found[bootstrap].append(_measure(bench, bootstrap, f"small-{number}", FEW))
    theirs, ours = (found[each] for each in (bench.kafka.bootstrap, bench.stack.bootstrap))
    figures = []
    for share, name in ((0.99, "p99"), (0.5, "median"), (0.999, "p99.9")):
        mine, kafka = (statistics.median(percentile(each.seconds, share) for each in runs) for runs in (ours, theirs))
        must = share == 0.99
        figures.append(
            Figure(
                f"produce of 100 B, acks=1, {RATE} requests/s, {name}",
                milliseconds(mine),
                f"{milliseconds(kafka)} (Apache Kafka)",
                mine / kafka,
                f"<= {milliseconds(WANTED)}" if must else "",
                mine <= WANTED if must else None,
            )
        )
    return figures


def connections(bench: Bench) -> list[Figure]:
    """Measure a thousand idle connections and two hundred busy ones: memory per idle one, and progress of all."""
    bench.say(f"{IDLE} idle connections and {BUSY} busy ones, {RATE} requests a second ...")
    node = psutil.Process(bench.stack.node_pid)
    _measure(bench, bench.stack.bootstrap, "warm-up", FEW)
    before = node.memory_info().rss
    with _idle(bench.stack.bootstrap) as still_open:
        cost = (node.memory_info().rss - before) / IDLE
        ours = _measure(bench, bench.stack.bootstrap, "busy", BUSY)
        left = still_open()
    with _idle(bench.kafka.bootstrap):
        theirs = _measure(bench, bench.kafka.bootstrap, "busy", BUSY)
    least, due = min(ours.responses), int(RATE * SECONDS / BUSY)
    good = least >= PROGRESS * due and left == IDLE
    mine, kafka = percentile(ours.seconds, 0.99), percentile(theirs.seconds, 0.99)
    return [
        Figure(
            f"{IDLE} idle and {BUSY} busy connections: the fewest responses on one, idle ones still open",
            f"{least} of {due}, {left} of {IDLE}",
            f"{min(theirs.responses)} (Apache Kafka)",
            None,
            f">= {PROGRESS:.0%}, all",
            good,
        ),
        Figure(
            f"produce of 100 B, {RATE} requests/s over {BUSY} connections beside {IDLE} idle ones, p99",
            milliseconds(mine),
            f"{milliseconds(kafka)} (Apache Kafka)",
            mine / kafka,
        ),
        Figure("memory of the node per idle connection", f"{cost / 1000:.1f} kB"),
    ]


def _measure(bench: Bench, bootstrap: str, topic: str, count: int) -> Measured:
    librdkafka.create_topic(bootstrap, topic, partitions=PARTITIONS)
    try:
        out = bench.folder / f"open-loop-{topic}.json"
        return open_loop.measure(bootstrap, topic, PARTITIONS, count, RATE, SECONDS, out)
    finally:
        librdkafka.delete_topic(bootstrap, topic)


@contextlib.contextmanager
def _idle(bootstrap: str) -> Iterator[_Count]:
    """Open a thousand connections that have sent ApiVersions; the value counts those that are still open."""
    host, _, port = bootstrap.rpartition(":")
    found: list[socket.socket] = []
    try:
        for _ in range(IDLE):
            found.append(socket.create_connection((host, int(port)), timeout=30))
            found[-1].sendall(_HELLO)
            found[-1].recv(65536)
        yield _Count(found)
    finally:
        for each in found:
            each.close()


class _Count:
    """A callable that counts the connections that the peer has not closed."""

    def __init__(self, found: list[socket.socket]) -> None:
        self._found = found

    def __call__(self) -> int:
        left = 0
        for each in self._found:
            each.setblocking(False)
            try:
                left += bool(each.recv(1))
            except BlockingIOError:
                left += 1
            except OSError:
                pass
        return left
