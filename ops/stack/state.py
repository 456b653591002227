"""stack.json: what a stack is and which processes it started, and the folder's lock."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ops.stack.errors import OpsError
from ops.stack.layout import StackSpec

STATE = "stack.json"
LOCK = ".lock"


class StackLocked(OpsError):
    """Another `stack up` looks after this folder."""


class NoStack(OpsError):
    """The folder holds no stack."""


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """A process that was started: its pid is only good together with its creation time (seconds since the epoch)."""

    pid: int
    created: float


@dataclass(frozen=True, slots=True)
class StackState:
    """The stack and its processes by name, as written in stack.json."""

    spec: StackSpec
    temporal_binary: str = ""
    records: dict[str, ProcessRecord] = field(default_factory=dict)

    def with_record(self, name: str, record: ProcessRecord | None) -> StackState:
        """This state with one process noted, or (None) forgotten."""
        records = {key: value for key, value in self.records.items() if key != name}
        return replace(self, records=records | ({name: record} if record else {}))


def to_json(state: StackState) -> dict[str, Any]:
    spec = state.spec
    return {
        "version": 1,
        "data": str(spec.data),
        "cluster": spec.cluster,
        "nodes": spec.nodes,
        "dirs": spec.dirs,
        "port": spec.port,
        "temporal_port": spec.temporal_port,
        "temporal_binary": state.temporal_binary,
        "processes": {name: {"pid": r.pid, "created": r.created} for name, r in sorted(state.records.items())},
    }


def from_json(raw: dict[str, Any], data: Path) -> StackState:
    """Raises KeyError, TypeError or ValueError for anything that `to_json` would not have written."""
    if raw["version"] != 1:
        raise ValueError(f"version {raw['version']}")
    spec = StackSpec(
        data=data,
        nodes=int(raw["nodes"]),
        dirs=int(raw["dirs"]),
        port=int(raw["port"]),
        temporal_port=int(raw["temporal_port"]),
        cluster=str(raw["cluster"]),
    )
    records = {
        str(name): ProcessRecord(int(record["pid"]), float(record["created"]))
        for name, record in dict(raw["processes"]).items()
    }
    return StackState(spec, str(raw["temporal_binary"]), records)


def load(data: Path) -> StackState | None:
    """The stack of a folder, or None where there is none."""
    path = data / STATE
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    except (NotADirectoryError, PermissionError, IsADirectoryError) as error:
        raise OpsError(f"cannot read the stack's state {path}: {error.strerror}; choose another --data") from error
    try:
        return from_json(json.loads(text), data)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise OpsError(
            f"the stack's state {path} is not readable ({type(error).__name__}: {error}); "
            "remove the file after making sure that no process of the stack runs"
        ) from error


def require(data: Path) -> StackState:
    """The stack of a folder; raises `NoStack` where there is none."""
    state = load(data)
    if state is None:
        raise NoStack(f"there is no stack in {data}; start one with: rehome stack up --data {data}")
    return state


def save(state: StackState) -> None:
    """Write stack.json so that a reader sees the old or the new one, never half of it."""
    path = state.spec.data / STATE
    temporary = path.with_name(f"{STATE}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(to_json(state), indent=2) + "\n")
    temporary.replace(path)


@contextlib.contextmanager
def changing(data: Path) -> Iterator[None]:
    """A short exclusive section over stack.json: commands on one folder take turns."""
    with (data / ".state.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def owning(data: Path) -> Iterator[None]:
    """Hold the folder's lock, as `up` does for as long as it looks after the stack.

    Raises `StackLocked` at once when another process holds it.
    """
    with (data / LOCK).open("a+") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            handle.seek(0)
            owner = handle.read().strip()
            raise StackLocked(
                f"the stack in {data} is looked after by another `rehome stack up`"
                f"{' (pid ' + owner + ')' if owner else ''}; end that one, or choose another folder with --data"
            ) from error
        handle.seek(0)
        handle.truncate()
        handle.write(f"{os.getpid()}\n")
        handle.flush()
        # The file stays: removing it would let a third process lock another inode of the same name.
        yield
