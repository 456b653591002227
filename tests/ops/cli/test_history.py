"""`rehome report` over an export folder: what is printed where."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from activities.history.manifest import FOLDER, Manifest, to_iso
from ops.cli import main as cli
from ops.cli import spark


@pytest.fixture
def old_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An export folder whose newest export is older than half of the retention, and a report without Spark."""
    taken = to_iso(datetime.now(UTC) - timedelta(days=2))
    manifest = Manifest(1, "e", "", "default", "", taken, taken, "rehome", retention_seconds=3 * 86_400)
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "000001.json").write_bytes(manifest.encode())
    made = spark.Report(tmp_path / "index.html", "the table", {"moves": 1})

    def build(*_: Any, **__: Any) -> spark.Report:
        return made

    monkeypatch.setattr(spark, "build_report", build)
    return tmp_path


def test_unknown_kind_is_refused_with_the_kinds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["report", "--export", str(tmp_path), "--kind", "foo"]) == 2
    expected = (
        "error: invalid value for '--kind': 'foo' is not one of 'disk', 'node', 'both'; see: rehome report --help\n"
    )
    assert capsys.readouterr().err == expected


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_late_exports_are_warned_of_on_standard_error(
    options: tuple[str, ...], old_export: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["report", "--export", str(old_export), *options]) == 0
    printed = capsys.readouterr()
    assert "warning: the newest export is 2.0 days old" in printed.err and "warning" not in printed.out
    if options:
        assert json.loads(printed.out)["summary"] == {"moves": 1}
