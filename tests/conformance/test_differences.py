"""The table of differences is whole, and each of its rows is asserted by a test on both kinds of cluster."""

from __future__ import annotations

import re
from pathlib import Path

from tests.conformance.differences import DIFFERENCES, PAGE, as_markdown, page

USED = re.compile(r"\.differs\(\s*\"([^\"]+)\"\s*\)")


def test_every_difference_is_asserted_and_every_one_asserted_is_in_the_table() -> None:
    sources = (path.read_text() for path in Path(__file__).parent.rglob("test_*.py"))
    used = {name for source in sources for name in USED.findall(source)}
    assert used == set(DIFFERENCES)


def test_page_shows_the_table() -> None:
    found = PAGE.read_text()
    assert as_markdown(DIFFERENCES) in found
    assert found == page(DIFFERENCES), "write the page again: python -m tests.conformance.differences"
