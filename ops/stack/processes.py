"""Start, find, stop and kill operating system processes."""

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

#: The tolerance (seconds) when creation times are compared: the kernel reports them in ticks.
_CREATED_TOLERANCE = 0.05


class StartFailed(OpsError):
    """A process exited, or did not respond, before it was ready."""


def launch(spec: ProcessSpec) -> ProcessRecord:
    """Start a process in a session of its own: Ctrl-C reaches only `rehome`, which stops it in order."""
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
    # Popen must not wait for it: `_reap` or init collects its exit code.
    process.returncode = 0
    try:
        return ProcessRecord(process.pid, psutil.Process(process.pid).create_time())
    except psutil.NoSuchProcess as error:
        raise StartFailed(f"{spec.name} exited at once; {last_words(spec.log)}") from error


def alive(record: ProcessRecord | None) -> psutil.Process | None:
    """Return the recorded process if it is running; None if its pid belongs to another process now."""
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
    """Return the running processes with the command lines and environments of `specs`, however they were started.

    This includes processes started by hand, or by a command that was killed before it recorded the pid.
    """
    # The interpreter is not compared: the same one may have several paths.
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
    """Terminate a process, and kill it after `deadline` seconds; return whether it exited by itself."""
    return end([record], deadline=deadline)


def end(records: list[ProcessRecord], *, deadline: float) -> bool:
    """Send SIGTERM to all processes, and SIGKILL after `deadline` seconds; return whether all exited by themselves."""
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
    """Kill a process (SIGKILL) and wait until it has exited."""
    send(record, signal.SIGKILL)
    until = time.monotonic() + 10
    while alive(record) and time.monotonic() < until:
        time.sleep(0.01)


def send(record: ProcessRecord, number: signal.Signals) -> None:
    """Send a signal to the recorded process, if it is running."""
    process = alive(record)
    if process is not None:
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            pass
        except psutil.AccessDenied as error:
            raise OpsError(f"cannot send a signal to process {record.pid}: it belongs to another user") from error


#: The maximum number of log lines in an error message.
_LAST_LINES = 20


def last_words(log: Path) -> str:
    """Return a clause with the log's path and its last line, including the indented lines that continue it."""
    try:
        lines = log.read_text(errors="replace").strip().splitlines()
    except OSError:
        lines = []
    if not lines:
        return f"its log {log} is empty"
    begin = next((at for at in range(len(lines) - 1, -1, -1) if not lines[at].startswith((" ", "\t"))), len(lines) - 1)
    end = "\n".join(lines[max(begin, len(lines) - _LAST_LINES) :])
    return f"its log ends with: {end.strip()} (log: {log})"


def _reap(pid: int) -> None:
    """Collect the exit code of a child process, which would otherwise remain a zombie."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
