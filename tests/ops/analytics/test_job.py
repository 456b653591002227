"""The whole job: an export folder in, tables, page and summary out; and its errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from activities.history import read_manifests
from ops.analytics.__main__ import main
from ops.analytics.errors import AnalyticsError
from ops.analytics.job import run
from ops.analytics.lake.ingest import ingest
from ops.analytics.lake.tables import Lake
from ops.analytics.report import Only
from ops.analytics.session import SHUFFLE_PARTITIONS
from ops.dashboards.site.pack import unpack
from ops.dashboards.site.tables import long_id
from tests.ops.dashboards.site.test_pack import read
from tests.support.runs.histories import T0, export, moved
from tests.support.runs.sample_runs import lane, under_way

ROOT = Path(__file__).parents[3]
#: A folder's name with what a shell, a query, a URI, a properties file or a list takes for its own.
ODD = 'o\'ut "x" (v2), `dàta` 50%20 #1 ${HOME} \\'


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_job_ingests_new_exports_and_writes_page_and_summary(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = tmp_path / f"{ODD} export", tmp_path / ODD
    partitions = []

    def noted(lake: Lake, *arguments: Any) -> None:
        partitions.append(lake.spark.conf.get(SHUFFLE_PARTITIONS))
        ingest(lake, *arguments)

    monkeypatch.setattr("ops.analytics.lake.ingest.ingest", noted)
    first, second = moved("a", sla=30.0), lane()
    export(folder, first, under_way(), at=100)
    summary = run(folder, out)
    assert (summary.moves, summary.moved, summary.open, summary.sla_met) == (2, 1, 1, 1)
    assert summary.as_of == "2026-11-20T10:01:40.000000Z"
    assert summary.page == out / "report.html" and summary.page.stat().st_size > 500_000
    plain = json.loads((out / "report.json").read_text())
    assert [move["replica"] for move in plain["moves_table"]] == ["orders-0", "payments-4"]
    assert summary.quarantined == 0

    export(folder, first, second, under_way(), at=200)
    newest = read_manifests(folder)[-1]
    broken = folder / newest.files[0].name
    broken.write_bytes(broken.read_bytes()[:-1])
    usual = spark.conf.get(SHUFFLE_PARTITIONS)
    spark.conf.set(SHUFFLE_PARTITIONS, "2")  # the folder has grown: the stream must not keep its first number
    again = run(folder, out, temporal_ui="http://ui.example:8233")
    spark.conf.set(SHUFFLE_PARTITIONS, usual)
    assert partitions == [usual, "2"]
    assert (again.moves, again.moved, again.open, again.quarantined) == (2, 1, 1, 1)
    (bad,) = again.report.quarantine
    assert (bad.reason, bad.source_file) == ("truncated", newest.files[0].name)
    assert sorted(path.name for path in out.iterdir()) == [".lock", "report.html", "report.json", "site", "tables"]
    site = {path.stem: unpack(path.read_text()) for path in (out / "site" / "data").iterdir()}
    assert (out / "site" / "index.html").is_file()
    assert site["about"]["as_of"] == T0.timestamp() + 200 and site["about"]["moves_total"] == 2
    assert site["about"]["temporal_ui"] == "http://ui.example:8233"
    columns = {name: read(column) for name, column in site["moves"]["columns"].items()}
    assert set(columns["namespace"]) == {"default"}
    assert (columns["topic"], columns["partition"]) == (["orders", "payments"], [0, 4])
    assert columns["outcome"] == ["moved", "open"] and columns["sla"][0] == "yes"
    assert columns["took"] == [pytest.approx(move.duration_seconds, rel=1e-4) for move in again.report.moves]
    assert [
        long_id(*row)
        for row in zip(columns["run"], columns["topic"], columns["partition"], columns["node"], strict=True)
    ] == [move.workflow_id for move in again.report.moves]
    days = {name: read(column) for name, column in site["days"]["columns"].items()}
    assert [row for row in zip(days["scope"], days["moves"], days["met"], strict=True) if row[0] == "all"] == [
        ("all", 2, 1)
    ]
    ingests = {name: sum(read(site["ingests"]["columns"][name])) for name in ("expected", "read", "quarantined")}
    assert ingests["expected"] == ingests["read"] + ingests["quarantined"] > 0
    assert read(site["quarantine"]["columns"]["reason"]) == ["truncated"]
    assert all(read(site["transitions"]["columns"]["allowed"]))

    for path in (folder / "_manifest").glob("*.json"):  # all exports were pruned
        path.unlink()
    later = run(folder, out, as_of="2026-11-20T10:00:05Z", only=Only(kinds=("node",)))
    assert (later.moves, later.open, later.report.moves, later.report.matching) == (1, 1, (), 0)
    since = run(folder, out, only=Only(since=T0 + timedelta(seconds=60), open=True, kinds=("disk",)))
    assert ([move.replica for move in since.report.moves], since.report.matching) == (["payments-4"], 1)
    assert since.report.only == "open, of kind disk, under way since 2026-11-20 10:01:00 UTC" and since.moves == 2
    recent = run(folder, out, only=Only(since=T0 + timedelta(seconds=60)))
    assert [move.replica for move in recent.report.moves] == ["payments-4"]
    with pytest.raises(AnalyticsError, match="has the tables of the export folder"):
        export(tmp_path / "other", first, at=300)
        run(tmp_path / "other", out)


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_command_line_prints_only_the_table(tmp_path: Path) -> None:
    folder, out = tmp_path / f"{ODD} export", tmp_path / ODD
    export(folder, moved("a", sla=30.0), at=100)
    command = [sys.executable, "-m", "ops.analytics", str(folder), str(out)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=550, cwd=tmp_path, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "orders-0" in done.stdout and "1 of 1 deadline met." in done.stdout
    assert done.stdout.strip().endswith(f"page: {out / 'report.html'}")
    assert f"site: {out / 'site' / 'index.html'}" in done.stdout
    assert (out / "report.html").exists()


def test_missing_export_fails_with_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "nowhere"), str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.startswith(f"rehome: {tmp_path / 'nowhere'} contains no export: ")


def test_invalid_as_of_fails_with_one_sentence(tmp_path: Path) -> None:
    export(tmp_path, moved("a"))
    with pytest.raises(AnalyticsError, match="yesterday"):
        run(tmp_path, tmp_path / "out", as_of="yesterday")


def test_address_that_is_not_of_a_ui_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), str(tmp_path / "out"), "--temporal-ui", "javascript:alert(1)"]) == 2
    assert "--temporal-ui 'javascript:alert(1)' is not the URL of Temporal's UI" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("java", ["none", "broken", "old"])
def test_missing_java_names_what_to_install(tmp_path: Path, java: str) -> None:
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
