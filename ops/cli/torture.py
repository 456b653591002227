"""rehome torture: clients and a nemesis on a stack of its own, and one verdict."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ops.cli import output
from ops.cli.options import Json
from ops.faults.disk import missing
from ops.stack.errors import OpsError, UsageError
from ops.torture.nemesis import decisions

MAX_MINUTES = 24 * 60


class Violated(OpsError):
    """A check of the run found a violation."""


class Unchecked(OpsError):
    """No check found a violation, but a check had no evidence to examine."""


def register(app: typer.Typer) -> None:
    """Add the command to the root of `rehome`."""
    app.command("torture")(torture)


def torture(
    minutes: Annotated[float, typer.Option("--minutes", help="Minutes for which the nemesis injects faults.")] = 10.0,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed",
            help="Seed of the nemesis's decisions and their order. Their timing depends on the machine, so that a "
            "violation may take several runs to reproduce. (Default: a random seed, printed at the end.)",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", file_okay=False, help="An empty working folder (default: a temporary one)."),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the folder; after a violation it is always kept.")] = False,
    replication_factor: Annotated[
        int,
        typer.Option(
            "--replication-factor",
            min=1,
            max=5,
            help="Replicas per partition. With 1 no replica moves between nodes; with more the cluster has one more "
            "node than replicas, leaders are killed and frozen, and replicas are reassigned.",
        ),
    ] = 3,
    idle_partitions: Annotated[
        int,
        typer.Option(
            "--idle-partitions",
            min=0,
            max=6_000,
            help="Additional partitions that no client uses, so that the controller and the nodes carry the metadata "
            "of a large cluster.",
        ),
    ] = 0,
    every: Annotated[
        list[str] | None,
        typer.Option(
            "--every",
            metavar="ACTION=SECONDS",
            help="Execute an action of the nemesis every so many seconds, in place of what the seed decides then: "
            "kill-controller=60, disk-replaced=20. May be repeated.",
        ),
    ] = None,
    containers: Annotated[
        bool,
        typer.Option(
            "--containers",
            help="Run each process in a container of its own: the Docker engine kills, freezes, limits memory and cuts "
            "networks, and log directories are volumes. Requires a Docker engine, or root, dockerd and debootstrap.",
        ),
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print every event to standard error.")] = False,
    json: Json = False,
) -> None:
    """Run a torture test on a stack of its own, and print one verdict.

    Clients record every operation, and a nemesis starts, cancels and retargets moves and reassignments, changes limits,
    deletes records and topics, kills and freezes every process, and fails disks. Then the run heals the stack, reads
    everything back, scans the disks, and checks the history (C1 to C19). Exit code 0: no violation; 1: violations, or a
    check without evidence because of an error. Ctrl-C ends the run early, with a verdict on what was done so far.
    """
    if not 0 < minutes <= MAX_MINUTES:
        raise UsageError(f"--minutes must be a positive number of minutes, at most {MAX_MINUTES}, not {minutes:g}")
    often = _every(every or [], replicated=replication_factor > 1, by_engine=containers)
    # Imported here: the clients and failpoints take most of a second to import.
    from ops.torture import report
    from ops.torture.run import Options, Torture

    chosen = seed if seed is not None else random.SystemRandom().randrange(1, 1_000_000)
    folder = data.absolute() if data is not None else None
    usual = Options.__dataclass_fields__["replicas"].default
    more = "" if replication_factor == usual else f" --replication-factor {replication_factor}"
    more += f" --idle-partitions {idle_partitions}" if idle_partitions else ""
    more += "".join(f" --every {action}={seconds:g}" for action, seconds in often.items())
    options = Options(
        minutes,
        chosen,
        keep,
        folder,
        replicas=replication_factor,
        idle_partitions=idle_partitions,
        every=often,
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


def _every(given: Sequence[str], *, replicated: bool, by_engine: bool) -> dict[str, float]:
    """Return the seconds by action of `--every`. Raises UsageError for an unknown action or no positive seconds."""
    no_disks = "disks do not fail in containers" if by_engine else missing()
    known = decisions.weights_of(replicated=replicated, by_engine=by_engine, disks=not no_disks)
    read: dict[str, float] = {}
    for each in given:
        action, _, text = each.partition("=")
        try:
            read[action] = float(text)
        except ValueError:
            raise UsageError(f"--every needs ACTION=SECONDS, such as disk-replaced=20, not {each!r}") from None
        if not 0 < read[action] < math.inf:
            raise UsageError(f"--every {each}: the seconds must be a positive number")
        if action in decisions.ON_DISKS and no_disks:
            raise UsageError(f"--every {each}: {no_disks}")
        if action not in known:
            raise UsageError(f"--every {each}: this run has no such action; it has {', '.join(sorted(known))}")
    return read
