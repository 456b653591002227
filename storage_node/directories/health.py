"""Finds disks that are dead or hang although nobody writes to them: a small file is written, flushed and removed.

Each directory has a thread of its own for that, since a disk that hangs keeps the thread that asks it for ever. Another
thread watches the clock: no answer within the deadline counts as a failure.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from storage_node import failpoints
from storage_node.directories.atomic import full_is_no_room, io_errors
from storage_node.errors import StorageError
from storage_node.failpoints import failpoint

if TYPE_CHECKING:
    from storage_node.directories.directory import LogDirectory

__all__ = ["FILE", "Watch", "probe", "silent", "unanswering", "waits"]

_T = TypeVar("_T")

_log = logging.getLogger(__name__)

FILE: Final = "health-check"
START: Final = failpoints.register("health.start")
WRITTEN: Final = failpoints.register("health.written")
FLUSHED: Final = failpoints.register("health.flushed")

_LOOK: Final = 0.5  # seconds between two looks at the clock, at most
_BLOCK: Final = b"written, flushed and removed to see whether the disk answers\n"


def probe(path: Path, name: str = FILE, directory: str = "") -> None:
    """Write, flush and remove a small file in a log directory, or in a replica's folder of `directory`.

    Raises MetadataIOError; one that says "no room" or "no descriptor" tells nothing about the disk (see `latch`).
    """
    file = path / name
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    with io_errors(directory or path, f"the health check of {path}" if directory else "the health check"):
        failpoint(START)
        with full_is_no_room():
            fd = os.open(file, flags, 0o644)
        try:
            with full_is_no_room():
                os.write(fd, _BLOCK)
            failpoint(WRITTEN)
            os.fsync(fd)
            failpoint(FLUSHED)
        finally:
            os.close(fd)
            # Also after an error; what cannot be removed now is written over next time.
            with contextlib.suppress(OSError):
                file.unlink()


class Watch:
    """Asks every directory every `interval` seconds; one that does not answer within `deadline` is taken offline.

    `asked` are questions of others that must not take longer either: the directory, what was asked, and since when
    (`time.monotonic`). A disk may answer health checks while one call hangs in it.
    """

    def __init__(
        self,
        directories: Iterable[LogDirectory],
        interval: float,
        deadline: float,
        asked: Callable[[], Iterable[tuple[LogDirectory, str, float]]] = tuple,
    ) -> None:
        self._directories = tuple(directories)
        self._interval, self._deadline = interval, deadline
        self._asked = asked
        self._began: dict[str, float] = {}
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begin; nothing is asked in the first interval."""
        runs: list[tuple[str, Callable[[], None]]] = [
            (directory.path.name, partial(self._ask, directory)) for directory in self._directories
        ]
        for name, run in [*runs, ("clock", self._look)]:
            thread = threading.Thread(target=run, name=f"health-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self, timeout: float = 5.0) -> None:
        """End; a thread that a disk keeps is left behind."""
        self._stopping.set()
        until = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _ask(self, directory: LogDirectory) -> None:
        while not self._stopping.wait(self._interval) and directory.online:
            self._began[directory.name] = time.monotonic()
            try:
                probe(directory.path)
            except StorageError as error:
                directory.fail_on(error)
            except Exception:
                _log.exception("the health check of %s", directory.path)
            finally:
                self._began.pop(directory.name, None)

    def _look(self) -> None:
        pause = min(_LOOK, self._deadline / 4)
        waited: dict[tuple[str, str], tuple[float, float]] = {}  # when what is under way began, seconds since then
        looked = time.monotonic()
        while not self._stopping.wait(pause):
            # A process that was stopped for a while (or its machine) has not waited for its disks meanwhile.
            passed, looked = min(time.monotonic() - looked, 2 * pause), time.monotonic()
            before, waited = waited, {}
            for directory, what, began in [*self._checks(), *self._asked()]:
                since, seconds = before.get((directory.name, what), (began, 0.0))
                seconds = seconds + passed if since == began else min(looked - began, passed)
                waited[directory.name, what] = began, seconds
                if seconds > self._deadline:
                    directory.fail(f"{what} did not answer within {self._deadline:g} s: the disk hangs")

    def _checks(self) -> list[tuple[LogDirectory, str, float]]:
        """The health checks that are under way."""
        began = [(directory, self._began.get(directory.name)) for directory in self._directories]
        return [(directory, "the health check", since) for directory, since in began if since is not None]


def waits(seconds: float, look: float = _LOOK) -> Iterator[float]:
    """How long to wait for a disk's answer until the next look, again and again until `seconds` have gone by.

    A process that was stopped for a while (or its machine) has not waited for its disks meanwhile.
    """
    while seconds > 0:
        began, pause = time.monotonic(), min(look, seconds)
        yield pause
        seconds -= min(time.monotonic() - began, 2 * pause)


def silent(directories: Iterable[LogDirectory], seconds: float) -> list[LogDirectory]:
    """Those of the directories that are online and do not answer a health check within `seconds`, side by side.

    For who waited in vain for something that touches several disks and must not blame the wrong one.
    """
    return _unheard(_ask, [(directory.path.name, directory) for directory in directories if directory.online], seconds)


def unanswering(paths: Iterable[str], seconds: float) -> list[str]:
    """Those of the paths that do not answer at all within `seconds`, asked side by side before a start touches them.

    One that answers with an error is for whoever uses it to judge. Only a directory that was formatted is written to.
    """
    return _unheard(_touch, [(Path(path).name, path) for path in paths], seconds)


def _unheard(ask: Callable[[_T], None], those: Iterable[tuple[str, _T]], seconds: float) -> list[_T]:
    """Whom asking, in a thread each of that name, takes longer than this."""
    asked = [(one, threading.Thread(target=ask, args=(one,), name=f"asked-{name}", daemon=True)) for name, one in those]
    for _, thread in asked:
        thread.start()
    for pause in waits(seconds):
        waiting = next((thread for _, thread in asked if thread.is_alive()), None)
        if waiting is None:
            break
        waiting.join(pause)
    return [one for one, thread in asked if thread.is_alive()]


def _touch(name: str) -> None:
    path = Path(name)
    with contextlib.suppress(OSError, StorageError):
        if (path / "meta.properties").is_file() and not path.is_symlink():
            probe(path)


def _ask(directory: LogDirectory) -> None:
    try:
        probe(directory.path, f"{FILE}.{threading.get_ident()}")
    except StorageError as error:
        directory.fail_on(error)
