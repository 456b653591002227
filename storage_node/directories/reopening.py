"""Check and lock a log directory of a running node again, after its disk was repaired, and open it.

The checks are those of a start. Everything that touches the disk runs in a thread that is given up when the disk does
not respond.
"""

from __future__ import annotations

import contextlib
import logging
import shlex
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from storage_node.directories import layout, probing
from storage_node.directories.atomic import make_directory
from storage_node.directories.directory import LogDirectory
from storage_node.directories.errors import MalformedMetaProperties, StartRefused
from storage_node.directories.formatting import inspect
from storage_node.directories.io_faults import reason_of
from storage_node.directories.lock import DirectoryLock
from storage_node.directories.meta import properties as meta_properties
from storage_node.directories.meta.properties import MetaProperties, fresh_directory_id, is_reserved, upgrade
from storage_node.errors import RequestRefused, StorageError
from storage_node.model.error_codes import ErrorCode

__all__ = ["Expected", "open_again"]

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

#: Seconds for what was under way in the disk when it failed to end, and between two checks of that.
_DRAINING: Final = 5.0
_LOOK: Final = 0.05
_LISTING: Final = 10.0  # seconds for all meta.properties

_AGAIN: Final = "repair the disk and request it again"


@dataclass(frozen=True, slots=True)
class Expected:
    """What a directory must be: `old` is the offline one at its path, None for a path that is new to the node.

    `format`: the operator declares its former content lost, or that it never had any. `ids` are the directory ids that
    its file lists besides its own; `paths` are those of the other directories.
    """

    path: str
    cluster_id: str
    node_id: int
    ids: tuple[str, ...]
    paths: tuple[str, ...]
    threads: int
    old: LogDirectory | None = None
    format: bool = False


def open_again(expected: Expected, patience: float) -> LogDirectory:
    """Return the directory, locked, with its meta.properties up to date; on an error nothing is locked.

    `patience`: seconds until a disk that does not respond counts as hanging. Raises RequestRefused with one sentence.
    """
    old, until = expected.old, time.monotonic() + min(patience, _DRAINING)
    while old is not None and old.running and time.monotonic() < until:
        time.sleep(_LOOK)
    if old is not None and old.running:
        raise refused(
            expected.path,
            f"{old.running} operations from before its failure still wait for the disk",
            "wait until the disk completes or fails them, or restart the node",
        )
    return _promptly(lambda: _open(expected), LogDirectory.close, expected.path, patience)


def refused(path: str, why: str, then: str = _AGAIN) -> RequestRefused:
    """Return the error for a directory that stays as it is."""
    return RequestRefused(f"log directory {path} is not online: {why}; {then}", ErrorCode.KAFKA_STORAGE_ERROR)


def _open(expected: Expected) -> LogDirectory:
    path, old = expected.path, expected.old
    try:
        layout.check(layout.look([*expected.paths, path]), f"log directory {path} is not used")
    except StartRefused as error:
        raise RequestRefused(str(error), ErrorCode.KAFKA_STORAGE_ERROR) from error
    lock = DirectoryLock(path)
    try:
        if expected.format:
            make_directory(path)
        found = inspect(path)
        properties = _properties(expected, found.state, found.properties, found.reason, found.has_replicas)
        if old is not None:
            old.unlock()
        lock.acquire()
        probing.probe(Path(path))
        before = found.properties
        if before is None or before != properties:
            meta_properties.write(path, properties)
        opened = LogDirectory(path, properties.directory_id or "", threads=expected.threads, lock=lock)
        opened.take_clean_shutdown()
        opened.flush_found_names()
    except (OSError, StorageError) as error:
        lock.release()
        raise refused(path, reason_of(error)) from error
    except StartRefused as error:
        raise refused(path, str(error), "stop that process") from error
    except BaseException:
        lock.release()
        raise
    return opened


def _properties(
    expected: Expected, state: str, found: MetaProperties | None, reason: str, has_replicas: bool
) -> MetaProperties:
    """Return the meta.properties that the directory gets, or raise RequestRefused with what is wrong with it."""
    path, node = expected.path, expected.node_id
    replace = f"rehome dirs replace {node} {shlex.quote(str(path))}"
    if state == "error":
        raise refused(path, reason)
    if found is None:
        if not expected.format:
            says = "the directory does not exist" if state == "missing" else "it has no meta.properties"
            raise refused(path, says, f"mount its disk, or, if the disk was replaced, run: {replace}")
        if has_replicas:
            raise refused(path, "it has no meta.properties but holds replicas", "restore that file, or empty it")
        own = fresh_directory_id(expected.ids)
        return upgrade(None, cluster_id=expected.cluster_id, node_id=node, directory_id=own,
                       directory_ids=(*expected.ids, own))  # fmt: skip
    if found.cluster_id not in (None, expected.cluster_id) or found.node_id not in (None, node):
        whose = f"node {found.node_id} of cluster {found.cluster_id}"
        raise refused(path, f"it belongs to {whose}", "mount the right disk, or empty it")
    own = found.directory_id or fresh_directory_id(expected.ids)
    known = expected.old.id if expected.old is not None else ""
    taken = own != known and own in expected.ids and (expected.old is None or expected.format)
    if is_reserved(own) or taken:
        raise refused(path, f"its directory id {own} is reserved or used by another directory", "empty it")
    if known and own == known and expected.format:
        again = f"rehome dirs online {node} {shlex.quote(str(path))}"
        raise refused(path, "it is the disk that failed, with its directory id", f"run: {again}; or empty it first")
    if known and own != known and not expected.format:
        raise refused(
            path, f"its directory id is {own}, while the disk that failed has {known}",
            f"mount the right disk, or, if the disk was replaced, run: {replace}",
        )  # fmt: skip
    ids = tuple(dict.fromkeys((*expected.ids, *([] if expected.format else found.directory_ids), own)))
    wanted = upgrade(found, cluster_id=expected.cluster_id, node_id=node, directory_id=own, directory_ids=ids)
    same = set(found.directory_ids) == set(ids)
    return found if same and found.version == wanted.version and found.directory_id == own else wanted


def _promptly(work: Callable[[], _T], discard: Callable[[_T], None], path: str, seconds: float) -> _T:
    """Return the result of work on a disk, or raise RequestRefused once it takes longer."""
    results: list[_T] = []
    errors: list[BaseException] = []
    given_up = threading.Event()

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)
        if given_up.is_set():
            for late in results:
                discard(late)

    thread = threading.Thread(target=run, name=f"open-{path.rsplit('/', 1)[-1]}", daemon=True)
    thread.start()
    thread.join(seconds)
    if results:
        return results[0]
    if errors:
        raise errors[0]
    given_up.set()
    raise refused(path, f"the disk did not respond within {seconds:g} s")


def list_ids(directories: Sequence[LogDirectory], ids: tuple[str, ...]) -> None:
    """Write the ids of all directories to the meta.properties of each online one; one that fails goes offline.

    A disk that does not respond in time is not waited for.
    """
    jobs = []
    for directory in directories:
        with contextlib.suppress(StorageError):
            jobs.append((directory, directory.background(_list_ids, directory, ids)))
    until = time.monotonic() + _LISTING
    for directory, job in jobs:
        while directory.online and time.monotonic() < until:
            try:
                job.result(_LOOK)
                break
            except TimeoutError:
                continue
            except (StorageError, MalformedMetaProperties) as error:
                _log.error("%s does not list all directory ids of this node: %s", directory.path, error)
                break


def _list_ids(directory: LogDirectory, ids: tuple[str, ...]) -> None:
    before = meta_properties.read(directory.path)
    if before is not None and before.directory_ids != ids:
        after = MetaProperties(
            before.version, before.cluster_id, before.node_id, before.directory_id, ids, before.others
        )
        meta_properties.write(directory.path, after)
