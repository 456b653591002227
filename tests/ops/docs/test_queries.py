"""The page of example queries is what the command prints."""

from __future__ import annotations

from pathlib import Path

from ops.docs import queries

PAGE = Path(queries.__file__).with_name("queries.md")


def test_page_is_what_the_command_prints() -> None:
    assert PAGE.read_text() == queries.page(), "print it again: python -m ops.docs.queries > ops/docs/queries.md"


def test_page_has_ten_queries() -> None:
    assert len(queries.QUERIES) == 10 and queries.page().count("```sql") == 10
