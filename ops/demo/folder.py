"""The demo's own data folder: recognised, emptied before a run, given its ports."""

from __future__ import annotations

import shutil
from pathlib import Path

from ops.stack import ports, state
from ops.stack.errors import OpsError
from ops.stack.stack import Stack

MARK = "rehome-demo"
NODES = 3
DIRS = 3
_UI_ABOVE = 1000


def prepare(data: Path) -> None:
    """Make the folder if need be. Raises `OpsError` where it holds something that is not the demo's."""
    try:
        data.mkdir(parents=True, exist_ok=True)
        if not (data / MARK).exists() and any(entry.name != state.LOCK for entry in data.iterdir()):
            raise OpsError(f"{data} holds something else than a demo; choose an empty folder with --data")
        (data / MARK).touch()
    except OSError as error:
        raise OpsError(f"cannot use the folder {data}: {error.strerror}; choose another with --data") from error


def clear(data: Path, stack: Stack) -> bool:
    """Stop what an earlier run left behind and remove its data; whether there was anything. Call with the lock held."""
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
    """Give the space back that the topic took; logs, export and report stay."""
    for node in range(1, nodes + 1):
        shutil.rmtree(data / f"node-{node}", ignore_errors=True)


def choose_ports() -> dict[str, int]:
    """Kafka's and Temporal's usual ports where they are free, else others: the demo need not be on the usual ones."""
    usual = range(9092, 9092 + NODES)
    kafka = 9092 if all(ports.is_free(port) for port in usual) else ports.free_block(NODES, 19092)
    for temporal in range(7233, 7233 + 500):
        if ports.is_free(temporal) and ports.is_free(temporal + _UI_ABOVE):
            return {"port": kafka, "temporal_port": temporal}
    raise OpsError("no free port for the Temporal server between 7233 and 7733; end some listeners and try again")
