"""The layer `ops`: what was read and what could not be, and the records in which the data source delivers both."""

from __future__ import annotations

from pyspark.sql import types as T

from ops.analytics.schema.columns import DATE, LONG, STRING, TIME, Column, Table, columns

_SEQUENCE = Column("sequence", LONG, "the number of the export's manifest, the offset of the stream")

INGESTS = Table(
    "ops",
    "ingests",
    "file of an export that was ingested",
    ("sequence", "source_file"),
    (
        Column("source", STRING, "the export folder"),
        _SEQUENCE,
        *columns(
            STRING,
            export_id="the export that wrote the file",
            source_file="the file's or the manifest's name, relative to the export folder",
            kind="closed, open or pending: what the file holds; manifest: the export itself",
        ),
        *columns(TIME, taken_at="the time that the export represents"),
        *columns(DATE, ingest_date="the day of `taken_at`: the partition of bronze that has the file's events"),
        *columns(
            LONG,
            bytes="the file's size",
            expected="events that the manifest names (of a pending file: runs); `read` + `quarantined`",
            read="events that were read, duplicates included",
            quarantined="events that could not be read; the table quarantine says why",
        ),
    ),
)

QUARANTINE = Table(
    "ops",
    "quarantine",
    "file, manifest or part of a file that could not be read",
    ("sequence", "source_file", "offset"),
    (
        _SEQUENCE,
        *columns(STRING, source_file="the file's or the manifest's name, relative to the export folder"),
        *columns(LONG, offset="the byte at which the unreadable part begins; 0 for a whole file"),
        *columns(STRING, reason="missing, unreadable, truncated, altered, malformed, empty, foreign, pruned, manifest"),
        *columns(STRING, message="one sentence: what, where, why, what to do"),
        *columns(LONG, events="events of the manifest that are lost with it; 0 if unknown"),
        *columns(DATE, ingest_date="the day of the export; null for a manifest that cannot be read"),
    ),
)

TOUCHED_DAYS = Table(
    "ops",
    "touched_days",
    "day whose gold a batch computes again, written before silver: a batch that runs again has the same days",
    ("sequence", "day"),
    (
        Column("sequence", LONG, "the number of the batch's newest manifest"),
        *columns(DATE, day="the day"),
    ),
)

#: What the data source delivers: events (`kind` closed or open), and the JSON of what else a file is found to hold. One
#: of `kind` history has a run's last event as `event_id` and `event_time`, and its workflow's type as `event_type`.
RECORDS = T.StructType(
    [
        T.StructField("kind", STRING),
        T.StructField("sequence", LONG),
        T.StructField("export_id", STRING),
        T.StructField("taken_at", TIME),
        T.StructField("namespace", STRING),
        T.StructField("workflow_id", STRING),
        T.StructField("run_id", STRING),
        T.StructField("event_id", LONG),
        T.StructField("event_time", TIME),
        T.StructField("event_type", STRING),
        T.StructField("attributes", STRING),
        T.StructField("summary", STRING),
        T.StructField("snapshot", STRING),
        T.StructField("source_file", STRING),
    ]
)
