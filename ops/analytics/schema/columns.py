"""What a table declares: its grain, its key, and the meaning of each column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import types as T

STRING, LONG, INT, DOUBLE, BOOL, TIME, DATE = (
    T.StringType(),
    T.LongType(),
    T.IntegerType(),
    T.DoubleType(),
    T.BooleanType(),
    T.TimestampType(),
    T.DateType(),
)

#: The layers, in the order in which data flows through them.
LAYERS = ("ops", "bronze", "silver", "gold")


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name, its type, and its meaning with its unit."""

    name: str
    kind: T.DataType
    meaning: str


@dataclass(frozen=True, slots=True)
class Table:
    """One stored table. `grain` completes "one row per"; `key` are the columns that no two rows share.

    `partition` are the columns by which its files are partitioned.
    """

    layer: str
    name: str
    grain: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    partition: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """Return the table's path below the folder of tables."""
        return f"{self.layer}/{self.name}"

    @property
    def struct(self) -> T.StructType:
        """Return the table's Spark schema; the meaning of each column is its comment."""
        return T.StructType(
            [T.StructField(one.name, one.kind, metadata={"comment": one.meaning}) for one in self.columns]
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the columns, in order."""
        return tuple(one.name for one in self.columns)


def columns(kind: T.DataType, /, **meanings: str) -> tuple[Column, ...]:
    """Return columns of one type, each with its meaning."""
    return tuple(Column(name, kind, meaning) for name, meaning in meanings.items())


def conform(table: DataFrame, to: Table | T.StructType) -> DataFrame:
    """Return exactly the columns of a declared schema, in its order and types: the contract of each transform."""
    struct = to.struct if isinstance(to, Table) else to
    # As texts: PySpark calls Java five times for each column that is built by its functions.
    return table.selectExpr(
        *[f"CAST(`{one.name}` AS {one.dataType.simpleString()}) AS `{one.name}`" for one in struct.fields]
    )


def same(found: T.StructType, declared: Table | T.StructType) -> bool:
    """Return whether a schema has the declared names and types, whatever may be null."""
    struct = declared.struct if isinstance(declared, Table) else declared
    return _shape(found.fields) == _shape(struct.fields)


def _shape(fields: Sequence[T.StructField]) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in fields]
