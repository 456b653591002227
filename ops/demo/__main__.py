"""`python -m ops.demo [--data DIR] [--keep]`, the program of `make run`. KEEP=1 in the environment means --keep."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return 0 if all proofs succeed, 1 if not, 2 for wrong usage, 130 after an interrupt."""
    # Imported here, as it takes most of a second, during which Ctrl-C must not print a stack trace.
    import argparse
    import logging
    from pathlib import Path

    from activities.kafka_admin.errors import AdminError
    from ops.demo.kafka_run import STEPS, KafkaDemo
    from ops.demo.run import Demo
    from ops.demo.screen import Screen
    from ops.stack.errors import ExitCode, OpsError

    parser = argparse.ArgumentParser(
        prog="python -m ops.demo", description="Run rehome's main job from beginning to end."
    )
    parser.add_argument("--data", type=Path, default=Path(".rehome/demo"), help="the demo's own folder (.rehome/demo)")
    keep = os.environ.get("KEEP", "") not in ("", "0")
    parser.add_argument("--keep", action="store_true", default=keep, help="leave the stack running (or KEEP=1)")
    kafka = os.environ.get("KAFKA", "") not in ("", "0")
    parser.add_argument("--kafka", action="store_true", default=kafka, help="on Apache Kafka's brokers (or KAFKA=1)")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.CRITICAL)
    try:
        if given.kafka:
            KafkaDemo(given.data.absolute(), Screen(steps=STEPS), keep=given.keep).run()
        else:
            Demo(given.data.absolute(), Screen(), keep=given.keep).run()
    except (OpsError, AdminError) as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, OpsError) else ExitCode.FAILED
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        print(f"error: the disk of {given.data} is full; free some space, or choose --data elsewhere", file=sys.stderr)
        return ExitCode.FAILED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    return 0


def _leave(number: int, frame: FrameType | None) -> None:
    """Handle Ctrl-C before the first process starts and after the last has stopped."""
    os.write(sys.stderr.fileno(), b"interrupted\n")
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, _leave)
    code = main()
    # Temporal's SDK may crash the interpreter during its regular shutdown.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
