"""From built runs to the tables of a report, by way of a real export folder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from activities.history.manifest import CLOSED, OPEN
from ops.analytics import job, schema
from ops.analytics.gold.rules import Rules
from ops.analytics.lake.decode import Record, read_file
from ops.analytics.lake.ingest import keep
from ops.analytics.lake.pending import pending_activities
from ops.analytics.lake.source import _ARROW, batch, files_of, newest
from ops.analytics.report import Move, Phase, Report
from ops.analytics.schema import conform
from ops.analytics.silver.build import Silver, silver


@dataclass(frozen=True)
class Collected:
    """A report and its tables."""

    report: Report
    frames: Silver

    def move(self, replica: str, node: int | None = None) -> Move:
        """The one move of that replica."""
        (found,) = [m for m in self.report.moves if m.replica == replica and node in (None, m.node)]
        return found

    def phases(self, replica: str) -> list[Phase]:
        """The phases of that replica's move, in order."""
        return [phase for phase in self.report.phases if phase.id == self.move(replica).id]

    def spent(self, replica: str) -> dict[str, float]:
        """Phase -> seconds."""
        spent: dict[str, float] = {}
        for phase in self.phases(replica):
            spent[phase.phase] = round(spent.get(phase.phase, 0.0) + phase.seconds, 6)
        return spent


def records(folder: Path, after: int = 0, through: int | None = None) -> list[Record]:
    """The records of an export folder, decoded here: Spark's Python workers take seconds to start."""
    last = newest(folder) if through is None else through
    return [record for file in files_of(folder, after, last) for record in read_file(file)]


def frame(spark: SparkSession, rows: Iterable[Record]) -> DataFrame:
    """Records as the data source delivers them."""
    import pyarrow as pa

    found = list(rows)
    return spark.createDataFrame(pa.Table.from_batches([batch(found)] if found else [], _ARROW))


def events_of(found: DataFrame) -> DataFrame:
    """The events among records, as bronze has them."""
    events = found.where(F.col("kind").isin(CLOSED, OPEN)).withColumn("ingest_date", F.to_date("taken_at"))
    return conform(events, schema.HISTORY_EVENTS)


def bronze(spark: SparkSession, folder: Path) -> tuple[DataFrame, DataFrame]:
    """Events and pending activities of an export folder."""
    found = frame(spark, records(folder)).localCheckpoint()
    return events_of(found), pending_activities(found)


def collect(events: DataFrame, pending: DataFrame, as_of: datetime) -> Collected:
    """The report as of a time."""
    made = silver(events, pending, as_of, keep)
    empty = events.sparkSession.createDataFrame([], schema.QUARANTINE.struct)
    return Collected(job.report_of(made, empty, Rules(), as_of), made)
