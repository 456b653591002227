"""What the live dashboard shows, as values: work that moves data, the sources of the facts, and how old each fact is.

Times are epoch seconds, durations seconds, sizes bytes, rates bytes per second. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

#: A source that has not responded for so many seconds is stale.
STALE_SECONDS = 4.0
#: The page has so many rows of one kind; the totals count all.
MOST_ROWS = 500
#: Sentences that the page has at most.
MOST_NOTES = 50


class Kind(StrEnum):
    """The kinds of work."""

    DISK = "disk"  # a replica between two log directories of a node
    REASSIGNMENT = "reassignment"  # a partition between nodes
    PLAN = "plan"
    DRAIN = "drain"  # a log directory that is emptied


class Freshness(StrEnum):
    """The state of a source."""

    READING = "reading"  # it has not responded yet, and not failed either
    FRESH = "fresh"
    STALE = "stale"  # it is silent, or its call fails
    UNUSED = "unused"  # no address of it is known


@dataclass(frozen=True, slots=True)
class Source:
    """A process that facts come from: when it last responded (None: never), and why it is stale."""

    name: str
    state: Freshness
    as_of: float | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Fact:
    """Facts of a row that have one age: what they are, the source, and when it reported them."""

    what: str
    source: str
    as_of: float


@dataclass(frozen=True, slots=True)
class Work:
    """One row. `key` is unique on the page and stays the same while the work lasts.

    `eta_low` and `eta_high` are None if unknown; `eta_high` alone is None while no end is in sight. `held_by` is a
    word for what holds the work, `held_why` a sentence about it; both are "" while it makes progress. The first of
    `facts` is the one whose age the row shows.
    """

    key: str
    kind: Kind
    title: str
    phase: str
    id: str = ""
    origin: str = ""
    target: str = ""
    bytes_total: int = 0
    bytes_copied: int = 0
    rate: float | None = None
    eta_low: float | None = None
    eta_high: float | None = None
    held_by: str = ""
    held_why: str = ""
    detail: str = ""
    facts: tuple[Fact, ...] = ()

    @property
    def left(self) -> int:
        """Return the bytes that are to be copied."""
        return max(0, self.bytes_total - self.bytes_copied)

    @property
    def percent(self) -> float | None:
        """Return how much is copied, at most 99.9 while bytes are left; None if the size is unknown."""
        if self.bytes_total <= 0:
            return None
        return 100.0 if self.left == 0 else min(99.9, 100 * self.bytes_copied / self.bytes_total)

    def as_json(self) -> dict[str, Any]:
        """Return the row as the page reads it."""
        return asdict(self) | {"percent": self.percent}


@dataclass(frozen=True, slots=True)
class Board:
    """Everything that the page shows, at one time."""

    at: float
    cluster: str
    sources: tuple[Source, ...]
    work: tuple[Work, ...] = ()
    notes: tuple[str, ...] = ()
    temporal_ui: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the page's JSON: at most `MOST_ROWS` rows of a kind, the held ones first to stay; totals count all."""
        rows = {kind: [each for each in self.work if each.kind is kind] for kind in Kind}
        shown = {kind: _shown(each) for kind, each in rows.items()}
        return {
            "at": self.at,
            "cluster": self.cluster,
            "sources": [asdict(each) for each in self.sources],
            "totals": totals(self.work),
            "work": {kind: [each.as_json() for each in found] for kind, found in shown.items()},
            "left_out": {kind: len(rows[kind]) - len(shown[kind]) for kind in Kind},
            "notes": list(dict.fromkeys(self.notes))[:MOST_NOTES],
            "temporal_ui": self.temporal_ui,
        }


def _shown(rows: Sequence[Work]) -> list[Work]:
    """Return the rows in their order; of too many those that are held stay."""
    if len(rows) <= MOST_ROWS:
        return list(rows)
    kept = {each.key for each in sorted(rows, key=lambda each: not each.held_by)[:MOST_ROWS]}
    return [each for each in rows if each.key in kept]


def totals(work: Iterable[Work]) -> dict[str, Any]:
    """Return the sums over the copies, those of disks and of reassignments; plans and drains consist of such copies."""
    copies = [each for each in work if each.kind in (Kind.DISK, Kind.REASSIGNMENT)]
    ends = [each.eta_low for each in copies if each.eta_low is not None]
    latest = [each.eta_high for each in copies]
    known = [each for each in latest if each is not None]
    return {
        "copies": len(copies),
        "held": sum(1 for each in copies if each.held_by),
        "bytes_left": sum(each.left for each in copies),
        "bytes_total": sum(each.bytes_total for each in copies),
        "rate": sum(each.rate or 0.0 for each in copies),
        "eta_low": max(ends, default=None),
        "eta_high": max(known) if known and len(known) == len(latest) else None,
    }
