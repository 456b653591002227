"""rehome storage repair: sets the other copy of a replica aside that is in two directories, or takes it back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from ops.cli.storage import disks
from ops.cli.storage.disks import Config, Yes
from ops.disks import repair as repairing
from ops.disks.repair import SetAside, Undo
from ops.stack.errors import OpsError, UsageError
from storage_node.config.storage_settings import StorageSettings
from storage_node.directories.io_faults import reason_of
from storage_node.directories.layout import normalise
from storage_node.errors import StorageError
from storage_node.model.ids import TopicPartition

Keep = Annotated[
    list[str] | None,
    typer.Option("--keep", metavar="TOPIC-PARTITION=DIR", help="The copy to keep where the copies do not decide it."),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("repair")(repair)


def repair(
    config: Config,
    yes: Yes = False,
    undo: Annotated[bool, typer.Option("--undo", help="Take back what was set aside last of each replica.")] = False,
    keep: Keep = None,
) -> None:
    """Set the other copies of replicas aside that are in several directories, so that the broker starts.

    A copy is renamed inside its log directory and never deleted. The broker must be stopped. Shows the changes first,
    and asks. Exit code 0: done, or nothing to do; 1: failed, declined, a replica is left undecided, or a log directory
    could not be read; 2: wrong usage.
    """
    settings = disks.settings_of(config)
    chosen = dict(_keep(each) for each in keep or ())
    if undo and chosen:
        raise UsageError("--keep is not allowed with --undo")
    with disks.locked(settings.directories):
        unread = disks.unread(settings)
        for line in unread:
            typer.echo(f"not read: {line}; mount its disk and run the command again")
        if undo:
            _undo(settings, yes)
        else:
            _repair(settings, yes, chosen)
    if unread:
        raise typer.Exit(1)


def _keep(text: str) -> tuple[TopicPartition, str]:
    name, equals, directory = text.partition("=")
    return disks.replica(name if equals else text, "--keep"), normalise(directory) if equals else _no_directory(text)


def _no_directory(text: str) -> str:
    raise UsageError(f"--keep {text}: write TOPIC-PARTITION=DIR, the directory whose copy is kept")


def _repair(settings: StorageSettings, yes: bool, keep: dict[TopicPartition, str]) -> None:
    found = disks.twice(settings)
    if not found:
        typer.echo("nothing to repair: no replica is in several directories")
        return
    try:
        steps, left = repairing.plan(found, keep)
    except ValueError as error:
        raise UsageError(str(error)) from error
    for step in steps:
        typer.echo(f"{step.copy.tp}: keep {step.keep.folder}")
        typer.echo(f"  ({step.why})")
        typer.echo(f"  set aside {step.copy.folder}")
    for line in left:
        typer.echo(f"undecided: {line}")
    if steps:
        _confirm("Set them aside?" if len(steps) > 1 else "Set it aside?", yes)
        for step in steps:
            _carry_out(step, settings.log_dirs)
    elif not left:
        typer.echo("nothing to repair: the storage node keeps the newer copies when it starts")
    if left:
        raise typer.Exit(1)


def _carry_out(step: SetAside, directories: Sequence[str]) -> None:
    try:
        where = repairing.set_aside(step, [path for path in directories if disks.exists(path)])
    except (OSError, StorageError) as error:
        raise OpsError(
            f"{step.copy.folder} could not be set aside: {reason_of(error)}; nothing of it was lost: repair the disk, "
            f"or take {step.copy.directory} out of log.dirs, and run the command again"
        ) from error
    typer.echo(f"{step.copy.tp}: set aside as {where}")


def _undo(settings: StorageSettings, yes: bool) -> None:
    directories = [path for path in settings.log_dirs if disks.exists(path)]
    try:
        repairing.finish_undo(directories)
        steps = repairing.plan_undo(directories)
    except OSError as error:
        raise OpsError(f"the log directories cannot be read: {reason_of(error)}") from error
    if not steps:
        typer.echo("nothing to undo: no copy is set aside")
        return
    for step in steps:
        if step.refused:
            typer.echo(f"left: {step.wrapper.inner}: {step.refused}")
        else:
            typer.echo(f"take back {step.wrapper.inner}")
    ready = [step for step in steps if not step.refused]
    if ready:
        _confirm("Take them back?" if len(ready) > 1 else "Take it back?", yes)
    for step in ready:
        _take_back(step, settings.log_dirs)
    if len(ready) < len(steps):
        raise typer.Exit(1)


def _take_back(step: Undo, directories: Sequence[str]) -> None:
    try:
        repairing.undo(step, directories)
    except (OSError, StorageError) as error:
        raise OpsError(f"{step.wrapper.inner} could not be taken back: {reason_of(error)}; run it again") from error
    typer.echo(f"taken back: {step.wrapper.directory}/{step.wrapper.inner.name}")


def _confirm(question: str, yes: bool) -> None:
    if not yes and not typer.confirm(question):
        raise OpsError("declined; nothing was changed")
