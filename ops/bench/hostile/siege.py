"""The runner: attacks one server, one attack after the other, beside a well-behaved client, and measures the cost."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Protocol

import psutil

from ops.bench import ROOT
from ops.bench.hostile import batches
from ops.bench.hostile.attack import Attack
from ops.bench.hostile.field import (
    ATTACKED,
    BACKLOG,
    DENSE,
    HELLO,
    NONE,
    PARTITIONS,
    WIDE,
    WIDE_PARTITIONS,
    Address,
    Field,
    Line,
    errors,
)
from ops.bench.hostile.on_connections import end_offset
from ops.bench.hostile.on_records import produced
from ops.bench.hostile.well_behaved import CONNECT, PRODUCE, Sample
from ops.bench.memory import sampled
from ops.bench.table import percentile
from storage_node.descriptors import raise_limit

WELL_BEHAVED = "well-behaved"
TOPICS = {ATTACKED: PARTITIONS, WIDE: WIDE_PARTITIONS, BACKLOG: 1, DENSE: 1, WELL_BEHAVED: 1}
MIB = 1 << 20
RATE = 50.0
BACKLOG_MB = 40
LOOK = 0.05
#: Seconds after an attack within which the well-behaved client must complete its steps.
HUNG = 60.0
_READ = 16 * MIB


class Server(Protocol):
    """A server in a process of its own."""

    name: str
    ours: bool
    log: Path
    """The file of its standard output."""

    @property
    def address(self) -> Address:
        """The address of its listener."""

    @property
    def pid(self) -> int:
        """Its process id."""

    def restart(self, *, clean: bool) -> None:
        """Stop it, by SIGKILL unless `clean`, and start it. Raises RuntimeError if it does not start."""

    def away(self) -> AbstractContextManager[None]:
        """Kill its controller, and restart it at the end of the block."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of each attack's cost."""

    p99: float = 0.25
    """Of the well-behaved client, in seconds."""
    grown: int = 64 * MIB
    """Bytes of memory."""
    descriptors: int = 500
    logged: int = MIB
    """Bytes of its log."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one attack for a server. Memory in bytes, times in seconds."""

    attack: Attack
    outcomes: dict[str, int]
    p99: float
    worst: float
    failed: dict[str, int] = field(default_factory=dict)
    """Errors of the well-behaved client."""
    grown: int = 0
    peak: int = 0
    """The maximum growth of memory during the attack."""
    descriptors: int = 0
    logged: int = 0
    """Bytes that the server wrote to its log."""
    escapes: bool = False
    """Whether these contain a terminal's control characters."""
    broken: str = ""
    """Why the server does not work after the attack; "" if it does."""

    def problems(self, limits: Limits) -> list[str]:
        """Return a sentence for each limit that is exceeded."""
        found = [self.broken] if self.broken else []
        strange = sorted(self.outcomes.keys() - self.attack.outcomes)
        if strange:
            found.append(f"ended with {', '.join(strange)} instead of {', '.join(sorted(self.attack.outcomes))}")
        if not self.outcomes:
            found.append("no request of the attack ended")
        if self.p99 > limits.p99:
            found.append(f"the well-behaved client's p99 is {self.p99 * 1e3:.0f} ms, its worst {self.worst:.1f} s")
        failed = {what: count for what, count in self.failed.items() if not (self.attack.crowded and CONNECT in what)}
        if failed:
            found.append(
                f"the well-behaved client got {', '.join(f'{count} {what}' for what, count in failed.items())}"
            )
        if self.grown > limits.grown:
            found.append(f"memory grew by {self.grown / MIB:.0f} MiB")
        if self.logged > limits.logged:
            found.append(f"its log grew by {self.logged / MIB:.1f} MiB")
        if self.escapes:
            found.append("its log contains control characters that a client has sent")
        if self.descriptors > limits.descriptors:
            found.append(f"{self.descriptors} descriptors more are open")
        return found


class Siege:
    """A server under attack; a context manager that creates the topics and runs the well-behaved client."""

    def __init__(self, server: Server, *, seconds: float, scale: float, settle: float) -> None:
        """`seconds` and `scale` of each attack; `settle`: seconds within which the server must recover from it."""
        self.server = server
        self._seconds, self._scale, self._settle = seconds, scale, settle
        self._samples: list[Sample] = []
        self._client: subprocess.Popen[str] | None = None

    def __enter__(self) -> Siege:
        raise_limit()  # thousands of connections
        _make_topics(self.server.address)
        host, port = self.server.address
        command = [sys.executable, "-m", "ops.bench.hostile.well_behaved", f"{host}:{port}", WELL_BEHAVED, str(RATE)]
        self._client = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True)
        threading.Thread(target=self._listen, args=(self._client,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.kill()
            client.wait()

    def _listen(self, client: subprocess.Popen[str]) -> None:
        assert client.stdout is not None
        for text in client.stdout:
            with contextlib.suppress(ValueError):  # an incomplete line of the killed client
                self._samples.append(Sample.parse(text))

    def calm(self, seconds: float) -> list[float]:
        """Return the durations of the well-behaved client's steps without an attack."""
        begun = time.monotonic()
        time.sleep(seconds)
        return [sample.seconds for sample in self._between(begun, time.monotonic())]

    def _between(self, begun: float, ended: float) -> list[Sample]:
        """Return the samples due between two times; if they are missing after `HUNG`, one that lasts as long."""
        until = time.monotonic() + HUNG
        while not (self._samples and self._samples[-1].due >= ended):
            if time.monotonic() > until:
                return [Sample(begun, "hung", time.monotonic() - begun, "hung")]
            time.sleep(LOOK)
        return [sample for sample in self._samples if begun <= sample.due < ended]

    def missing(self) -> list[str]:
        """Return a sentence on each partition that rejects records, and on lost records of the well-behaved client."""
        line = Line(self.server.address, patience=HUNG)
        try:
            for topic, count in TOPICS.items():
                for partition in range(count):
                    _appended(line, topic, batches.batch(), partition)
            acknowledged = sum(sample.what == PRODUCE for sample in self._samples)
            end = end_offset(line, WELL_BEHAVED, 0)
        except RuntimeError as error:
            return [str(error)]
        finally:
            line.socket.close()
        return [f"{acknowledged} records were acknowledged, the log ends at {end}"] if end < acknowledged else []

    def make(self, attack: Attack) -> Cost:
        """Run one attack; return its cost, measured after the server's time to recover."""
        process = psutil.Process(self.server.pid)
        memory, descriptors = process.memory_info().rss, process.num_fds()
        logged = self.server.log.stat().st_size
        target = Field(self.server.address, self._seconds, self._scale, self.server.away)
        begun = time.monotonic()
        with sampled(process.pid) as most:
            attack.run(target)
        samples = self._between(begun, time.monotonic())
        took = [sample.seconds for sample in samples]
        broken = ""
        until = time.monotonic() + self._settle
        after, left = memory, descriptors
        try:
            while True:
                after, left = process.memory_info().rss, process.num_fds()
                over = after - memory < 32 * MIB and left - descriptors < 50
                if over or time.monotonic() > until:
                    break
                time.sleep(LOOK)
            _serves(self.server.address)
        except psutil.Error:
            broken = "the process has exited"
        except OSError as error:
            broken = f"it does not respond: {error!r}"
        return Cost(
            attack,
            dict(sorted(target.tally.items())),
            percentile(took, 0.99),
            max(took, default=0.0),
            dict(Counter(f"{each.what}: {each.error}" for each in samples if each.error != NONE)),
            after - memory,
            max(most, default=memory) - memory,
            left - descriptors,
            *_logged(self.server.log, logged),
            broken,
        )


def _logged(log: Path, before: int) -> tuple[int, bool]:
    """Return the bytes logged since, and whether they contain an escape character."""
    with log.open("rb") as file:
        file.seek(before)
        text = file.read(_READ)
    return log.stat().st_size - before, b"\x1b" in text


def _serves(address: Address) -> None:
    line = Line(address, patience=10.0)
    line.ask_frame(18, 3, HELLO)
    line.socket.close()


def _make_topics(address: Address) -> None:
    """Create the topics of the attacks and of the well-behaved client, and produce their records."""
    line = Line(address, patience=60.0)
    topics = [{"name": name, "num_partitions": count, "replication_factor": 1} for name, count in TOPICS.items()]
    found = errors(line.ask(19, 7, topics=topics, timeout=timedelta(seconds=30)))
    if found - {NONE, "TOPIC_ALREADY_EXISTS"}:
        raise RuntimeError(f"cannot create the topics: {', '.join(found)}")
    _appended(line, DENSE, batches.dense())
    _appended(line, WELL_BEHAVED, batches.batch())
    _appended(line, WIDE, batches.batch(), WIDE_PARTITIONS - 1)
    for _ in range(BACKLOG_MB):
        _appended(line, BACKLOG, batches.backlog())
    while (found := errors(line.ask(10, 3, key="a group"))) != {NONE}:  # creates Apache Kafka's __consumer_offsets
        if found - {"COORDINATOR_NOT_AVAILABLE"}:
            raise RuntimeError(f"the group coordinator is unavailable: {', '.join(found)}")
        time.sleep(0.1)
    line.socket.close()


def _appended(line: Line, topic: str, records: bytes, partition: int = 0) -> None:
    """Produce, retrying until the partition has its leader. Raises RuntimeError."""
    found: Sequence[str] = ()
    for _ in range(100):
        found = sorted(errors(line.ask_frame(0, 9, produced({topic: {partition: records}}))))
        if found == [NONE]:
            return
        time.sleep(0.1)
    raise RuntimeError(f"{topic} rejects records: {', '.join(found)}")
