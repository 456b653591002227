"""End what hangs although its time is up: a test, or a process of tests that has nothing more to do.

pytest-timeout interrupts Python code. It cannot interrupt a call into C or a system call that waits for a disk, and it
stops counting once a test has failed, so a teardown may wait for ever. Here the stacks of all threads go to a file,
which the end of the run prints. Then the processes that the test started are killed, disks of FUSE among them, so that
whoever waits for them goes on. A process that hangs even after that ends, which fails its test.
"""

from __future__ import annotations

import faulthandler
import threading
from collections.abc import Generator
from pathlib import Path
from typing import IO

import psutil
import pytest

#: Seconds for pytest-timeout to end a test by itself, from its timeout on; as many again for what the killed processes
#: held up.
GRACE = 60.0
#: Seconds for a process of tests to end after its last test.
EXIT_SECONDS = 120.0


class Hung:
    """A plugin for each process of a run; `stacks` is the file for all of them."""

    def __init__(self, stacks: Path, *, grace: float = GRACE, exit_seconds: float = EXIT_SECONDS) -> None:
        self._stacks, self._grace, self._exit_seconds = stacks, grace, exit_seconds
        self._file: IO[str] | None = None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        seconds = seconds_of(item)
        if not seconds or item.config.getoption("usepdb"):
            return (yield)
        out = self._open()
        first = threading.Timer(seconds + self._grace, self._free, [item.nodeid])
        first.daemon = True
        first.start()
        faulthandler.dump_traceback_later(seconds + 2 * self._grace, file=out, exit=True)
        try:
            return (yield)
        finally:
            first.cancel()
            faulthandler.cancel_dump_traceback_later()

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        """Give the process a while to end: a thread that is not a daemon may hang. xdist ends its processes itself."""
        if not hasattr(config, "workerinput"):
            faulthandler.dump_traceback_later(self._exit_seconds, file=self._open(), exit=True)

    def _open(self) -> IO[str]:
        if self._file is None:
            self._stacks.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._stacks.open("a")
        return self._file

    def _free(self, nodeid: str) -> None:
        """Note what every thread does, then kill all that the test may wait for."""
        out = self._open()
        children = psutil.Process().children(recursive=True)
        out.write(f"\n{nodeid} hangs; killed: {[_name(child) for child in children]}\n")
        out.flush()
        faulthandler.dump_traceback(file=out)
        for child in children:
            try:
                child.kill()
            except psutil.NoSuchProcess:
                continue


def seconds_of(item: pytest.Item) -> float:
    """The timeout of a test as pytest-timeout has it, 0 for none."""
    marker = item.get_closest_marker("timeout")
    if marker is not None and (marker.args or "timeout" in marker.kwargs):
        return float(marker.args[0] if marker.args else marker.kwargs["timeout"])
    given = item.config.getoption("timeout")
    return float(given if given is not None else item.config.getini("timeout") or 0)


def _name(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[-120:]
    except psutil.Error:
        return f"process {process.pid}"
