"""Measure what one move's copier waits for: the facts behind a stall reason, and the seconds that each reason took.

The copier registers what it is about to do and how long it took. A query of the status covers the last seconds of that,
including the operation in progress, so that a hanging disk shows while it hangs.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from storage_node.model.moves import MoveState, StallReason
from storage_node.move import stall
from storage_node.move.copying.pace import Paces
from storage_node.move.stall import CopyFacts, DiskFacts, Doing

WINDOW = 5.0  # seconds that a query covers
INTERVAL = 0.25  # seconds between two samples


@dataclass(frozen=True, slots=True)
class Sample:
    """Running totals at one time: seconds by what was waited for, bytes read, written and appended to the source."""

    at: float
    waited: dict[Doing, float] = field(default_factory=dict)
    read: int = 0
    written: int = 0
    appended: int = 0


class CopyMeter:
    """The measurements of one move. The copier's thread adds to them, any thread reads them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waited = dict.fromkeys(Doing, 0.0)
        self._doing: tuple[Doing, float] | None = None
        self._read = 0
        self._written = 0
        self._appended = 0
        self._source_size: int | None = None
        self._samples: deque[Sample] = deque()
        self._settled: Sample | None = None
        self._seconds: dict[str, float] = {}

    # Called by the copier

    @contextlib.contextmanager
    def doing(self, what: Doing) -> Iterator[None]:
        """Count the time of the block as the copier's wait for this."""
        began = time.monotonic()
        self._doing = (what, began)
        try:
            yield
        finally:
            with self._lock:
                self._doing = None
                self._waited[what] += time.monotonic() - began

    def read(self, count: int) -> None:
        """Count bytes that were read from the source."""
        self._read += count

    def wrote(self, count: int) -> None:
        """Count bytes that were written into the copy."""
        self._written += count

    @property
    def written(self) -> int:
        """Bytes written into the copy since this process knows the move, some perhaps twice."""
        return self._written

    def waited(self, *kinds: Doing) -> float:
        """Return the seconds spent so far waiting for these, including the operation in progress."""
        with self._lock:
            return sum(self._now(time.monotonic()).waited[kind] for kind in kinds)

    # Called by queries of the status

    @property
    def due(self) -> bool:
        """Whether it is time for another sample."""
        with self._lock:  # a copier that begins clears the list
            samples = self._samples
            return not samples or time.monotonic() - samples[-1].at >= INTERVAL

    def sample(self, source_size: int) -> None:
        """Take a sample of the totals."""
        with self._lock:
            now = time.monotonic()
            if self._source_size is not None:
                # What retention removes is not growth; what is appended meanwhile is missed, which is little.
                self._appended += max(0, source_size - self._source_size)
            self._source_size = source_size
            self._samples.append(self._now(now))
            while len(self._samples) > 2 and now - self._samples[1].at >= WINDOW:
                self._samples.popleft()

    def begin(self) -> None:
        """Clear the samples, because a copier begins and earlier samples say nothing about it."""
        with self._lock:
            self._samples.clear()
            self._source_size = None

    def settle(self, state: MoveState, reason: StallReason) -> None:
        """Attribute the time since the last call to `reason`; the move was in `state` during all of it."""
        with self._lock:
            now = self._now(time.monotonic())
            last, self._settled = self._settled, now
            if last is None:
                return
            held = {kind: now.waited[kind] - last.waited[kind] for kind in (Doing.RUN_LIMIT, Doing.NODE_LIMIT)}
            spent = stall.share_out(now.at - last.at, state, reason, held[Doing.RUN_LIMIT], held[Doing.NODE_LIMIT])
            self._seconds = stall.add(self._seconds, spent)

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by reason, up to the last `settle`."""
        return dict(self._seconds)

    def copy_facts(
        self,
        source: str,
        target: str,
        paces: Paces,
        *,
        run_limit: int | None,
        node_limit: int | None,
        sharing: int,
        left: int,
    ) -> CopyFacts:
        """Return what the copier did in the last seconds."""
        with self._lock:
            now = self._now(time.monotonic())
            samples = list(self._samples)
            doing = self._doing
        first = next((sample for sample in samples if now.at - sample.at <= WINDOW), now)
        oldest = samples[0] if samples else now
        watched = now.at - oldest.at
        spent = {kind: max(0.0, now.waited[kind] - first.waited[kind]) for kind in Doing}

        def disk(name: str, reading: bool, count: int, kinds: tuple[Doing, ...]) -> DiskFacts:
            waited = sum(spent[kind] for kind in kinds)
            usual = paces.usual(name, reading)
            hanging = now.at - doing[1] if doing is not None and doing[0] in kinds else 0.0
            rate = count / waited if waited > 0 else 0.0
            return DiskFacts(name, reading, rate, usual.median, usual.best, waited, hanging)

        return CopyFacts(
            seconds=now.at - first.at,
            held_by_run=spent[Doing.RUN_LIMIT],
            held_by_node=spent[Doing.NODE_LIMIT],
            run_limit=run_limit,
            node_limit=node_limit,
            sharing=sharing,
            disks=(
                disk(target, False, now.written - first.written, (Doing.WRITE, Doing.FLUSH)),
                disk(source, True, now.read - first.read, (Doing.READ,)),
            ),
            watched=watched,
            append_rate=(now.appended - oldest.appended) / watched if watched > 0 else 0.0,
            copy_rate=(now.written - oldest.written) / watched if watched > 0 else 0.0,
            left=left,
        )

    def _now(self, at: float) -> Sample:
        """Return the totals now; the caller holds the lock. The wait in progress counts up to now."""
        waited = dict(self._waited)
        if self._doing is not None:
            waited[self._doing[0]] += max(0.0, at - self._doing[1])
        return Sample(at, waited, self._read, self._written, self._appended)
