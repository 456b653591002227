"""Any split of the histories into batches, in any order, some delivered again or late, gives what all at once give."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ops.analytics import schema
from ops.analytics.gold.burn_rate import Evidence, burn_rate, slo_minutes
from ops.analytics.gold.replicas import measured
from ops.analytics.gold.sla import judged, sla_daily
from ops.analytics.lake.decode import Record
from ops.analytics.lake.ingest import ingest, keep, newest_time
from ops.analytics.lake.pending import pending_activities
from ops.analytics.lake.tables import Lake
from ops.analytics.silver.build import silver
from tests.ops.analytics.bronze import events_of, frame, records
from tests.ops.analytics.conftest import at
from tests.ops.analytics.ingested import DAY, RULES, SPECS, carried_out_inside, chain, directed, plan_of
from tests.ops.analytics.lake.test_ingest import rows
from tests.support.runs.histories import RunBuilder, export
from tests.support.runs.recorded import recorded_run
from tests.support.runs.sample_runs import cancelled, failed, under_way
from tests.support.scale import scaled

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

BATCHES = 3


def ended() -> RunBuilder:
    return under_way("now").terminate(150.0)


def histories() -> list[Callable[[], RunBuilder]]:
    """Runs of every kind, one of them open and again when it has ended, another one open to the end."""
    made: list[Callable[[], RunBuilder]] = [failed, cancelled, lambda: under_way("now"), ended, carried_out_inside]
    made += [lambda: under_way("later", start=250.0), lambda: recorded_run("plan-lane-directory")]
    made += [lambda: plan_of(recorded_run("plan-lane-directory")), *[spec.run for spec in SPECS[:5]]]
    made += [lambda of=of: chain()[of] for of in (0, 1)]  # type: ignore[misc]
    return made + [lambda of=of: directed("whole")[of] for of in (0, 1)]  # type: ignore[misc]


def exported(folder: Path, number: int, taken_at: float, runs: list[RunBuilder]) -> list[Record]:
    """The records of an export of its own, with the number of its place in the order of delivery."""
    export(folder, *runs, at=taken_at)
    return [(record[0], number, *record[2:]) for record in records(folder)]


@pytest.mark.parametrize("seed", range(2, scaled(3, 10)))
def test_tables_do_not_depend_on_how_histories_arrive(spark: Any, tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    batches: list[list[RunBuilder]] = [[] for _ in range(BATCHES)]
    for run in histories():
        for number in draw.sample(range(BATCHES), draw.choice((1, 1, 2))):  # some are delivered twice
            batches[number].append(run())
    times = [4 * DAY + 100.0 * number for number in range(BATCHES)]
    draw.shuffle(times)  # an export may come after one that was taken later
    lake, every = Lake(spark, tmp_path / "tables"), list[Record]()
    for number, (runs, taken_at) in enumerate(zip(batches, times, strict=True), 1):
        found = exported(tmp_path / f"export-{number}", number, taken_at, draw.sample(runs, len(runs)))
        every += found
        ingest(lake, frame(spark, found), str(tmp_path), RULES)

    as_of = at(max(times))
    assert newest_time(lake) == as_of
    together = frame(spark, every).localCheckpoint()
    whole = silver(events_of(together), pending_activities(together), as_of, keep)
    for table, expected in whole.tables():
        assert rows(lake.read(table), ("sequence",)) == rows(expected, ("sequence",)), table.path
    verdicts = judged(measured(whole.moves), RULES, as_of)
    evidence = Evidence(whole.runs, whole.move_phases, whole.throttle_spans, whole.moves)
    minutes = keep("minutes", slo_minutes(verdicts, evidence, RULES, as_of))
    assert rows(lake.read(schema.SLA_DAILY)) == rows(sla_daily(verdicts, RULES))
    assert rows(lake.read(schema.SLO_MINUTES)) == rows(minutes) != []
    assert rows(lake.read(schema.BURN_RATE)) == rows(burn_rate(minutes, RULES, as_of)) != []
