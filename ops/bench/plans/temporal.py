"""A Temporal server of a benchmark's own."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from ops.stack import ports, temporal_server
from ops.stack.health import temporal_works
from ops.stack.layout import temporal_command

SERVER_SECONDS = 90.0


@contextlib.contextmanager
def temporal(folder: Path) -> Iterator[str]:
    """Run a server with its database in a folder; yield its address. Raises RuntimeError if it does not start."""
    binary = temporal_server.find()
    if binary is None:
        raise RuntimeError("there is no Temporal server; python -m ops.stack.temporal_server provides one")
    port = ports.some_block(2)
    address = f"127.0.0.1:{port}"
    command = temporal_command(binary, "127.0.0.1", port, port + 1, folder / "temporal.db")
    with (folder / "temporal.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + SERVER_SECONDS
        while not temporal_works(address, binary):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the Temporal server did not start")
            time.sleep(0.5)
        yield address
    finally:
        process.kill()
        process.wait()
