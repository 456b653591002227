"""When a copy ends, as a range: from how fast the bytes that are left have become fewer in the last minutes.

A range says more than one figure: a copy that a shared limit slows down and releases again has no single rate. Pure but
for the samples that it keeps; the clock is an argument.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

#: Keys whose samples are kept at most.
MOST_KEYS = 5_000


@dataclass(frozen=True, slots=True)
class Eta:
    """Seconds until the end; `high` is None while no end is in sight. Both are None if they are unknown."""

    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Pace:
    """How samples become rates: over slices of `slice` seconds, within the last `window` seconds."""

    slice: float = 5.0
    window: float = 60.0
    #: Fewer slices say nothing about a range.
    fewest: int = 3


#: For work that is read every second, and for plans, whose bytes are read every few seconds.
COPY = Pace()
PLAN = Pace(slice=30.0, window=600.0)


@dataclass(slots=True)
class _Samples:
    """Times and bytes left, at most one each slice."""

    rows: deque[tuple[float, int]] = field(default_factory=deque)


class Paces:
    """The samples of all work."""

    def __init__(self) -> None:
        self._samples: dict[str, _Samples] = {}

    def add(self, key: str, at: float, left: int, pace: Pace = COPY) -> None:
        """Record the bytes that are left at a time. One that is not newer than the last by a slice is left out."""
        if key not in self._samples and len(self._samples) >= MOST_KEYS:
            return
        rows = self._samples.setdefault(key, _Samples()).rows
        if rows and at < rows[-1][0] + pace.slice:
            return
        rows.append((at, left))
        while rows[0][0] < at - pace.window:
            rows.popleft()

    def keep(self, keys: set[str]) -> None:
        """Forget all other keys."""
        self._samples = {key: rows for key, rows in self._samples.items() if key in keys}

    def rates(self, key: str, pace: Pace = COPY) -> tuple[float, float, float] | None:
        """Return by how many bytes per second the rest becomes fewer: the mean, and the 10 % and 90 % quantiles; None
        with fewer than `pace.fewest` slices.
        """
        samples = self._samples.get(key)
        rows = list(samples.rows) if samples else []
        found = _rates(rows)
        if len(found) < pace.fewest:
            return None
        ordered = sorted(found)
        mean = (rows[0][1] - rows[-1][1]) / (rows[-1][0] - rows[0][0])
        return mean, _quantile(ordered, 0.1), _quantile(ordered, 0.9)

    def eta(self, key: str, left: int, pace: Pace = COPY) -> Eta:
        """Return the range of the time until nothing is left; unknown with fewer than `pace.fewest` slices."""
        samples = self._samples.get(key)
        rows = list(samples.rows) if samples else []
        rates = _rates(rows)
        return span(rates, left) if len(rates) >= pace.fewest else Eta()


def span(rates: list[float], left: int) -> Eta:
    """Return the range from the 10 % and 90 % quantiles of rates (bytes per second by which the rest shrinks)."""
    if left <= 0:
        return Eta(0.0, 0.0)
    if not rates:
        return Eta()
    ordered = sorted(rates)
    return between(_quantile(ordered, 0.1), _quantile(ordered, 0.9), left)


def between(slow: float, fast: float, left: int) -> Eta:
    """Return the range of the time until nothing is left, at the slower and at the faster of two rates."""
    if fast <= 0:
        return Eta()
    return Eta(left / fast, left / slow if slow > 0 else None)


def _rates(rows: Sequence[tuple[float, int]]) -> list[float]:
    return [(before - after) / (late - early) for (early, before), (late, after) in pairwise(rows) if late > early]


def _quantile(ordered: list[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
