"""The table of differences is whole, and each of its rows is asserted by a test on both kinds of cluster."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conformance.differences import DIFFERENCES, PAGE, as_markdown, page, read

USED = re.compile(r"\.differs\(\s*\"([^\"]+)\"\s*\)")


def test_every_difference_is_asserted_and_every_one_asserted_is_in_the_table() -> None:
    sources = (path.read_text() for path in Path(__file__).parent.rglob("test_*.py"))
    used = {name for source in sources for name in USED.findall(source)}
    assert used == set(DIFFERENCES)


@pytest.mark.parametrize("rows", ["a\tb\tc\n", "a\tb\tc\td\na\tb\tc\td\n", "a\tb\t\td\n"])
def test_row_that_is_not_whole_is_refused(tmp_path: Path, rows: str) -> None:
    file = tmp_path / "differences.tsv"
    file.write_text(rows)
    with pytest.raises(ValueError, match=r"differences\.tsv:\d"):
        read(file)


def test_table_has_a_line_for_each_row() -> None:
    assert len(as_markdown(DIFFERENCES).splitlines()) == len(DIFFERENCES) + 2


def test_page_shows_the_table() -> None:
    found = PAGE.read_text()
    assert as_markdown(DIFFERENCES) in found
    assert found == page(DIFFERENCES), "write the page again: python -m tests.conformance.differences"
