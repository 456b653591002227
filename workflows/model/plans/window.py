"""Maintenance windows and rates by the hour, in local time: "Mon-Fri 22:00-06:00 Europe/Berlin".

A window opens on each of its days when the local clock first reaches the start, and closes when it first reaches the
end, on the next day if the end is not after the start. So a time that the clock skips is the moment of the skip, and a
time that it shows twice is the first one: a window opens and closes once a day, whatever daylight saving does.

`parse` reads the text alone. The rules of time zones come from the machine's time zone database, which the methods of
a window read, and nothing else in the model: only activities and commands call them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

from storage_node.model import fields
from storage_node.model.fields import BadField
from workflows.model.move import parameter as move_parameter
from workflows.model.plans.problems import Problems

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_DAY = 24 * 60
_WINDOW = re.compile(r"(?:(\S+)\s+)?(\d\d):(\d\d)-(\d\d):(\d\d)\s+(\S+)")
_ZONE = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+){0,2}")
_FORM = 'a window such as "22:00-06:00 Europe/Berlin" or "Mon-Fri,Sun 22:00-06:00 UTC"'
_LONGEST = 200
#: Days in which a window is searched for its next edge: each has one in a week.
_WEEK = 8


@dataclass(frozen=True, slots=True)
class Window:
    """Times of the week. `start` and `end` are minutes of the day; `days` those on which it opens, Monday is 0."""

    days: tuple[int, ...]
    start: int
    end: int
    zone: str
    text: str = field(default="", compare=False)

    def __str__(self) -> str:
        return self.text or "always"

    def is_open(self, now: datetime) -> bool:
        """Return whether the window is open. `now` is aware, as for all methods."""
        return any(begin <= now < end for begin, end in self._spans(now, now))

    def next_edge(self, now: datetime) -> datetime | None:
        """Return when the window next opens or closes after `now`, in UTC; None if it never does."""
        edges = [edge for span in self._spans(now, now + timedelta(days=_WEEK)) for edge in span]
        later = [edge for edge in edges if edge > now]
        # The last edge may be that of a span which continues beyond the search.
        return later[0] if later and later[0] < now + timedelta(days=_WEEK) else None

    def open_seconds(self, start: datetime, end: datetime) -> float:
        """Return for how many seconds the window is open between two instants."""
        spans = self._spans(start, end)
        return sum(max(0.0, (min(last, end) - max(first, start)).total_seconds()) for first, last in spans)

    def after(self, now: datetime, seconds: float) -> datetime | None:
        """Return when the window has been open for so many seconds since `now`; None if not within a year."""
        left = timedelta(seconds=seconds)
        if left > timedelta(days=366):
            return None
        for first, last in self._spans(now, now + timedelta(days=366)):
            begin = max(first, now.astimezone(UTC))
            if begin + left <= last:
                return begin + left
            left -= max(timedelta(), last - begin)
        return None

    def _spans(self, start: datetime, end: datetime) -> list[tuple[datetime, datetime]]:
        """Return the open spans that touch an interval, in order, those that follow each other as one."""
        found: list[tuple[datetime, datetime]] = []
        for first, last in self._days(start, end):
            if found and first <= found[-1][1]:
                found[-1] = found[-1][0], max(last, found[-1][1])
            elif first < last:
                found.append((first, last))
        return [span for span in found if span[1] >= start and span[0] <= end]

    def _days(self, start: datetime, end: datetime) -> Iterator[tuple[datetime, datetime]]:
        zone = _zone(self.zone)
        day = start.astimezone(zone).date() - timedelta(days=2)
        last = end.astimezone(zone).date() + timedelta(days=1)
        while day <= last:
            if day.weekday() in self.days:
                later = self.end if self.end > self.start else self.end + _DAY
                yield _first_at(day, self.start, self.zone), _first_at(day, later, self.zone)
            day += timedelta(days=1)


#: The window of plans that have none.
ALWAYS = Window(tuple(range(7)), 0, _DAY, "UTC")


@lru_cache(600)
def _zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)


@lru_cache(4_096)
def _first_at(day: date, minutes: int, zone: str) -> datetime:
    """Return the first instant, in UTC, at which the local clock shows this time or a later one."""
    wall = datetime(day.year, day.month, day.day) + timedelta(minutes=minutes)
    local = wall.replace(tzinfo=_zone(zone))
    instant = local.astimezone(UTC)
    if instant.astimezone(_zone(zone)).replace(tzinfo=None, fold=0) == wall:
        return instant
    # The clock skips this time: with fold=1 the instant is before the skip, with fold=0 after it.
    low, high = local.replace(fold=1).astimezone(UTC), instant
    while high - low > timedelta(seconds=1):
        middle = low + timedelta(seconds=(high - low) // timedelta(seconds=1) // 2)
        if middle.astimezone(_zone(zone)).replace(tzinfo=None) >= wall:
            high = middle
        else:
            low = middle
    return high


def parse(text: str, path: str = "$.window") -> Window:
    """Return the window of a text, `ALWAYS` of an empty one; see `is_known` for its zone. Raises BadField."""
    text = fields.a_string(text, path, empty=True).strip()
    if not text:
        return ALWAYS
    found = _WINDOW.fullmatch(text) if len(text) <= _LONGEST else None
    if found is None:
        raise BadField(path, f"is '{text}', which is not {_FORM}")
    days, *clock, zone = found.groups()
    hours = [int(each) for each in clock]
    start, end = hours[0] * 60 + hours[1], hours[2] * 60 + hours[3]
    if hours[1] > 59 or hours[3] > 59 or start >= _DAY or end > _DAY:
        raise BadField(path, f"is '{text}', but a time is between 00:00 and 23:59, an end at most 24:00")
    if start == end:
        raise BadField(path, f"is '{text}', which opens and closes at the same time; the whole day is 00:00-24:00")
    if not _ZONE.fullmatch(zone):
        raise BadField(path, f"is '{text}', but '{zone}' is not the name of a time zone such as UTC or Europe/Berlin")
    return Window(_days(days, text, path), start, end, zone, text)


def is_known(zone: str) -> bool:
    """Return whether this machine's database has a time zone."""
    try:
        return _zone(zone) is not None
    except (ValueError, OSError, KeyError):  # ZoneInfoNotFoundError is a KeyError.
        return False


def _days(text: str | None, whole: str, path: str) -> tuple[int, ...]:
    if text is None:
        return ALWAYS.days
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if first not in DAYS or (dash and last not in DAYS):
            raise BadField(path, f"is '{whole}', but '{part}' is neither one of {', '.join(DAYS)} nor a range of them")
        at = DAYS.index(first)
        found.add(at)
        while dash and DAYS[at] != last:
            at = (at + 1) % 7
            found.add(at)
    return tuple(sorted(found))


def timestamp(seconds: float) -> str:
    """Return an instant, in epoch seconds, as an ISO 8601 timestamp in UTC; the last one there is for a later one."""
    try:
        found = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError):
        found = datetime.max.replace(tzinfo=UTC)
    return found.isoformat(timespec="seconds")


def instant(text: str, path: str = "$.deadline") -> datetime:
    """Return the instant of an ISO 8601 timestamp with a zone or offset. Raises BadField."""
    text = fields.a_string(text, path)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise BadField(path, f"is '{text}', which is not a timestamp with a zone such as 2026-03-01T06:00:00+01:00")
    try:
        return found.astimezone(UTC)
    except OverflowError as problem:
        raise BadField(path, f"is '{text}', which is beyond the years that can be computed with") from problem


@dataclass(frozen=True, slots=True)
class RateByHour:
    """A throttle, in bytes/s, while its window is open."""

    window: Window
    rate: int

    def as_json(self) -> dict[str, Any]:
        """Return what `read_rates` reads."""
        return {"window": self.window.text, "rate": self.rate}


def read_rates(value: Any, path: str) -> tuple[RateByHour, ...]:
    """Read a calendar of rates: [{"window": "22:00-06:00 Europe/Berlin", "rate": "200MB"}]. Raises PlanProblems."""
    problems, found = Problems(), []
    for at, each in enumerate(fields.a_list(value, path)):
        row = problems.object(each, f"{path}[{at}]", ("window", "rate"), ("window", "rate"))
        window = problems.read(parse, row["window"], f"{path}[{at}].window") if "window" in row else None
        rate = problems.read(move_parameter.size, row["rate"], f"{path}[{at}].rate") if "rate" in row else None
        if window is not None and rate is not None:
            found.append(RateByHour(window, rate))
    problems.finish()
    return tuple(found)


def rate_at(calendar: Sequence[RateByHour], now: datetime, otherwise: int | None = None) -> int | None:
    """Return the rate of the first entry whose window is open, else `otherwise`."""
    return next((each.rate for each in calendar if each.window.is_open(now)), otherwise)


def next_change(calendar: Sequence[RateByHour], now: datetime) -> datetime | None:
    """Return when the rate may next change: the next edge of any entry."""
    edges = [edge for each in calendar if (edge := each.window.next_edge(now)) is not None]
    return min(edges, default=None)
