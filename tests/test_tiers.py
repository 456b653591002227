"""What the gate leaves out is what the table names, and each row of the table takes effect."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.report.tiers import Row, Tiers, read_tiers, tier_of, unused

pytest_plugins = ["pytester"]

ROWS = (
    Row("gate", "tests/a/test_x.py::test_stays*", "quick"),
    Row("heavy", "tests/a/*", "kills"),
    Row("timing", "tests/b/test_y.py::test_each[a b]", "seconds"),
)


@pytest.mark.parametrize(
    ("nodeid", "tier"),
    [
        ("tests/a/test_x.py::test_stays[1]", "gate"),
        ("tests/a/test_x.py::test_goes[1]", "heavy"),
        ("tests/b/test_y.py::test_each[a b]", "timing"),
        ("tests/b/test_y.py::test_each[a]", "gate"),
        ("tests/c/test_z.py::test_without_a_row", "gate"),
    ],
)
def test_the_first_row_that_fits_gives_the_tier(nodeid: str, tier: str) -> None:
    assert tier_of(nodeid, ROWS) == tier


def test_a_row_that_fits_no_test_is_found() -> None:
    assert unused(ROWS, ["tests/a/test_x.py::test_stays[1]"]) == ["tests/b/test_y.py::test_each[a b]"]


@pytest.mark.parametrize("row", ["slow\ttests/a/*\twhy", "heavy\ttests/a/*\t"])
def test_a_row_without_a_known_tier_or_a_reason_is_refused(tmp_path: Path, row: str) -> None:
    table = tmp_path / "tiers.tsv"
    table.write_text(f"tier\tpattern\twhy\n{row}\n")
    with pytest.raises(ValueError, match=r"tiers\.tsv"):
        read_tiers(table)


def test_the_gate_deselects_what_the_rows_take_out(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\naddopts = -m 'not heavy'\nmarkers =\n heavy")
    pytester.makepyfile(test_x="def test_stays(): ...\ndef test_goes(): ...\n")
    result = pytester.inline_run(plugins=[Tiers((Row("heavy", "test_x.py::test_goes", "kills"),))])
    passed, _, _ = result.listoutcomes()
    assert [report.nodeid for report in passed] == ["test_x.py::test_stays"]
