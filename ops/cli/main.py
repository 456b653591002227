"""The `rehome` command: composes the groups of commands and turns every outcome into an exit code.

An error is one sentence on standard error, with --json one line of JSON; see `ops.stack.errors` for both and for the
exit codes.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any, NoReturn

import typer
from typer.exceptions import TyperException

from ops.cli import cluster, dirs, history, node, replicas, sql, stack, topic, torture
from ops.cli.analytics import analytics
from ops.cli.control import control
from ops.cli.dashboard import dashboard
from ops.cli.moves import move
from ops.cli.options import group
from ops.cli.plan import drain, plan, throttles
from ops.cli.reassign import reassign, reassignments
from ops.cli.show import show
from ops.cli.storage import storage
from ops.stack.errors import ExitCode, OpsError, as_json

app = group(
    "Move Kafka replicas between disks and nodes as durable Temporal workflows, and report on every move.",
    name="rehome",
    pretty_exceptions_enable=False,
)
app.add_typer(stack.app, name="stack")
app.add_typer(topic.app, name="topic")
app.add_typer(node.app, name="node")
app.add_typer(dirs.app, name="dirs")
app.add_typer(replicas.app, name="replicas")
app.add_typer(storage.app, name="storage")
app.add_typer(cluster.app, name="cluster")
app.add_typer(plan.app, name="plan")
app.add_typer(analytics.app, name="analytics")
move.register(app)
control.register(app)
drain.register(app)
throttles.register(app)
reassign.register(app)
reassignments.register(app)
show.register(app)
history.register(app)
dashboard.register(app)
sql.register(app)
torture.register(app)


@cache
def command() -> Any:
    """Return the command line as Click's value, made once: that takes a tenth of a second."""
    return typer.main.get_command(app)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code. Raises and prints a stack trace only if REHOME_DEBUG is set."""
    logging.basicConfig(level=logging.CRITICAL)
    say = _Speaker(arguments)
    try:
        outcome = command().main(list(arguments), prog_name="rehome", standalone_mode=False)
        if outcome == ExitCode.INTERRUPTED:  # typer has caught the KeyboardInterrupt; the terminal shows the ^C
            return say.in_json("interrupted", ExitCode.INTERRUPTED)
        return outcome if isinstance(outcome, int) else ExitCode.OK
    except OpsError as error:
        return say(str(error), error.exit_code, error.where)
    except TyperException as error:
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "rehome"
        message = error.format_message().rstrip(".").replace("Value error, ", "", 1)  # pydantic's
        return say(f"{message[:1].lower()}{message[1:]}; see: {path} --help", ExitCode.USAGE, path)
    except (typer.Abort, KeyboardInterrupt):
        return say("interrupted", ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # The reader has closed the pipe, as in `rehome moves | head`; that is not a failure.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    except Exception as error:
        if os.environ.get("REHOME_DEBUG"):
            raise
        return say(
            f"rehome failed unexpectedly ({type(error).__name__}: {error}); set REHOME_DEBUG=1 to see where",
            ExitCode.FAILED,
        )


class _Speaker:
    """Prints the command's error: as a sentence, or as JSON if the command line has --json."""

    def __init__(self, arguments: Sequence[str]) -> None:
        options = list(arguments)[: list(arguments).index("--")] if "--" in arguments else list(arguments)
        self._json = "--json" in options
        self._command = " ".join(["rehome", *_names(options)])

    def __call__(self, message: str, code: ExitCode, where: str = "") -> int:
        if not self._json:
            print(f"error: {message}" if code != ExitCode.INTERRUPTED else message, file=sys.stderr)
        return self.in_json(message, code, where)

    def in_json(self, message: str, code: ExitCode, where: str = "") -> int:
        """Print the error only if it is to be JSON."""
        if self._json:
            print(json.dumps(as_json(message, code, where or self._command)), file=sys.stderr)
        return code


def _names(arguments: Sequence[str]) -> list[str]:
    """Return the names of the groups and the command at the beginning of a command line."""
    found: list[str] = []
    at = command()
    for argument in arguments:
        at = getattr(at, "commands", {}).get(argument)
        if at is None:
            break
        found.append(argument)
    return found


def main() -> NoReturn:
    """Run the command and exit by `os._exit`: Temporal's SDK may crash a process that ends in the ordinary way."""
    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        pass
    os._exit(code)


if __name__ == "__main__":
    main()
