"""The `rehome` command: puts the groups of commands together and turns every outcome into an exit code.

0: done; 1: failed, with one sentence on standard error; 2: wrong usage; 130: interrupted.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import typer
from typer.exceptions import TyperException

from ops.cli import (
    cluster,
    dirs,
    history,
    move,
    node,
    reassign,
    reassignments,
    replicas,
    stack,
    storage,
    topic,
    torture,
)
from ops.stack.errors import OpsError, UsageError

app = typer.Typer(
    name="rehome",
    help="Moves Kafka replicas between disks as durable workflows, and shows what became of every move.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.add_typer(stack.app, name="stack")
app.add_typer(topic.app, name="topic")
app.add_typer(node.app, name="node")
app.add_typer(dirs.app, name="dirs")
app.add_typer(replicas.app, name="replicas")
app.add_typer(storage.app, name="storage")
app.add_typer(cluster.app, name="cluster")
move.register(app)
reassign.register(app)
reassignments.register(app)
history.register(app)
torture.register(app)


def run(arguments: Sequence[str]) -> int:
    """Run one command line; its exit code. Never raises, never shows a stack trace unless REHOME_DEBUG is set."""
    logging.basicConfig(level=logging.CRITICAL)
    try:
        outcome = typer.main.get_command(app).main(list(arguments), prog_name="rehome", standalone_mode=False)
        return outcome if isinstance(outcome, int) else 0
    except OpsError as error:
        return _say(str(error), error.exit_code)
    except TyperException as error:
        if not error.format_message():  # the help was shown instead
            return 2
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "rehome"
        message = error.format_message().rstrip(".")
        return _say(f"{message[:1].lower()}{message[1:]}; see: {path} --help", UsageError.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        return _say("interrupted", 130)
    except BrokenPipeError:
        # The reader of our output has gone, as in `rehome moves | head`: nothing is wrong.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if os.environ.get("REHOME_DEBUG"):
            raise
        return _say(f"rehome failed unexpectedly ({type(error).__name__}: {error}); set REHOME_DEBUG=1 to see where", 1)


def _say(message: str, code: int) -> int:
    print(f"error: {message}" if code != 130 else message, file=sys.stderr)
    return code


def main() -> NoReturn:
    """The entry point. Leaves by `os._exit`: Temporal's SDK may crash a process that ends in the ordinary way."""
    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        pass
    os._exit(code)


if __name__ == "__main__":
    main()
