"""What many commands share: their options, and how groups of commands show their help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ops.dashboards import links
from ops.stack.errors import ExitCode, UsageError

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="The data folder of a stack (default: REHOME_DATA, then ./.rehome).",
        file_okay=False,
        show_default=False,
    ),
]
Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-server", help="Kafka bootstrap servers (default: REHOME_BOOTSTRAP_SERVER, then the stack's)."
    ),
]
TemporalAddress = Annotated[
    str | None,
    typer.Option("--temporal-address", help="Temporal's host:port (default: TEMPORAL_ADDRESS, then the stack's)."),
]
Cluster = Annotated[
    str | None, typer.Option("--cluster", help="The cluster's name (default: REHOME_CLUSTER, then the stack's).")
]

#: A run rejects an SLA of so many seconds or more.
MAX_SLA = 10**9


def check_sla(seconds: float | None) -> None:
    """Raise `UsageError` for an SLA that a run would reject; None is no SLA."""
    if seconds is not None and not 0 < seconds < MAX_SLA:
        raise UsageError(
            f"--sla must be a positive number of seconds below {MAX_SLA:,}, for example 600, not {seconds:g}"
        )


class _Group(TyperGroup):
    """A group whose help shows each command's first sentence whole, over several lines if need be."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help())
            raise typer.Exit(ExitCode.USAGE)
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        found = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [(name, one.get_short_help_str(_WHOLE)) for name, one in found if one is not None and not one.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


#: More characters than the first sentence of any help text has.
_WHOLE = 1000


def group(help: str, **settings: Any) -> typer.Typer:
    """Return a group of commands. Its help is plain: a table cuts the names of options in a narrow terminal."""
    return typer.Typer(help=help, cls=_Group, rich_markup_mode=None, **settings)


def ui_address(given: str) -> str:
    """Return the address of Temporal's UI that an option has. Raises `UsageError`."""
    try:
        return links.temporal_ui(given)
    except ValueError as error:
        raise UsageError(f"--temporal-ui {error}") from error
