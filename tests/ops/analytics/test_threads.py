"""Parts that run side by side in one session: their results, and what a failure of one does to the others."""

from __future__ import annotations

from threading import Event
from typing import Any

import pytest

from ops.analytics.threads import AT_ONCE, side_by_side

pytestmark = pytest.mark.spark


def test_results_come_in_the_order_of_the_parts(spark: Any) -> None:
    first_waits = Event()

    def first() -> int:
        assert first_waits.wait(60)
        return int(spark.range(2).count())

    def second() -> int:
        first_waits.set()
        return int(spark.range(3).count())

    assert side_by_side(spark, first, second) == [2, 3]


def test_failure_ends_what_has_not_begun_and_waits_for_what_has(spark: Any) -> None:
    failed, ended, begun = Event(), Event(), list[int]()

    def slow() -> None:
        assert failed.wait(60)
        spark.range(2).count()
        ended.set()

    def fails() -> None:
        failed.set()
        raise ValueError("this part fails")

    later = [lambda: begun.append(1)] * 20
    with pytest.raises(ValueError, match="this part fails"):
        side_by_side(spark, slow, fails, *later)
    assert ended.is_set() and len(begun) < len(later) and AT_ONCE == 2
