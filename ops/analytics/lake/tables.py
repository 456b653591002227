"""The tables in Delta Lake: reads, appends, replacements and merges, each one commit.

A batch of the stream has a number. Each commit carries it (Delta's txnAppId and txnVersion), so that a batch that runs
again after a crash skips the tables that it had written already, and writes the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from pathlib import Path

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from ops.analytics.schema import Table
from ops.analytics.schema.columns import Column as Declared
from ops.analytics.schema.columns import conform

#: The application in the tables' commits.
APP = "rehome"
_APP_ID, _VERSION = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"
#: The column by which a merge knows a row that is gone.
_GONE = "_gone"


class Lake:
    """The tables below one folder. `committed` is called with a table's path after each commit: tests end there."""

    def __init__(self, spark: SparkSession, root: str | Path, committed: Callable[[str], None] | None = None) -> None:
        self.spark, self.root = spark, str(root)
        self._committed = committed or (lambda path: None)
        self._known: dict[str, tuple[str, ...]] = {}
        """The columns of the tables that exist, by path, as they were found."""

    def path(self, table: Table) -> str:
        """Return the table's folder."""
        return f"{self.root}/{table.path}"

    def name(self, table: Table) -> str:
        """Return the table's name in a query: its folder, quoted."""
        return f"delta.`{self.path(table).replace('`', '``')}`"

    def exists(self, table: Table) -> bool:
        """Return whether the table was ever written."""
        if table.path not in self._known:
            try:
                self._known[table.path] = tuple(self.spark.read.format("delta").load(self.path(table)).columns)
            except AnalysisException:
                return False
        return True

    def read(self, table: Table) -> DataFrame:
        """Return the table as it is now; no rows if it was never written."""
        if not self.exists(table):
            return self.spark.createDataFrame([], table.struct)
        return conform(self.spark.read.format("delta").load(self.path(table)), table)

    def lacks(self, table: Table) -> list[Declared]:
        """Return the declared columns that the stored table lacks: those of a later version than its own."""
        return [one for one in table.columns if one.name not in self._known[table.path]] if self.exists(table) else []

    def widen(self, table: Table) -> bool:
        """Add the columns that the stored table lacks, with nulls; return whether it lacked any."""
        missing = self.lacks(table)
        if missing:
            added = [f"`{one.name}` {one.kind.simpleString()} COMMENT {_quoted(one.meaning)}" for one in missing]
            self.spark.sql(f"ALTER TABLE {self.name(table)} ADD COLUMNS ({', '.join(added)})")
            self._known[table.path] = table.names
        return bool(missing)

    def noted(self, table: Table, name: str) -> str:
        """Return a property of a table that `note` has set, "" without it."""
        rows = self.spark.sql(f"SHOW TBLPROPERTIES {self.name(table)}").collect()
        return next((str(row["value"]) for row in rows if row["key"] == name), "")

    def note(self, table: Table, name: str, value: str) -> None:
        """Set a property of a table, such as rehome.transforms."""
        self.spark.sql(f"ALTER TABLE {self.name(table)} SET TBLPROPERTIES ({_quoted(name)} = {_quoted(value)})")

    @contextmanager
    def batch(self, version: int, of: str = "") -> Iterator[None]:
        """Let the commits of the block carry the batch's number: a table that has it already is not written again.

        `of`: what has numbers of its own, beside the exports.
        """
        self.spark.conf.set(_APP_ID, f"{APP}/{of}" if of else APP)
        self.spark.conf.set(_VERSION, str(version))
        try:
            yield
        finally:
            self.spark.conf.unset(_APP_ID)
            self.spark.conf.unset(_VERSION)

    def append(self, table: Table, rows: DataFrame) -> None:
        """Add rows."""
        self._write(table, rows, "append")

    def overwrite(self, table: Table, rows: DataFrame, where: str = "") -> None:
        """Replace all rows, or those that a predicate selects."""
        self._write(table, rows, "overwrite", where if where and self.exists(table) else "")

    def merge(self, table: Table, rows: DataFrame, touched: DataFrame) -> None:
        """Replace the rows of the touched units with these: rows of the same key are updated, missing ones deleted.

        `touched` has the columns that identify a unit, such as a chain. `rows` should be persisted: it is read several
        times.
        """
        if not self.exists(table):
            if not rows.isEmpty():
                self._write(table, rows, "append")
            return
        key = list(table.key)
        unit = touched.columns
        old = self.read(table).select(*dict.fromkeys([*key, *unit])).join(F.broadcast(touched), unit, "left_semi")
        if old.isEmpty():
            # Most units are new. An append reads nothing of the table; an empty one would still be a commit.
            if not rows.isEmpty():
                self._write(table, rows, "append")
            return
        # Few units have rows already: what is gone is found among the rows of these.
        old = old.localCheckpoint()
        gone = old.select(key).join(rows.select(key), _null_safe(old, rows, key), "left_anti")
        source = conform(rows, table).withColumn(_GONE, F.lit(False))
        dead = gone.select(
            *[
                F.col(one.name) if one.name in key else F.lit(None).cast(one.kind).alias(one.name)
                for one in table.columns
            ],
            F.lit(True).alias(_GONE),
        )
        view = f"merge_{table.layer}_{table.name}"
        source.unionByName(dead).createOrReplaceTempView(view)
        on = " AND ".join(f"t.`{name}` <=> s.`{name}`" for name in key)
        names = ", ".join(f"`{name}`" for name in table.names)
        values = ", ".join(f"s.`{name}`" for name in table.names)
        changed = ", ".join(f"t.`{name}` = s.`{name}`" for name in table.names)
        self.spark.sql(
            f"MERGE INTO {self.name(table)} t USING {view} s ON {on} "
            f"WHEN MATCHED AND s.{_GONE} THEN DELETE WHEN MATCHED THEN UPDATE SET {changed} "
            f"WHEN NOT MATCHED AND NOT s.{_GONE} THEN INSERT ({names}) VALUES ({values})"
        )
        self.spark.catalog.dropTempView(view)
        self._committed(table.path)

    def _write(self, table: Table, rows: DataFrame, mode: str, where: str = "") -> None:
        given = conform(rows, table)
        if not self.exists(table):
            given = given.select([F.col(one.name).alias(one.name, metadata=_comment(one)) for one in table.columns])
        writer = given.write.format("delta").mode(mode)
        if where:
            writer = writer.option("replaceWhere", where)
        if table.partition:
            writer = writer.partitionBy(*table.partition)
        writer.save(self.path(table))
        self._committed(table.path)


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _comment(column: Declared) -> dict[str, str]:
    return {"comment": column.meaning}


def _null_safe(left: DataFrame, right: DataFrame, names: list[str]) -> Column:
    return reduce(Column.__and__, [left[name].eqNullSafe(right[name]) for name in names])
