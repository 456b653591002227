"""When a run of the controller continues as new."""

from __future__ import annotations

import pytest

from workflows.model.controller.renewal import Limits, Renewal

LIMITS = Limits(events=(10, 30), bytes=(1_000, 4_000), changes=(100, 200))


@pytest.mark.parametrize(
    ("events", "grown", "changes", "due"),
    [
        (9, 999, 99, Renewal.NOT_YET),
        (10, 0, 0, Renewal.WHEN_QUIET),
        (0, 1_000, 0, Renewal.WHEN_QUIET),
        (0, 0, 100, Renewal.WHEN_QUIET),
        (30, 0, 0, Renewal.NOW),
        (0, 4_000, 0, Renewal.NOW),
        (10, 1_000, 200, Renewal.NOW),
        (59, 7_999, 399, Renewal.NOW),
        (60, 0, 0, Renewal.OVERDUE),
        (0, 8_000, 0, Renewal.OVERDUE),
    ],
)
def test_events_bytes_and_changes_each_count(events: int, grown: int, changes: int, due: Renewal) -> None:
    assert LIMITS.due(events, grown, changes) is due


def test_limits_are_carried_over_and_a_short_row_names_events_alone() -> None:
    assert Limits().with_row(LIMITS.row()) == LIMITS
    assert LIMITS.with_row([1, 2]) == Limits((1, 2), LIMITS.bytes, LIMITS.changes)
