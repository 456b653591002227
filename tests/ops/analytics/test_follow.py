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

from ops.analytics.errors import AnalyticsError
from ops.analytics.follow import follow
from tests.support.report.tables import ROOT
from tests.support.runs.histories import export, moved


class Over(Exception):
    """The test has seen enough rounds."""


#: Seconds between two looks.
EVERY = 60.0


def test_each_new_export_has_a_report_and_a_failed_one_is_told_once_and_repeated(tmp_path: Path) -> None:
    told: list[Any] = []
    ends: list[Any] = []
    steps = iter(
        [
            # A new export, and how its report ends; () stands for none.
            (True, "first"), (False, ()), (True, AnalyticsError("no space")), (False, AnalyticsError("no space")),
            (False, OSError("gone")), (False, "second"), (False, ()),
        ]
    )  # fmt: skip

    def wait(seconds: float) -> None:
        assert seconds == EVERY and ends in ([], [()])
        step = next(steps, None)
        if step is None:
            raise Over
        if step[0]:
            export(tmp_path, moved(f"run-{len(told)}"), at=3600.0 + len(told))
        ends[:] = [step[1]]

    def report() -> Any:
        end = ends.pop()
        if isinstance(end, Exception):
            raise end
        assert end, "there is no new export"
        return end

    wait(EVERY)
    with pytest.raises(Over):
        follow(tmp_path, EVERY, report, told.append, wait)
    assert told == ["first", "no space", "gone", "second"]


@pytest.fixture
def following(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """`rehome report --follow 1` over exports that somebody else makes."""
    export(tmp_path / "exports", moved("a"), at=100)
    process = subprocess.Popen(
        [
            *(
                sys.executable,
                "-m",
                "ops.cli.main",
                "report",
                "--export",
                str(tmp_path / "exports"),
                "--follow",
                "1",
                "--json",
            )
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
