"""rehome sql: how the job's end becomes the command's, and a reader that leaves early."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ops.cli import main as cli
from ops.cli import spark
from ops.stack.errors import ExitCode


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A report's folder, and in the job's place a program that tells two lines and exits with the code in the query."""
    (tmp_path / "tables").mkdir()
    program = tmp_path / "job"
    program.write_text('#!/bin/sh\necho noise >&2\necho "rehome: what failed: why" >&2\neval "exit \\${$#}"\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(spark, "settings", dict)
    return tmp_path


@pytest.mark.parametrize(("code", "exit_code", "word"), [(1, 1, "failed"), (2, 2, "usage"), (3, 1, "failed")])
def test_failure_of_the_job_is_an_error_of_the_command(
    job: Path, capfd: pytest.CaptureFixture[str], code: int, exit_code: int, word: str
) -> None:
    assert cli.run(["sql", "--report", str(job), str(code)]) == exit_code
    assert capfd.readouterr().err == "error: what failed: why\n"
    assert cli.run(["sql", "--json", "--report", str(job), str(code)]) == exit_code
    told = json.loads(capfd.readouterr().err)
    assert (told["code"], told["exit_code"], told["what"], told["why"]) == (word, exit_code, "what failed", "why")


def test_what_a_job_tells_beside_its_rows_is_passed_on(job: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["sql", "--report", str(job), "0"]) == 0
    assert capfd.readouterr().err == "noise\nrehome: what failed: why\n"


def test_tables_may_be_at_a_uri_without_a_report(job: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (job / "job").write_text('#!/bin/sh\necho "$@"\n')
    assert cli.run(["sql", "--tables", "hdfs://name/tables/", "select 1"]) == 0
    assert capfd.readouterr().out.endswith("-- hdfs://name/tables select 1\n")
    assert cli.run(["sql", "--tables", "hdfs://name/tables", "--report", str(job), "select 1"]) == ExitCode.USAGE
    assert "--tables and --report exclude each other" in capfd.readouterr().err


@pytest.mark.parametrize("form", ["json", "csv", "table"])
def test_reader_that_leaves_is_no_failure(form: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    program = f"from ops.analytics.sql import *; sys.exit(printed(Result(('a',), ((1,),) * 99, True), '{form}'))"
    try:
        done = subprocess.run([sys.executable, "-c", program], stdout=writer, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")
