"""Open a replica again, on request, that went offline alone, once its file or folder is repaired.

The start's table decides and opens what is on disk, for this one replica. The node then serves it as a follower, or
leads, by the metadata: the report that it is usable again lets it lead, or join the ISR once it has caught up.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from storage_node.directories import names, probing
from storage_node.directories.directory import LogDirectory
from storage_node.directories.io_faults import reason_of
from storage_node.errors import RequestRefused, StorageError
from storage_node.lifecycle.start_up import Started, take_up
from storage_node.log.config import LogConfig
from storage_node.model.error_codes import ErrorCode
from storage_node.model.ids import TopicPartition
from storage_node.model.image import ClusterImage
from storage_node.publisher.host import ReopeningHost

log = logging.getLogger(__name__)

#: Seconds to wait for an operation that still holds the replica from before it went offline.
PATIENCE = 5.0

Result = Callable[[Future[Any], LogDirectory], Any]


def check_known(node: ReopeningHost, image: ClusterImage, tp: TopicPartition) -> None:
    """Raise RequestRefused unless the metadata has a replica here, in a directory that is not known to be offline."""
    row = image.partition(tp)
    if row is None or node.id not in row.replicas:
        where = f"it is on nodes {', '.join(map(str, row.replicas))}" if row is not None else "it does not exist"
        raise RequestRefused(f"node {node.id} has no replica of {tp}: {where}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if tp in node.replicas.doomed:
        raise RequestRefused(
            f"the former replica of {tp} on node {node.id} is still to be deleted ({node.replicas.offline.get(tp)}); "
            f"once its folder is gone, the replica is created again by itself",
            ErrorCode.INVALID_REQUEST,
        )
    here = _directory(node, image, tp)
    if here is not None and not here.online:
        raise RequestRefused(
            f"{tp} is in log directory {here.path}, which is offline ({here.failure}); repair the disk and run: rehome "
            f"dirs online {node.id} {shlex.quote(str(here.path))}",
            ErrorCode.KAFKA_STORAGE_ERROR,
        )


def _directory(node: ReopeningHost, image: ClusterImage, tp: TopicPartition) -> LogDirectory | None:
    row = image.partition(tp)
    assigned = row.directory_of(node.id) if row is not None else None
    return node.replicas.last_directory(tp) or (node.dirs.by_id(assigned) if assigned is not None else None)


def reopen(
    node: ReopeningHost, result: Result, tp: TopicPartition, image: ClusterImage, defaults: LogConfig
) -> Started:
    """Close what is left of the replica, check that its folder is writable, and open it; called for one at a time.

    A move of it that is in progress is cancelled. `result` returns the result of a job in a directory's pool. Raises
    RequestRefused with the remaining problem, and then leaves the replica offline.
    """

    def run(directory: LogDirectory, work: Callable[[], Any]) -> Any:
        return result(directory.submit(work), directory)

    check_known(node, image, tp)
    try:
        _close(node, tp, run)
        here = _directory(node, image, tp)
        folder = here.path / names.replica_name(tp) if here is not None else None
        if here is not None and folder is not None and folder.is_dir() and not folder.is_symlink():
            run(here, partial(probing.probe, folder, here.name))
        started = take_up(node.dirs, [tp], image, node.id, defaults, run)
    except StorageError as error:
        raise _still(tp, reason_of(error)) from error
    row = image.partition(tp)
    if not started.plans and tp in node.replicas.retired and row is not None and row.directory_of(node.id) is None:
        # It would count as one that was never created.
        raise _still(tp, "its folder does not exist, and the metadata does not have its directory yet")
    if tp in started.offline:
        node.replicas.set_offline(started.offline, started.files)
        node.metadata_publisher.unresolved.add({tp: left for tp, left in started.left.items() if left.beyond})
        raise _still(tp, started.offline[tp])
    return started


def _close(node: ReopeningHost, tp: TopicPartition, run: Callable[[LogDirectory, Callable[[], Any]], Any]) -> None:
    node.engine.cancel(tp, None, "its replica is opened again after a repair")
    before = node.replicas.retired.get(tp)
    if before is None:
        return
    if not before.lock.acquire(timeout=PATIENCE):
        raise _still(tp, "an operation from before it went offline has not ended")
    try:
        run(before.directory, partial(before.log.close, False))
        run(before.directory, partial(node.offset_files.keep_start, before))
    finally:
        before.lock.release()


def _still(tp: TopicPartition, why: str) -> RequestRefused:
    message = f"{tp} is still offline: {why}; repair what it names and request it again"
    return RequestRefused(message, ErrorCode.KAFKA_STORAGE_ERROR)
