"""A report that is killed after a commit, beside a reader: it sees whole tables, and the next report finishes."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from ops.analytics import schema
from ops.analytics.gold.rules import Rules
from ops.analytics.lake.ingest import ingest_exports
from ops.analytics.lake.tables import Lake
from tests.ops.analytics.bronze import bronze, collect
from tests.ops.analytics.conftest import at
from tests.ops.analytics.ingested import chain, polled
from tests.ops.analytics.lake.test_ingest import rows
from tests.support.report.tables import ROOT
from tests.support.runs.histories import export, moved
from tests.support.runs.recorded import recorded_run
from tests.support.scale import FULL

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

#: The tables after whose commit the report is killed, one report after the other.
KILLED_AT = [table.path for table in schema.TABLES] if FULL else [schema.MOVES.path]


def commits(tables: Path, path: str) -> int:
    return len(list((tables / path / "_delta_log").glob("*.json")))


def killed_after(folder: Path, out: Path, path: str) -> bool:
    """Start a report, and kill its processes as soon as a table has one commit more; False: it ended without one."""
    before = commits(out / "tables", path)
    process = psutil.Popen(
        [sys.executable, "-m", "ops.analytics", str(folder), str(out)], cwd=ROOT, stdout=subprocess.DEVNULL
    )
    while process.poll() is None:
        if commits(out / "tables", path) > before:
            for one in (*process.children(recursive=True), process):
                one.kill()
            process.wait()
            return True
        time.sleep(0.002)
    assert process.returncode == 0
    return False


def test_killed_report_leaves_whole_tables_and_the_next_one_finishes(spark: Any, tmp_path: Path) -> None:
    folder, out = tmp_path / "export", tmp_path / "out"
    lake, (first, second) = Lake(spark, out / "tables"), chain()
    early = [moved("a", sla=30.0), first]
    export(folder, *early, at=100)
    ingest_exports(lake, folder, Rules())
    export(folder, *early, second, moved("b", topic="b"), recorded_run("reassign-happy"), at=200)
    with polled(lake) as seen:
        killed = [path for path in KILLED_AT if killed_after(folder, out, path)]
        assert killed_after(folder, out, "none") is False
    assert schema.MOVES.path in killed
    # Before and after: no reader has seen a part of a table.
    assert {path: len(counts) for path, counts in seen.items()} == dict.fromkeys(seen, 2)
    for table, whole in collect(*bronze(spark, folder), at(200)).frames.tables():
        assert rows(lake.read(table)) == rows(whole), table.path
