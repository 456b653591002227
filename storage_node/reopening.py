"""Opening again, on request, a replica that went offline alone, once its file or folder is repaired.

What is on the disks is decided and opened as a start does it, for this one replica. It is served then as a follower, or
leads, as the metadata says: the report that it is usable again lets it lead, or join the ISR once it has caught up.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any

from storage_node.directories import health, names
from storage_node.directories.directory import LogDirectory
from storage_node.directories.latch import reason_of
from storage_node.errors import ErrorCode, RequestRefused, StorageError
from storage_node.log.config import LogConfig
from storage_node.metadata import ClusterImage
from storage_node.start_up import Started, take_up
from storage_node.types import TopicPartition

if TYPE_CHECKING:
    from storage_node.node import Node

log = logging.getLogger(__name__)

#: Seconds to wait for an operation that still holds the replica from before it went offline.
PATIENCE = 5.0

Result = Callable[[Future[Any], LogDirectory], Any]


def check_known(node: Node, image: ClusterImage, tp: TopicPartition) -> None:
    """Raise RequestRefused unless the metadata has a replica here, in a directory that is not known to be offline."""
    row = image.partition(tp)
    if row is None or node.id not in row.replicas:
        where = f"it is on nodes {', '.join(map(str, row.replicas))}" if row is not None else "it does not exist"
        raise RequestRefused(f"node {node.id} has no replica of {tp}: {where}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    here = _directory(node, image, tp)
    if here is not None and not here.online:
        raise RequestRefused(
            f"{tp} is in log directory {here.path}, which is offline ({here.failure}); repair the disk and start node "
            f"{node.id} again",
            ErrorCode.KAFKA_STORAGE_ERROR,
        )


def _directory(node: Node, image: ClusterImage, tp: TopicPartition) -> LogDirectory | None:
    row = image.partition(tp)
    assigned = row.directory_of(node.id) if row is not None else None
    return node.replicas.last_directory(tp) or (node.dirs.by_id(assigned) if assigned is not None else None)


def reopen(node: Node, tp: TopicPartition, image: ClusterImage, defaults: LogConfig, result: Result) -> Started:
    """Close what is left of the replica, check that its folder takes files, and open it; called for one at a time.

    A move of it that is under way ends: its copy is taken away. `result` is what came of work in a directory's pool.
    Raises RequestRefused with what is wrong still, and leaves the replica offline then.
    """

    def run(directory: LogDirectory, work: Callable[[], Any]) -> Any:
        return result(directory.submit(work), directory)

    check_known(node, image, tp)
    try:
        _close(node, tp, run)
        here = _directory(node, image, tp)
        folder = here.path / names.replica_name(tp) if here is not None else None
        if here is not None and folder is not None and folder.is_dir():
            name = f"{health.FILE}.{threading.get_ident()}"
            run(here, partial(health.probe, folder, name, here.name))
        started = take_up(node.dirs, [tp], image, node.id, defaults, run)
    except StorageError as error:
        raise _still(tp, reason_of(error)) from error
    row = image.partition(tp)
    if not started.plans and tp in node.replicas.retired and row is not None and row.directory_of(node.id) is None:
        # It would pass for one that was never made.
        raise _still(tp, "its folder is gone, and the metadata does not know yet where it was")
    if tp in started.offline:
        node.replicas.set_offline(started.offline, started.files)
        raise _still(tp, started.offline[tp])
    return started


def _close(node: Node, tp: TopicPartition, run: Callable[[LogDirectory, Callable[[], Any]], Any]) -> None:
    node.engine.cancel(tp, None, "its replica is opened again after a repair")
    before = node.replicas.retired.get(tp)
    if before is None:
        return
    if not before.lock.acquire(timeout=PATIENCE):
        raise _still(tp, "an operation from before it went offline has not ended")
    try:
        run(before.directory, partial(before.log.close, False))
    finally:
        before.lock.release()


def _still(tp: TopicPartition, why: str) -> RequestRefused:
    message = f"{tp} is offline still: {why}; repair what it names and request it again"
    return RequestRefused(message, ErrorCode.KAFKA_STORAGE_ERROR)
