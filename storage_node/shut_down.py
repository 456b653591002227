"""A stop: logs are closed and flushed, checkpoints written, and only then the clean-shutdown marker."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from storage_node.directories.directory import LogDirectory
from storage_node.directories.manager import DirectoryManager
from storage_node.errors import RequestRefused, StorageError
from storage_node.offset_files import OffsetFiles
from storage_node.partition import Partition
from storage_node.replicas import Replicas

log = logging.getLogger(__name__)


def close_logs(
    dirs: DirectoryManager, replicas: Replicas, files: OffsetFiles, threads: int, broker_epoch: int, clean: bool
) -> None:
    """Close all logs, several directories side by side and `threads` logs at a time in each.

    A directory gets the marker only when every one of its logs was closed and flushed.
    """
    work = [(directory, replicas.in_directory(directory)) for directory in dirs.online()]
    with ThreadPoolExecutor(max_workers=max(len(work), 1), thread_name_prefix="stop") as pool:
        for directory, partitions in work:
            pool.submit(_close_directory, directory, partitions, files, threads, broker_epoch, clean)


def _close_directory(
    directory: LogDirectory,
    partitions: Sequence[Partition],
    files: OffsetFiles,
    threads: int,
    broker_epoch: int,
    clean: bool,
) -> None:
    try:
        with ThreadPoolExecutor(max_workers=threads, thread_name_prefix=f"close-{Path(directory.path).name}") as pool:
            for closed in [pool.submit(_close, partition, clean) for partition in partitions]:
                closed.result()
        if clean and directory.online:
            files.write_all(directory)
            directory.mark_clean_shutdown(broker_epoch)
    except StorageError as error:
        directory.fail_on(error)
        log.error("%s was not stopped cleanly: %s", directory.path, error)
    except RequestRefused as error:
        log.error("%s was not stopped cleanly: %s", directory.path, error)
    except Exception:
        log.exception("%s was not stopped cleanly", directory.path)


def _close(partition: Partition, clean: bool) -> None:
    with partition.lock:
        partition.log.close(clean=clean)
