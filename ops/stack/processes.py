"""The thin shell over the operating system's processes: start, find again, stop, kill."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil

from ops.stack.errors import OpsError
from ops.stack.layout import ProcessSpec
from ops.stack.state import ProcessRecord

#: How far a process's creation time may be from the one noted (seconds): clocks are read in ticks.
_CREATED_TOLERANCE = 0.05


class StartFailed(OpsError):
    """A process ended, or did not answer, before it was ready."""


def launch(spec: ProcessSpec) -> ProcessRecord:
    """Start a process in a session of its own: Ctrl-C in the terminal reaches only the one who stops it in order."""
    spec.log.parent.mkdir(parents=True, exist_ok=True)
    with spec.log.open("ab") as log:
        try:
            process = subprocess.Popen(
                spec.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **spec.environment, "PYTHONUNBUFFERED": "1"},
                cwd=spec.log.parent,
                start_new_session=True,
            )
        except OSError as error:
            raise StartFailed(f"cannot start {spec.name} ({spec.command[0]}): {error.strerror}") from error
    # Not waited for here: whoever stops it reaps it, or init does.
    process.returncode = 0
    try:
        return ProcessRecord(process.pid, psutil.Process(process.pid).create_time())
    except psutil.NoSuchProcess as error:
        raise StartFailed(f"{spec.name} ended at once; {last_words(spec.log)}") from error


def alive(record: ProcessRecord | None) -> psutil.Process | None:
    """The very process that was noted, if it still runs: a pid that was given to another since does not count."""
    if record is None:
        return None
    _reap(record.pid)
    try:
        process = psutil.Process(record.pid)
        if abs(process.create_time() - record.created) > _CREATED_TOLERANCE:
            return None
        # The first thread of a killed process may be a zombie while others still hold its files and ports.
        return None if process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1 else process
    except psutil.Error:
        return None


def find(specs: tuple[ProcessSpec, ...]) -> dict[str, ProcessRecord]:
    """Processes that run with the command lines and environments of `specs`, however they were started.

    A process that was started by hand, or by someone who was killed before the pid was noted, belongs to the stack too.
    """
    # One interpreter has several names, so that the program itself is not compared.
    wanted = {spec.command[1:]: spec for spec in specs}
    found: dict[str, ProcessRecord] = {}
    for process in psutil.process_iter(["cmdline"]):
        spec = wanted.get(tuple((process.info["cmdline"] or ())[1:]))
        if spec is None or spec.name in found:
            continue
        try:
            environment = process.environ()
            if process.status() != psutil.STATUS_ZOMBIE and spec.environment.items() <= environment.items():
                found[spec.name] = ProcessRecord(process.pid, process.create_time())
        except psutil.Error:
            continue
    return found


def terminate(record: ProcessRecord, *, deadline: float) -> bool:
    """Ask a process to end, and kill it after `deadline` seconds; whether it ended by itself (or was dead already)."""
    return end([record], deadline=deadline)


def end(records: list[ProcessRecord], *, deadline: float) -> bool:
    """Ask several processes to end at once; those that still run after `deadline` seconds are killed (then False)."""
    for record in records:
        send(record, signal.SIGTERM)
    until = time.monotonic() + deadline
    while any(alive(record) for record in records):
        if time.monotonic() > until:
            for record in records:
                kill(record)
            return False
        time.sleep(0.02)
    return True


def kill(record: ProcessRecord) -> None:
    """Kill a process (SIGKILL) and wait until it is gone."""
    send(record, signal.SIGKILL)
    until = time.monotonic() + 10
    while alive(record) and time.monotonic() < until:
        time.sleep(0.01)


def send(record: ProcessRecord, number: signal.Signals) -> None:
    """Send a signal to the very process that was noted, or to nobody."""
    process = alive(record)
    if process is not None:
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            pass
        except psutil.AccessDenied as error:
            raise OpsError(f"may not end process {record.pid}: it belongs to another user") from error


#: Lines of a process's last words that are shown, at most.
_LAST_LINES = 20


def last_words(log: Path) -> str:
    """Where to look, and the last line that the process wrote, with the indented ones that belong to it."""
    try:
        lines = log.read_text(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    if not lines:
        return f"its log {log} is empty"
    begin = next((at for at in range(len(lines) - 1, -1, -1) if not lines[at].startswith(" ")), len(lines) - 1)
    said = "\n".join(lines[max(begin, len(lines) - _LAST_LINES) :])
    return f"it last said: {said.strip()} (log: {log})"


def _reap(pid: int) -> None:
    """Collect the exit code if it is our own child; else it would stay a zombie for as long as we run."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
