"""The demo's data folder: its mark, its cleanup before a run, its ports."""

from __future__ import annotations

import shutil
from pathlib import Path

from ops.cli import output
from ops.stack import ports, state
from ops.stack.errors import OpsError
from ops.stack.layout import broker_name, node_name
from ops.stack.stack import Stack

MARK = "rehome-demo"
NODES = 3
DIRS = 3
#: Bytes that must be free: a run took 640 MB at its peak (460 MB on Apache Kafka).
NEEDED = 1_000_000_000
_UI_ABOVE = 1000


def prepare(data: Path) -> None:
    """Create the folder if necessary. Raises `OpsError` if it contains files that are not the demo's, and if its disk
    is too full.
    """
    try:
        data.mkdir(parents=True, exist_ok=True)
        if not (data / MARK).exists() and any(entry.name != state.LOCK for entry in data.iterdir()):
            raise OpsError(f"{data} contains files that are not a demo's; choose an empty folder with --data")
        (data / MARK).touch()
        free = shutil.disk_usage(data).free
        if free < NEEDED:
            raise OpsError(
                f"the disk of {data} has {output.size(free)} free, and the run needs {output.size(NEEDED)}; free some "
                "space, or choose another folder with --data"
            )
    except OSError as error:
        raise OpsError(f"cannot use the folder {data}: {error.strerror}; choose another with --data") from error


def clear(data: Path, stack: Stack) -> bool:
    """Stop an earlier run's processes and remove its data; return whether there was any. Call with the lock held."""
    left = bool(stack.down())
    for entry in data.iterdir():
        if entry.name in (MARK, state.LOCK):
            continue
        left = True
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
    return left


def remove_bulk(data: Path, nodes: int) -> None:
    """Remove the nodes' data; keep logs, export and report."""
    for node in range(1, nodes + 1):
        for name in (node_name(node), broker_name(node)):
            shutil.rmtree(data / name, ignore_errors=True)


def choose_ports(each: int = 1) -> dict[str, int]:
    """Return Kafka's and Temporal's default ports if they are free, else others; `each` node takes so many."""
    usual = range(9092, 9092 + each * NODES)
    kafka = 9092 if all(ports.is_free(port) for port in usual) else ports.free_block(each * NODES, 19092)
    for temporal in range(7233, 7233 + 500):
        if ports.is_free(temporal) and ports.is_free(temporal + _UI_ABOVE):
            return {"port": kafka, "temporal_port": temporal}
    raise OpsError("no port for the Temporal server between 7233 and 7733 is free; stop some listeners and try again")
