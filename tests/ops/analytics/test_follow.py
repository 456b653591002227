"""`--follow`: a report for each new export, whatever one of them fails for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from activities.history.files import locked
from ops.analytics import job
from ops.analytics.__main__ import main
from ops.analytics.errors import AnalyticsError
from ops.analytics.follow import follow
from ops.cli import main as cli
from tests.support.report.tables import ROOT
from tests.support.runs.histories import export, moved


class Over(Exception):
    """The test has seen enough rounds."""


#: Seconds between two looks.
EVERY = 60.0
#: By look: the newest export's number, and how its report ends; "" where there is none to be made.
LOOKS: list[tuple[int, Any]] = [
    (0, AnalyticsError("no export")), (3, "first"), (3, ""), (4, AnalyticsError("no space")),
    (4, AnalyticsError("no space")), (4, OSError("gone")), (4, "second"), (4, ""),
]  # fmt: skip


def test_each_new_export_has_a_report_and_a_failed_one_is_told_once_and_repeated() -> None:
    told: list[Any] = []
    looks = iter(LOOKS)
    end: Any = ""

    def newest() -> int:
        nonlocal end
        number, end = next(looks, (0, Over()))
        return number

    def report() -> Any:
        assert end, "there is no new export"
        if isinstance(end, Exception):
            raise end
        return end

    def wait(seconds: float) -> None:
        assert seconds == EVERY
        if told[-1:] == ["second"] and not end:
            raise Over

    with pytest.raises(Over):
        follow(newest, EVERY, report, told.append, wait)
    assert told == ["no export", "first", "no space", "gone", "second"]


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "abc"])
def test_wrong_seconds_are_refused(seconds: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["report", "--export", str(tmp_path), "--follow", seconds]) == 2
    assert "invalid value for '--follow'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([str(tmp_path), str(tmp_path / "out"), f"--follow={seconds}"])
    assert "--follow" in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_two_reports_are_not_made_in_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export(tmp_path / "exports", moved("a"))
    monkeypatch.setattr(job, "PATIENCE", 0.0)
    out = tmp_path / "out"
    out.mkdir()
    with locked(out), pytest.raises(AnalyticsError, match=f"another report is being made in {out}: wait"):
        job.run(tmp_path / "exports", out)


@pytest.fixture
def following(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """`rehome report --follow 1` over exports that somebody else makes."""
    export(tmp_path / "exports", moved("a"), at=100)
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "ops.cli.main", "report"),
            *("--export", str(tmp_path / "exports"), "--follow", "1", "--json"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    yield process
    process.kill()
    process.wait()


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_report_follows_the_exports_until_it_is_interrupted(following: subprocess.Popen[str], tmp_path: Path) -> None:
    assert following.stdout is not None and following.stderr is not None
    first = json.loads(following.stdout.readline())
    assert (first["moves"], first["moved"]) == (1, 1)
    family = psutil.Process(following.pid).children(recursive=True)
    assert len(family) >= 2, "the job and Java"
    export(tmp_path / "exports", moved("a"), moved("b", partition=1), at=200)
    second = json.loads(following.stdout.readline())
    assert second["moves"] == 2 and second["as_of"] > first["as_of"]
    assert "b" in Path(second["page"]).read_text() and Path(second["site"]).is_file()
    following.send_signal(signal.SIGINT)
    assert following.wait(30) == 130
    assert "Traceback" not in following.stderr.read()
    _, left = psutil.wait_procs(family, timeout=10)
    assert left == []
