"""Maintenance windows in local time: correct over daylight saving, against a count of every minute."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_node.model.fields import BadField
from workflows.model.plans.options import PlanOptions, read
from workflows.model.plans.window import (
    ALWAYS,
    DAYS,
    Window,
    instant,
    is_known,
    next_change,
    parse,
    rate_at,
    read_rates,
)

NIGHT = parse("Mon-Fri 22:00-06:00 Europe/Berlin")


def at(text: str, zone: str = "Europe/Berlin") -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone))


@pytest.mark.parametrize(
    ("now", "open_", "edge"),
    [
        ("2026-01-05T21:59", False, "2026-01-05T22:00"),  # a Monday
        ("2026-01-05T22:00", True, "2026-01-06T06:00"),
        ("2026-01-06T05:59", True, "2026-01-06T06:00"),
        ("2026-01-06T06:00", False, "2026-01-06T22:00"),
        ("2026-01-10T05:00", True, "2026-01-10T06:00"),  # Saturday morning belongs to Friday's window
        ("2026-01-10T22:00", False, "2026-01-12T22:00"),
        ("2026-01-05T05:00", False, "2026-01-05T22:00"),  # Sunday's would be open
    ],
)
def test_window_opens_on_its_days_and_closes_on_the_next_morning(now: str, open_: bool, edge: str) -> None:
    assert NIGHT.is_open(at(now)) is open_
    assert NIGHT.next_edge(at(now)) == at(edge)


def test_night_of_the_change_is_an_hour_shorter_or_longer() -> None:
    daily = parse("22:00-06:00 Europe/Berlin")
    for evening, hours in (("2026-03-28", 7), ("2026-10-24", 9), ("2026-06-01", 8)):
        begin = at(f"{evening}T12:00")
        assert daily.open_seconds(begin, begin + timedelta(days=1)) == hours * 3600


def test_skipped_time_is_the_moment_of_the_skip_and_a_repeated_one_the_first() -> None:
    spring, autumn = datetime(2026, 3, 29, 1, tzinfo=UTC), datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    assert parse("02:30-04:00 Europe/Berlin").next_edge(spring - timedelta(hours=1)) == spring
    assert parse("01:00-02:30 Europe/Berlin").next_edge(autumn - timedelta(minutes=10)) == autumn
    assert not parse("01:00-02:30 Europe/Berlin").is_open(autumn + timedelta(minutes=50)), "02:20, the second time"
    assert (
        parse("02:10-02:50 Europe/Berlin").open_seconds(spring - timedelta(hours=9), spring + timedelta(hours=9)) == 0
    )


_times = st.integers(0, 24 * 12).map(lambda five: five * 5)
_ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "UTC")


def brute_force(window: Window, begin: datetime, minutes: int) -> list[bool]:
    """Return for each minute whether the window is open, by the latest time that the local clock has shown."""
    found, zone = [], ZoneInfo(window.zone)
    latest = datetime.min
    for minute in range(-3 * 60, minutes):
        wall = (begin + timedelta(minutes=minute)).astimezone(zone).replace(tzinfo=None, fold=0)
        latest = max(latest, wall)
        clock, day = latest.hour * 60 + latest.minute, latest.weekday()
        if window.start < window.end:
            open_ = day in window.days and window.start <= clock < window.end
        else:
            evening = day in window.days and clock >= window.start
            open_ = evening or ((day - 1) % 7 in window.days and clock < window.end)
        if minute >= 0:
            found.append(open_)
    return found


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["2026-03-08", "2026-03-29", "2026-04-05", "2026-10-04", "2026-10-25", "2026-11-01", "2026-07-01"]),
    st.integers(-2_000, 500),
    _times.filter(lambda minute: minute < 1440),
    _times,
    st.sets(st.integers(0, 6), min_size=1),
    st.sampled_from(_ZONES),
)
def test_open_seconds_and_edges_are_those_of_counting_minutes(
    day: str, offset: int, start: int, end: int, days: set[int], zone: str
) -> None:
    if start == end:
        return
    window = Window(tuple(sorted(days)), start, end, zone)
    begin = datetime.fromisoformat(day).replace(tzinfo=UTC) + timedelta(minutes=offset)
    minutes = 2_000
    counted = brute_force(window, begin, minutes)
    assert window.open_seconds(begin, begin + timedelta(minutes=minutes)) == 60 * sum(counted)
    for minute in (0, 700, 1_999):
        assert window.is_open(begin + timedelta(minutes=minute)) is counted[minute]
    changes = [minute for minute in range(1, minutes) if counted[minute] != counted[minute - 1]]
    edge = window.next_edge(begin)
    if changes:
        assert edge == begin + timedelta(minutes=changes[0])
    elif edge is not None:
        assert edge >= begin + timedelta(minutes=minutes)


def test_window_that_is_always_open_has_no_edge() -> None:
    now = at("2026-01-05T21:59")
    for window in (ALWAYS, parse("00:00-24:00 Europe/Berlin"), parse("Mon-Sun 00:00-24:00 UTC"), parse("")):
        assert window.is_open(now) and window.next_edge(now) is None
        assert window.open_seconds(now, now + timedelta(days=3)) == 3 * 86_400


@given(st.integers(0, 20 * 86_400))
def test_work_ends_when_the_window_has_been_open_long_enough(seconds: int) -> None:
    now = at("2026-03-20T12:00")
    end = NIGHT.after(now, seconds)
    assert end is not None and NIGHT.open_seconds(now, end) == seconds
    assert NIGHT.after(now, 10**12) is None


def test_days_are_names_ranges_and_lists() -> None:
    for text, days in (("Sat-Mon", "Mon Sat Sun"), ("Mon,Wed-Fri", "Mon Wed Thu Fri"), ("Sun", "Sun")):
        assert [DAYS[day] for day in parse(f"{text} 01:00-02:00 UTC").days] == days.split()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nightly", "which is not a window"),
        ("22:00-06:00", "which is not a window"),
        ("22:00-06:00 ../etc/passwd", "is not the name of a time zone"),
        ("25:00-06:00 UTC", "between 00:00 and 23:59"),
        ("22:60-06:00 UTC", "between 00:00 and 23:59"),
        ("24:00-06:00 UTC", "between 00:00 and 23:59"),
        ("06:00-06:00 UTC", "the whole day is 00:00-24:00"),
        ("Mon-Fun 22:00-06:00 UTC", "'Mon-Fun' is neither"),
        ("mon 22:00-06:00 UTC", "'mon' is neither"),
    ],
)
def test_invalid_window_is_rejected_with_a_reason(text: str, words: str) -> None:
    with pytest.raises(BadField, match=r"options\.window") as caught:
        read({"window": text})
    assert words in str(caught.value)


def test_timestamps_need_a_zone() -> None:
    assert instant("2026-03-01T06:00:00+01:00") == datetime(2026, 3, 1, 5, tzinfo=UTC)
    assert read({"deadline": "2026-03-01T06:00Z"}).deadline == "2026-03-01T06:00Z"
    for wrong in ("2026-03-01T06:00:00", "tomorrow", "0001-01-01T00:00+14:00"):
        with pytest.raises(BadField, match="deadline"):
            read({"deadline": wrong})


def test_calendar_has_the_rate_of_the_first_open_window() -> None:
    rows = [{"window": "22:00-06:00 UTC", "rate": "200MB"}, {"window": "Sat,Sun 00:00-24:00 UTC", "rate": 5}]
    options = read({"calendar_between_brokers": rows})
    calendar = options.calendar_between_brokers
    assert read(options.as_json()) == options != PlanOptions()
    saturday = datetime(2026, 1, 10, 12, tzinfo=UTC)
    assert [rate_at(calendar, saturday + timedelta(hours=hour), 7) for hour in (0, 10, 48)] == [5, 200_000_000, 7]
    assert next_change(calendar, saturday) == saturday + timedelta(hours=10)
    assert rate_at((), saturday) is None and next_change((), saturday) is None
    with pytest.raises(BadField) as caught:
        read_rates([{"window": "x", "rate": 0}, 3, {"rate": 1}], "$.c")
    assert len(caught.value.problems) == 4  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("zone", "known"), [("UTC", True), ("Europe/Berlin", True), ("Mars/Olympus", False), ("Europe", False)]
)
def test_text_is_read_without_the_machines_time_zones(zone: str, known: bool) -> None:
    assert parse(f"22:00-06:00 {zone}").zone == zone
    assert is_known(zone) is known
