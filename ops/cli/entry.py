"""The entry point of the `rehome` command: Ctrl-C during its imports ends it without a stack trace."""

from __future__ import annotations

import json
import os
import signal
import sys
from types import FrameType
from typing import NoReturn

from ops.stack.errors import ExitCode, as_json
from storage_node.lifecycle import interpreter


def _said(message: str, code: ExitCode, plain: str) -> bytes:
    """Return what is printed before the command itself is imported: a sentence, or with --json an error's JSON."""
    return f"{json.dumps(as_json(message, code, 'rehome')) if '--json' in sys.argv else plain}\n".encode()


def _interrupted(number: int, frame: FrameType | None) -> NoReturn:
    """End the process: no command has begun, and an exception would be raised in the middle of an import."""
    os.write(2, _said("interrupted", ExitCode.INTERRUPTED, "interrupted"))
    os._exit(ExitCode.INTERRUPTED)


def main() -> None:
    """Load the command and run it; see `ops.cli.main`."""
    # A shell starts background processes with SIGINT ignored; the command does not change that.
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if interruptible:
        signal.signal(signal.SIGINT, _interrupted)
    if refused := interpreter.refusal():
        os.write(2, _said(refused, ExitCode.FAILED, f"rehome: {refused}"))
        sys.exit(ExitCode.FAILED)
    from ops.cli.main import main as run

    if interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
