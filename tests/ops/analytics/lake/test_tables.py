"""Tables of an earlier version: they get the columns that they lack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ops.analytics import schema, sql
from ops.analytics.errors import NoTables
from ops.analytics.lake.tables import Lake

pytestmark = pytest.mark.spark


def test_table_of_an_earlier_version_gets_the_columns_that_it_lacks(spark: Any, tmp_path: Path) -> None:
    lake = Lake(spark, tmp_path)
    assert not lake.widen(schema.MOVES), "a table that was never written lacks nothing"
    older = [field for field in schema.MOVES.struct.fields if field.name != "carries_out"]
    row = tuple("a" if field.name == "id" else None for field in older)
    spark.createDataFrame([row], type(schema.MOVES.struct)(older)).write.format("delta").save(lake.path(schema.MOVES))
    with pytest.raises(NoTables, match=r"moves .* of an earlier version, without carries_out: `rehome report` brings"):
        sql.query(spark, tmp_path, "SELECT id FROM moves")
    assert lake.widen(schema.MOVES) and not lake.widen(schema.MOVES)
    assert [(found.id, found.carries_out) for found in lake.read(schema.MOVES).collect()] == [("a", None)]
    comments = {field.name: field.metadata for field in spark.read.format("delta").load(lake.path(schema.MOVES)).schema}
    (column,) = [one for one in schema.MOVES.columns if one.name == "carries_out"]
    assert comments["carries_out"]["comment"] == column.meaning
