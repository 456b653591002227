"""Arithmetic and wording, and that Spark counts the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops.analytics.numbers import attainment, burn, duration, fraction, percent, rate, size, wilson


@given(total=st.integers(1, 10_000), data=st.data())
def test_wilson_interval_holds_its_share_and_stays_within_bounds(total: int, data: st.DataObject) -> None:
    good = data.draw(st.integers(0, total))
    low, high = wilson(good, total)
    assert 0.0 <= low <= good / total + 1e-12 and good / total - 1e-12 <= high <= 1.0


def test_wilson_interval_of_known_cases() -> None:
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson(0, 0) == (0.0, 1.0)


@pytest.mark.spark
def test_spark_counts_the_same_interval(spark: Any) -> None:
    from pyspark.sql import functions as F

    from ops.analytics.gold import sla

    cases = [(0, 1), (1, 1), (8, 10), (72, 100), (999, 1000)]
    low, high = sla.wilson(F.col("good").cast("double"), F.col("total").cast("double"))
    rows = spark.createDataFrame(cases, ["good", "total"]).select("good", "total", low.alias("low"), high.alias("high"))
    for row in rows.collect():
        assert (row.low, row.high) == pytest.approx(wilson(row.good, row.total))


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (999_499, "999 kB"), (999_600, "1.00 MB"),
        (12_345_678, "12.3 MB"), (123_456_789, "123 MB"), (5_000_000_000, "5.00 GB"), (None, "–"),
    ],
)  # fmt: skip
def test_sizes(count: int | None, text: str) -> None:
    assert size(count) == text


def test_rates() -> None:
    assert (rate(19_800_000.0), rate(None)) == ("19.8 MB/s", "–")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"), (0.0, "0 s"), (0.0042, "4.2 ms"), (0.038, "38 ms"), (0.9996, "1.00 s"), (4.2, "4.20 s"),
        (12.34, "12.3 s"), (59.96, "1 min 00 s"), (187, "3 min 07 s"), (3599.6, "1 h 00 min"), (7500, "2 h 05 min"),
        (400_000, "4.6 days"),
    ],
)  # fmt: skip
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_few_deadlines_have_no_share() -> None:
    cases = {(0, 0): "–", (1, 1): "too few to say", (19, 19): "too few to say", (20, 20): "100 %", (19, 20): "95.0 %"}
    assert {case: attainment(*case) for case in cases} == cases


def test_share_below_one_is_never_shown_as_100_percent() -> None:
    assert (percent(1.0), percent(0.99999), percent(0.5), percent(None)) == ("100 %", "99.9 %", "50.0 %", "–")


def test_budgets_and_burn_rates() -> None:
    fractions = {1.0: "100.0 %", 1 - 1e-9: "99.9 %", 0.29: "29.0 %", 0.9995: "99.9 %", -0.31: "−31.0 %", 0.0: "0.0 %"}
    assert {value: fraction(value) for value in fractions} == fractions
    assert [burn(value) for value in (0.0, 1 - 1e-9, 14.4, 14.39)] == ["0.0 ×", "0.9 ×", "14.4 ×", "14.3 ×"]
    assert fraction(None) == burn(None) == "too few to say"
