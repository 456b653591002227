"""When a run of the controller continues as new. Pure.

A worker that takes a run over (after a kill, an eviction or a failed task) replays its whole history first, and serves
no request meanwhile: so the cost of a replay, the run's bytes and changes, limits a run, not only the number of its
events. The server terminates a run at 50 MB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

#: A run that exceeds the higher limits so many times continues as new whatever else is urgent.
OVERDUE = 2


class Renewal(Enum):
    """Whether a run is to continue as new."""

    NOT_YET = "not yet"
    WHEN_QUIET = "when quiet"
    NOW = "now"
    OVERDUE = "overdue"  # even if something else is urgent


@dataclass(frozen=True, slots=True)
class Limits:
    """Pairs (in a quiet second, at once) for a run's events, the bytes by which its history has grown, and the versions
    that it has made: a failed node causes one per topic.
    """

    events: tuple[int, int] = (500, 1_500)
    bytes: tuple[int, int] = (1_000_000, 4_000_000)
    changes: tuple[int, int] = (2_000, 6_000)

    def due(self, events: int, grown: int, changes: int) -> Renewal:
        """Return whether a run with these events, bytes and changes should continue as new."""
        pairs = ((events, self.events), (grown, self.bytes), (changes, self.changes))
        if any(spent >= OVERDUE * at_once for spent, (_, at_once) in pairs):
            return Renewal.OVERDUE
        if any(spent >= at_once for spent, (_, at_once) in pairs):
            return Renewal.NOW
        return Renewal.WHEN_QUIET if any(spent >= quiet for spent, (quiet, _) in pairs) else Renewal.NOT_YET

    def row(self) -> list[int]:
        """Return the row for a continue-as-new."""
        return [*self.events, *self.bytes, *self.changes]

    def with_row(self, row: Sequence[int]) -> Limits:
        """Return these limits, replaced by those that a row holds; a short row holds the first."""
        values = [*map(int, row), *self.row()[len(row) :]]
        return Limits((values[0], values[1]), (values[2], values[3]), (values[4], values[5]))


#: The limits while the nodes' images are collected, which are not carried: below those at which the server terminates a
#: run, 51,200 events and 50 MB. The state changes once the images are merged.
COLLECTING = Limits(events=(20_000, 20_000), bytes=(30_000_000, 30_000_000), changes=(1 << 62, 1 << 62))
