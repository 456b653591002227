"""Health checks, which find failed or hanging disks even without traffic: they probe each directory.

Each directory has its own thread for that, since a hanging disk blocks its caller indefinitely. Another thread watches
the clock: a check that does not finish by the deadline counts as a failure.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from storage_node.directories import probing
from storage_node.directories.directory import LogDirectory
from storage_node.errors import StorageError
from storage_node.model.evidence import Evidence, Verdict

__all__ = ["Watch", "silent", "unanswering", "waits"]

_T = TypeVar("_T")

_log = logging.getLogger(__name__)

_TICK: Final = 0.5  # maximum seconds between two checks of the clock


class Watch:
    """Probes every directory every `interval` seconds, and takes those offline that do not respond within `deadline`.

    `asked` returns other operations with the same deadline: directory, operation, and start time (`time.monotonic`). A
    disk may pass health checks while another call hangs in it. `on_sign(directory, sign)` is called when a sign of
    trouble begins (`LogDirectory.signs`).
    """

    def __init__(
        self,
        directories: Iterable[LogDirectory],
        interval: float,
        deadline: float,
        asked: Callable[[], Iterable[tuple[LogDirectory, str, float]]] = tuple,
        on_sign: Callable[[LogDirectory, str], None] = lambda *_: None,
    ) -> None:
        self._directories = list(directories)
        self._interval, self._deadline = interval, deadline
        self._operations = asked
        self._on_sign = on_sign
        self._signs: dict[str, frozenset[str]] = {}
        self._began: dict[str, float] = {}
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start the threads; the first probe follows after one interval."""
        runs: list[tuple[str, Callable[[], None]]] = [
            (directory.path.name, partial(self._probe, directory)) for directory in self._directories
        ]
        for name, run in [*runs, ("clock", self._check_deadlines)]:
            thread = threading.Thread(target=run, name=f"health-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def add(self, directory: LogDirectory) -> None:
        """Probe another directory too, perhaps in the place of one that failed."""
        self._directories = [*(each for each in self._directories if each.name != directory.name), directory]
        self._began.pop(directory.name, None)
        name = f"health-{directory.path.name}"
        thread = threading.Thread(target=self._probe, args=(directory,), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def remove(self, directory: LogDirectory) -> None:
        """Probe a directory no longer."""
        self._directories = [each for each in self._directories if each is not directory]

    def stop(self, timeout: float = 5.0) -> None:
        """Stop the threads; one that is blocked in a disk is abandoned."""
        self._stopping.set()
        until = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _probe(self, directory: LogDirectory) -> None:
        while not self._stopping.wait(self._interval) and directory.online and directory in self._directories:
            self._began[directory.name] = began = time.monotonic()
            try:
                probing.probe(directory.path, name=probing.FILE)
                directory.latency.add(time.monotonic() - began)
                self._began.pop(directory.name, None)  # What follows does not wait for the disk.
                self._look(directory)
            except StorageError as error:
                directory.fail_on(error)
            except Exception:
                _log.exception("the health check of %s", directory.path)
            finally:
                self._began.pop(directory.name, None)

    def _look(self, directory: LogDirectory) -> None:
        """Report each sign of trouble of a directory when it begins."""
        known, signs = self._signs.get(directory.name, frozenset()), directory.signs()
        self._signs[directory.name] = frozenset(signs)
        for word, text in signs.items():
            if word not in known:
                _log.warning("log directory %s is not healthy: %s", directory.path, text)
                self._on_sign(directory, f"{word}: {text}")

    def _check_deadlines(self) -> None:
        pause = min(_TICK, self._deadline / 4)
        waited: dict[tuple[str, str], tuple[float, float]] = {}  # start time of each operation, seconds since
        looked = time.monotonic()
        while not self._stopping.wait(pause):
            # Time during which the process or its machine was suspended does not count as waiting for a disk.
            passed, looked = min(time.monotonic() - looked, 2 * pause), time.monotonic()
            before, waited = waited, {}
            for directory, what, began in [*self._checks(), *self._operations()]:
                since, seconds = before.get((directory.name, what), (began, 0.0))
                seconds = seconds + passed if since == began else min(looked - began, passed)
                waited[directory.name, what] = began, seconds
                if seconds > self._deadline:
                    text = f"{what} did not respond within {self._deadline:g} s: the disk hangs"
                    directory.fail(text, Evidence(Verdict.HUNG, what, directory.name, time=time.time()))

    def _checks(self) -> list[tuple[LogDirectory, str, float]]:
        """Return the health checks in progress."""
        began = [(directory, self._began.get(directory.name)) for directory in self._directories]
        return [(directory, "the health check", since) for directory, since in began if since is not None]


def waits(seconds: float, look: float = _TICK) -> Iterator[float]:
    """Yield how long to wait for a disk until the next check, until `seconds` have passed.

    Time during which the process or its machine was suspended does not count.
    """
    while seconds > 0:
        began, pause = time.monotonic(), min(look, seconds)
        yield pause
        seconds -= min(time.monotonic() - began, 2 * pause)


def silent(directories: Iterable[LogDirectory], seconds: float) -> list[LogDirectory]:
    """Probe the online directories side by side; return those that do not respond within `seconds`.

    For a caller whose operation on several disks timed out and that must take the right one offline.
    """
    return _unresponsive(_probe, [(each.path.name, each) for each in directories if each.online], seconds)


def unanswering(paths: Iterable[str], seconds: float) -> list[str]:
    """Probe the paths side by side before a start uses them; return those that do not respond within `seconds`.

    An error counts as a response, and later steps handle it. Only formatted directories are written to.
    """
    return _unresponsive(_touch, [(Path(path).name, path) for path in paths], seconds)


def _unresponsive(call: Callable[[_T], None], those: Iterable[tuple[str, _T]], seconds: float) -> list[_T]:
    """Call `call` for each of `those` in its own thread; return those whose call takes longer than `seconds`."""
    running = [
        (one, threading.Thread(target=call, args=(one,), name=f"probe-{name}", daemon=True)) for name, one in those
    ]
    for _, thread in running:
        thread.start()
    for pause in waits(seconds):
        waiting = next((thread for _, thread in running if thread.is_alive()), None)
        if waiting is None:
            break
        waiting.join(pause)
    return [one for one, thread in running if thread.is_alive()]


def _touch(name: str) -> None:
    path = Path(name)
    with contextlib.suppress(OSError, StorageError):
        if (path / "meta.properties").is_file():
            probing.probe(path)


def _probe(directory: LogDirectory) -> None:
    try:
        probing.probe(directory.path)
    except StorageError as error:
        directory.fail_on(error)
