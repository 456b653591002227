"""Runs the Spark job in a process of its own and prints its progress; Spark's log is written to a file."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import IO, Any, NoReturn

import psutil

from ops.stack import java
from ops.stack.errors import OpsError, ResponseTimeout

#: Seconds after which the command gives a job up, and between two lines of progress.
JOB_SECONDS = 900.0
PROGRESS_SECONDS = 5.0

#: The checkout that contains `ops.analytics`.
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Report:
    """Result of the job: its page, the table it printed, its summary (None unless requested)."""

    page: Path
    text: str
    summary: Any


def settings() -> dict[str, str]:
    """Return the environment variables of a process that runs Spark. Raises `NoJava`.

    Python does not import from the current folder in it, nor in Spark's workers, which inherit them.
    """
    home = java.find()
    if home is None:
        raise java.NoJava(
            f"Spark needs Java {java.MIN_JAVA} or later and none was found; `make setup` installs it, or set JAVA_HOME"
        )
    # An empty entry of PYTHONPATH stands for the current folder.
    paths = [str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    found = {"JAVA_HOME": str(home), "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}
    # Java reads and writes no path with other letters than ASCII's in this locale, in which Python does.
    return found | ({"LC_ALL": "C.UTF-8"} if os.environ.get("LC_ALL") in ("C", "POSIX") else {})


def build_report(
    export: Path, out: Path, *, say: Callable[[str], None], as_json: bool = False, options: Sequence[str] = ()
) -> Report:
    """Run `python -m ops.analytics EXPORT OUT` with options, which prints a table, or with `as_json` a summary.

    Raises `OpsError` with the last line of the job's log if the job fails.
    """
    command = [*_report_command(export, out, options), *(["--json"] if as_json else [])]
    return run_job(command, settings(), out, say=say, as_json=as_json)


def follow_report(
    export: Path,
    out: Path,
    every: float,
    *,
    told: Callable[[dict[str, Any]], None],
    export_again: Callable[[], None],
    options: Sequence[str] = (),
) -> NoReturn:
    """Run the job with `--follow`; `told` gets each line that it prints, and `export_again` is called every so many
    seconds. Raises `OpsError` once the job ends.
    """
    command = [*_report_command(export, out, options), "--follow", str(every)]
    log = out / "spark.log"
    with log.open("wb") as errors:
        process = _start(command, settings(), errors, subprocess.PIPE, None)
        lines: SimpleQueue[bytes] = SimpleQueue()
        Thread(target=_pass_lines, args=(process, lines), daemon=True).start()
        due = time.monotonic() + every
        try:
            while True:
                try:
                    line = lines.get(timeout=max(0.0, due - time.monotonic()))
                except Empty:
                    export_again()
                    due = time.monotonic() + every
                    continue
                if not line:
                    break
                if line.startswith(b"{"):
                    told(json.loads(line))
        finally:
            _end(process)
    why = reason(log.read_text(errors="replace"), "")
    raise OpsError(f"the Spark job ended (exit code {process.returncode}): {why}; its log is {log}")


def _pass_lines(process: subprocess.Popen[bytes], lines: SimpleQueue[bytes]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    process.wait()
    lines.put(b"")


def _report_command(export: Path, out: Path, options: Sequence[str]) -> list[str]:
    """Return the command of the job, for which the folder of the report exists now. Raises `OpsError`."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OpsError(f"cannot write the report to {out}: {error.strerror}; choose another folder") from error
    return [sys.executable, "-m", "ops.analytics", str(export), str(out), *options]


def run_job(
    command: Sequence[str],
    settings: dict[str, str],
    out: Path,
    *,
    say: Callable[[str], None],
    as_json: bool = False,
    folder: Path | None = None,
    seconds: float = JOB_SECONDS,
) -> Report:
    """Run a command that makes the report in `out`, from `folder`, with these environment variables beside the
    process's; it is ended after so many seconds.

    Raises `OpsError` with the job's own sentence, or the last line of its log, if the job fails.
    """
    log = out / "spark.log"
    text = _run(command, settings, log, say, folder, seconds)
    page = out / "report.html"
    if not page.is_file():
        raise OpsError(f"the Spark job ended without a report in {out}; see its log {log}")
    return Report(page, text, _summary(text, log) if as_json else None)


def _run(
    command: Sequence[str],
    settings: dict[str, str],
    log: Path,
    say: Callable[[str], None],
    folder: Path | None,
    seconds: float,
) -> str:
    started = time.monotonic()
    reported = started
    say("Spark is reading the histories")
    printed = log.with_name("report.txt")
    with log.open("wb") as errors, printed.open("wb") as text:
        process = _start(command, settings, errors, text, folder)
        try:
            while process.poll() is None:
                now = time.monotonic()
                if now - started > seconds:
                    raise ResponseTimeout(f"the Spark job has not ended after {seconds:.0f} s; see its log {log}")
                if now - reported >= PROGRESS_SECONDS:
                    reported = now
                    say(f"Spark is running ({now - started:.0f} s)")
                time.sleep(0.1)
        finally:
            _end(process)
    if process.returncode:
        raise OpsError(
            f"the Spark job failed (exit code {process.returncode}): "
            f"{reason(log.read_text(errors='replace'), printed.read_text(errors='replace'))}; "
            f"its log is {log}"
        )
    return printed.read_text(errors="replace")


def _start(
    command: Sequence[str], settings: dict[str, str], errors: IO[bytes], text: IO[bytes] | int, folder: Path | None
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=text,
        stderr=errors,
        env={**os.environ, **settings, "COLUMNS": str(_width())},
        start_new_session=True,
    )


def reason(log: str, printed: str) -> str:
    """Return why a job failed: its own sentence, else Spark's last error, else the last line that is not of a stack.

    spark-submit prints what its driver writes to standard error, and Spark's log follows it.
    """
    lines = f"{log}\n{printed}".splitlines()
    stamp = r"\d\d/\d\d/\d\d [\d:]+ "
    for pattern in (
        r"rehome: (.*)",
        stamp + r"ERROR [^:]+: (.*)",
        r"Exception in thread \"[^\"]*\" [\w.$]+: (.*)",
        r"((?:Exception in thread |[\w.]+(?:Error|Exception)\b).*)",
        rf"(?!{stamp})(\S.*)",
    ):
        found = [match[1] for line in lines if (match := re.match(pattern, line))]
        if found:
            return found[-1]
    return "no output"


def _width() -> int:
    """Return the terminal's width, or 240 without a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 240


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the job and its children: Java, and Python's workers, which have a process group of their own."""
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
        raise OpsError(f"the Spark job's summary is not valid JSON ({error}); see its log {log}") from error
