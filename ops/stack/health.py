"""Is a process ready? Asked until a deadline, and only as long as the process lives."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

from ops.stack import ports, processes
from ops.stack.layout import CONTROLLER, HOST, NAMESPACE, TEMPORAL, ProcessSpec, StackSpec
from ops.stack.state import ProcessRecord
from storage_node.protocol import private_client

#: Seconds that a process may take until it is ready. A node may have logs to recover.
READY_SECONDS = {TEMPORAL: 60.0, CONTROLLER: 60.0}
NODE_READY_SECONDS = 120.0

RETENTION = "720h"  # thirty days of histories


def wait_ready(spec: StackSpec, process: ProcessSpec, record: ProcessRecord, binary: str) -> None:
    """Wait until the process does its work; raises `StartFailed` with its last words when it does not."""
    check = _check(spec, process, binary)
    seconds = READY_SECONDS.get(process.name, NODE_READY_SECONDS)
    until = time.monotonic() + seconds
    pause = 0.05
    while not check():
        if processes.alive(record) is None:
            raise processes.StartFailed(f"{process.name} ended while it started; {processes.last_words(process.log)}")
        if time.monotonic() > until:
            raise processes.StartFailed(
                f"{process.name} was not ready after {seconds:.0f} s; {processes.last_words(process.log)}"
            )
        time.sleep(pause)
        pause = min(pause * 1.5, 0.5)


def ready(spec: StackSpec, process: ProcessSpec) -> bool:
    """A quick look, for `status`: does it listen? A controller has no port, its process is all there is to see."""
    if process.name == TEMPORAL:
        return ports.answers(spec.temporal_port)
    if process.name == CONTROLLER:
        return True
    return ports.answers(int(process.addresses["kafka"].rpartition(":")[2]))


def _check(spec: StackSpec, process: ProcessSpec, binary: str) -> Callable[[], bool]:
    if process.name == TEMPORAL:
        return lambda: ports.answers(spec.temporal_port) and temporal_works(spec.temporal_address, binary)
    if process.name == CONTROLLER:
        return lambda: controller_works(spec.temporal_address, spec.cluster, binary)
    port = int(process.addresses["kafka"].rpartition(":")[2])
    return lambda: ports.answers(port) and registered(port)


def _temporal(address: str, binary: str, *arguments: str) -> str | None:
    command = [binary, *arguments, "--address", address, "--output", "json"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=15, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout if answer.returncode == 0 else None


def temporal_works(address: str, binary: str) -> bool:
    """The server works when it takes this; the dev server would keep closed runs for a day only."""
    arguments = ("operator", "namespace", "update", "--namespace", NAMESPACE, "--retention", RETENTION)
    return _temporal(address, binary, *arguments) is not None


def controller_works(address: str, cluster: str, binary: str) -> bool:
    """Whether the owner of the metadata is there: its run is open and answers a query, which takes a working worker."""
    arguments = ("workflow", "query", "--namespace", NAMESPACE, "--workflow-id", cluster, "--type", "describe")
    return _temporal(address, binary, *arguments) is not None


def registered(port: int, host: str = HOST) -> bool:
    """Whether the node answers and has heard from a controller, now or before it was last stopped."""
    try:
        answer = private_client.call(host, port, "status", timeout=2)
    except (OSError, ValueError, KeyError, private_client.PrivateCallFailed):
        return False
    return int(answer["generation"]) > 0
