"""Starts the Spark job in a process of its own, which shows that it goes on; Spark's own log goes to a file."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from ops.stack import java
from ops.stack.errors import OpsError

#: Seconds after which a job is given up, and between two signs of life.
JOB_SECONDS = 900.0
SIGN_SECONDS = 5.0

#: The checkout, from where `ops.analytics` is imported.
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Report:
    """What the job made: its page, the table it printed, its summary (None unless it was asked for)."""

    page: Path
    text: str
    summary: Any


def build_report(export: Path, out: Path, *, say: Callable[[str], None], as_json: bool = False) -> Report:
    """Run `python -m ops.analytics EXPORT OUT`; its text is a table, or with `as_json` its summary.

    Raises `OpsError` with the job's last words when it fails.
    """
    home = java.find()
    if home is None:
        raise java.NoJava(
            f"Spark needs Java {java.MIN_JAVA} or later and none was found; `make setup` installs it, or set JAVA_HOME"
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OpsError(f"cannot write the report to {out}: {error.strerror}; choose another folder") from error
    command = [sys.executable, "-m", "ops.analytics", str(export), str(out), *(["--json"] if as_json else [])]
    log = out / "spark.log"
    text = _run(command, {"JAVA_HOME": str(home)}, log, say)
    page = out / "report.html"
    if not page.is_file():
        raise OpsError(f"the Spark job ended without a report in {out}; see its log {log}")
    return Report(page, text, _summary(text, log) if as_json else None)


def _run(command: list[str], settings: dict[str, str], log: Path, say: Callable[[str], None]) -> str:
    started = time.monotonic()
    said = started
    say("Spark is reading the histories")
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, **settings, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": str(_width())}
    printed = log.with_name("report.txt")
    with log.open("wb") as errors, printed.open("wb") as text:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=text, stderr=errors, env=environment, start_new_session=True
        )
        try:
            while process.poll() is None:
                now = time.monotonic()
                if now - started > JOB_SECONDS:
                    raise OpsError(f"the Spark job has not ended after {JOB_SECONDS:.0f} s; see its log {log}")
                if now - said >= SIGN_SECONDS:
                    said = now
                    say(f"Spark is at work ({now - started:.0f} s)")
                time.sleep(0.1)
        finally:
            _end(process)
    if process.returncode:
        lines = log.read_text(errors="replace").strip().splitlines()
        raise OpsError(
            f"the Spark job failed (exit code {process.returncode}): {lines[-1] if lines else 'it said nothing'}; "
            f"its log is {log}"
        )
    return printed.read_text(errors="replace")


def _width() -> int:
    """The terminal's width, or room for everything where there is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 240


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the job with all that it started: Java, and Python's workers, which are in a process group of their own."""
    if process.poll() is not None:
        return
    with contextlib.suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        _, left = psutil.wait_procs([psutil.Process(process.pid), *family], timeout=3)
        for one in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(left, timeout=3)
    process.wait()


def _summary(text: str, log: Path) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise OpsError(f"the Spark job's summary is not readable ({error}); see its log {log}") from error
