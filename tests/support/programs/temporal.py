"""A real Temporal server for tests: the dev server, once per test session, on a free port, with the settings of the dev
stack.

The binary is that of REHOME_TEMPORAL, or the newest in ~/.cache/rehome/bin. Use the fixtures `temporal_server` (started
on demand) and `task_queue` (a name of its own per test, which is also the cluster's name); connect with
`server.client()` inside the test's own loop.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import functools
import itertools
import logging
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.runtime import (
    LogForwardingConfig,
    LoggingConfig,
    Runtime,
    TelemetryConfig,
    TelemetryFilter,
)

from ops.stack.ports import is_free
from tests.support.needs import need

START_SECONDS = 90.0
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG

_FIRST_PORT, _PORTS_EACH = 11000, 1000
#: Another run of the tests on this machine begins elsewhere.
_port = itertools.count(random.randrange(_PORTS_EACH))

#: The dev stack's server settings: without them a timer takes a second and a workflow ten activities a second. And
#: runs can be paused, which a server must be configured for.
SETTINGS = (
    "--dynamic-config-value",
    "frontend.WorkflowPauseEnabled=true",
    "--dynamic-config-value",
    "history.transferProcessorMaxPollRPS=2000",
    "--dynamic-config-value",
    "history.timerProcessorMaxPollRPS=2000",
    "--dynamic-config-value",
    'history.timerProcessorMaxTimeShift="50ms"',
    "--sqlite-pragma",
    "journal_mode=WAL",
    "--sqlite-pragma",
    "synchronous=NORMAL",
)


def binary() -> Path | None:
    """The server's program, None without one."""
    if named := os.environ.get("REHOME_TEMPORAL"):
        return Path(named)
    found = sorted(Path("~/.cache/rehome/bin").expanduser().glob("temporal-*"))
    return found[-1] if found else None


def free_port() -> int:
    """A TCP port that nobody listens on; who asked for it may bind it later.

    None of those that the system hands out to clients and to whoever asks for any, and each of the processes that run
    tests side by side looks in a range of its own: nobody takes it in between.
    """
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    while True:
        port = _FIRST_PORT + number % 8 * _PORTS_EACH + next(_port) % _PORTS_EACH
        if is_free(port):
            return port


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)


@functools.cache
def runtime() -> Runtime:
    """The SDK's runtime of this process; its log goes to Python's, not to standard output."""
    forwarding = LogForwardingConfig(logging.getLogger("temporal.core"))
    telemetry = TelemetryConfig(
        logging=LoggingConfig(filter=TelemetryFilter(core_level="WARN", other_level="ERROR"), forwarding=forwarding)
    )
    return Runtime(telemetry=telemetry)


@dataclass
class TemporalServer:
    """A server of its own: `start`, `stop`, `kill` and `start` again keep port and database, so that outages can be
    tested.
    """

    program: Path
    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """host:port of the frontend."""
        return f"127.0.0.1:{self.port}"

    @property
    def database(self) -> Path:
        """The SQLite file."""
        return self.folder / "temporal.db"

    def start(self) -> None:
        """Start, and wait until the frontend answers. Raises RuntimeError with the log's end when it does not."""
        log = (self.folder / "temporal.log").open("ab")
        self.process = subprocess.Popen(
            [
                str(self.program),
                "server",
                "start-dev",
                "--headless",
                "--ip",
                "127.0.0.1",
                "--port",
                str(self.port),
                "--log-level",
                "error",
                "--db-filename",
                str(self.database),
                *SETTINGS,
            ],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            preexec_fn=_die_with_parent,
        )
        deadline = time.monotonic() + START_SECONDS
        while not asyncio.run(self._answers()):
            if self.process.poll() is not None or time.monotonic() > deadline:
                tail = (self.folder / "temporal.log").read_text(errors="replace")[-2000:]
                self.stop()
                raise RuntimeError(f"the Temporal server did not start: {tail}")
            time.sleep(0.05)

    async def _answers(self) -> bool:
        try:
            client = await self.client()
            return await client.service_client.check_health()
        except Exception:
            return False

    async def client(self) -> Client:
        """A client on the running event loop."""
        return await Client.connect(self.address, runtime=runtime(), identity="test")

    def kill(self) -> None:
        """SIGKILL, as a crash."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, and SIGKILL if that does not help."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def make_server(folder: Path) -> TemporalServer:
    """A server that is not started yet, its files in `folder`; skips the test when there is no program."""
    program = binary()
    if program is None or not program.exists():
        need("Temporal's server", "set REHOME_TEMPORAL or run `make setup`")
    return TemporalServer(program, folder, free_port())


@functools.cache
def _shared() -> TemporalServer:
    folder = Path(tempfile.mkdtemp(prefix="rehome-temporal-"))
    server = make_server(folder)
    server.start()

    def end() -> None:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    return server


@pytest.fixture(scope="session")
def temporal_server() -> TemporalServer:
    """The session's server."""
    return _shared()


@pytest.fixture
def own_temporal_server(tmp_path: Path) -> Iterator[TemporalServer]:
    """A server for one test alone, which may kill it."""
    server = make_server(tmp_path)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def task_queue() -> str:
    """A cluster's name, and so its queue's, that no other test uses."""
    return f"c-{uuid.uuid4().hex[:8]}"
