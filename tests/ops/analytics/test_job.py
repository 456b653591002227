"""The whole job: an export folder in, tables, page and summary out; and what it says when it cannot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from activities.history import read_manifests
from ops.analytics import schema
from ops.analytics.__main__ import main
from ops.analytics.errors import AnalyticsError, NoExport
from ops.analytics.job import run
from tests.support.histories import export, moved
from tests.support.sample_runs import lane, under_way

ROOT = Path(__file__).parents[3]
TABLES = {
    "history_events": schema.HISTORY_EVENTS,
    "pending_activities": schema.PENDING_ACTIVITIES,
    "workflow_runs": schema.WORKFLOW_RUNS,
    "activity_executions": schema.ACTIVITY_EXECUTIONS,
    "move_facts": schema.MOVE_FACTS,
    "move_phases": schema.MOVE_PHASES,
    "move_report": schema.MOVE_REPORT,
    "sla_summary": schema.SLA_SUMMARY,
    "directory_failures": schema.DIRECTORY_FAILURES,
    "replica_failures": schema.REPLICA_FAILURES,
}


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_tables_page_and_summary_and_again_after_one_more_export(spark: Any, tmp_path: Path) -> None:
    folder, out = tmp_path / "export", tmp_path / "out"
    first, second = moved("a", sla=30.0), lane()
    export(folder, first, under_way(), at=100)
    summary = run(folder, out)
    assert (summary.moves, summary.moved, summary.open, summary.sla_met) == (2, 1, 1, 1)
    assert summary.as_of == "2026-11-20T10:01:40.000000Z"
    assert summary.page == out / "report.html" and summary.page.stat().st_size > 500_000
    for name, declared in TABLES.items():
        table = spark.read.parquet(str(summary.tables / name))
        assert [(f.name, f.dataType) for f in table.schema] == [(f.name, f.dataType) for f in declared], name
    assert spark.read.parquet(str(summary.tables / "history_events")).count() == summary.events
    plain = json.loads(json.dumps(summary.to_json()))
    assert [move["replica"] for move in plain["moves_table"]] == ["orders-0", "payments-4"]

    export(folder, first, second, under_way(), at=200)
    again = run(folder, out)
    assert (again.moves, again.moved, again.cancelled, again.open) == (5, 3, 1, 1)
    assert sorted(path.name for path in out.iterdir()) == ["report.html", "tables"]
    earlier = run(folder, out, as_of="2026-11-20T10:00:05Z")
    assert (earlier.moves, earlier.open) == (1, 1)


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_from_the_command_line_it_prints_a_table_and_nothing_else(tmp_path: Path) -> None:
    folder, out = tmp_path / "export", tmp_path / "out"
    export(folder, moved("a", sla=30.0), at=100)
    command = [sys.executable, "-m", "ops.analytics", str(folder), str(out)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "orders-0" in done.stdout and "1 of 1 deadline met." in done.stdout
    assert done.stdout.strip().endswith(f"page: {out / 'report.html'}")
    assert (out / "report.html").exists()


def test_no_export_is_said_in_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nowhere"), str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.startswith(f"rehome: there is no export in {tmp_path / 'nowhere'}: ")


@pytest.mark.parametrize("damage", ["cut", "altered", "missing"])
def test_a_file_that_is_not_what_its_manifest_says_is_refused(tmp_path: Path, damage: str) -> None:
    export(tmp_path, moved("a"))
    (manifest,) = read_manifests(tmp_path)
    path = tmp_path / manifest.files[0].name
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(data[:-1] if damage == "cut" else data[:100] + b"?" + data[101:])
    with pytest.raises(NoExport, match=path.name):
        run(tmp_path, tmp_path / "out")


def test_a_bad_as_of_is_said(tmp_path: Path) -> None:
    export(tmp_path, moved("a"))
    with pytest.raises(AnalyticsError, match="yesterday"):
        run(tmp_path, tmp_path / "out", as_of="yesterday")


@pytest.mark.parametrize("java", ["none", "broken", "old"])
def test_without_a_java_it_says_what_to_install(tmp_path: Path, java: str) -> None:
    """In a process of its own, since another test may have a Spark running here."""
    export(tmp_path / "export", moved("a"))
    programs = tmp_path / "bin"
    programs.mkdir()
    if java != "none":
        text = "exit 1" if java == "broken" else """echo 'openjdk version "1.8.0_402"' >&2"""
        (programs / "java").write_text(f"#!/bin/sh\n{text}\n")
        (programs / "java").chmod(0o755)
    environment = {key: value for key, value in os.environ.items() if key != "JAVA_HOME"}
    environment |= {"PATH": f"{programs}:/bin" if java != "none" else str(programs), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "ops.analytics", str(tmp_path / "export"), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 3
    assert done.stderr.startswith("rehome: the report needs Java 17 or later") and done.stderr.count("\n") == 1
    assert "apt-get install openjdk-17-jre-headless" in done.stderr
