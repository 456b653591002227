"""rehome plan generate: makes a plan that balances, drains, fills or empties brokers; changes nothing."""

from __future__ import annotations

import json as json_codec
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ops.cli import output
from ops.cli.options import Bootstrap, Data, Json
from ops.cli.plan.kafka import CommandConfig, settings_of, view_of
from ops.cli.target import resolve
from ops.stack.errors import Refused, UsageError
from workflows.model.plans import document
from workflows.model.plans.generate import balance, drain
from workflows.model.plans.generate.layout import GeneratedPlan, Limits, PlanRefused
from workflows.model.plans.values import ClusterView

Make = Callable[[ClusterView, Limits], GeneratedPlan]

_DEFAULT = Limits()
#: Lines of what was skipped that people see.
MOST_SKIPPED = 20


@dataclass(frozen=True, slots=True)
class Kind:
    """What a plan is for: the option's name, and the function that makes the plan."""

    name: str
    make: Make


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(generate)


def generate(
    nodes: Annotated[
        list[int] | None,
        typer.Argument(metavar="[BROKER...]", help="Brokers of --balance-disks (default: all), more of --add-broker."),
    ] = None,
    balance_disks: Annotated[
        bool, typer.Option("--balance-disks", help="Fill the log directories of each broker alike (KIP-113).")
    ] = False,
    balance_brokers: Annotated[
        bool, typer.Option("--balance-brokers", help="Fill the brokers alike, by their capacity (KIP-455).")
    ] = False,
    drain_: Annotated[
        str | None, typer.Option("--drain", metavar="BROKER[:DIR]", help="Empty a broker, or one of its directories.")
    ] = None,
    add_broker: Annotated[
        list[int] | None, typer.Option("--add-broker", metavar="BROKER", help="Bring new brokers to their share.")
    ] = None,
    remove_broker: Annotated[
        int | None,
        typer.Option("--remove-broker", metavar="BROKER", help="Take all replicas off a broker, even a dead one."),
    ] = None,
    output_file: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="The plan's file (default: standard output).")
    ] = None,
    keep_free: Annotated[
        float, typer.Option(min=0, max=90, help="Percent of each disk that stays free, even at the worst moment.")
    ] = _DEFAULT.keep_free,
    fewer_racks: Annotated[
        bool, typer.Option("--fewer-racks", help="Let a partition's replicas end on fewer racks than before.")
    ] = False,
    command_config: CommandConfig = None,
    data: Data = None,
    bootstrap: Bootstrap = None,
    json: Json = False,
) -> None:
    """Make a plan from the cluster's state, with the fewest bytes: exactly one of the options says for what.

    Prints the plan, or writes it to FILE, for `rehome plan submit` and kafka-reassign-partitions. Changes nothing on
    the cluster. Needs no Temporal and no worker.
    """
    kind = kind_of(nodes or [], balance_disks, balance_brokers, drain_, add_broker or [], remove_broker)
    view = view_of(settings_of(resolve(data, bootstrap), command_config))
    try:
        made = kind.make(view, Limits(keep_free=keep_free, fewer_racks=fewer_racks))
    except PlanRefused as refused:
        raise Refused(f"no plan was made: {'; '.join(refused.reasons)}") from refused
    text = "" if made.nothing_to_do else document.to_text(made.document)
    if output_file is not None and text:
        _write(output_file, text)
    written = output_file if text else None
    if json:
        output.print_json(as_json(kind, view, made, text, written))
        return
    screen = output.console() if output_file is not None else output.progress_console()
    for line in lines(made, written):
        screen.print(line, soft_wrap=True, markup=False)
    if output_file is None and text:
        typer.echo(text, nl=False)


def kind_of(
    nodes: list[int],
    balance_disks: bool,
    balance_brokers: bool,
    drained: str | None,
    added: list[int],
    removed: int | None,
) -> Kind:
    """Return the one kind of plan that the options name. Raises `UsageError` unless it is exactly one."""
    given = [
        name
        for name, is_given in (
            ("--balance-disks", balance_disks),
            ("--balance-brokers", balance_brokers),
            ("--drain", drained is not None),
            ("--add-broker", bool(added)),
            ("--remove-broker", removed is not None),
        )
        if is_given
    ]
    if len(given) != 1:
        chosen = f"not {' and '.join(given)} together" if given else "none is given"
        raise UsageError(
            "pass exactly one of --balance-disks, --balance-brokers, --drain, --add-broker and --remove-broker: "
            f"{chosen}"
        )
    name = given[0]
    if nodes and name not in ("--balance-disks", "--add-broker"):
        raise UsageError(f"{name} takes no further brokers, but {', '.join(map(str, nodes))} was given")
    if bad := [node for node in (*nodes, *added, *([] if removed is None else [removed])) if node < 0]:
        raise UsageError(f"{bad[0]} is not a valid broker id")
    if drained is not None:
        node, path = _drained(drained)
        return Kind(name, lambda view, limits: drain.drain(view, node, path, limits))
    if removed is not None:
        return Kind(name, lambda view, limits: drain.remove_broker(view, removed, limits))
    if added:
        return Kind(name, lambda view, limits: balance.add_broker(view, [*added, *nodes], limits))
    if balance_disks:
        return Kind(name, lambda view, limits: balance.balance_directories(view, nodes or None, limits))
    return Kind(name, balance.balance_brokers)


def _drained(text: str) -> tuple[int, str | None]:
    """Return the broker, and the directory or None, of "3" or "3:/disk/a". Raises `UsageError`."""
    node, colon, path = text.partition(":")
    if not node.isdecimal() or not node.isascii() or (colon and not path.startswith("/")):
        raise UsageError(f"{text!r} is not a valid BROKER[:DIR]; write for example 3 or 3:/disk/a")
    return int(node), path if colon else None


def as_json(kind: Kind, view: ClusterView, made: GeneratedPlan, text: str, written: Path | None) -> Mapping[str, Any]:
    """Return the report: imbalance in percent of the bytes, sizes in bytes; `plan` is None where FILE or none is."""
    return {
        "version": 1,
        "kind": kind.name.removeprefix("--"),
        "cluster_id": view.cluster_id,
        "partitions": len(made.document.partitions),
        "bytes": made.bytes,
        "imbalance_before": round(made.before, 3),
        "imbalance_after": round(made.after, 3),
        "skipped": list(made.skipped),
        "output": None if written is None else str(written),
        "plan": json_codec.loads(text) if text and written is None else None,
    }


def lines(made: GeneratedPlan, written: Path | None) -> list[str]:
    """Return what people read about a plan."""
    count = len(made.document.partitions)
    found = [f"skipped: {each}" for each in made.skipped[:MOST_SKIPPED]]
    if len(made.skipped) > MOST_SKIPPED:
        found.append(f"... and {len(made.skipped) - MOST_SKIPPED} more skipped (--json has all)")
    found.append(f"imbalance: {made.before:.1f}% of the bytes before, {made.after:.1f}% after the plan")
    if made.nothing_to_do:
        return [*found, "nothing to move: no plan was made"]
    found.append(f"{count} partition{'' if count == 1 else 's'}, {output.size(made.bytes)} to copy")
    if written is not None:
        found.append(f"written to {written}; check it with: rehome plan check {shlex.quote(str(written))}")
    return found


def _write(file: Path, text: str) -> None:
    """Write the plan. Raises `UsageError` if the file cannot be written."""
    try:
        file.write_text(text)
    except OSError as error:
        raise UsageError(f"cannot write the plan to {file}: {error.strerror or error}") from error
