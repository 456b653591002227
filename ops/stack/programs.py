"""Common code of the modules that install a program (a Temporal server, Java, Kafka's jars)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ops.stack.errors import OpsError
from ops.stack.interrupts import interruptible

#: Seconds between two progress messages.
SIGN_SECONDS = 5.0

#: Receives a progress message.
Say = Callable[[str], None]


def provide(ensure: Callable[[Say], object]) -> int:
    """Run `ensure`, which installs a program, and print its result; return the exit code."""
    try:
        with interruptible():
            print(ensure(lambda line: print(f"  {line}", file=sys.stderr, flush=True)))
    except OpsError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


def last_word(output: str, code: int) -> str:
    """Return why a command failed: the last line of its output, else its exit code."""
    lines = output.strip().splitlines()
    return lines[-1] if lines else f"exit code {code}"


def run_with_progress(
    command: list[str],
    settings: dict[str, str],
    folder: Path,
    timeout: float,
    what: str,
    say: Say,
    reason: Callable[[str, int], str] = last_word,
) -> str:
    """Run a command in `folder` with progress messages; return "" on success, else the `reason` of its failure.

    `reason` reads its output and exit code; `settings` are added to its environment. After `timeout` seconds it is
    killed, with its children.
    """
    log = folder / "output.log"
    started = time.monotonic()
    say(what)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **settings},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            while True:
                try:
                    code = process.wait(timeout=SIGN_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    elapsed = int(time.monotonic() - started)
                    if elapsed > timeout:
                        return f"{what}: timed out after {elapsed} s"
                    say(f"{what} ({elapsed} s so far)")
        finally:
            if process.poll() is None:  # with its children: compilers, a server under test
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if code == 0:
        return ""
    return f"{what}: {reason(log.read_text(errors='replace'), code)}"
