"""`python -m ops.demo [--data DIR] [--keep]`: what `make run` runs. KEEP=1 in the environment means --keep."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; 0 when everything held, 1 when not, 2 for bad usage, 130 when interrupted."""
    # Imported here: it takes most of a second, in which Ctrl-C is to be a word and no stack trace.
    import argparse
    import logging
    from pathlib import Path

    from ops.demo.run import Demo
    from ops.demo.screen import Screen
    from ops.stack.errors import OpsError

    parser = argparse.ArgumentParser(prog="python -m ops.demo", description="The main job, from beginning to end.")
    parser.add_argument("--data", type=Path, default=Path(".rehome/demo"), help="the demo's own folder (.rehome/demo)")
    keep = os.environ.get("KEEP", "") not in ("", "0")
    parser.add_argument("--keep", action="store_true", default=keep, help="leave the stack running (or KEEP=1)")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.CRITICAL)
    try:
        Demo(given.data.absolute(), Screen(), keep=given.keep).run()
    except OpsError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    return 0


def _leave(number: int, frame: FrameType | None) -> None:
    """Ctrl-C while nothing has been started yet, or everything has been stopped."""
    os.write(sys.stderr.fileno(), b"interrupted\n")
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, _leave)
    code = main()
    # Temporal's SDK may crash a process that ends in the ordinary way, after all its work is done.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
