"""What the gate leaves out is what the table names, and each row of the table takes effect."""

from __future__ import annotations

from tests.support.report.tiers import Row, unused

ROWS = (
    Row("gate", "tests/a/test_x.py::test_stays*", "quick"),
    Row("heavy", "tests/a/*", "kills"),
    Row("timing", "tests/b/test_y.py::test_each[a b]", "seconds"),
)


def test_a_row_that_fits_no_test_is_found() -> None:
    assert unused(ROWS, ["tests/a/test_x.py::test_stays[1]"]) == ["tests/b/test_y.py::test_each[a b]"]
