"""Readiness checks of the stack's processes."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime

from ops.kafka.brokers import Registered
from ops.stack import clients, ports, processes
from ops.stack.layout import CONTROLLER, HISTORY, HOST, NAMESPACE, ORCHESTRATOR, TEMPORAL, ProcessSpec, StackSpec
from ops.stack.state import ProcessRecord
from storage_node.wire.client import private_client

#: Seconds within which a process must be ready. A node may have to recover its logs.
READY_SECONDS = {TEMPORAL: 60.0, CONTROLLER: 60.0, ORCHESTRATOR: 60.0, HISTORY: 60.0}
NODE_READY_SECONDS = 120.0

RETENTION = "720h"  # thirty days of histories


def wait_ready(spec: StackSpec, process: ProcessSpec, record: ProcessRecord, binary: str) -> None:
    """Wait until the process works. Raises `StartFailed` with its last log lines if it exits, or after a timeout."""
    check = _check(spec, process, record, binary)
    seconds = READY_SECONDS.get(process.name, NODE_READY_SECONDS)
    until = time.monotonic() + seconds
    pause = 0.05
    while not check():
        if processes.alive(record) is None:
            raise processes.StartFailed(f"{process.name} exited during its start; {processes.last_words(process.log)}")
        if time.monotonic() > until:
            raise processes.StartFailed(
                f"{process.name} was not ready within {seconds:.0f} s; {processes.last_words(process.log)}"
            )
        time.sleep(pause)
        pause = min(pause * 1.5, 0.5)


def ready(spec: StackSpec, process: ProcessSpec) -> bool:
    """Return whether the process listens, for `status`; a running process without a port is always ready."""
    if process.name == TEMPORAL:
        return ports.accepts(spec.temporal_port)
    if process.name in clients.SERVICES:
        return True
    return ports.accepts(int(process.addresses["kafka"].rpartition(":")[2]))


def _check(spec: StackSpec, process: ProcessSpec, record: ProcessRecord, binary: str) -> Callable[[], bool]:
    if process.name == TEMPORAL:
        return lambda: ports.accepts(spec.temporal_port) and temporal_works(spec.temporal_address, binary)
    if process.name == CONTROLLER:
        return lambda: controller_works(spec.temporal_address, spec.cluster, binary)
    if process.name in clients.SERVICES:
        file = spec.state_file(process.name)
        return lambda: bool(clients.of_file(file, record.pid, datetime.now(UTC))["connected"])
    port = int(process.addresses["kafka"].rpartition(":")[2])
    if spec.apache_kafka:
        listed, (node,) = (
            Registered(process.addresses["kafka"]),
            (n for n in spec.node_ids if spec.node_port(n) == port),
        )
        return lambda: ports.accepts(port) and node in listed.read()
    return lambda: ports.accepts(port) and registered(port)


def _temporal(address: str, binary: str, *arguments: str) -> str | None:
    command = [binary, *arguments, "--address", address, "--output", "json"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=15, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def temporal_works(address: str, binary: str) -> bool:
    """Return whether the server accepts the retention of `RETENTION`; the dev server's default is a day."""
    arguments = ("operator", "namespace", "update", "--namespace", NAMESPACE, "--retention", RETENTION)
    return _temporal(address, binary, *arguments) is not None


def controller_works(address: str, cluster: str, binary: str) -> bool:
    """Return whether the `Cluster` run is open and responds to a query, which needs a working worker."""
    arguments = ("workflow", "query", "--namespace", NAMESPACE, "--workflow-id", cluster, "--type", "describe")
    return _temporal(address, binary, *arguments) is not None


def registered(port: int, host: str = HOST) -> bool:
    """Return whether the node responds and has metadata from a controller, also from before its last stop."""
    try:
        status = private_client.call(host, port, "status", timeout=2)
    except (OSError, ValueError, KeyError, private_client.PrivateCallFailed):
        return False
    return int(status["generation"]) > 0
