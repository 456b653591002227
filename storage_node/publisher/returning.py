"""Serve what a log directory holds that has come online on a running node: its disk was repaired, or is another one.

The start's table decides about every folder, for all directories that are online now. A replica that is served from
another directory stays as it is: an older one is discarded, and a copy of it continues or ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from storage_node.directories.directory import LogDirectory
from storage_node.directories.manager import DirectoryManager
from storage_node.lifecycle.start_up import Started, set_aside_in, take_up
from storage_node.log.config import LogConfig
from storage_node.model.ids import TopicPartition
from storage_node.model.image import ClusterImage
from storage_node.partitions.registry import Replicas
from storage_node.replicas.boot import scan
from storage_node.replicas.boot.actions import BootPlan

log = logging.getLogger(__name__)

Result = Callable[[Future[Any], LogDirectory], Any]


class ReturningHost(Protocol):
    """The node, as the decision about a directory's folders uses it."""

    @property
    def id(self) -> int: ...

    @property
    def dirs(self) -> DirectoryManager: ...

    @property
    def replicas(self) -> Replicas: ...


@dataclass(frozen=True, slots=True)
class Returned:
    """What was decided: `started` has the replicas that were opened, `beside` the plans of those served elsewhere,
    `absent` those of which no directory holds anything, and `left` the folders that are left to the next start.
    """

    started: Started
    beside: list[BootPlan]
    absent: frozenset[TopicPartition]
    left: dict[TopicPartition, str]


def take_in(
    node: ReturningHost,
    directory: LogDirectory,
    before: LogDirectory | None,
    image: ClusterImage,
    defaults: LogConfig,
    result: Result,
) -> Returned:
    """Decide and open what a directory holds that `node.dirs` has now; called for one at a time.

    `before` is the object that it replaces. `result` returns the result of a job in a directory's pool. Raises
    StorageError, and the next attempt decides again.
    """

    def run(each: LogDirectory, work: Callable[[], Any]) -> Any:
        return result(each.submit(work), each)

    seen, strange = run(directory, partial(scan.look, directory))
    for path, why in strange.items():
        log.warning("%s is left alone: %s", path, why)
    folders = {tp for tp, _ in seen}
    served = {tp: part.log.path for tp in folders if (part := node.replicas.served.get(tp)) is not None}
    offline = {tp for tp in node.replicas.offline if tp not in node.replicas.retired}
    whole = not node.dirs.missing_ids()
    own = {tp for tp in offline if whole or tp in folders or _was_in(node, tp, directory, before, image)}
    # Their logs elsewhere are open, and may have an operation in progress: they are opened again one by one.
    alone = {
        tp: part.directory
        for tp in folders
        if (part := node.replicas.retired.get(tp)) is not None and part.directory.online
    }
    doomed = {tp for tp in node.replicas.doomed if tp not in node.replicas.retired}
    wanted = (folders | own) - served.keys() - alone.keys() - doomed
    started = take_up(node.dirs, wanted, image, node.id, defaults, run)
    beside, left = set_aside_in(directory, node.dirs, served, image, node.id, run) if served else ([], {})
    left |= {
        tp: f"its replica in {held.path} went offline alone; repair it, and run: rehome replicas online {node.id} {tp}"
        for tp, held in alone.items()
    }
    for tp, why in left.items():
        log.warning("%s in %s is left alone: %s", tp, directory.path, why)
    opened = {partition.tp for partition in started.partitions}
    return Returned(started, beside, frozenset(wanted - opened - started.offline.keys()), left)


def _was_in(
    node: ReturningHost, tp: TopicPartition, directory: LogDirectory, before: LogDirectory | None, image: ClusterImage
) -> bool:
    """Return whether a replica was in the directory, or is assigned to it, so that it is lost if it is not there."""
    if node.replicas.last_directory(tp) is before and before is not None:
        return True
    row = image.partition(tp)
    here = row.directory_of(node.id) if row is not None else None
    return here is not None and here in (directory.id, before.id if before is not None else "")
