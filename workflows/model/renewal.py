"""When a run of the controller continues as new. Pure.

A worker that takes a run over (after a kill, an eviction or a failed task) replays its whole history first, and serves
no request meanwhile: so a run ends by what its replay costs, its bytes and its changes, and not by the number of its
events alone. The server itself ends a run at 50 MB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

#: A run that has spent so many times what makes it continue at once does not put it off any more.
OVERDUE = 2


class Renewal(Enum):
    """Whether a run is to continue as new."""

    NOT_YET = "not yet"
    WHEN_QUIET = "when quiet"
    NOW = "now"
    OVERDUE = "overdue"  # whatever else is urgent


@dataclass(frozen=True, slots=True)
class Limits:
    """(in a quiet second, at once) for a run's events, the bytes that its history has grown by, and the versions that
    it has made: a failed node makes as many as there are topics.
    """

    events: tuple[int, int] = (500, 1_500)
    bytes: tuple[int, int] = (1_000_000, 4_000_000)
    changes: tuple[int, int] = (2_000, 6_000)

    def due(self, events: int, grown: int, changes: int) -> Renewal:
        """Return whether a run that has come so far is to continue as new."""
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


#: The figures while the nodes' images are collected, which are not carried: short of where the server ends a run, at
#: 51,200 events and 50 MB. The state changes once the images are merged.
COLLECTING = Limits(events=(20_000, 20_000), bytes=(30_000_000, 30_000_000), changes=(1 << 62, 1 << 62))
