"""The page about the tables of the analytics is what their declarations print, and these are complete."""

from __future__ import annotations

from pathlib import Path

import pytest

from ops.analytics.schema import LAYERS, TABLES, Table
from ops.docs import tables

PAGE = Path(tables.__file__).with_name("tables.md")


def test_page_is_what_the_command_prints() -> None:
    assert PAGE.read_text() == tables.page(), "print it again: python -m ops.docs.tables > ops/docs/tables.md"


@pytest.mark.parametrize("table", TABLES, ids=lambda table: str(table.path))
def test_declaration_of_a_table_is_complete(table: Table) -> None:
    assert table.layer in LAYERS and table.grain and table.key
    assert set(table.key) | set(table.partition) <= set(table.names)
    assert len(set(table.names)) == len(table.names)
    assert all(column.meaning for column in table.columns)


def test_no_two_tables_have_the_same_path() -> None:
    assert len({table.path for table in TABLES}) == len(TABLES)
