"""Events, budgets and burn rates of SLOs: as gold computes them, and as plain arithmetic does."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from ops.analytics import schema
from ops.analytics.gold.burn_rate import Evidence, burn_rate, slo_minutes
from ops.analytics.gold.rules import Rules
from ops.analytics.gold.sla import judged
from ops.analytics.gold.slos import Event, Slo, Weight, read_slos
from ops.dashboards.site import budgets
from ops.dashboards.site.budgets import Happened, Objective
from tests.ops.analytics.conftest import at
from tests.support.runs.histories import T0

HOUR, DAY = 3600.0, 86_400.0
AS_OF = T0.replace(hour=0) + timedelta(days=6, hours=7, minutes=30, seconds=12)
SLOS = Rules((), (
    Slo("daily", Event.PLACED, 0.9, 3), Slo("bytes", Event.PLACED, 0.99, 30, Weight.BYTES),
    Slo("none", Event.SWAP, 0.5),
))  # fmt: skip
NAMES = {"budget_left": "left"}


def happened(draw: random.Random) -> list[Happened]:
    """Events of six days; in the last hours many, of which every third is bad."""
    found = []
    for name in ("daily", "bytes"):
        for number in range(160):
            ago = draw.uniform(0, 6 * DAY) if number < 60 else draw.expovariate(1 / HOUR)
            bad = draw.random() < (0.02 if number < 60 else 0.3)
            weight = float(draw.randint(0, 10**9)) if name == "bytes" else 1.0
            found.append(Happened(name, AS_OF.timestamp() - min(ago, 6.2 * DAY), not bad, weight))
    return found


def minutes_of(spark: Any, events: list[Happened]) -> Any:
    rows = [
        (
            datetime.fromtimestamp(event.at, UTC).date(), event.slo,
            datetime.fromtimestamp(event.at // 60 * 60, UTC), int(event.good), int(not event.good),
            event.weight * event.good, event.weight * (not event.good), event.weight**2, "x",
        )
        for event in events
    ]  # fmt: skip
    # Of one key several rows, as moves of several days have events in the same minute.
    return spark.createDataFrame(rows, schema.SLO_MINUTES.struct)


def plain(events: list[Happened], as_of: datetime) -> dict[tuple[date, str], dict[str, Any]]:
    objectives = [Objective(slo.name, slo.event, slo.objective, slo.window_days, slo.weight) for slo in SLOS.slos]
    return {
        (date(1970, 1, 1) + timedelta(days=row["day"]), row["slo"]): row
        for row in budgets.budgets(objectives, events, as_of.timestamp())
    }


def compare(rows: list[Any], expected: dict[tuple[date, str], dict[str, Any]]) -> None:
    assert {(row.day, row.slo) for row in rows} == set(expected)
    for row in rows:
        wanted = expected[row.day, row.slo]
        assert row.until == datetime.fromtimestamp(wanted["until"])
        for name in schema.BURN_RATE.names:
            if name not in ("day", "until", "definitions"):
                value = wanted[NAMES.get(name, name)]
                right = pytest.approx(value, abs=1e-9) if isinstance(value, float) else value
                assert row[name] == right, (row.day, row.slo, name)


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_budgets_and_burn_rates_are_what_plain_python_computes(spark: Any) -> None:
    events = happened(random.Random(5))
    minutes = minutes_of(spark, events).localCheckpoint()
    rows = burn_rate(minutes, SLOS, AS_OF).collect()
    expected = plain(events, AS_OF)
    compare(rows, expected)
    newest = {row.slo: row for row in rows if row.day == AS_OF.date()}
    assert newest["daily"].alarm is not None and newest["daily"].budget_left < 0
    # Below twenty events nothing is said.
    assert (newest["none"].good, newest["none"].share, newest["none"].budget_left) == (0, None, None)
    first = min(row.day for row in rows)
    few = [row for row in rows if row.day == first and row.slo != "none"]
    assert few and all(row.good + row.bad < 20 and row.budget_left is None for row in few)
    since = AS_OF.date() - timedelta(days=1)
    later = burn_rate(minutes, SLOS, AS_OF, since).collect()
    compare(later, {key: row for key, row in expected.items() if key[0] >= since})


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_events_of_moves_are_good_or_bad_by_their_kind(spark: Any) -> None:
    base: dict[str, Any] = {name: None for name in schema.MOVES.names} | {
        "namespace": "n", "kind": "disk", "outcome": "moved", "open": False, "started": at(0), "finished": at(100),
        "bytes_total": 7, "seconds_queued": 0.0, "seconds_locked": 0.0, "spent": {}, "bytes_copied": 7,
    }  # fmt: skip
    changes: dict[str, dict[str, Any]] = {
        "in time": {"asked_seconds": 100.0},
        "late": {"asked_seconds": 30.0},
        "late by its queue": {"asked_seconds": 30.0, "seconds_queued": 75.0},
        "open and late": {"asked_seconds": 200.0, "finished": None, "open": True, "outcome": "open"},
        "open": {"asked_seconds": 2000.0, "finished": None, "open": True, "outcome": "open"},
        "withdrawn": {"asked_seconds": 200.0, "outcome": "superseded"},
        "swapped": {"seconds_locked": 0.05},
        "swapped slowly": {"seconds_locked": 0.051},
        "limited": {"throttle": 100.0, "mean_rate": 100.9},
        "too fast": {"throttle": 100.0, "mean_rate": 101.1},
        "limited later": {"throttle": 50.0, "mean_rate": 99.0},
        "lifted later": {"throttle": 50.0, "mean_rate": 500.0},
        "stopped": {"spent": {"stopped": 1.0}},
        "paused": {},
        "failed": {"outcome": "failed", "reason": "TargetFull"},
        "invalid": {"outcome": "failed", "reason": "InvalidPlan"},
        "cancelled": {"outcome": "cancelled", "finished": at(60)},
        "cancelled slowly": {"outcome": "cancelled", "finished": at(500)},
        "cancelled too late": {"finished": at(5)},
    }
    # Minutes do not name moves: each has a day of its own.
    days = {T0.date() + timedelta(days=number): name for number, name in enumerate(changes)}
    rows = [
        base | {"id": name, "workflow_id": name, "chain": "c", "day": day} | changes[name] for day, name in days.items()
    ]
    moves = spark.createDataFrame(
        [tuple(row[name] for name in schema.MOVES.names) for row in rows], schema.MOVES.struct
    )

    def table(of: Any, found: list[dict[str, Any]]) -> Any:
        return spark.createDataFrame([tuple(row.get(name) for name in of.names) for row in found], of.struct)

    chain = {"namespace": "n", "chain": "c"}
    evidence = Evidence(
        table(schema.RUNS, [chain | {"workflow_id": name, "cancel_requested": at(10)} for name in changes if
                            name.startswith("cancelled")]),
        table(schema.MOVE_PHASES, [chain | {"id": "paused", "phase": "paused"}]),
        table(schema.THROTTLE_SPANS, [chain | {"workflow_id": name, "scope": "run", "rate": rate, "began": at(began),
                                               "ended": at(began + 50)}
                                      for name, rate, began in (("limited later", 100.0, 0), ("lifted later", 50.0, 0),
                                                                ("lifted later", None, 50))]),
        moves,
    )  # fmt: skip
    found: dict[str, set[tuple[str, bool, datetime]]] = {name: set() for name in changes}
    rules = Rules((), read_slos())
    for row in slo_minutes(judged(moves, Rules(), at(1000)), evidence, rules, at(1000)).collect():
        found[days[row.day]].add((row.slo, bool(row.good), row.minute))
        assert row.good + row.bad == 1 and row.squares == (row.good_weight + row.bad_weight) ** 2
        assert row.good_weight + row.bad_weight == (7 if row.slo.startswith("rate") else 1)
    minute = {seconds: at(seconds).replace(second=0, tzinfo=None) for seconds in (0, 5, 30, 60, 70, 100, 200, 500)}
    placed, swap, rate, person, cancel = [slo.name for slo in read_slos()]
    ended = (person, True, minute[100])
    assert found == {
        "in time": {(placed, True, minute[100]), ended},
        "late": {(placed, False, minute[30]), ended},
        "late by its queue": {(placed, True, minute[100]), ended},
        "open and late": {(placed, False, minute[200])},
        "open": set(),
        "withdrawn": set(),
        "swapped": {(swap, True, minute[100]), ended},
        "swapped slowly": {(swap, False, minute[100]), ended},
        "limited": {(rate, True, minute[100]), ended},
        "too fast": {(rate, False, minute[100]), ended},
        "limited later": {(rate, True, minute[100]), ended},
        "lifted later": {ended},
        "stopped": {(person, False, minute[100])},
        "paused": {(person, False, minute[100])},
        "failed": {(person, False, minute[100])},
        "invalid": set(),
        "cancelled": {(person, False, minute[60]), (cancel, True, minute[60])},
        "cancelled slowly": {(person, False, minute[500]), (cancel, False, minute[70])},
        "cancelled too late": {(person, True, minute[5])},
    }
