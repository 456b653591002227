"""The bytes of an hour, also when only some days are computed again."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from ops.analytics.lake.grade import phases_near

pytestmark = pytest.mark.spark


def test_move_that_copies_over_midnight_has_all_its_phases(spark: Any) -> None:
    """Of half its copying, a day would get too large a share of its bytes."""

    def at(day: int, hour: int) -> datetime:
        return datetime(2026, 11, day, hour)

    rows = [
        ("over midnight", "copying", at(20, 20), at(20, 23)),
        ("over midnight", "throttled", at(20, 23), at(21, 4)),
        ("the day before", "copying", at(20, 1), at(20, 2)),
        ("days later", "copying", at(25, 1), at(25, 2)),
    ]
    phases = spark.createDataFrame(rows, "id string, phase string, began timestamp, ended timestamp")
    found = phases_near(phases, "2026-11-21", "2026-11-21").collect()
    assert {(row.id, row.phase) for row in found} == {("over midnight", "copying"), ("over midnight", "throttled")}
