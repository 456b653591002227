"""Stop a node: close and flush logs, write checkpoints, and only then the clean-shutdown marker.

A thread that uses a disk that hangs may never return, and no stop may wait for it: its part is abandoned.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from storage_node.directories import names
from storage_node.directories.directory import LogDirectory
from storage_node.directories.io_faults import reason_of
from storage_node.directories.manager import DirectoryManager
from storage_node.errors import RequestRefused, StorageError
from storage_node.partitions.offset_files import OffsetFiles
from storage_node.partitions.partition import Partition
from storage_node.partitions.registry import Replicas

log = logging.getLogger(__name__)

#: How long a part of the stop may take once a directory is offline, which may be because it hangs.
PATIENCE = 5.0
_LOOK = 0.1


def unless_hung(dirs: DirectoryManager, what: str, work: Callable[[], object]) -> None:
    """Do a part of the stop; as long as all directories are online it has no time limit.

    The health watch must run meanwhile, so that a directory that begins to hang now is noticed.
    """
    thread = threading.Thread(target=work, name=f"stop-{what}", daemon=True)
    thread.start()
    until = time.monotonic() + PATIENCE
    while thread.is_alive():
        thread.join(_LOOK)
        if all(directory.online for directory in dirs.directories):
            until = time.monotonic() + PATIENCE
        elif thread.is_alive() and time.monotonic() > until:
            log.error("%s did not end within %g s, a log directory hangs; it is left behind", what, PATIENCE)
            return


def close_logs(
    dirs: DirectoryManager, replicas: Replicas, files: OffsetFiles, threads: int, broker_epoch: int, clean: bool
) -> None:
    """Close all logs, several directories in parallel and `threads` logs at a time in each.

    A directory gets the marker only when every one of its logs was closed and flushed.
    """
    work = [(directory, replicas.in_directory(directory)) for directory in dirs.online()]
    with ThreadPoolExecutor(max_workers=max(len(work), 1), thread_name_prefix="stop") as pool:
        for directory, partitions in work:
            pool.submit(_close_directory, directory, partitions, files, threads, broker_epoch, clean, replicas)


def _close_directory(
    directory: LogDirectory,
    partitions: Sequence[Partition],
    files: OffsetFiles,
    threads: int,
    broker_epoch: int,
    clean: bool,
    replicas: Replicas,
) -> None:
    try:
        with ThreadPoolExecutor(max_workers=threads, thread_name_prefix=f"close-{Path(directory.path).name}") as pool:
            for closed in [pool.submit(_close, partition, clean) for partition in partitions]:
                closed.result()
        if clean and directory.online and _retired_are_closed(directory, replicas, files):
            files.write_all(directory)
            directory.mark_clean_shutdown(broker_epoch)
    except StorageError as error:
        directory.fail_on(error)
        log.error("%s was not stopped cleanly: %s", directory.path, error)
    except RequestRefused as error:
        log.error("%s was not stopped cleanly: %s", directory.path, error)
    except Exception:
        log.exception("%s was not stopped cleanly", directory.path)


def _retired_are_closed(directory: LogDirectory, replicas: Replicas, files: OffsetFiles) -> bool:
    """Close replicas that went offline alone as well; return False if that fails, or if a folder was not opened at all.

    Otherwise the next start would skip the scan of such a log.
    """
    for tp in list(replicas.offline):
        if not os.path.lexists(directory.path / names.replica_name(tp)):
            continue
        before = replicas.retired.get(tp)
        if before is None or before.directory is not directory or before.log.closed:
            why = "it was not opened"
        elif not before.lock.acquire(timeout=PATIENCE):
            why = "an operation on it has not ended"
        else:
            try:
                before.log.close(clean=True)
                files.keep_start(before)
                continue
            except (StorageError, RequestRefused) as error:
                why = reason_of(error)
            finally:
                before.lock.release()
        log.warning("%s was not stopped cleanly, since %s is offline: %s", directory.path, tp, why)
        return False
    return True


def _close(partition: Partition, clean: bool) -> None:
    with partition.lock:
        partition.log.close(clean=clean)
