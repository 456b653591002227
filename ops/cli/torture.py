"""rehome torture: moves, cancels, kills and clients on a stack of its own, and one verdict."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ops.cli import output
from ops.cli.options import Json
from ops.stack.errors import OpsError, UsageError

MAX_MINUTES = 24 * 60


class Violated(OpsError):
    """Something that must hold did not."""


class Unchecked(OpsError):
    """Nothing was found, but something that was to be looked at could not be."""


def register(app: typer.Typer) -> None:
    """Add the command to the root of `rehome`."""
    app.command("torture")(torture)


def torture(
    minutes: Annotated[float, typer.Option("--minutes", help="How long the nemesis is at work.")] = 10.0,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            help="Fixes what the nemesis decides and in which order. When each decision meets what state is up to the "
            "machine: times differ from run to run, so a finding may take several runs to come again. "
            "(Default: a new one, told at the end.)",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", file_okay=False, help="An empty folder to work in (default: a temporary one)."),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the folder; it is kept anyway when something is found.")
    ] = False,
    replication_factor: Annotated[
        int,
        typer.Option(
            "--replication-factor",
            min=1,
            max=5,
            help="How many replicas each partition has. With one nothing moves between nodes; with more there is a "
            "node more than replicas, and leaders are killed and frozen, replicas reassigned.",
        ),
    ] = 3,
    idle_partitions: Annotated[
        int,
        typer.Option(
            "--idle-partitions",
            min=0,
            max=6_000,
            help="How many further partitions the cluster has, which no client uses: the controller and the nodes "
            "carry the metadata of a large cluster.",
        ),
    ] = 0,
    kill_controller_every: Annotated[
        float,
        typer.Option(
            "--kill-controller-every",
            min=0,
            help="Kill the controller's process every so many seconds, beside what the seed decides (0: do not).",
        ),
    ] = 0.0,
    containers: Annotated[
        bool,
        typer.Option(
            "--containers",
            help="Each process in a container of its own: the Docker engine kills, freezes, limits memory and cuts "
            "networks, and log directories are volumes. Needs a Docker engine, or root, dockerd and debootstrap.",
        ),
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show every event on standard error.")] = False,
    json: Json = False,
) -> None:
    """Torture a stack of its own: clients that record everything, and a nemesis that starts, cancels and re-targets
    moves and reassignments, changes limits, deletes records and topics, kills and freezes every process, and lets
    disks fail. Then heal, read everything back, scan the disks, and check the history (C1 to C19). Exit code 0: no
    violation; 1: findings, or a check that had nothing to look at because of an error. Ctrl-C ends it early, with a
    verdict on what was done so far.
    """
    if not 0 < minutes <= MAX_MINUTES:
        raise UsageError(f"--minutes must be a positive number of minutes, at most {MAX_MINUTES}, not {minutes:g}")
    # Imported here: the clients and failpoints it needs take most of a second.
    from ops.torture import report
    from ops.torture.run import Options, Torture

    chosen = seed if seed is not None else random.SystemRandom().randrange(1, 1_000_000)
    folder = data.absolute() if data is not None else None
    usual = Options.__dataclass_fields__["replicas"].default
    more = "" if replication_factor == usual else f" --replication-factor {replication_factor}"
    more += f" --idle-partitions {idle_partitions}" if idle_partitions else ""
    more += f" --kill-controller-every {kill_controller_every:g}" if kill_controller_every else ""
    options = Options(
        minutes,
        chosen,
        keep,
        folder,
        replicas=replication_factor,
        idle_partitions=idle_partitions,
        kill_controller_every=kill_controller_every,
        more=more,
    )
    if containers:
        from ops.torture.containers import ContainerRoles

        options = replace(options, roles=ContainerRoles, more=f"{more} --containers")
    made = Torture(options, output.say, output.say if verbose else lambda _line: None).run()
    if json:
        output.print_json(made.as_json())
    else:
        report.show(made, output.console())
    if made.findings:
        raise Violated(f"{made.verdict}; see {made.folder}")
    if made.unchecked:
        raise Unchecked(f"{made.verdict}; see {made.folder}")
