"""All reading and writing of the analytics: exports in, tables out."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from activities.history.manifest import CLOSED, OPEN, PENDING, ExportCorrupt, Manifest, from_iso, read_manifests
from ops.analytics import schema, source
from ops.analytics.errors import NoExport

#: Bytes of histories per task that are worth a task of their own.
TASK_BYTES = 8 * 1024 * 1024


def load_export(directory: Path) -> tuple[Manifest, ...]:
    """The exports of a folder, every file checked against its manifest. Raises NoExport."""
    try:
        manifests = read_manifests(directory)
        for manifest in manifests:
            for file in manifest.files:
                _check(directory / file.name, file.bytes, file.sha256)
    except ExportCorrupt as error:
        raise NoExport(str(error)) from error
    except OSError as error:
        raise NoExport(f"cannot read the export in {directory} ({error.strerror or error})") from error
    if not manifests:
        raise NoExport(f"there is no export in {directory}: make one with `rehome export`, then try again")
    return manifests


def _check(path: Path, size: int, sha256: str) -> None:
    again = "restore it, or export again into an empty folder"
    if not path.is_file():
        raise ExportCorrupt(f"{path} is missing although a manifest names it: {again}")
    data = path.read_bytes()
    if len(data) != size or hashlib.sha256(data).hexdigest() != sha256:
        raise ExportCorrupt(
            f"{path} is not what was exported ({len(data)} bytes, {size} expected, or altered): {again}"
        )


def newest_time(manifests: Sequence[Manifest]) -> datetime:
    """The time up to which the exports know anything: the default of a report's `as_of`."""
    return max(from_iso(manifest.taken_at) for manifest in manifests)


def history_files(directory: Path, manifests: Sequence[Manifest]) -> list[dict[str, Any]]:
    """What the data source is to read: every file of histories, with what its manifest knows of it."""
    return [
        {
            "path": str((directory / file.name).resolve()),
            "name": file.name,
            "bytes": file.bytes,
            "export_id": manifest.export_id,
            "namespace": manifest.namespace,
            "runs": [[run.workflow_id, run.run_id] for run in file.runs],
        }
        for manifest in manifests
        for file in manifest.files
        if file.kind in (CLOSED, OPEN)
    ]


def read_histories(spark: SparkSession, files: Sequence[Mapping[str, Any]]) -> DataFrame:
    """Bronze `history_events` of those files."""
    if not files:
        return spark.createDataFrame([], schema.HISTORY_EVENTS)
    spark.dataSource.register(source.TemporalHistory)
    tasks = max(1, sum(int(file["bytes"]) for file in files) // TASK_BYTES)
    return spark.read.format(source.NAME).option("files", json.dumps(list(files))).option("tasks", str(tasks)).load()


def read_pending(spark: SparkSession, directory: Path, manifests: Sequence[Manifest]) -> DataFrame:
    """Bronze `pending_activities` of all exports. An open run without pending activities has one row, without id."""
    rows: list[tuple[Any, ...]] = [
        row
        for manifest in manifests
        for file in manifest.files
        if file.kind == PENDING
        for run in json.loads((directory / file.name).read_bytes())["runs"]
        for row in pending_rows(manifest.namespace, run)
    ]
    return spark.createDataFrame(rows, schema.PENDING_ACTIVITIES)


def pending_rows(namespace: str, run: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """The rows of one described run, in the order of the schema's columns."""
    head = (namespace, run["workflow_id"], run["run_id"], from_iso(run["taken_at"]), int(run["history_length"]))
    rows: list[tuple[Any, ...]] = [
        (
            *head,
            activity.get("activityId"),
            activity.get("activityType", {}).get("name"),
            activity.get("state", "").removeprefix("PENDING_ACTIVITY_STATE_").lower(),
            int(activity.get("attempt", 0)),
            _time(activity.get("lastHeartbeatTime")),
            _payload(activity.get("heartbeatDetails")),
            json.dumps(activity["lastFailure"]) if "lastFailure" in activity else None,
            _time(activity.get("nextAttemptScheduleTime")),
        )
        for activity in run.get("activities", [])
    ]
    return rows or [(*head, None, None, None, None, None, None, None, None)]


def _time(text: str | None) -> datetime | None:
    return from_iso(text) if text else None


def _payload(payloads: Mapping[str, Any] | None) -> str | None:
    """The first payload's text, None where it is not text."""
    import base64

    for payload in (payloads or {}).get("payloads", [])[:1]:
        try:
            return base64.b64decode(payload.get("data", "")).decode()
        except ValueError:
            return None
    return None


class Tables:
    """The folder `OUT/tables`: one Parquet table each, replaced as a set when all of them are there."""

    def __init__(self, spark: SparkSession, out: Path) -> None:
        self._spark, self._final, self._stage = spark, out / "tables", out / f".tables-{os.getpid()}"

    def __enter__(self) -> Tables:
        shutil.rmtree(self._stage, ignore_errors=True)
        self._stage.mkdir(parents=True)
        return self

    def __exit__(self, kind: object, value: object, traceback: object) -> None:
        if kind is None:
            shutil.rmtree(self._final, ignore_errors=True)
            self._stage.rename(self._final)
        shutil.rmtree(self._stage, ignore_errors=True)

    @property
    def path(self) -> Path:
        """Where the tables are once the block has ended without an error."""
        return self._final

    def put(self, name: str, table: DataFrame) -> DataFrame:
        """Write a table and return it as read back, so that nothing is computed twice."""
        path = str(self._stage / name)
        table.coalesce(1).write.mode("overwrite").parquet(path)
        return self._spark.read.schema(table.schema).parquet(path)
