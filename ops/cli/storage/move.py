"""rehome storage move --offline: takes replicas of a stopped broker to other directories."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from ops.cli import output
from ops.cli.storage import disks
from ops.cli.storage.disks import Config
from ops.disks import offline_move, plan_moves, scanning
from ops.disks.copying import CopyFailed
from ops.disks.found import FolderKind
from ops.disks.moving import MoveRefused
from ops.disks.offline_move import Move
from ops.stack.errors import OpsError, UsageError
from storage_node.config.storage_settings import StorageSettings
from storage_node.directories.io_faults import reason_of
from storage_node.directories.layout import normalise
from storage_node.errors import RequestRefused, StorageError
from storage_node.model.ids import TopicPartition
from storage_node.move.throttle import RateLimiter

_SLICE = 64 << 10


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("move")(move)


def move(
    config: Config,
    to: Annotated[str, typer.Option("--to", metavar="DIR[,DIR]", help="The directories that get the replicas.")],
    offline: Annotated[bool, typer.Option("--offline", help="Required: the broker is stopped.")] = False,
    replica: Annotated[
        list[str] | None, typer.Option("--replica", metavar="TOPIC-PARTITION", help="A replica; may be repeated.")
    ] = None,
    from_: Annotated[
        str | None, typer.Option("--from", metavar="DIR", help="Move all replicas of this directory.")
    ] = None,
    throttle: Annotated[
        str | None, typer.Option("--throttle", metavar="RATE", help="At most so many bytes per second, such as 50MB.")
    ] = None,
    remove_source: Annotated[
        bool,
        typer.Option("--remove-source", help="Remove the source once its copy is durable (default: set it aside)"),
    ] = False,
) -> None:
    """Take replicas of a stopped broker, Apache Kafka's or a storage node, to other log directories.

    May be killed at any moment: the same command continues. Every batch is checked while it is copied, and the copy is
    durable before its source is set aside. Exit code 0: all moved; 1: some could not be moved; 2: wrong usage.
    """
    if not offline:
        raise UsageError("rehome storage move needs --offline and a stopped broker; for a running one: rehome move")
    if bool(replica) == bool(from_):
        raise UsageError("name either --replica TOPIC-PARTITION or --from DIR")
    rate = output.parse_rate(throttle) if throttle is not None else None
    settings = disks.settings_of(config)
    targets = [_known(each, "--to", settings) for each in to.split(",") if each.strip()]
    source = _known(from_, "--from", settings) if from_ is not None else None
    wanted = [disks.replica(each, "--replica") for each in replica or ()]
    if not targets:
        raise UsageError("--to: name at least one directory")
    if source in targets:
        raise UsageError(f"--to: {source} is the directory that the replicas leave")
    with disks.locked(settings.directories):
        _run(settings, targets, source, wanted, rate, keep=not remove_source)


def _known(text: str, option: str, settings: StorageSettings) -> str:
    path = normalise(text.strip())
    if path not in settings.log_dirs:
        raise UsageError(f"{option}: {path!r} is not in log.dirs ({', '.join(settings.log_dirs)})")
    return path


def _run(
    settings: StorageSettings,
    targets: Sequence[str],
    source: str | None,
    wanted: Sequence[TopicPartition],
    rate: int | None,
    *,
    keep: bool,
) -> None:
    found = scanning.look(settings.log_dirs)
    failed: dict[TopicPartition, str] = {}
    try:
        moves, there, failed = plan_moves.plan(found, targets, source, wanted, keep=keep)
        sizes = plan_moves.sizes(moves, failed)
    except MoveRefused as error:
        raise OpsError(str(error)) from error
    except OSError as error:
        raise OpsError(f"the log directories cannot be read: {reason_of(error)}") from error
    for tp in there:
        typer.echo(f"{tp}: is in a target directory already")
    limiter = RateLimiter(rate)
    with disks.bar("copying", sum(sizes.values())) as advance:
        for each in moves:
            if each.tp not in failed:
                _one(each, _admit(limiter, advance), failed)
    for directory in found:
        if directory.path == source and any(folder.kind is FolderKind.METADATA for folder in directory.folders):
            typer.echo(f"left: {source}/__cluster_metadata-0, which is moved by metadata.log.dir, not by this command")
    if source is not None and moves and not any(directory.of_node for directory in found):
        typer.echo(
            f"next: if this disk dies, take {source} out of log.dirs before the broker starts: while the metadata of "
            f"Apache Kafka has the replicas there, and log.dirs a directory that cannot be read, it does not serve them"
        )
    for tp, why in failed.items():
        typer.echo(f"not moved: {tp}: {why}")
    if failed:
        raise typer.Exit(1)


def _admit(limiter: RateLimiter, advance: Callable[[int], None]) -> Callable[[int], None]:
    def admit(count: int) -> None:
        for start in range(0, count, _SLICE):
            limiter.acquire(min(_SLICE, count - start))
        advance(count)

    return admit


def _one(each: Move, admit: Callable[[int], None], failed: dict[TopicPartition, str]) -> None:
    try:
        says = offline_move.run(each, admit)
    except (MoveRefused, CopyFailed, RequestRefused) as error:
        failed[each.tp] = str(error)
        return
    except (OSError, StorageError) as error:
        failed[each.tp] = f"{reason_of(error)}; the same command continues"
        return
    typer.echo(f"{each.tp}: moved from {each.source.path} to {each.target.path}")
    for line in says:
        typer.echo(f"  {line}")
