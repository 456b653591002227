"""What one move's copier waits for, measured: what a reason is made of, and the seconds that each reason took.

The copier says what it is about to do and how long it took; whoever asks for the status looks at the last seconds of
that, what is under way now included, so that a disk that hangs is seen while it does.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from storage_node.move import stall
from storage_node.move.pace import Paces
from storage_node.move.stall import CopyFacts, DiskFacts, Doing, StallReason

WINDOW = 5.0  # seconds that are looked at
INTERVAL = 0.25  # seconds between two looks


@dataclass(frozen=True, slots=True)
class Look:
    """Running totals at one time: seconds by what was waited for, bytes read, written and appended to the source."""

    at: float
    waited: dict[Doing, float] = field(default_factory=dict)
    read: int = 0
    written: int = 0
    appended: int = 0


class Watch:
    """The measurements of one move. The copier's thread adds to them, any thread looks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waited = dict.fromkeys(Doing, 0.0)
        self._doing: tuple[Doing, float] | None = None
        self._read = 0
        self._written = 0
        self._appended = 0
        self._source_size: int | None = None
        self._looks: deque[Look] = deque()
        self._settled: Look | None = None
        self._seconds: dict[str, float] = {}

    # By the copier

    @contextlib.contextmanager
    def doing(self, what: Doing) -> Iterator[None]:
        """The copier waits for this while the block runs."""
        began = time.monotonic()
        self._doing = (what, began)
        try:
            yield
        finally:
            with self._lock:
                self._doing = None
                self._waited[what] += time.monotonic() - began

    def read(self, count: int) -> None:
        """Bytes that came from the source."""
        self._read += count

    def wrote(self, count: int) -> None:
        """Bytes that went into the copy."""
        self._written += count

    @property
    def written(self) -> int:
        """Bytes that were written into the copy since this move is known here, some perhaps twice."""
        return self._written

    def waited(self, *kinds: Doing) -> float:
        """Seconds spent so far waiting for these, what is under way included."""
        with self._lock:
            return sum(self._now(time.monotonic()).waited[kind] for kind in kinds)

    # By who asks

    @property
    def due(self) -> bool:
        """Whether it is time for another look."""
        with self._lock:  # a copier that comes in forgets them all
            looks = self._looks
            return not looks or time.monotonic() - looks[-1].at >= INTERVAL

    def look(self, source_size: int) -> None:
        """Note where everything stands."""
        with self._lock:
            now = time.monotonic()
            if self._source_size is not None:
                # What retention takes is no growth; what is appended meanwhile is missed, which is little.
                self._appended += max(0, source_size - self._source_size)
            self._source_size = source_size
            self._looks.append(self._now(now))
            while len(self._looks) > 2 and now - self._looks[1].at >= WINDOW:
                self._looks.popleft()

    def begin(self) -> None:
        """A copier comes in: what was before it tells nothing of it."""
        with self._lock:
            self._looks.clear()
            self._source_size = None

    def settle(self, state: str, reason: StallReason) -> None:
        """Put the time since the last call down to `reason`, the state having been `state` in all of it."""
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
        """What the copier did in the last seconds."""
        with self._lock:
            now = self._now(time.monotonic())
            looks = list(self._looks)
            doing = self._doing
        first = next((look for look in looks if now.at - look.at <= WINDOW), now)
        oldest = looks[0] if looks else now
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

    def _now(self, at: float) -> Look:
        """Totals now; the lock is held. A limit or disk that is waited for just now counts up to now."""
        waited = dict(self._waited)
        if self._doing is not None:
            waited[self._doing[0]] += max(0.0, at - self._doing[1])
        return Look(at, waited, self._read, self._written, self._appended)
