"""From built runs to the tables of a report, by way of a real export folder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from ops.analytics import io, job, schema
from ops.analytics.report import Move, Phase, Report, build
from ops.analytics.source import read_events


@dataclass(frozen=True)
class Told:
    """A report and the frames that it came from."""

    report: Report
    frames: job.Frames

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


def frame(spark: SparkSession, rows: Iterable[tuple[Any, ...]]) -> DataFrame:
    """Rows of the data source as bronze, without starting Spark's Python workers."""
    import pyarrow as pa

    from ops.analytics.source import _ARROW, _batch

    batches = [_batch(list(rows))] if rows else []
    return spark.createDataFrame(pa.Table.from_batches(batches, _ARROW)).to(schema.HISTORY_EVENTS)


def bronze(spark: SparkSession, folder: Path) -> tuple[DataFrame, DataFrame]:
    """Events and pending activities of an export folder."""
    manifests = io.load_export(folder)
    rows = [row for file in io.history_files(folder, manifests) for row in read_events(file)]
    return frame(spark, rows), io.read_pending(spark, folder, manifests)


def tell(events: DataFrame, pending: DataFrame, as_of: datetime) -> Told:
    """The report as of a time."""
    frames = job.transform(events, pending, as_of, lambda name, table: table.localCheckpoint())
    return Told(build(frames.move_report, frames.move_phases, frames.sla_summary, frames.workflow_runs, as_of), frames)
