"""What the commands on a stopped broker's disks share: the configuration, the locks, reading with a progress bar."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from ops.cli import output
from ops.disks import locking, scanning, topic_ids
from ops.disks.duplicates import Duplicate, duplicates
from ops.disks.found import Copy, DirectoryFound
from ops.disks.reading import log_size
from ops.disks.verdict import Verdict, verdict
from ops.stack.errors import UsageError
from storage_node.config.node_config import ConfigError
from storage_node.config.storage_settings import StorageSettings
from storage_node.directories import names
from storage_node.directories.io_faults import reason_of
from storage_node.model.ids import TopicPartition

__all__ = ["Config", "Yes", "bar", "exists", "judged", "locked", "replica", "settings_of", "stopped", "twice"]

Config = Annotated[
    Path, typer.Option("--config", "-c", metavar="FILE", help="The broker's server.properties.", dir_okay=False)
]
Yes = Annotated[bool, typer.Option("--yes", help="Do it without asking.")]


def settings_of(config: Path) -> StorageSettings:
    """Read a server.properties. Raises UsageError, also without log.dirs."""
    try:
        settings = StorageSettings.load(config)
    except ConfigError as error:
        raise UsageError(str(error)) from error
    if not settings.log_dirs:
        raise UsageError(f"{config}: log.dirs is missing; name the directories of the stopped broker")
    return settings


def stopped(directories: Sequence[str]) -> None:
    """Raise UsageError if a broker or node runs on any of these directories. Changes nothing."""
    for directory in directories:
        try:
            by = locking.holder(directory)
        except OSError as error:
            raise UsageError(f"the lock of {directory} cannot be read: {reason_of(error)}") from error
        if by:
            raise UsageError(f"log directory {directory} is in use by {by}; stop that broker first")


@contextlib.contextmanager
def locked(directories: Sequence[str]) -> Iterator[None]:
    """Keep brokers and nodes from starting on these directories. Raises UsageError if one runs."""
    with contextlib.ExitStack() as locks:
        try:
            locks.enter_context(locking.held([path for path in directories if Path(path).is_dir()]))
        except locking.DirectoryBusy as error:
            raise UsageError(str(error)) from error
        except OSError as error:
            raise UsageError(f"the log directories cannot be locked: {reason_of(error)}") from error
        yield


@contextlib.contextmanager
def bar(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar in bytes on standard error if that is a terminal; yield what advances it, thread-safe."""
    console = output.progress_console()
    shown = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    lock = threading.Lock()
    with shown:
        task = shown.add_task(what, total=total)

        def advance(count: int) -> None:
            with lock:
                shown.advance(task, count)

        yield advance


def _read(found: Sequence[DirectoryFound], wanted: Callable[[Copy], bool]) -> list[DirectoryFound]:
    total = sum(log_size(Path(copy.folder)) for directory in found for copy in directory.copies if wanted(copy))
    with bar("reading", total) as read:
        return scanning.read_logs(found, read, wanted)


def judged(settings: StorageSettings) -> tuple[list[DirectoryFound], Verdict]:
    """Read all directories and their logs, and return the verdicts."""
    beside = [settings.metadata_beside] if settings.metadata_beside else []
    found = _read(scanning.look([*settings.log_dirs, *beside]), lambda _: True)
    decided = verdict(
        found,
        node_id=settings.node_id,
        cluster_id=settings.cluster_id,
        metadata=settings.metadata_directory,
        beside=bool(beside),
        topics=topic_ids.known(found),
    )
    return found, decided


def twice(settings: StorageSettings) -> list[Duplicate]:
    """Return the replicas that are in several directories; only their logs are read."""
    found = scanning.look([*settings.log_dirs, *([settings.metadata_beside] if settings.metadata_beside else [])])
    count = Counter(copy.tp for directory in found for copy in directory.copies)
    return duplicates(_read(found, lambda copy: count[copy.tp] > 1), topic_ids.known(found))


def unread(settings: StorageSettings) -> list[str]:
    """Return the log directories that do not exist, as where no disk is mounted, or that cannot be listed."""
    found = scanning.look(settings.directories)
    return [
        f"{each.path}: {each.unreadable or 'the directory does not exist'}"
        for each in found
        if each.unreadable or each.meta.state == "missing"
    ]


def replica(text: str, option: str) -> TopicPartition:
    """Return the partition that a text such as orders-0 names. Raises UsageError."""
    parsed = names.parse(text)
    if parsed.kind != "current" or parsed.tp is None:
        raise UsageError(f"{option}: {text!r} is not a valid TOPIC-PARTITION, such as orders-0")
    return parsed.tp


def exists(path: str) -> bool:
    """Return whether a log directory exists."""
    return Path(path).is_dir()
