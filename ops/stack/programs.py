"""What the modules that provide a program (a Temporal server, Java) have in common when they are run by themselves."""

from __future__ import annotations

import sys
from collections.abc import Callable

from ops.stack.errors import OpsError
from ops.stack.interrupts import interruptible

#: Gets a line whenever something long begins or goes on.
Say = Callable[[str], None]


def provide(ensure: Callable[[Say], object]) -> int:
    """Make sure that the program is there and print what `ensure` answers; the exit code."""
    try:
        with interruptible():
            print(ensure(lambda line: print(f"  {line}", file=sys.stderr, flush=True)))
    except OpsError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


def last_word(said: str, code: int) -> str:
    """Why a command failed: the last line of what it said, else its exit code."""
    lines = said.strip().splitlines()
    return lines[-1] if lines else f"exit code {code}"
